"""Greedy search: the likeliest token, again and again, and never a look back.

B sentences, S source length, W paths of each, R paths that go on, T tokens so far, V target vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import compress

import torch
from torch import Tensor

from transformer_cli.decoding.candidates import Made, forbidden, likeliest, placed, worth_removing
from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import NotFinite, Symbols
from transformer_cli.decoding.stepper import S, Stepper, made_of

Choose = Callable[[Tensor, Made, Tensor | None, Sequence[tuple[int, int]]], tuple[Tensor, Tensor]]
"""(logits_RV, how they were made, forbidden_RV, the sentence and the path of each) to the
log-probability of each path's next token, fp64 (R), and its id (R), both on the CPU. -inf: no token is possible; NaN:
the logits are no numbers. Called once for each step."""


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
        logits_RV: Tensor, made: Made, forbidden_RV: Tensor | None, paths_R: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        logp_R1, tokens_R1 = likeliest(logits_RV, symbols, 1, forbidden_RV, made=made)
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
    paths_BW = [[_Path(sentence, place) for place in range(n_paths)] for sentence in range(len(limits))]
    found, open_BW = paths_BW, torch.ones(len(limits), n_paths, dtype=torch.bool)
    rows_B, prefixes_BWT = torch.arange(len(limits)), torch.empty(len(limits), n_paths, 0, dtype=torch.int64)
    going, tokens_R = [path for paths in paths_BW for path in paths], torch.full((open_BW.numel(),), symbols.bos)
    state = stepper.start(source_BS, source_lengths_B)
    if n_paths > 1:
        state.reorder(torch.zeros(open_BW.shape, dtype=torch.int64))
    while going:
        logits_RV = stepper.step(tokens_R.to(source_BS.device), state)
        forbidden_RV = forbidden(constraints, logits_RV, prefixes_BWT, rows_B, open_BW)
        paths_R = [(path.sentence, path.place) for path in going]
        logp_R, tokens_R = choose(logits_RV, made_of(state), forbidden_RV, paths_R)
        for path, logp, token in zip(going, logp_R.tolist(), tokens_R.tolist(), strict=True):
            path.extend(token, logp, symbols.eos, limits[path.sentence])
        if constraints:  # nobody else asks for what was written
            prefixes_BWT = torch.cat((prefixes_BWT, placed(tokens_R, open_BW, 0)[:, :, None]), dim=2)
        goes_on = [path.found is None for path in going]
        if all(goes_on):
            continue
        if not any(goes_on):
            break
        going, tokens_R = list(compress(going, goes_on)), tokens_R[torch.tensor(goes_on)]
        open_BW = torch.tensor([[path.found is None for path in paths] for paths in paths_BW])
        if worth_removing(done_B := ~open_BW.any(1)):
            stay = (~done_B).nonzero().flatten()
            paths_BW, open_BW = [paths_BW[row] for row in stay.tolist()], open_BW[stay]
            rows_B, prefixes_BWT = rows_B[stay], prefixes_BWT[stay]
            state.keep(stay)
        state.reorder(torch.arange(n_paths).expand_as(open_BW).masked_fill(~open_BW, -1))
    return [[path.hypothesis() for path in paths] for paths in found]


class _Path:
    """A hypothesis that is written: for which sentence, and where among those for it; what was found, at its end."""

    def __init__(self, sentence: int, place: int) -> None:
        self.sentence, self.place = sentence, place
        self.ids: list[int] = []
        self.total = 0.0
        self.found: Hypothesis | None = None

    def hypothesis(self) -> Hypothesis:
        assert self.found is not None, "a path that has not ended"
        return self.found

    def extend(self, token: int, logp: float, eos: int, limit: int) -> None:
        """It ends with the end mark; at its limit of pieces, or where no token is possible, it is cut."""
        if math.isnan(logp):
            raise NotFinite(self.sentence)
        if logp == -math.inf or (token != eos and len(self.ids) >= limit):
            self.found = Hypothesis(tuple(self.ids), self.total, truncated=True)
            return
        self.total += logp
        if token == eos:
            self.found = Hypothesis(tuple(self.ids), self.total)
        else:
            self.ids.append(token)
