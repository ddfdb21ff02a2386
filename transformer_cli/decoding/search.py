"""What every search shares: which symbols there are, what a hypothesis is, which tokens are likeliest.

B sentences, W beams, R rows (beams of any sentence), V target vocabulary, K candidates per beam
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CACHED_BEAMS = 32


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation, in ids.

    ids: without marks. log_probability: natural logarithm, under the model's own softmax over its whole vocabulary,
    the end mark counted if there is one. truncated: it did not end by itself but at the limit.
    """

    ids: tuple[int, ...]
    log_probability: float
    truncated: bool = False

    @property
    def length(self) -> int:
        """Generated tokens, end mark counted."""
        return len(self.ids) + (not self.truncated)

    def score(self, alpha: float) -> float:
        """What hypotheses of one sentence are ranked by."""
        return self.log_probability / length_penalty(self.length, alpha)

    def rank(self, alpha: float) -> tuple[bool, float]:
        """Sorts the best first: whatever ended by itself comes before whatever did not."""
        return self.truncated, -self.score(alpha)


def length_penalty(length: int, alpha: float) -> float:
    """Divisor that lets long hypotheses compete with short ones: length^alpha, and 1 for an empty one.

    alpha: 0 disables, 1 gives the mean per token; below 0 favours short ones.
    """
    return float(max(length, 1) ** alpha)


@dataclass(frozen=True)
class Symbols:
    """The ids that mean something to a search; `banned` are never generated."""

    bos: int
    eos: int
    banned: tuple[int, ...]


class NotFinite(ArithmeticError):
    """The model gave no probabilities; `row` is the sentence's place in the batch."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the logits of sentence {row} of the batch are not finite")
        self.row = row


def likeliest(logits_BWV: Tensor, symbols: Symbols, n: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities and ids of the n likeliest tokens per beam, best first, both (B, W, K) on the CPU.

    Banned tokens keep their share of the probability but get no log-probability of their own (-inf), so that a
    sentence's score is what the model gives it however it was found. Sums are fp64, hence this dtype. Where logits
    are no numbers, the result is NaN.
    """
    B, W, _ = logits_BWV.shape
    # On a CPU, a few beams at a time stay in its caches: several times as fast as all of them in bf16.
    n_rows = CACHED_BEAMS if logits_BWV.device.type == "cpu" else B * W
    found = [_likeliest(rows, symbols, n) for rows in logits_BWV.flatten(0, 1).split(n_rows)]
    logp_BWK, ids_BWK = (torch.cat(parts).unflatten(0, (B, W)).cpu() for parts in zip(*found, strict=True))
    return logp_BWK.double(), ids_BWK


def _likeliest(logits_RV: Tensor, symbols: Symbols, n: int) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(logits_RV.dtype, torch.float32)
    logp_RV = logits_RV.to(dtype).log_softmax(-1)
    logp_RV[:, list(symbols.banned)] = -torch.inf
    return logp_RV.topk(min(n, logp_RV.size(-1)))


def refuse_nan(logp_BWK: Tensor, rows: Tensor) -> None:
    """Raise NotFinite, with the number in `rows`, for the first sentence that has a NaN."""
    if bool((bad := logp_BWK.isnan()).any()):
        raise NotFinite(int(rows[bad.flatten(1).any(1)][0]))


def worth_removing(done_B: Tensor) -> bool:
    """Whether copying what the open sentences need costs less than carrying the finished ones along."""
    return 0 < len(done_B) <= 8 * int(done_B.sum()) < 8 * len(done_B)
