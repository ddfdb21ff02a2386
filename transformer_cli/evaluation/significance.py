"""How far chance alone moves a score: bootstrap intervals, paired bootstrap, approximate randomisation.

The same draws, sums and rounding as in sacreBLEU, hence the same numbers to the last digit, but a resample at a time:
sacreBLEU holds all of them in memory at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.metrics import Counts, Score

Array = npt.NDArray[np.floating]
_Sampled = tuple[Counts, Sequence[float], Score]
TRIALS_AT_ONCE = 512
"""A multiple of 32: coins are drawn from words of 32 bits, and none of them may be lost between two draws."""


@dataclass(frozen=True)
class Difference:
    """How a system's score differs from the baseline's.

    value: system - baseline. margin: half of its 95 % interval, by the same resamples of both. p_bootstrap,
    p_randomization: how likely a difference of this size is where both systems are equally good; None for an outright
    tie, which sacreBLEU's tests call significant.
    """

    name: str
    value: float
    margin: float
    p_bootstrap: float | None
    p_randomization: float | None


def with_intervals(counted: Sequence[Counts], options: EvaluationConfig) -> list[Score]:
    """The scores of one system, with their bootstrap intervals, as `sacrebleu --confidence` gives them."""
    samples = _resampled([counted], options)[0]
    return [
        # Where sacreBLEU compares systems, it averages with NumPy instead, which rounds differently.
        _score(counts, sample, _mean(sample), options)
        for counts, sample in zip(counted, samples, strict=True)
    ]


def compare(
    systems: Sequence[Sequence[Counts]], options: EvaluationConfig
) -> tuple[list[list[Score]], list[list[Difference]]]:
    """The scores of several systems, and how all but the first, the baseline, differ from it.

    Both as `sacrebleu --paired-bs` and `--paired-ar` give them, but for ties.
    """
    samples = _resampled(systems, options)
    scores = [
        [
            _score(counts, sample, float(np.sort(np.array(sample)).mean()), options)
            for counts, sample in zip(counted, sampled, strict=True)
        ]
        for counted, sampled in zip(systems, samples, strict=True)
    ]
    differences = []
    for system, sampled, found in zip(systems[1:], samples[1:], scores[1:], strict=True):
        columns = zip(systems[0], system, samples[0], sampled, scores[0], found, strict=True)
        differences.append(
            [
                _difference((base, base_sample, base_score), (counts, sample, score), options)
                for base, counts, base_sample, sample, base_score, score in columns
            ]
        )
    return scores, differences


def _difference(baseline: _Sampled, system: _Sampled, options: EvaluationConfig) -> Difference:
    (base, base_sample, base_score), (counts, sample, score) = baseline, system
    value, margin = score.value - base_score.value, _margin(np.array(sample) - np.array(base_sample))
    if value == 0:
        return Difference(score.name, value, margin, None, None)
    return Difference(
        name=score.name,
        value=value,
        margin=margin,
        p_bootstrap=_paired_bootstrap(base_sample, sample, abs(value)),
        p_randomization=_randomization(base, counts, abs(value), options),
    )


def _score(counts: Counts, sample: Sequence[float], mean: float, options: EvaluationConfig) -> Score:
    return Score(
        name=counts.name,
        value=counts.value(),
        signature=counts.metric.signature(bs=options.resamples, seed=options.seed),
        mean=mean,
        margin=_margin(np.array(sample)),
    )


def _margin(sample: Array) -> float:
    """Half the way between the 1/40 quantiles of what was resampled, as sacreBLEU takes them."""
    ordered, tail = np.sort(sample), len(sample) // 40
    return float(0.5 * (ordered[-1 - tail] - ordered[tail]))


def _resampled(systems: Sequence[Sequence[Counts]], options: EvaluationConfig) -> list[list[list[float]]]:
    """The scores of each system by each metric, all under the same draws of as many sentences as there are."""
    # In single precision, as in sacreBLEU; its scores, too, remain NumPy's float32 where its formulas keep them so.
    rows = [[np.array(counts.rows, dtype=np.float32) for counts in counted] for counted in systems]
    scores: list[list[list[float]]] = [[[] for _ in counted] for counted in systems]
    draw = np.random.default_rng(options.seed)
    n_lines = len(rows[0][0])
    for _ in range(options.resamples):
        lines = draw.choice(n_lines, size=n_lines, replace=True)
        for counted, tables, into in zip(systems, rows, scores, strict=True):
            for counts, table, values in zip(counted, tables, into, strict=True):
                values.append(counts.metric.score(table[lines].sum(0)))
    return scores


def _mean(sample: Sequence[float]) -> float:
    """As sacreBLEU's, which cannot add its two kinds of numbers: a resample of empty lines alone has a plain one."""
    values: Sequence[Any] = sample
    if len({type(value) for value in sample}) > 1:
        values = [np.float32(value) for value in sample]
    return float(statistics.mean(sorted(values)))


def _paired_bootstrap(baseline: Sequence[float], system: Sequence[float], difference: float) -> float:
    """Koehn 2004, as Moses and sacreBLEU do it: differences of resampled scores, moved to a mean of zero."""
    sampled = np.abs(np.array(system) - np.array(baseline))
    return _p_value(sampled - sampled.mean(), difference)


def _randomization(baseline: Counts, system: Counts, difference: float, options: EvaluationConfig) -> float:
    """Riezler and Maxwell 2005: the difference between two systems that swapped each sentence at the toss of a coin."""
    a, b = np.array(baseline.rows, dtype=np.float64), np.array(system.rows, dtype=np.float64)

    def scores(sums: Array) -> Array:
        return np.array([baseline.metric.score(row) for row in sums.tolist()])

    trials = [
        np.abs(scores(kept @ a + swapped @ b) - scores(swapped @ a + kept @ b))
        for kept, swapped in _coins(options.trials, len(a), options.seed)
    ]
    return _p_value(np.concatenate(trials), difference)


def _coins(n_trials: int, n_lines: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """(trials, lines) ones for heads, and ones for tails."""
    draw = np.random.default_rng(seed)
    for start in range(0, n_trials, TRIALS_AT_ONCE):
        heads = draw.integers(2, size=(min(TRIALS_AT_ONCE, n_trials - start), n_lines), dtype=bool)
        yield heads.astype(np.float64), (~heads).astype(np.float64)


def _p_value(sampled: Array, difference: float) -> float:
    """The share of sampled differences above the one that was found, itself counted among them."""
    return (int(np.sum(sampled > difference)) + 1) / (len(sampled) + 1)
