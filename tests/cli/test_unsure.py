"""A translation that the model is unsure of does not read like any other: that is said."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import pytest

import transformer_cli
from transformer_cli import loading
from transformer_cli.checkpoints.store import open_run
from transformer_cli.cli.app import main
from transformer_cli.decoding.doubt import UNSURE, certainty, usual_certainty
from transformer_cli.errors import ModelError

BEER = "ich mochte ein bier"
WARNING = "warning: the model is less sure of this translation than it usually is\n"


@pytest.fixture
def doubtful(here, monkeypatch):
    """A run that is unsure of all that it translates."""
    monkeypatch.setattr(loading, "_unsure_below", lambda runs: 0.0)


def test_training_measures_what_is_usual_on_the_validation_text(trained_run):
    from transformer_cli.data.corpus import load_validation

    translator = transformer_cli.load(trained_run)
    text = load_validation(
        open_run(trained_run / "checkpoints" / (trained_run / "best").read_text().strip()).config.data
    )
    found = translator.translate_all(text.source, beam_size=1)
    assert translator.unsure_below == pytest.approx(usual_certainty(map(certainty, found)), abs=1e-5)
    assert min(map(certainty, found)) < 0


def test_an_ensemble_doubts_where_its_most_lenient_model_does(trained_run):
    run = open_run(trained_run / "checkpoints" / (trained_run / "best").read_text().strip())
    runs = [replace(run, state={"unsure_below": value}) for value in (-0.2, -0.1)]
    assert loading.translator_of(runs, run.config).unsure_below == -0.2
    assert loading.translator_of([*runs, replace(run, state={})], run.config).unsure_below is None


@pytest.mark.parametrize("value", ["-1", True, 0.5, math.nan, -math.inf, [], {}])
def test_a_threshold_that_none_can_be_is_refused_by_name(loaded_run, value):
    """It was believed, or left out without a word; training refuses such a state."""
    run = replace(loaded_run, state={"unsure_below": value})
    with pytest.raises(ModelError, match=r"state\.json has values that no run can have: unsure_below") as refused:
        loading.translator_of([run, loaded_run], run.config)
    assert refused.value.hint


def test_a_doubtful_translation_is_said_to_be_one(doubtful, capfd):
    """`wo ist das kleine Haus?` was "where is the house small" without a word."""
    assert main(["translate", BEER]) == 0
    assert capfd.readouterr().err.endswith(WARNING)
    assert main(["translate", BEER, "", BEER]) == 0
    assert "warning: the model is less sure than it usually is of 2 of 3 translations (lines 1, 3)\n" in (
        capfd.readouterr().err
    )
    assert main(["translate", "--json", "-q", BEER]) == 0
    told = capfd.readouterr()
    assert (json.loads(told.out)["flags"], told.err) == ([UNSURE], "")


def test_what_has_unseen_words_is_not_warned_of_twice(doubtful, capfd):
    assert main(["translate", "guten tag"]) == 0
    told = capfd.readouterr().err
    assert "training never saw guten, tag" in told
    assert "less sure" not in told


def test_of_several_all_are_counted_those_with_unseen_words_too(doubtful, capfd):
    assert main(["translate", "guten tag", BEER]) == 0
    assert "less sure than it usually is of 2 of 2 translations (lines 1, 2)\n" in capfd.readouterr().err


def test_a_conversation_says_so_after_each_sentence(doubtful, capfd, monkeypatch):
    lines = iter([BEER, "guten tag", ""])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(["translate"]) == 0
    told = capfd.readouterr().err
    assert told.count(WARNING) == 1
    assert told.index(WARNING) < told.index("training never saw guten, tag")
