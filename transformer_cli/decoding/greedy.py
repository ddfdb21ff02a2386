"""Greedy search: the likeliest token, again and again, and never a look back.

B sentences, S source length, W paths, T tokens so far, V target vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_cli.decoding.candidates import forbidden, likeliest, refuse_nan, worth_removing
from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import Symbols
from transformer_cli.decoding.stepper import S, Stepper

Choose = Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]
"""(logits_BWV, forbidden_BWV, rows_B) to the log-probability of each path's next token, fp64 (B, W), and its id (B, W),
both on the CPU. -inf: no token is possible; NaN: the logits are no numbers. Called once for each step."""


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

    def choose(logits_BWV: Tensor, forbidden_BWV: Tensor | None, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        logp_BW1, tokens_BW1 = likeliest(logits_BWV, symbols, 1, forbidden_BWV)
        return logp_BW1.squeeze(2), tokens_BW1.squeeze(2)

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
    done_BW = torch.zeros(len(limits), n_paths, dtype=torch.bool)
    tokens_BW = torch.full((len(limits), n_paths), symbols.bos)
    state = stepper.start(source_BS, source_lengths_B)
    if n_paths > 1:
        state.reorder(torch.zeros_like(tokens_BW))
    while not done_BW.all():
        logits_BWV = stepper.step(tokens_BW.to(source_BS.device), state)
        forbidden_BWV = forbidden(constraints, logits_BWV, prefixes_BWT, rows_B)
        logp_BW, tokens_BW = choose(logits_BWV, forbidden_BWV, rows_B)
        logp_BW.masked_fill_(done_BW, 0)
        refuse_nan(logp_BW, rows_B)
        # A hypothesis ends with the end mark; at its limit, or where no token is possible, it is cut.
        cut_BW = (logp_BW == -torch.inf) | ((tokens_BW != symbols.eos) & (prefixes_BWT.size(2) >= limits_B[:, None]))
        totals_BW = torch.where(cut_BW, totals_BW, totals_BW + logp_BW)
        for b, w in ((cut_BW | (tokens_BW == symbols.eos)) & ~done_BW).nonzero().tolist():
            done_BW[b, w] = True
            ids = tuple(prefixes_BWT[b, w].tolist())
            found[int(rows_B[b])][w] = Hypothesis(ids, float(totals_BW[b, w]), bool(cut_BW[b, w]))
        prefixes_BWT = torch.cat((prefixes_BWT, tokens_BW[:, :, None]), dim=2)
        if worth_removing(done_B := done_BW.all(1)):
            stay = (~done_B).nonzero().flatten()
            rows_B, limits_B, done_BW, tokens_BW = rows_B[stay], limits_B[stay], done_BW[stay], tokens_BW[stay]
            totals_BW, prefixes_BWT = totals_BW[stay], prefixes_BWT[stay]
            state.keep(stay)
    return [[paths[w] for w in range(n_paths)] for paths in found]
