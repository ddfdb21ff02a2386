"""Beam search: the W best hypotheses of each sentence, side by side.

B sentences, S source length, W places for beams, R beams of all sentences, K candidates per beam, N candidates per
sentence, T tokens so far, V target vocabulary, X any candidates
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_cli.decoding.candidates import forbidden, largest, likeliest, worth_removing
from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import NotFinite, Symbols
from transformer_cli.decoding.stepper import S, Stepper, made_of


def beam_search(
    stepper: Stepper[S],
    source_BS: Tensor,
    source_lengths_B: Tensor,
    *,
    limits: Sequence[int],
    symbols: Symbols,
    beam_size: int,
    penalty: LengthPenalty,
    n_best: int = 1,
    constraints: Sequence[Constraint] = (),
) -> list[list[Hypothesis]]:
    """The n_best hypotheses of each sentence, best first.

    A sentence has beam_size slots. At each step they go to its likeliest continuations; one that ends keeps its slot
    for good and waits for the others. The search of a sentence is over when all slots have ended, at its limit of
    pieces, or as soon as no open slot can reach the n_best any more, which changes nothing but the time it takes.
    limits: most pieces per sentence, end mark not counted. Raises NotFinite.
    """
    beams = _Beams(limits, symbols, beam_size=beam_size, penalty=penalty, n_best=n_best)
    state = stepper.start(source_BS, source_lengths_B)
    while not beams.done_B.all():
        tokens_R = torch.from_numpy(beams.tokens_BW[beams.taken_BW])
        logits_RV = stepper.step(tokens_R.to(source_BS.device), state)
        written = map(torch.from_numpy, (beams.prefixes_BWT, beams.rows_B, beams.taken_BW))
        forbidden_RV = forbidden(constraints, logits_RV, *written) if constraints else None
        # As many as ever: of rounded logits so many are computed again, whoever else has slots left.
        parents_BW = beams.extend(*likeliest(logits_RV, symbols, beam_size, forbidden_RV, made=made_of(state)))
        if worth_removing(beams.done_B):
            stay = np.flatnonzero(~beams.done_B)
            beams.keep(stay)
            state.keep(torch.from_numpy(stay))
            parents_BW = parents_BW[stay]
        state.reorder(torch.from_numpy(parents_BW))
    return beams.best()


Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)


class _Beams:
    """The open hypotheses of all sentences, and what became of the others.

    A beam whose total is -inf is empty. Everything here is small, and of NumPy, whose operations on so little take a
    fraction of the time of PyTorch's.
    """

    def __init__(
        self, limits: Sequence[int], symbols: Symbols, *, beam_size: int, penalty: LengthPenalty, n_best: int
    ) -> None:
        B = len(limits)
        self.symbols, self.penalty, self.n_best = symbols, penalty, n_best
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.rows_B = np.arange(B)
        self.done_B = np.zeros(B, dtype=bool)
        self.limits_B = np.asarray(limits)
        self.slots_B = np.full(B, beam_size)
        self.width = beam_size
        self.to_beat_B = np.full(B, -np.inf)
        self.tokens_BW = np.full((B, 1), symbols.bos)
        self.totals_BW = np.zeros((B, 1))
        self.taken_BW: Flags = np.ones((B, 1), dtype=bool)
        """Where there are beams."""
        self.prefixes_BWT = np.empty((B, 1, 0), dtype=np.int64)
        self.last_divisors_B = np.array([penalty(limit + 1) for limit in limits], dtype=np.float64)

    def extend(self, logp_RK: Tensor, ids_RK: Tensor) -> Ids:
        """Give each beam its next token; returns the places of their parents, -1 where a place is empty."""
        logp_BWK, ids_BWK = self._placed(logp_RK.numpy(), -np.inf), self._placed(ids_RK.numpy(), 0)
        _refuse_nan(logp_BWK, self.rows_B)
        candidates_BN = (self.totals_BW[:, :, None] + logp_BWK).reshape(len(self.rows_B), -1)
        n = min(self.width, candidates_BN.shape[1])
        totals_BW, index_BW = (x.numpy() for x in largest(torch.from_numpy(candidates_BN), n))
        parents_BW = index_BW // logp_BWK.shape[2]
        tokens_BW = np.take_along_axis(ids_BWK.reshape(candidates_BN.shape), index_BW, 1)
        totals_BW[np.arange(n) >= self.slots_B[:, None]] = -np.inf
        ended_BW = (tokens_BW == self.symbols.eos) & (totals_BW > -np.inf)
        if any_ended := bool(ended_BW.any()):
            self._record(ended_BW, parents_BW, totals_BW)
            totals_BW[ended_BW] = -np.inf
        done_B = self._decided(totals_BW) & ~self.done_B
        if any_done := bool(done_B.any()):
            self._close(done_B)
            totals_BW[done_B] = -np.inf
        if any_ended or any_done:  # open beams move to the front, and the width shrinks to what is needed
            self.width = max(int(self.slots_B.max()), 1)
            order = np.argsort(totals_BW == -np.inf, axis=1, kind="stable")[:, : self.width]
            totals_BW, parents_BW, tokens_BW = (
                np.take_along_axis(x, order, 1) for x in (totals_BW, parents_BW, tokens_BW)
            )
        prefixes_BWT = self.prefixes_BWT[np.arange(len(parents_BW))[:, None], parents_BW]
        self.prefixes_BWT = np.concatenate((prefixes_BWT, tokens_BW[:, :, None]), axis=2)
        self.totals_BW, self.tokens_BW, self.taken_BW = totals_BW, tokens_BW, totals_BW > -np.inf
        return np.where(self.taken_BW, parents_BW, -1)

    def keep(self, sentences: Ids) -> None:
        """Forget all sentences but these."""
        per_sentence = ("rows_B", "done_B", "limits_B", "last_divisors_B", "slots_B", "to_beat_B")
        for name in (*per_sentence, "tokens_BW", "totals_BW", "taken_BW", "prefixes_BWT"):
            setattr(self, name, getattr(self, name)[sentences])

    def best(self) -> list[list[Hypothesis]]:
        """The n_best of each sentence, in the order in which the sentences were given."""
        return [self._ranked(found)[: self.n_best] for found in self.found]

    def _placed(self, x_RK: npt.NDArray[T], fill: float) -> npt.NDArray[T]:
        """From beams to places (B, W, K), with `fill` where there is none."""
        shape = (*self.taken_BW.shape, x_RK.shape[1])
        if self.taken_BW.all():
            return x_RK.reshape(shape)
        x_BWK = np.full(shape, fill, dtype=x_RK.dtype)
        x_BWK[self.taken_BW] = x_RK
        return x_BWK

    def _record(self, ended_BW: Flags, parents_BW: Ids, totals_BW: Scores) -> None:
        """Note the hypotheses that have just ended; their slots are used up."""
        for b, w in np.argwhere(ended_BW).tolist():
            found = self.found[int(self.rows_B[b])]
            ids = self.prefixes_BWT[b, parents_BW[b, w]].tolist()
            found.append(Hypothesis(tuple(ids), float(totals_BW[b, w])))
            if len(found) >= self.n_best:
                self.to_beat_B[b] = self._ranked(found)[self.n_best - 1].score(self.penalty)
        self.slots_B -= ended_BW.sum(1)

    def _decided(self, totals_BW: Scores) -> Flags:
        """Which sentences are over: at their limit, or with no open hypothesis that can still be among the best.

        An open hypothesis has at most its total, and ends at the next token at the earliest and at the limit at the
        latest; the penalty is monotonic, so the larger of the two divisors bounds its score for either sign of its
        exponent.
        """
        length = self.prefixes_BWT.shape[2] + 1
        bound_B = totals_BW.max(1) / np.maximum(self.last_divisors_B, self.penalty(length + 1))
        decided: Flags = (length > self.limits_B) | (bound_B <= self.to_beat_B)
        return decided

    def _close(self, done_B: Flags) -> None:
        """End sentences; where too few hypotheses ended by themselves, the open ones are cut before this token."""
        self.done_B |= done_B
        self.slots_B[done_B] = 0
        for b in np.flatnonzero(done_B).tolist():
            found = self.found[int(self.rows_B[b])]
            if len(found) < self.n_best:
                ended = {hypothesis.ids for hypothesis in found}
                for total, ids in zip(self.totals_BW[b].tolist(), self.prefixes_BWT[b].tolist(), strict=True):
                    if total > -np.inf and tuple(ids) not in ended:
                        found.append(Hypothesis(tuple(ids), total, truncated=True))

    def _ranked(self, found: list[Hypothesis]) -> list[Hypothesis]:
        return sorted(found, key=lambda hypothesis: hypothesis.rank(self.penalty))


def _refuse_nan(logp_BWK: Scores, rows_B: Ids) -> None:
    """Raise NotFinite, with the number in `rows_B`, for the first sentence that has a NaN."""
    if math.isnan(logp_BWK.sum()):  # none is inf, but for -inf, so no other sum is NaN
        raise NotFinite(int(rows_B[np.isnan(logp_BWK).any((1, 2))][0]))
