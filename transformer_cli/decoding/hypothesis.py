"""What a search finds, and what it is ranked by."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_cli.config.decoding import PenaltyFamily


@dataclass(frozen=True)
class LengthPenalty:
    """Divisor that lets long hypotheses compete with short ones; it rises with the length, or falls for alpha < 0.

    alpha: 0 disables; 1 with `power` gives the mean per token. family: power is length^alpha, gnmt is
    ((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14).
    """

    alpha: float = 1.0
    family: PenaltyFamily = "power"

    def __call__(self, length: int) -> float:
        """length: generated tokens, end mark counted; one that has none counts as one."""
        length = max(length, 1)
        return float(length if self.family == "power" else (5 + length) / 6) ** self.alpha


PER_TOKEN = LengthPenalty()
"""Hypotheses are ranked by their mean log-probability."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation, in ids.

    ids: without marks. log_probability: natural logarithm, under the model's own softmax over its whole vocabulary, or
    over the shortlist where there is one, the end mark counted if there is one. truncated: it did not end by itself but
    at the limit.
    """

    ids: tuple[int, ...]
    log_probability: float
    truncated: bool = False
    back: float = 0.0
    """What a model that translates back adds to the score (see rerank.py)."""

    @property
    def length(self) -> int:
        """Generated tokens, end mark counted."""
        return len(self.ids) + (not self.truncated)

    def score(self, penalty: LengthPenalty) -> float:
        """What hypotheses of one sentence are ranked by."""
        return self.log_probability / penalty(self.length) + self.back

    def rank(self, penalty: LengthPenalty) -> tuple[bool, float]:
        """Sorts the best first: whatever ended by itself comes before whatever did not."""
        return self.truncated, -self.score(penalty)
