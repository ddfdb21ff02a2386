"""Where two systems differ most, sentence by sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.metrics import count
from transformer_cli.evaluation.report import System, Text

JUDGED_BY = "chrf"


@dataclass(frozen=True)
class Pair:
    """A sentence that two systems translated. line: counted from 1. scores: chrF of each translation alone."""

    line: int
    source: str | None
    references: tuple[str, ...]
    translations: tuple[str, str]
    scores: tuple[float, float]

    @property
    def difference(self) -> float:
        return self.scores[1] - self.scores[0]


@dataclass(frozen=True)
class Contrast:
    """A system beside the baseline: in how many lines they wrote the same, and where one of them is better.

    better, worse: what the system does better or worse than the baseline, by the greatest difference, the earlier of
    equals first. n_better, n_worse: how many such lines there are in all.
    """

    n_lines: int
    n_same: int
    n_better: int
    n_worse: int
    better: tuple[Pair, ...]
    worse: tuple[Pair, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def contrast(baseline: System, system: System, text: Text, options: EvaluationConfig, *, n_shown: int) -> Contrast:
    """Of two systems that translated the same text."""
    counted = [count(JUDGED_BY, one.lines, text.references, options) for one in (baseline, system)]
    pairs = [
        Pair(
            line=line + 1,
            source=None if text.source is None else text.source[line],
            references=tuple(reference[line] for reference in text.references),
            translations=(before, after),
            scores=(counted[0].of([line]).value(), counted[1].of([line]).value()),
        )
        for line, (before, after) in enumerate(zip(baseline.lines, system.lines, strict=True))
        if before != after
    ]
    better = sorted((pair for pair in pairs if pair.difference > 0), key=lambda pair: -pair.difference)
    worse = sorted((pair for pair in pairs if pair.difference < 0), key=lambda pair: pair.difference)
    return Contrast(
        n_lines=len(system.lines),
        n_same=len(system.lines) - len(pairs),
        n_better=len(better),
        n_worse=len(worse),
        better=tuple(better[:n_shown]),
        worse=tuple(worse[:n_shown]),
    )
