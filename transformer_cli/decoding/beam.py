"""Beam search: the W best hypotheses of each sentence, side by side.

B sentences, S source length, W places for beams, R beams of all sentences, K candidates per beam, N candidates per
sentence, T tokens so far, V target vocabulary, X any candidates
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_cli.decoding.candidates import forbidden, largest, likeliest, placed, worth_removing
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
        logits_RV = stepper.step(beams.tokens_BW[beams.taken_BW].to(source_BS.device), state)
        forbidden_RV = forbidden(constraints, logits_RV, beams.prefixes_BWT, beams.rows_B, beams.taken_BW)
        parents_BW = beams.extend(*likeliest(logits_RV, symbols, beams.width, forbidden_RV, made=made_of(state)))
        if worth_removing(beams.done_B):
            stay = (~beams.done_B).nonzero().flatten()
            beams.keep(stay)
            state.keep(stay)
            parents_BW = parents_BW[stay]
        state.reorder(parents_BW)
    return beams.best()


class _Beams:
    """The open hypotheses of all sentences, and what became of the others.

    A beam whose total is -inf is empty. Everything here is small and lies on the CPU.
    """

    def __init__(
        self, limits: Sequence[int], symbols: Symbols, *, beam_size: int, penalty: LengthPenalty, n_best: int
    ) -> None:
        B = len(limits)
        self.symbols, self.penalty, self.n_best = symbols, penalty, n_best
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.rows_B = torch.arange(B)
        self.done_B = torch.zeros(B, dtype=torch.bool)
        self.limits_B = torch.as_tensor(limits)
        self.slots_B = torch.full((B,), beam_size)
        self.width = beam_size
        self.to_beat_B = torch.full((B,), -torch.inf, dtype=torch.float64)
        self.tokens_BW = torch.full((B, 1), symbols.bos)
        self.totals_BW = torch.zeros(B, 1, dtype=torch.float64)
        self.prefixes_BWT = torch.empty(B, 1, 0, dtype=torch.int64)
        self.last_divisors_B = torch.tensor([penalty(limit + 1) for limit in limits], dtype=torch.float64)

    @property
    def taken_BW(self) -> Tensor:
        """Where there are beams."""
        return self.totals_BW > -torch.inf

    def extend(self, logp_RK: Tensor, ids_RK: Tensor) -> Tensor:
        """Give each beam its next token; returns the places of their parents, -1 where a place is empty."""
        taken_BW = self.taken_BW
        logp_BWK, ids_BWK = placed(logp_RK, taken_BW, -torch.inf), placed(ids_RK, taken_BW, 0)
        _refuse_nan(logp_BWK, self.rows_B)
        candidates_BN = (self.totals_BW[:, :, None] + logp_BWK).flatten(1)
        totals_BW, index_BW = largest(candidates_BN, min(self.width, candidates_BN.size(1)))
        parents_BW = index_BW // logp_BWK.size(2)
        tokens_BW = ids_BWK.flatten(1).gather(1, index_BW)
        totals_BW.masked_fill_(torch.arange(totals_BW.size(1)) >= self.slots_B[:, None], -torch.inf)
        ended_BW = (tokens_BW == self.symbols.eos) & (totals_BW > -torch.inf)
        if any_ended := bool(ended_BW.any()):
            self._record(ended_BW, parents_BW, totals_BW)
            totals_BW.masked_fill_(ended_BW, -torch.inf)
        done_B = self._decided(totals_BW) & ~self.done_B
        if any_done := bool(done_B.any()):
            self._close(done_B)
            totals_BW[done_B] = -torch.inf
        if any_ended or any_done:  # open beams move to the front, and the width shrinks to what is needed
            self.width = max(int(self.slots_B.max()), 1)
            order = (totals_BW == -torch.inf).int().argsort(dim=1, stable=True)[:, : self.width]
            totals_BW, parents_BW, tokens_BW = (x.gather(1, order) for x in (totals_BW, parents_BW, tokens_BW))
        prefixes_BWT = self.prefixes_BWT.gather(1, parents_BW[:, :, None].expand(-1, -1, self.prefixes_BWT.size(2)))
        self.prefixes_BWT = torch.cat((prefixes_BWT, tokens_BW[:, :, None]), dim=2)
        self.totals_BW, self.tokens_BW = totals_BW, tokens_BW
        return parents_BW.masked_fill_(~self.taken_BW, -1)

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        per_sentence = ("rows_B", "done_B", "limits_B", "last_divisors_B", "slots_B", "to_beat_B")
        for name in (*per_sentence, "tokens_BW", "totals_BW", "prefixes_BWT"):
            setattr(self, name, getattr(self, name)[sentences])

    def best(self) -> list[list[Hypothesis]]:
        """The n_best of each sentence, in the order in which the sentences were given."""
        return [self._ranked(found)[: self.n_best] for found in self.found]

    def _record(self, ended_BW: Tensor, parents_BW: Tensor, totals_BW: Tensor) -> None:
        """Note the hypotheses that have just ended; their slots are used up."""
        for b, w in ended_BW.nonzero().tolist():
            found = self.found[int(self.rows_B[b])]
            ids = self.prefixes_BWT[b, parents_BW[b, w]].tolist()
            found.append(Hypothesis(tuple(ids), float(totals_BW[b, w])))
            if len(found) >= self.n_best:
                self.to_beat_B[b] = self._ranked(found)[self.n_best - 1].score(self.penalty)
        self.slots_B -= ended_BW.sum(1)

    def _decided(self, totals_BW: Tensor) -> Tensor:
        """Which sentences are over: at their limit, or with no open hypothesis that can still be among the best.

        An open hypothesis has at most its total, and ends at the next token at the earliest and at the limit at the
        latest; the penalty is monotonic, so the larger of the two divisors bounds its score for either sign of its
        exponent.
        """
        length = self.prefixes_BWT.size(2) + 1
        bound_B = totals_BW.amax(1) / self.last_divisors_B.clamp(min=self.penalty(length + 1))
        return (length > self.limits_B) | (bound_B <= self.to_beat_B)

    def _close(self, done_B: Tensor) -> None:
        """End sentences; where too few hypotheses ended by themselves, the open ones are cut before this token."""
        self.done_B |= done_B
        self.slots_B[done_B] = 0
        for b in done_B.nonzero().flatten().tolist():
            found = self.found[int(self.rows_B[b])]
            if len(found) < self.n_best:
                ended = {hypothesis.ids for hypothesis in found}
                for total, ids in zip(self.totals_BW[b].tolist(), self.prefixes_BWT[b].tolist(), strict=True):
                    if total > -torch.inf and tuple(ids) not in ended:
                        found.append(Hypothesis(tuple(ids), total, truncated=True))

    def _ranked(self, found: list[Hypothesis]) -> list[Hypothesis]:
        return sorted(found, key=lambda hypothesis: hypothesis.rank(self.penalty))


def _refuse_nan(logp_BX: Tensor, rows_B: Tensor) -> None:
    """Raise NotFinite, with the number in `rows_B`, for the first sentence that has a NaN."""
    if math.isnan(float(logp_BX.sum())):  # none is inf, so no other sum is NaN
        raise NotFinite(int(rows_B[logp_BX.isnan().flatten(1).any(1)][0]))
