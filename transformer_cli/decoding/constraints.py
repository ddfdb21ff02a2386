"""What a translation must not contain, or must begin with: each constraint says which tokens may not come next.

They never see a probability: what is forbidden cannot be chosen, and all else keeps the probability that the model
gives it. So a translation's score is the same however it was found, but for a shortlist. A search without constraints
asks for nothing.

B sentences, W beams, T tokens so far, V target vocabulary, N windows, n of their tokens, P longest prefix
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Constraint(Protocol):
    """Which tokens may not come next. What that depends on is found out on the CPU: no device is waited for."""

    def forbid(self, forbidden_BWV: Tensor, prefixes_BWT: Tensor, rows_B: Tensor) -> None:
        """Mark tokens as forbidden, or as allowed again, in place.

        prefixes_BWT: what each beam has written, on the CPU. rows_B: which sentences of the whole batch these are.
        """


class MinLength:
    """No end mark before a sentence's least number of pieces."""

    def __init__(self, least: Sequence[int], *, eos: int) -> None:
        self.least_B = torch.tensor(least)
        self.eos = eos

    def forbid(self, forbidden_BWV: Tensor, prefixes_BWT: Tensor, rows_B: Tensor) -> None:
        too_short_B = prefixes_BWT.size(2) < self.least_B[rows_B]
        forbidden_BWV[:, :, self.eos] |= too_short_B[:, None].to(forbidden_BWV.device)


class NoRepeat:
    """No n tokens in a row that the hypothesis has already."""

    def __init__(self, n: int) -> None:
        self.n = n

    def forbid(self, forbidden_BWV: Tensor, prefixes_BWT: Tensor, rows_B: Tensor) -> None:
        T = prefixes_BWT.size(2)
        if self.n > T:
            return
        windows_BWNn = prefixes_BWT.unfold(2, self.n, 1)
        begun_BWn = prefixes_BWT[:, :, T - self.n + 1 :]
        repeats_BWN = (windows_BWNn[..., :-1] == begun_BWn[:, :, None]).all(-1)
        b, w, window = repeats_BWN.nonzero(as_tuple=True)
        repeated = (b, w, windows_BWNn[b, w, window, -1])
        forbidden_BWV[tuple(index.to(forbidden_BWV.device) for index in repeated)] = True


class ForcedPrefix:
    """The first tokens of each sentence are given, whatever else is forbidden."""

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        self.tokens_BP = torch.full((len(prefixes), max(map(len, prefixes))), -1)
        for row, prefix in zip(self.tokens_BP, prefixes, strict=True):
            row[: len(prefix)] = torch.as_tensor(prefix)

    def forbid(self, forbidden_BWV: Tensor, prefixes_BWT: Tensor, rows_B: Tensor) -> None:
        T, P = prefixes_BWT.size(2), self.tokens_BP.size(1)
        if T >= P:
            return
        tokens_B = self.tokens_BP[rows_B, T]
        forced = (tokens_B >= 0).nonzero().flatten()
        tokens = tokens_B[forced].to(forbidden_BWV.device)
        forced = forced.to(forbidden_BWV.device)
        forbidden_BWV[forced] = True
        forbidden_BWV[forced, :, tokens] = False
