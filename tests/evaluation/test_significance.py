"""Intervals and paired tests against sacreBLEU's own command line, to the last digit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu_cli import REFERENCE, damaged, sacrebleu

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.metrics import measure
from transformer_cli.evaluation.significance import TRIALS_AT_ONCE, compare, with_intervals

CHRF = {"chrf": (), "chrf++": ("--chrf-word-order", "2")}


def long_reference(n_lines: int, *, seed: int = 0) -> list[str]:
    """Lines of words from REFERENCE, an odd number of them, so that no power of two hides an error."""
    draw = random.Random(seed)
    words = " ".join(REFERENCE).split()
    return [" ".join(draw.choices(words, k=draw.randrange(1, 20))) for _ in range(n_lines)]


def options(chrf: str, **values: Any) -> EvaluationConfig:
    return EvaluationConfig(metrics=["bleu", chrf, "ter"], **values)


@pytest.mark.parametrize(("chrf", "n_references"), [("chrf", 1), ("chrf++", 3)])
def test_intervals_are_those_of_sacrebleu_confidence(tmp_path: Path, chrf: str, n_references: int) -> None:
    reference = long_reference(67)
    hypotheses = damaged(reference, seed=1)
    references = [reference, *(damaged(reference, seed=seed) for seed in range(2, n_references + 1))]
    chosen = options(chrf, resamples=360)  # a multiple of 40, so that another tail is seen
    ours = with_intervals(measure(hypotheses, references, chosen), chosen)
    flags = ("-m", "bleu", "chrf", "ter", *CHRF[chrf], "--confidence", "-cin", "360", "-w", "17")
    theirs = sacrebleu(tmp_path, [hypotheses], references, *flags)
    for one, other in zip(ours, theirs, strict=True):
        expected = [other[key] for key in ("name", "score", "confidence_mean", "confidence_var", "signature")]
        assert [one.name, one.value, one.mean, one.margin, one.signature] == expected


@pytest.mark.parametrize(("chrf", "n_references"), [("chrf", 1), ("chrf++", 3)])
def test_paired_tests_are_those_of_sacrebleu(tmp_path: Path, chrf: str, n_references: int) -> None:
    """The second system differs little from the first, the third the same, the fourth much worse."""
    reference = long_reference(67)
    first = damaged(reference, seed=1)
    systems = [first, [*damaged(reference, seed=2)[:20], *first[20:]], first, damaged(reference, seed=3, rate=0.5)]
    references = [reference, *(damaged(reference, seed=seed) for seed in range(4, n_references + 3))]
    chosen = options(chrf, resamples=333, trials=2 * TRIALS_AT_ONCE + 77)
    scores, differences = compare([measure(system, references, chosen) for system in systems], chosen)
    flags = ("-m", "bleu", "chrf", "ter", *CHRF[chrf])
    bootstrap = sacrebleu(tmp_path, systems, references, *flags, "--paired-bs", "-pbsn", "333")
    trials = sacrebleu(tmp_path, systems, references, *flags, "--paired-ar", "-parn", str(chosen.trials))
    for number, (found, theirs) in enumerate(zip(scores, bootstrap, strict=True)):
        for score in found:
            expected = theirs[score.name]
            assert (score.value, score.mean, score.margin) == (expected["score"], expected["mean"], expected["ci"])
        for one in differences[number - 1] if number else []:
            if one.value == 0:  # they call it significant
                assert one.p_bootstrap is one.p_randomization is None
                continue
            assert one.p_bootstrap == theirs[one.name]["p_value"]
            assert one.p_randomization == trials[number][one.name]["p_value"]
    assert [one.value for one in differences[1]] == [0] * 3
    p_values = [one.p_randomization for system in differences for one in system if one.p_randomization is not None]
    assert min(p_values) < 0.01
    assert 0.1 < max(p_values) < 1


def test_the_difference_is_signed_and_the_first_system_is_the_baseline() -> None:
    reference = long_reference(30)
    chosen = options("chrf", resamples=50, trials=50)
    systems = [damaged(reference, seed=1), reference]
    scores, [better] = compare([measure(system, [reference], chosen) for system in systems], chosen)
    assert [one.name for one in better] == ["BLEU", "chrF2", "TER"]
    assert [one.value for one in better] == [b.value - a.value for a, b in zip(*scores, strict=True)]
    assert better[0].value > 0 > better[2].value


def test_the_interval_of_a_difference_is_that_of_both_scored_on_the_same_lines() -> None:
    """Narrower than theirs where they err on the same lines."""
    reference = long_reference(30)
    base = damaged(reference, seed=1)
    better = [*reference[:2], *base[2:]]
    chosen = EvaluationConfig(metrics=["bleu"], resamples=120, trials=40)
    [[first], [second]], [[found]] = compare(
        [measure(system, [reference], chosen) for system in (base, better)], chosen
    )
    draw, bleu = np.random.default_rng(chosen.seed), BLEU()
    sampled = []
    for _ in range(chosen.resamples):
        lines = draw.choice(30, size=30, replace=True)
        scores = [
            bleu.corpus_score([text[n] for n in lines], [[reference[n] for n in lines]]).score
            for text in (better, base)
        ]
        sampled.append(scores[0] - scores[1])
    ordered = sorted(sampled)
    assert found.margin == pytest.approx((ordered[-4] - ordered[3]) / 2, abs=1e-3)
    assert 0 < found.margin < min(first.margin or 0, second.margin or 0)


def test_another_seed_draws_another_interval() -> None:
    reference = long_reference(30)
    margins = set()
    for seed in (1, 2):
        chosen = options("chrf", resamples=50, seed=seed)
        [score, *_] = with_intervals(measure(damaged(reference, seed=1), [reference], chosen), chosen)
        assert f"bs:50|seed:{seed}" in score.signature
        margins.add(score.margin)
    assert len(margins) == 2


def test_a_resample_of_empty_lines_alone_has_a_mean_like_any_other() -> None:
    """sacreBLEU's mean fails here: chrF and TER are then plain numbers among NumPy's."""
    lines, chosen = ["a cat sat down", "", "the big house"], options("chrf++")
    for score in with_intervals(measure(lines, [lines], chosen), chosen):
        assert score.mean is not None
        # One resample in 27 is empty, and chrF of nothing is 0; BLEU and TER of nothing are told by their formulas.
        assert score.name != "chrF2++" or score.mean == pytest.approx(100 * 26 / 27, abs=2)
