"""Everything about one test: scores with their doubt, systems compared, slices, the worst sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.appearance import blank, warnings
from transformer_cli.evaluation.metrics import Counts, Score, count, measure
from transformer_cli.evaluation.significance import Difference, compare, with_intervals
from transformer_cli.evaluation.slices import slices
from transformer_cli.evaluation.words import WordCounts
from transformer_cli.writing import words

EXAMPLES = 5
"""Lines of a slice that are named."""
LEAST = 10
"""Lines below which resampling them only looks like an interval: a slice is given none, a whole test a warning."""
UNSEEN = 1 / 3
"""Share of words that training never saw from which a text may be in another language."""
WORST_BY = "chrf"


@dataclass(frozen=True)
class Text:
    """What systems translate. references: whole texts. counts: of the words in the text that was learned from. is_own:
    tx wrote the text itself, without capitals: how it looks is no news."""

    references: Sequence[Sequence[str]]
    source: Sequence[str] | None = None
    counts: WordCounts | None = None
    is_own: bool = False


@dataclass(frozen=True)
class System:
    """A translated text. flags: of each line, such as `looped`; None where nobody looked."""

    name: str
    lines: Sequence[str]
    flags: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class SliceScores:
    """A slice: how many lines it has, the first few of them, counted from 1, and its scores; few lines give these no
    interval.
    """

    name: str
    lines: int
    examples: tuple[int, ...]
    scores: list[Score]


@dataclass(frozen=True)
class Sentence:
    """A translated sentence. line: counted from 1. score: chrF of this sentence alone."""

    line: int
    score: float
    source: str | None
    references: list[str]
    translation: str

    def sides(self) -> Iterator[tuple[str, str]]:
        """What it consists of, each with what that is."""
        if self.source is not None:
            yield "source", self.source
        yield from (("reference", reference) for reference in self.references)
        yield "translation", self.translation


@dataclass(frozen=True)
class Report:
    """What there is to say about a system. differences: from the baseline, empty for the baseline itself."""

    name: str
    lines: int
    scores: list[Score]
    differences: list[Difference]
    slices: list[SliceScores]
    worst: list[Sentence]
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"set": fields.pop("name"), **fields}


def reports(systems: Sequence[System], text: Text, options: EvaluationConfig, *, n_worst: int) -> list[Report]:
    """One per system, the first of several being the baseline; DataError for texts of unequal length."""
    measured = [measure(system.lines, text.references, options, source=text.source) for system in systems]
    compared: list[list[Difference]] = []
    if len(systems) == 1:
        scores = [with_intervals(measured[0], options)]
    else:
        scores, compared = compare(measured, options)
    return [
        Report(
            name=system.name,
            lines=len(system.lines),
            scores=score,
            differences=difference,
            slices=_slices(system, one, text, options),
            worst=_worst(system, text, options, n_worst),
            warnings=[
                *blank(system.lines, text.references),
                *([] if text.is_own else [*warnings(system.lines, text.references, options), *_foreign(text)]),
                *_too_short(one, system.lines),
                *_too_few(systems[0].lines, system.lines),
            ],
        )
        for system, one, score, difference in zip(systems, measured, scores, [[], *compared], strict=True)
    ]


def _foreign(text: Text) -> list[str]:
    """What is hardly the text, or not even the language, that was learned: of Multi30k's test, 3 % of the German words
    are new to who has read its German training text, and 45 % of the English ones.
    """
    if text.counts is None:
        return []
    said = []
    for side, lines, known in (
        ("source", text.source or (), text.counts.source),
        ("reference", text.references[0], text.counts.target),
    ):
        found = words("\n".join(lines))
        unseen = sum(word not in known for word in found)
        if len(found) >= LEAST and unseen > UNSEEN * len(found):
            share = f"{100 * unseen / len(found):.0f} % of the {side}'s words were never seen in training"
            said.append(f"{share}: is this the language and the kind of text that was learned?")
    return said


def _too_short(measured: Sequence[Counts], lines: Sequence[str]) -> list[str]:
    """BLEU is a mean of the shares of one to four words in a row that are right: without any four it is 0."""
    for counts in measured:
        has_text = any(map(str.strip, lines))
        if counts.name == "BLEU" and has_text and not any(row[-1] for row in counts.rows):  # how many fours there are
            return ["BLEU is 0, since no translation has four words in a row; chrF tells short lines apart"]
    return []


def _too_few(baseline: Sequence[str], lines: Sequence[str]) -> list[str]:
    """An interval, like a test of significance, asks what other sentences would show; a handful cannot say."""
    if len(lines) < LEAST:
        return [f"lines: {len(lines)}; neither interval nor p says much about so few"]
    differing = sum(one != other for one, other in zip(baseline, lines, strict=True))
    if 0 < differing < LEAST:
        return [f"lines that differ from the baseline's: {differing} of {len(lines):,}; p says little about so few"]
    return []


def _slices(system: System, measured: Sequence[Counts], text: Text, options: EvaluationConfig) -> list[SliceScores]:
    def scores(lines: Sequence[int]) -> list[Score]:
        chosen = [counts.of(lines) for counts in measured]
        if len(lines) < LEAST:
            return [Score(counts.name, counts.value(), counts.metric.signature()) for counts in chosen]
        return with_intervals(chosen, options)

    parts = slices(system.lines, text.references, source=text.source, flags=system.flags, counts=text.counts)
    return [
        SliceScores(
            name=part.name,
            lines=len(part.lines),
            examples=tuple(line + 1 for line in part.lines[:EXAMPLES]),
            scores=scores(part.lines),
        )
        for part in parts
    ]


def sentences(system: System, text: Text, options: EvaluationConfig) -> list[Sentence]:
    """Every sentence, in the order of the text."""
    counts = count(WORST_BY, system.lines, text.references, options)
    return [
        Sentence(
            line=line + 1,
            score=counts.of([line]).value(),
            source=None if text.source is None else text.source[line],
            references=references,
            translation=translation,
        )
        for line, (translation, *references) in enumerate(zip(system.lines, *text.references, strict=True))
    ]


def _worst(system: System, text: Text, options: EvaluationConfig, n_worst: int) -> list[Sentence]:
    """The sentences with the lowest chrF, the earlier of equals first; what equals a reference is not among them."""
    if not n_worst:
        return []
    wrong = [one for one in sentences(system, text, options) if one.translation not in one.references]
    return sorted(wrong, key=lambda one: (one.score, one.line))[:n_worst]
