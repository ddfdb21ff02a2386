"""Scores against sacreBLEU's own command line."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu_cli import REFERENCE, damaged, sacrebleu

import transformer_cli
from transformer_cli.config.evaluation import METRICS, EvaluationConfig
from transformer_cli.errors import DataError, ResourceError
from transformer_cli.evaluation.metrics import CUTTERS, check, measure, score

# sacreBLEU's `-w` says how many digits it prints; these are all that a double has.
DIGITS = ("-w", "17")
TOKENIZERS = [
    name
    for name in get_args(EvaluationConfig.model_fields["tokenize"].annotation)
    if name != "auto" and (name not in CUTTERS or all(map(find_spec, CUTTERS[name][1])))
]


@pytest.mark.parametrize(
    ("options", "flags", "n_references"),
    [
        (EvaluationConfig(metrics=["bleu", "chrf", "ter"]), [], 1),
        (EvaluationConfig(metrics=["bleu", "chrf", "ter"]), [], 3),
        (EvaluationConfig(metrics=["bleu", "chrf++", "ter"]), ["--chrf-word-order", "2"], 2),
        (EvaluationConfig(metrics=["bleu", "chrf", "ter"], tokenize="char"), ["--tokenize", "char"], 1),
        (
            EvaluationConfig(metrics=["bleu", "chrf", "ter"], lowercase=True),
            ["--lowercase", "--chrf-lowercase"],
            1,
        ),
    ],
)
def test_scores_and_signatures_are_those_of_the_sacrebleu_command(
    tmp_path: Path, options: EvaluationConfig, flags: list[str], n_references: int
) -> None:
    hypotheses = damaged(REFERENCE, seed=1)
    references = [REFERENCE, *(damaged(REFERENCE, seed=seed) for seed in range(2, n_references + 1))]
    ours = score(hypotheses, references, options)
    theirs = sacrebleu(tmp_path, [hypotheses], references, "-m", "bleu", "chrf", "ter", *flags, *DIGITS)
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        assert (one.name, one.value, one.signature) == (other["name"], other["score"], other["signature"])


CHINESE = ["我母亲和朋友一起带来七本书。", "昨天，农夫去田里了。"]


@pytest.mark.parametrize(
    ("reference", "tokenize"),
    [
        (["the cat sleeps", "12 34 !"], "13a"),
        (["나는 학생 입니다"], "13a"),
        (["我 like pizza and pasta"], "13a"),
        ([""], "13a"),
        (CHINESE, "zh"),
        (["今日は天気がいいですね", "私は学生です"], "char"),
        (["ฉันรักเธอมาก"], "char"),
        (["ខ្ញុំស្រលាញ់អ្នក។"], "char"),
    ],
)
def test_words_of_scripts_without_spaces_are_characters(reference: list[str], tokenize: str) -> None:
    """BLEU was 0 of perfect Thai, and the best of a training was whichever checkpoint wrote nonsense above 0."""
    [bleu] = score(reference, [reference], EvaluationConfig(metrics=["bleu"]))
    expected = BLEU(tokenize=tokenize, force=True)
    assert bleu.value == expected.corpus_score(reference, [reference]).score
    assert bleu.signature == str(expected.get_signature())


def test_one_sentence_of_many_is_scored_as_all_of_them_are() -> None:
    """The script is that of the whole text."""
    references = [*CHINESE, "OK, see you tomorrow"]
    counts = measure(references, [references], EvaluationConfig(metrics=["bleu"]))
    assert "tok:zh" in counts[0].of([2]).metric.signature()


def test_metrics_come_in_the_configured_order() -> None:
    scores = score(REFERENCE, [REFERENCE], EvaluationConfig(metrics=["ter", "bleu"]))
    assert [(s.name, round(s.value, 9)) for s in scores] == [("TER", 0.0), ("BLEU", 100.0)]


@settings(max_examples=20)
@given(st.sets(st.integers(0, len(REFERENCE) - 1), min_size=1))
def test_the_counts_of_some_lines_score_what_these_lines_would_alone(lines: set[int]) -> None:
    chosen = sorted(lines)
    hypotheses, references = damaged(REFERENCE, seed=1), [REFERENCE, damaged(REFERENCE, seed=2)]
    options = EvaluationConfig()
    alone = score([hypotheses[i] for i in chosen], [[text[i] for i in chosen] for text in references], options)
    parts = [counts.of(chosen) for counts in measure(hypotheses, references, options)]
    assert [part.value() for part in parts] == [one.value for one in alone]


@pytest.mark.parametrize("name", METRICS.own)
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


@pytest.mark.parametrize("name", CUTTERS)
def test_words_of_japanese_and_korean_are_sacrebleu_s_or_it_is_said_what_lacks(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = {
        "ja-mecab": ["彼女は今日りんごを食べます。", "私は学生です"],
        "ko-mecab": ["선생님이 사과를 먹습니다.", "나는 학생입니다"],
    }[name]
    options = EvaluationConfig(metrics=["bleu"], tokenize=name)
    if name in TOKENIZERS:
        hypotheses = [lines[0][:-3], lines[1]]
        theirs = sacrebleu(tmp_path, [hypotheses], [lines], "-m", "bleu", "--tokenize", name, *DIGITS)
        [ours] = score(hypotheses, [lines], options)
        assert (ours.value, ours.signature) == (theirs["score"], theirs["signature"])
    monkeypatch.setattr("transformer_cli.evaluation.metrics.find_spec", lambda package: None)
    for refused in (check, lambda options: score(lines, [lines], options)):
        with pytest.raises(ResourceError, match=f"evaluation.tokenize={name} needs .* which are not installed") as told:
            refused(options)
        assert f"pip install 'sacrebleu[{name[:2]}]'" in str(told.value.hint)


@pytest.mark.parametrize("references", [[], [[]]])
def test_nothing_to_score_is_an_error_and_not_a_number(references: list[list[str]]) -> None:
    with pytest.raises(DataError):
        score([], references, EvaluationConfig())


def test_no_line_that_was_scored_is_kept() -> None:
    """sacreBLEU's tokenizers remember lines, which a training that scores ever others would pile up."""
    for tokenize in TOKENIZERS:
        BLEU(tokenize=tokenize).corpus_score(["kept by sacreBLEU"], [["until then"]])
        score(["a man sleeps .", "two dogs"], [["a man is asleep .", "two dogs"]], EvaluationConfig(tokenize=tokenize))
    remembering = [one for one in gc.get_objects() if type(one) is type(lru_cache(len))]
    of_lines = [one for one in remembering if one.__module__.startswith("sacrebleu.tok") and one.__name__ == "__call__"]
    assert {one.cache_info().currsize for one in of_lines} == {0}


