from __future__ import annotations

import unicodedata

import pytest
from sacrebleu.metrics.chrf import CHRF
from sacrebleu_cli import REFERENCE, damaged

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.metrics import score
from transformer_cli.evaluation.report import LEAST, Report, System, Text, reports
from transformer_cli.evaluation.words import WordCounts, count_words

OPTIONS = EvaluationConfig(resamples=40, trials=40)
REFERENCES = [REFERENCE * 3, damaged(REFERENCE * 3, seed=5)]
SOURCE = [f"Quelle {number}" for number in range(len(REFERENCES[0]))]


def report(lines: list[str], **known: object) -> Report:
    [only] = reports([System("s", lines)], Text(REFERENCES, **known), OPTIONS, n_worst=4)  # type: ignore[arg-type]
    return only


def test_the_worst_sentences_are_those_of_the_lowest_chrf() -> None:
    lines = damaged(REFERENCES[0], seed=1)
    several = list(zip(*REFERENCES, strict=True))
    scores = [CHRF().sentence_score(line, list(some)).score for line, some in zip(lines, several, strict=True)]
    wrong = [line for line in range(len(lines)) if lines[line] not in several[line]]
    expected = sorted(wrong, key=lambda line: (scores[line], line))[:4]
    worst = report(lines, source=SOURCE).worst
    assert [one.line - 1 for one in worst] == expected
    for one, line in zip(worst, expected, strict=True):
        assert one.score == scores[line]
        assert (one.source, one.translation, tuple(one.references)) == (SOURCE[line], lines[line], several[line])


def test_a_perfect_translation_has_no_worst_sentence() -> None:
    assert report(REFERENCES[0]).worst == []


def test_a_slice_scores_what_its_lines_score_alone() -> None:
    lines = damaged(REFERENCES[0], seed=1)
    counts = WordCounts({}, {"beer": 9, "want": 1, "a": 9, "i": 9})
    parts = {part.name: part for part in report(lines, source=SOURCE, counts=counts).slices}
    assert parts["rare word in reference"].examples == (6, 13, 20)
    assert parts["unseen word in source"].lines == len(lines)
    chosen = [5, 12, 19]
    alone = score([lines[i] for i in chosen], [[text[i] for i in chosen] for text in REFERENCES], OPTIONS)
    assert parts["rare word in reference"].scores == alone


def test_a_text_in_a_language_that_was_not_learned_is_noticed() -> None:
    german, english = ["ein großer hund trinkt", "der hund schläft"] * 5, ["a big dog drinks", "the dog sleeps"] * 5
    counts = count_words(german, english)

    def said(source: list[str], reference: list[str]) -> list[str]:
        text = Text([reference], source, counts)
        [found] = reports([System("s", english)], text, OPTIONS, n_worst=0)
        return [line for line in found.warnings if "never seen" in line]

    assert said(german, english) == []
    assert said([*german[:7], *english[:3]], english) == []  # 11 of 36 words
    [both, other] = said(english, german)
    assert both.startswith("100 % of the source's words were never seen in training: is this the language")
    assert other.startswith("100 % of the reference's words")
    assert len(said([*german[:6], *english[:4]], english)) == 1  # 14 of 35
    counts = count_words([unicodedata.normalize("NFD", "ọ̀rẹ́ mi wá")] * 4, english)
    assert said([unicodedata.normalize("NFC", "ọ̀rẹ́ mi wá")] * 10, english) == []


@pytest.mark.parametrize("n", [LEAST - 1, LEAST])
def test_a_slice_of_few_lines_pretends_no_interval(n: int) -> None:
    lines = [f"{i} beers" for i in range(n)]
    [found] = reports([System("s", lines)], Text([["2 beers"] * n]), OPTIONS, n_worst=0)
    assert {one.margin is None for part in found.slices if part.lines < LEAST for one in part.scores} <= {True}
    assert {one.margin is None for part in found.slices if part.lines >= LEAST for one in part.scores} <= {False}
    assert max(part.lines for part in found.slices) == n


@pytest.mark.parametrize(
    ("n", "told"), [(LEAST - 1, ["lines: 9; neither interval nor p says much about so few"]), (LEAST, [])]
)
def test_that_the_interval_of_a_few_lines_says_little_is_told(n: int, told: list[str]) -> None:
    """Of two lines, one right and one wrong, a bare `50 ± 50` was printed."""
    lines, wrong = ["I want a small beer."] * n, ["You drank the whole one."] * n
    [right, other] = reports([System("a", lines), System("b", wrong)], Text([lines]), OPTIONS, n_worst=0)
    assert right.warnings == told
    assert [line for line in other.warnings if line.startswith("lines")] == told
    assert all(one.margin is not None for one in right.scores)


def test_of_a_text_of_tx_s_own_all_is_told_but_how_it_looks() -> None:
    """It has no capitals, and that is no news; nothing was told of it, and p was 0.0001 for a difference of 0.00."""
    lines = ["we want a small beer and a dog"] * LEAST
    systems = [System("a", lines), System("b", ["we want a beer", *lines[1:]]), System("c", ["a beer"] * LEAST)]
    systems.append(System("d", [""] * LEAST))
    counts = count_words(["hund"], ["beer"])
    judged = [Text([lines], lines, counts, is_own) for is_own in (False, True)]
    by_others, own = ([one.warnings for one in reports(systems, text, OPTIONS, n_worst=0)] for text in judged)
    few = "lines that differ from the baseline's: 1 of 10; p says little about so few"
    short = "BLEU is 0, since no translation has four words in a row; chrF tells short lines apart"
    assert own == [[], [few], [short], ["the translations have no text at all: no score means anything"]]
    for all_of_it, told in zip(by_others, own, strict=True):
        assert [line for line in all_of_it if "look" not in line and "never seen" not in line] == told
        assert len(all_of_it) > len(told)


def test_all_but_the_first_system_are_compared_with_it() -> None:
    systems = [System(str(seed), damaged(REFERENCES[0], seed=seed)) for seed in (1, 2, 3)]
    found = reports(systems, Text(REFERENCES), OPTIONS, n_worst=0)
    assert [one.name for one in found] == ["1", "2", "3"]
    assert found[0].differences == []
    for one in found[1:]:
        assert [difference.value for difference in one.differences] == [
            mine.value - baseline.value for mine, baseline in zip(one.scores, found[0].scores, strict=True)
        ]
