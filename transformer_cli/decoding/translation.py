"""What comes out of a translator: a line's translations, and what they were made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SPLIT, REFUSED = "split", "refused"


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    score: log_probability divided by the length penalty; where a model that translates back ranks, and what that adds
    (see rerank.py). tokens: the pieces of text. truncated: it did not end by itself but at the longest length allowed.
    utility: of minimum Bayes risk, the mean score of this text against the other draws, 0 to 100; None where there was
    none.
    """

    text: str
    score: float
    log_probability: float
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    truncated: bool
    utility: float | None = field(default=None, kw_only=True)

    def as_json(self) -> dict[str, Any]:
        return {
            "translation": self.text,
            "score": self.score,
            "log_probability": self.log_probability,
            "tokens": list(self.tokens),
            "truncated": self.truncated,
            **({} if self.utility is None else {"utility": self.utility}),
        }


@dataclass(frozen=True)
class Part:
    """What went through the model at once: a line, or a part of one that was too long; ids without marks."""

    source: str
    source_ids: tuple[int, ...]
    ids: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True)
class Translation(Candidate):
    """The best translation of a line, or the first one drawn, and `n_best`: as many as were asked for, in that order,
    itself included; of minimum Bayes risk different texts, of which there may be fewer, and where CTranslate2's are cut
    at the limit of length different beginnings. Of a line in parts those behind the first may have a better score.

    flags: signs that something is wrong with it (see quality.py); `split`, where the line was translated in parts;
    `unsure`, where the model is less sure of it than usual (see doubt.py); `refused`, where the line was too long to be
    split. parts: of the best translation. alignment: pairs of a source word and a target word, counted from 0, where
    somebody asked.
    """

    n_best: tuple[Candidate, ...]
    flags: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    alignment: frozenset[tuple[int, int]] | None = None

    @property
    def is_of_nothing(self) -> bool:
        """Whether the line had no text, so that the model never saw it."""
        return not self.parts and REFUSED not in self.flags

    def as_json(self) -> dict[str, Any]:
        """What `tx translate --json` says, but for the source."""
        return {
            **super().as_json(),
            "flags": list(self.flags),
            **({} if self.alignment is None else {"alignment": sorted(self.alignment)}),
            "n_best": [one.as_json() for one in self.n_best],
        }


_NO_TEXT = Candidate(text="", score=0.0, log_probability=0.0, ids=(), tokens=(), truncated=False)
NOTHING = Translation(**vars(_NO_TEXT), n_best=(_NO_TEXT,))
"""The translation of a line without text; the model never sees it."""
TOO_LONG = Translation(**vars(_NO_TEXT), n_best=(_NO_TEXT,), flags=(REFUSED,))
"""The translation of a line that is too long and must not be split, or cannot be."""
