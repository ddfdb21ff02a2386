"""BLEU, chrF, chrF++ and TER, counted by sacreBLEU and named by its signatures."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from transformer_cli.config.evaluation import METRICS, EvaluationConfig
from transformer_cli.errors import DataError


@dataclass(frozen=True)
class Score:
    """A corpus score.

    name: as it is printed. value: 0 to 100 for BLEU and chrF; TER, an error rate in percent, may exceed 100. signature:
    sacreBLEU's where the metric is, which makes the number comparable. mean, margin: of the bootstrap, whose 95 %
    interval is as wide as twice the margin; None where nothing was resampled.
    """

    name: str
    value: float
    signature: str
    mean: float | None = None
    margin: float | None = None


class Metric(Protocol):
    """A recipe: a corpus score that follows from sums over the sentences, so that any of them can be resampled."""

    name: str
    """As it is printed: BLEU, chrF2, chrF2++, TER."""

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        """What is counted in each sentence; references: whole texts."""

    def score(self, sums: Sequence[float]) -> float:
        """The score of sentences whose counts have these sums."""

    def signature(self, **test: int) -> str:
        """What makes the number comparable; test: what there is to say of a test, such as bs=1000 and seed=12345."""


@dataclass(frozen=True)
class Counts:
    """What a metric counts in each sentence of a translated text: the sums over any sentences give their score.

    rows: one per sentence.
    """

    metric: Metric
    rows: Sequence[Sequence[float]]

    @property
    def name(self) -> str:
        return self.metric.name

    def value(self) -> float:
        """The corpus score."""
        return float(self.metric.score([sum(column) for column in zip(*self.rows, strict=True)]))

    def of(self, lines: Sequence[int]) -> Counts:
        """Those of some of the sentences."""
        return Counts(self.metric, [self.rows[line] for line in lines])


@dataclass(frozen=True)
class Measured:
    """A translated text, measured. counts: one per metric, in their configured order. advice: what sacreBLEU says about
    the text.
    """

    counts: tuple[Counts, ...]
    advice: tuple[str, ...]


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig) -> list[Score]:
    """The configured metrics of a translated text, without intervals; for the rest see `measure`."""
    counted = measure(hypotheses, references, options).counts
    return [Score(counts.name, counts.value(), counts.metric.signature()) for counts in counted]


def measure(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig) -> Measured:
    """What the configured metrics count.

    references: one or more whole texts, each with a line per hypothesis.
    Raises DataError for texts of unequal length, which sacreBLEU would cut to the shortest or blame on something else,
    and for empty ones.
    """
    if not references:
        raise DataError("there is no reference to score against")
    for number, reference in enumerate(references, start=1):
        if len(reference) != len(hypotheses):
            name = "the reference" if len(references) == 1 else f"reference {number}"
            raise DataError(
                f"{len(hypotheses):,} translations, but {name} has {len(reference):,} lines: "
                "they must match line by line",
                hint="compare with `wc -l`, and look whether one of them ends in an empty line",
            )
    if not hypotheses:
        raise DataError("there is nothing to score: the text has no lines")
    with _advice() as advice:
        counts = tuple(count(name, hypotheses, references, options) for name in options.metrics)
    return Measured(counts, tuple(advice))


def count(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig
) -> Counts:
    """What the metric of this name counts in each sentence."""
    metric: Metric = METRICS.load(name)(options)
    return Counts(metric, metric.count(hypotheses, references))


class SacreBleu:
    """A metric of sacreBLEU. Its own scoring, bootstrap and paired tests begin with the same calls."""

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self.metric = metric

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        rows: Sequence[Sequence[float]] = self.metric._extract_corpus_statistics(
            list(hypotheses), [list(lines) for lines in references]
        )
        return rows

    def score(self, sums: Sequence[float]) -> float:
        score: float = self.metric._compute_score_from_stats(sums).score
        return score

    def signature(self, **test: int) -> str:
        signature = self.metric.get_signature()
        for key, value in test.items():
            signature.update(key, value)
        return str(signature.format())


@contextmanager
def _advice() -> Iterator[list[str]]:
    """Collects what sacreBLEU would log, but for how to silence it."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "`force`" not in record.getMessage():
                said.append(record.getMessage())

    logger, listener = logging.getLogger("sacrebleu"), Listener()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagated


def bleu(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.bleu import BLEU

    return SacreBleu("BLEU", BLEU(tokenize=options.tokenize, lowercase=options.lowercase))


def chrf(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.chrf import CHRF

    return SacreBleu("chrF2", CHRF(lowercase=options.lowercase))


def chrf_plus(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.chrf import CHRF

    return SacreBleu("chrF2++", CHRF(lowercase=options.lowercase, word_order=2))


def ter(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.ter import TER

    return SacreBleu("TER", TER())  # ignores case, as in Snover et al. 2006 and on sacreBLEU's command line
