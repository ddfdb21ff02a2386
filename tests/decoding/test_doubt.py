"""When a model is said to be unsure of a translation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from transformer_cli.decoding.doubt import UNSURE, certainty, usual_certainty
from transformer_cli.decoding.scoring import score_texts
from transformer_cli.decoding.translation import NOTHING, Part, Translation
from transformer_cli.python.model import load

LINES = ["ich mochte ein bier", "das tier"]


def translation(log_probability: float, *, n_ids: int, truncated: bool = False) -> Translation:
    ids = tuple(range(n_ids))
    part = Part("x", (5,), ids, truncated)
    return replace(NOTHING, log_probability=log_probability, ids=ids, parts=(part,))


@pytest.fixture
def translator(trained_run):
    return load(trained_run)


def test_certainty_is_the_mean_of_what_scoring_gives_to_each_piece(translator):
    found = translator.translate_all(LINES)
    scored = score_texts(translator, LINES, [one.text for one in found])
    means = [sum(one.log_probabilities) / len(one.log_probabilities) for one in scored]
    assert [certainty(one) for one in found] == pytest.approx(means, abs=1e-5)


def test_a_translation_that_was_cut_has_no_end_mark_to_count():
    assert certainty(translation(-6.0, n_ids=3, truncated=True)) == -2.0
    assert certainty(translation(-6.0, n_ids=2)) == -2.0
    assert certainty(NOTHING) == 0.0


@pytest.mark.parametrize("n", [1, 7, 8, 9, 80, 500])
def test_one_in_eight_translations_is_less_sure_than_usual(n):
    values = [-float(value) for value in range(1, n + 1)]
    Random(n).shuffle(values)
    limit = usual_certainty(values)
    assert limit is not None
    assert sum(value < limit for value in values) == n // 8


def test_of_no_text_nothing_is_usual():
    assert usual_certainty([]) is None


def test_what_is_less_sure_than_usual_is_flagged_and_nothing_else(translator):
    found = translator.translate_all(LINES)
    least, most = sorted(map(certainty, found))
    for limit, n_unsure in ((None, 0), (least, 0), (most, 1), (0.0, 2)):
        translator.unsure_below = limit
        assert sum(UNSURE in one.flags for one in translator.translate_all(LINES)) == n_unsure


def test_what_is_drawn_at_random_is_not_doubted(translator):
    translator.unsure_below = 0.0
    assert all(UNSURE not in one.flags for one in translator.translate_all(LINES, search="sampling"))
