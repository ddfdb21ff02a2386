"""A model in CTranslate2 says what it says in tx, whatever its shape."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from conftest import PAIRS
from shapes import compared_by, one_by_one, short, with_model

from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import open_run
from transformer_cli.export.comparison import Probe, compare
from transformer_cli.export.ctranslate2 import CTranslate2
from transformer_cli.loading import translator_of
from transformer_cli.tokenizer import Tokenizer

pytest.importorskip("ctranslate2", reason="the extra `ctranslate2` is not installed")

SOURCES = ["ich mochte ein bier", "die unglückliche katze schläft nicht und trinkt", "der hund", "?"]


def compared(run, place, *, quantization=None):
    return compared_by(CTranslate2(), run, place, SOURCES, quantization=quantization)


@pytest.mark.parametrize("options", one_by_one(), ids=str)
def test_every_option_of_the_model_gives_equal_logits_and_scores_or_is_refused(loaded_run, tmp_path, options):
    run = with_model(loaded_run, **options)
    if options == {"qk_norm": True}:
        assert [one.split(":")[0] for one in CTranslate2().refusals(run)] == ["model.qk_norm"]
        return
    found = compared(run, tmp_path / "there")
    assert found.logit_difference < 1e-5
    assert found.complaints(rounded=False) == []


def test_two_vocabularies_stay_two(loaded_run, tmp_path):
    tokenizer = Tokenizer(loaded_run.tokenizer.source, loaded_run.tokenizer.source)
    found = compared(replace(with_model(loaded_run, tied="decoder"), tokenizer=tokenizer), tmp_path / "there")
    assert found.complaints(rounded=False) == []


def test_a_source_without_end_mark_stays_without(loaded_run, tmp_path):
    config = loaded_run.config.model_copy(
        update={"data": loaded_run.config.data.model_copy(update={"source_eos": False})}
    )
    found = compared(replace(loaded_run, config=config), tmp_path / "there")
    assert found.complaints(rounded=False) == []


def test_the_weights_of_the_run_are_left_as_they_are(loaded_run, tmp_path):
    """CTranslate2 rounds what it is given in place."""
    before = {name: tensor.clone() for name, tensor in loaded_run.model.state_dict().items()}
    compared(loaded_run, tmp_path / "there", quantization="int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded_run.model.state_dict().items())


@pytest.mark.parametrize("beam_size", [1, 3])
def test_texts_that_never_end_are_the_same_up_to_where_both_are_cut(loaded_run, tmp_path, beam_size):
    """None was: the end mark, which none has, counts as a piece of theirs."""
    run = with_model(loaded_run, output_bias=True)
    with torch.no_grad():
        run.model.output_bias[3] = -50
    format = CTranslate2()
    format.write(run, tmp_path, quantization=None)
    found = compare(run, format.open(run, tmp_path), replace(short(run, SOURCES), beam_size=beam_size))
    assert found.equal_texts == len(SOURCES)
    assert found.complaints(rounded=False) == []


def test_of_200_sentences_greedy_texts_are_the_same_and_beams_agree_on_every_score(trained_run, tmp_path):
    """Made of a dozen sentences' words at random, so that much is nearly a tie, and searches part ways; by the first
    checkpoint, which is sure of less than the best."""
    loaded_run = open_run(list_checkpoints(trained_run)[0])
    words = sorted({word for source, _ in PAIRS for word in source.split()})
    drawn = random.Random(1)
    lines = [" ".join(drawn.choices(words, k=drawn.randint(2, 7))) for _ in range(200)]
    there = CTranslate2()
    there.write(loaded_run, tmp_path, quantization=None)
    sources = translator_of(loaded_run, loaded_run.config).encode_source(lines)
    probe = Probe(lines, sources, limit=40, beam_size=5, length_penalty=1.0)
    found = compare(loaded_run, there.open(loaded_run, tmp_path), probe)
    assert found.agreeing == 1
    assert found.score_difference < 1e-4
    assert found.equal_texts > 160
