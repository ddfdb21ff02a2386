"""BLEU, chrF, chrF++ and TER, counted by sacreBLEU and named by its signatures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.errors import DataError


@dataclass(frozen=True)
class Score:
    """A corpus score.

    name: as it is printed. value: 0 to 100 for BLEU and chrF; TER, an error rate in percent, may exceed 100. signature:
    sacreBLEU's, which makes the number comparable. mean, margin: of the bootstrap, whose 95 % interval is as wide as
    twice the margin; None where nothing was resampled.
    """

    name: str
    value: float
    signature: str
    mean: float | None = None
    margin: float | None = None


@dataclass(frozen=True)
class Counts:
    """What a metric counts in each sentence of a translated text: the sums over any sentences give their score.

    metric: sacreBLEU's, which turns sums into a score. rows: one per sentence.
    """

    metric: Any
    rows: Sequence[Sequence[float]]

    @property
    def name(self) -> str:
        """As sacreBLEU prints it: BLEU, chrF2, chrF2++, TER."""
        return str(self.metric._compute_score_from_stats(list(self.rows[0])).name)

    def value(self) -> float:
        """The corpus score."""
        return float(self.metric._aggregate_and_compute(self.rows).score)

    def of(self, lines: Sequence[int]) -> Counts:
        """Those of some of the sentences."""
        return Counts(self.metric, [self.rows[line] for line in lines])

    def signature(self, **test: int) -> str:
        """sacreBLEU's; test: what it names of a test, such as bs=1000 and seed=12345."""
        signature = self.metric.get_signature()
        for key, value in test.items():
            signature.update(key, value)
        return str(signature.format())


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
    return [Score(counts.name, counts.value(), counts.signature()) for counts in counted]


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
                hint="an empty last line is the usual cause; compare with `wc -l`",
            )
    if not hypotheses:
        raise DataError("there is nothing to score: the text has no lines")
    with _advice() as advice:
        counts = tuple(count(METRICS[name](options), hypotheses, references) for name in options.metrics)
    return Measured(counts, tuple(advice))


def count(metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
    """What a metric of sacreBLEU counts in each sentence."""
    # Its own scoring, bootstrap and paired tests begin with the same call.
    return Counts(metric, metric._extract_corpus_statistics(list(hypotheses), [list(lines) for lines in references]))


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


def _bleu(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=options.tokenize, lowercase=options.lowercase)


def _chrf(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=options.lowercase)


def _chrf_plus(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=options.lowercase, word_order=2)


def _ter(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.ter import TER

    return TER()  # ignores case, as in Snover et al. 2006 and on sacreBLEU's command line


METRICS: dict[str, Callable[[EvaluationConfig], Any]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "chrf++": _chrf_plus,
    "ter": _ter,
}
"""A metric is one function and one line here."""