def test_scoring_does_not_import_torch() -> None:
    code = (
        "import sys; from transformer_cli.evaluation.metrics import score;"
        "from transformer_cli.config.evaluation import EvaluationConfig;"
        "score(['a b c d'], [['a b c d']], EvaluationConfig()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_is_said_of_a_text_that_looks_tokenised(capfd: pytest.CaptureFixture[str]) -> None:
    """sacreBLEU would print it; `tx evaluate` says it in its own place."""
    lines = ["it rains ."] * 200
    measure(lines, [lines], EvaluationConfig())
    assert capfd.readouterr() == ("", "")


WORDS = (
    *("a", "A", "b", "b.", "b)", "(b", "(b)", "c,", "...", "É", "é", "中文", "x-y", "&quot;", "1,000.5"),
    *("", "\u3000", "\u00a0"),
)
LINES = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@settings(max_examples=200)
@given(
    columns=st.integers(2, 4).flatmap(lambda n: st.lists(st.tuples(*[LINES] * n), min_size=1, max_size=6)),
    tokenize=st.sampled_from(TOKENIZERS),
    lowercase=st.booleans(),
)
def test_scores_are_those_of_sacrebleu_for_whatever_text(
    columns: list[tuple[str, ...]], tokenize: str, lowercase: bool
) -> None:
    """Its counts of a sentence are not for others; what we make of its public ones has to come to the same digits."""
    hypotheses, *references = (list(text) for text in zip(*columns, strict=True))
    theirs = [
        BLEU(tokenize=tokenize, lowercase=lowercase),
        CHRF(lowercase=lowercase),
        CHRF(lowercase=lowercase, word_order=2),
        TER(),
    ]
    expected = [metric.corpus_score(hypotheses, references) for metric in theirs]
    ours = score(hypotheses, references, EvaluationConfig(tokenize=tokenize, lowercase=lowercase))
    assert [(one.name, one.value, one.signature) for one in ours] == [
        (other.name, other.score, str(metric.get_signature())) for metric, other in zip(theirs, expected, strict=True)
    ]


def test_nothing_private_of_sacrebleu_is_used() -> None:
    """The last digits of its numbers are its own, but its private names may change under us."""
    package = Path(transformer_cli.__file__).parent
    used = {
        node.attr
        for path in (package / "evaluation").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__")
    }
    assert {name for name in used if any(hasattr(metric, name) for metric in (BLEU, CHRF, TER))} == set()
