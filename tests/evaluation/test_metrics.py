"""Scores against sacreBLEU's own command line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.errors import DataError
from transformer_cli.evaluation.metrics import METRICS, score

REFERENCE = [
    "A man in an orange hat is starring at something.",
    "A Boston Terrier is running on lush green grass in front of a white fence.",
    "A girl in karate uniform breaking a stick with a front kick.",
    "Five people wearing winter jackets and helmets stand in the snow, with snowmobiles in the background.",
    "People are fixing the roof of a house.",
    "I want a beer",
    "",
]


def damaged(lines: list[str], *, seed: int) -> list[str]:
    """Words left out, swapped, in another case: what a translation looks like."""
    draw = random.Random(seed)
    out = []
    for line in lines:
        words = [word for word in line.split() if draw.random() > 0.15]
        if len(words) > 3:
            i = draw.randrange(len(words) - 1)
            words[i], words[i + 1] = words[i + 1], words[i].upper()
        out.append(" ".join(words))
    return out


def command_line(tmp_path: Path, hypotheses: list[str], references: list[list[str]], *options: str) -> list[dict]:
    names = []
    for number, lines in enumerate([hypotheses, *references]):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        names.append(str(path))
    command = [sys.executable, "-m", "sacrebleu", *names[1:], "-i", names[0], "-m", "bleu", "chrf", "ter", *options]
    # sacreBLEU's `-w` says how many digits it prints; these are more than anybody reads.
    done = subprocess.run([*command, "-w", "8", "-f", "json"], capture_output=True, check=True, encoding="utf-8")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("options", "flags", "n_references"),
    [
        (EvaluationConfig(), [], 1),
        (EvaluationConfig(), [], 3),
        (EvaluationConfig(tokenize="char"), ["--tokenize", "char"], 1),
        (EvaluationConfig(lowercase=True), ["--lowercase", "--chrf-lowercase"], 1),
    ],
)
def test_scores_and_signatures_are_those_of_the_sacrebleu_command(
    tmp_path: Path, options: EvaluationConfig, flags: list[str], n_references: int
) -> None:
    hypotheses = damaged(REFERENCE, seed=1)
    references = [REFERENCE, *(damaged(REFERENCE, seed=seed) for seed in range(2, n_references + 1))]
    ours = score(hypotheses, references, options)
    theirs = command_line(tmp_path, hypotheses, references, *flags)
    assert [s.name for s in ours] == [t["name"] for t in theirs] == ["BLEU", "chrF2", "TER"]
    for one, other in zip(ours, theirs, strict=True):
        assert round(one.value, 8) == other["score"]
        assert one.signature == other["signature"]


def test_metrics_come_in_the_configured_order() -> None:
    scores = score(REFERENCE, [REFERENCE], EvaluationConfig(metrics=["ter", "bleu"]))
    assert [(s.name, round(s.value, 9)) for s in scores] == [("TER", 0.0), ("BLEU", 100.0)]


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(("n_hypotheses", "n_references"), [(7, 6), (6, 7), (0, 1), (1, 0)])
def test_unequal_texts_are_refused_with_both_counts(name: str, n_hypotheses: int, n_references: int) -> None:
    """sacreBLEU itself answers some of these with a number."""
    with pytest.raises(DataError) as caught:
        score(REFERENCE[:n_hypotheses], [REFERENCE[:n_references]], EvaluationConfig(metrics=[name]))
    assert str(n_hypotheses) in caught.value.message
    assert str(n_references) in caught.value.message


def test_of_several_references_the_short_one_is_named() -> None:
    with pytest.raises(DataError, match="reference 2 has 3 lines"):
        score(REFERENCE, [REFERENCE, REFERENCE[:3]], EvaluationConfig())


@pytest.mark.parametrize("references", [[], [[]]])
def test_nothing_to_score_is_an_error_and_not_a_number(references: list[list[str]]) -> None:
    with pytest.raises(DataError):
        score([], references, EvaluationConfig())


def test_scoring_does_not_import_torch() -> None:
    code = (
        "import sys; from transformer_cli.evaluation.metrics import score;"
        "from transformer_cli.config.evaluation import EvaluationConfig;"
        "score(['a b c d'], [['a b c d']], EvaluationConfig()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.filterwarnings("error")
def test_text_that_looks_tokenised_is_scored_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["it rains ."] * 200
    score(lines, [lines], EvaluationConfig())
    assert capfd.readouterr() == ("", "")
