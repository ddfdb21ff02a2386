"""BLEU, chrF and TER, computed by sacreBLEU and named by its signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.errors import DataError


@dataclass(frozen=True)
class Score:
    """A corpus score.

    name: as it is printed. value: 0 to 100 for BLEU and chrF; TER, an error rate in percent, may exceed 100. signature:
    sacreBLEU's, which makes the number comparable.
    """

    name: str
    value: float
    signature: str


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig) -> list[Score]:
    """The configured metrics of a translated text, in their configured order.

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
    return [_score(METRICS[name](options), hypotheses, references) for name in options.metrics]


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    result = metric.corpus_score(list(hypotheses), [list(reference) for reference in references])
    return Score(name=result.name, value=float(result.score), signature=metric.get_signature().format())


def _bleu(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    # force: no advice about text that looks tokenised, which would be logged at every validation
    return BLEU(tokenize=options.tokenize, lowercase=options.lowercase, force=True)


def _chrf(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=options.lowercase)


def _ter(options: EvaluationConfig) -> Any:
    from sacrebleu.metrics.ter import TER

    return TER()  # ignores case, as in Snover et al. 2006 and on sacreBLEU's command line


METRICS: dict[str, Callable[[EvaluationConfig], Any]] = {"bleu": _bleu, "chrf": _chrf, "ter": _ter}
"""A metric is one function and one line here."""
