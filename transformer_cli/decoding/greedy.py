"""Greedy search: the likeliest token, again and again, and never a look back.

B sentences, S source length, W paths of each, R paths that go on, T tokens so far, V target vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_cli.decoding.candidates import forbidden, likeliest, placed, refuse_nan, worth_removing
from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import Symbols
from transformer_cli.decoding.stepper import S, Stepper

Choose = Callable[[Tensor, Tensor | None, Sequence[tuple[int, int]]], tuple[Tensor, Tensor]]
"""(logits_RV, forbidden_RV, the sentence and the path of each) to the log-probability of each path's next token, fp64
(R), and its id (R), both on the CPU. -inf: no token is possible; NaN: the logits are no numbers. Called once for each
step."""


def greedy_search(
    stepper: Stepper[S],
    source_BS: Tensor,
    source_lengths_B: Tensor,
    *,
    limits: Sequence[int],
    symbols: Symbols,
    constraints: Sequence[Constraint] = (),
) -> list[Hypothesis]:
    """One hypothesis per sentence; what beam search finds with a single beam.

    limits: most pieces per sentence, end mark not counted. Raises NotFinite.
    """

    def choose(
        logits_RV: Tensor, forbidden_RV: Tensor | None, paths_R: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        logp_R1, tokens_R1 = likeliest(logits_RV, symbols, 1, forbidden_RV)
        return logp_R1.squeeze(1), tokens_R1.squeeze(1)

    found = follow(
        stepper,
        source_BS,
        source_lengths_B,
        limits=limits,
        symbols=symbols,
        constraints=constraints,
        choose=choose,
        n_paths=1,
    )
    return [path for [path] in found]


def follow(
    stepper: Stepper[S],
    source_BS: Tensor,
    source_lengths_B: Tensor,
    *,
    limits: Sequence[int],
    symbols: Symbols,
    constraints: Sequence[Constraint],
    choose: Choose,
    n_paths: int,
) -> list[list[Hypothesis]]:
    """n_paths hypotheses per sentence, none of which knows of the others: each goes on with the token chosen for it."""
    found: list[dict[int, Hypothesis]] = [{} for _ in limits]
    rows_B = torch.arange(len(limits))
    limits_B = torch.as_tensor(limits)
    totals_BW = torch.zeros(len(limits), n_paths, dtype=torch.float64)
    prefixes_BWT = torch.empty(len(limits), n_paths, 0, dtype=torch.int64)
    open_BW = torch.ones(len(limits), n_paths, dtype=torch.bool)
    tokens_BW = torch.full((len(limits), n_paths), symbols.bos)
    state = stepper.start(source_BS, source_lengths_B)
    if n_paths > 1:
        state.reorder(torch.zeros_like(tokens_BW))
    while open_BW.any():
        logits_RV = stepper.step(tokens_BW[open_BW].to(source_BS.device), state)
        forbidden_RV = forbidden(constraints, logits_RV, prefixes_BWT, rows_B, open_BW)
        paths_R = [(int(rows_B[b]), w) for b, w in open_BW.nonzero().tolist()]
        chosen = choose(logits_RV, forbidden_RV, paths_R)
        logp_BW, tokens_BW = (placed(one_R, open_BW, 0) for one_R in chosen)
        refuse_nan(logp_BW, rows_B)
        # A hypothesis ends with the end mark; at its limit, or where no token is possible, it is cut.
        cut_BW = (logp_BW == -torch.inf) | ((tokens_BW != symbols.eos) & (prefixes_BWT.size(2) >= limits_B[:, None]))
        totals_BW = torch.where(cut_BW, totals_BW, totals_BW + logp_BW)
        ended_BW = (cut_BW | (tokens_BW == symbols.eos)) & open_BW
        for b, w in ended_BW.nonzero().tolist():
            ids = tuple(prefixes_BWT[b, w].tolist())
            found[int(rows_B[b])][w] = Hypothesis(ids, float(totals_BW[b, w]), bool(cut_BW[b, w]))
        prefixes_BWT = torch.cat((prefixes_BWT, tokens_BW[:, :, None]), dim=2)
        open_BW &= ~ended_BW
        if worth_removing(done_B := ~open_BW.any(1)):
            stay = (~done_B).nonzero().flatten()
            rows_B, limits_B, open_BW, tokens_BW = rows_B[stay], limits_B[stay], open_BW[stay], tokens_BW[stay]
            totals_BW, prefixes_BWT = totals_BW[stay], prefixes_BWT[stay]
            state.keep(stay)
        if ended_BW.any():
            state.reorder(torch.arange(n_paths).expand_as(open_BW).masked_fill(~open_BW, -1))
    return [[paths[w] for w in range(n_paths)] for paths in found]
