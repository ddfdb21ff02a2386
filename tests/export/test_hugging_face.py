"""A model in Hugging Face transformers says what it says in tx, or is refused with every reason."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import PAIRS
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from shapes import compared_by, one_by_one, short, with_model

import transformer_cli as tx
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.source import load_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.loader import collate
from transformer_cli.export.comparison import compare
from transformer_cli.export.hugging_face import HuggingFace, kind_of
from transformer_cli.export.importing import import_model
from transformer_cli.model.positions import halves
from transformer_cli.tokenizer import Tokenizer, train_tokenizer
from transformer_cli.tokenizer.vocabulary import Vocabulary

pytest.importorskip("transformers", reason="the extra `hugging-face` is not installed")

SOURCES = ["ich mochte ein bier", "die unglückliche katze schläft nicht und trinkt", "der hund", "?", "</s> x"]
POST = {"norm_position": "post"}
M2M100 = {"positions": "sinusoidal-halves", "first_position": 1}
TIES = [M2M100 | {"tied": tied} for tied in ("all", "none", "embeddings", "decoder")]
BOTH = ("tied", "bias", "output_bias", "activation", "positions", "first_position", "n_kv_heads", "embedding_scale")
SHAPES = [*one_by_one(), *(POST | one for one in one_by_one() if len(one) == 1 and {*one} <= {*BOTH}), *TIES]


def compared(run, place):
    return compared_by(HuggingFace(), run, place, SOURCES)


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_every_option_of_the_model_gives_equal_logits_scores_and_texts_or_is_refused(loaded_run, tmp_path, options):
    run = with_model(loaded_run, **options)
    if refusals := HuggingFace().refusals(run):
        assert {one.split(":")[0].removeprefix("model.") for one in refusals} <= {*options, "positions", "final_norm"}
        return
    found = compared(run, tmp_path / "there")
    assert found.logit_difference < 1e-5
    assert found.complaints(rounded=False) == []


@torch.inference_mode()
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_whatever_was_written_becomes_a_run_with_the_same_logits(loaded_run, tmp_path, options):
    run = with_model(loaded_run, **options)
    if HuggingFace().refusals(run):
        return
    (tmp_path / "there").mkdir()
    HuggingFace().write(run, tmp_path / "there", quantization=None)
    import_model(tmp_path / "there", tmp_path / "run")
    back = open_run(find_checkpoint(str(tmp_path / "run")))
    batch = collate([[5, 9, 14, 3], [7, 3]], [[11, 40, 6], [8]])
    logits = [
        one.model.project(one.model(batch.source_BS, batch.source_lengths_B, batch.target_in_BT)) for one in (run, back)
    ]
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-5)
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        assert getattr(back.config.model, name) == getattr(run.config.model, name)


def test_each_of_the_three_architectures_is_used_and_most_shapes_are_held(loaded_run):
    """A test of the test."""
    runs = [with_model(loaded_run, **options) for options in SHAPES]
    held = [run for run in runs if not HuggingFace().refusals(run)]
    assert {kind_of(run.config.model) for run in held} == {"marian", "m2m_100", "blenderbot"}
    assert len(held) > len(SHAPES) / 2


def test_the_sinusoids_in_halves_are_those_of_m2m100():
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(50, 16)
    torch.testing.assert_close(halves(50, 16).float(), theirs, rtol=0, atol=1e-5)


def test_two_vocabularies_stay_two(loaded_run, tmp_path):
    source = loaded_run.tokenizer.source
    model = ModelProto.FromString(source.model)
    model.pieces[-1].piece, model.pieces[-2].piece = model.pieces[-2].piece, model.pieces[-1].piece
    tokenizer = Tokenizer(source, Vocabulary(model.SerializeToString()))
    run = replace(with_model(loaded_run, tied="decoder", **POST), tokenizer=tokenizer)
    assert compared(run, tmp_path / "there").complaints(rounded=False) == []
    assert (tmp_path / "there" / "target_vocab.json").is_file()


def test_saved_again_by_its_own_library_it_is_the_same(loaded_run, tmp_path):
    """Marian's positions are not saved but computed anew: in another order than the paper's."""
    import transformers

    run = with_model(loaded_run, **POST)
    (tmp_path / "once").mkdir()
    HuggingFace().write(run, tmp_path / "once", quantization=None)
    once = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "once")
    once.save_pretrained(tmp_path / "once")
    found = compare(run, HuggingFace().open(run, tmp_path / "once"), short(run, SOURCES))
    assert found.complaints(rounded=False) == []


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_the_card_shows_how_it_is_used_and_it_writes_what_tx_writes(trained_run, tmp_path, capfd, monkeypatch):
    arguments = ["export", "hugging-face", "-m", str(trained_run), "-o", "there"]
    assert failures.exit_code(lambda: main(arguments)) == 0
    capfd.readouterr()
    code = Path("there/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    Path("there/usage.py").write_text(code.replace("...", "ich mochte ein bier"), encoding="utf-8")
    monkeypatch.chdir("there")
    runpy.run_path("usage.py")
    assert capfd.readouterr().out == "i want a beer\n"
    assert json.loads(Path("comparison.json").read_text(encoding="utf-8"))["exact"]["equal_texts"] == 12


def test_it_searches_as_the_run_or_the_command_line_says_and_is_read_so(trained_run, capfd):
    """All but the beam was left out, and --set heeded by nobody."""
    piece = tx.load(trained_run).tokenizer.target.names[-1]
    asked = {"beam_size": 3, "length_penalty": 0.5, "no_repeat_ngram": 2, "min_length": 4, "banned": [piece]}
    settings = [f"--set=decoding.{name}={json.dumps(value, ensure_ascii=False)}" for name, value in asked.items()]
    arguments = ["export", "hugging-face", "-m", str(trained_run), "-o", "there", *settings]
    assert failures.exit_code(lambda: main(arguments)) == 0
    said = json.loads(Path("there/generation_config.json").read_text(encoding="utf-8"))
    names = "num_beams", "length_penalty", "no_repeat_ngram_size", "min_length"
    assert [said[name] for name in names] == [3, 0.5, 2, 5]
    assert failures.exit_code(lambda: main(["import", "there", "--run-dir", "back"])) == 0
    decoding = load_config("back/config.yaml").decoding
    assert {name: getattr(decoding, name) for name in asked} == asked


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_what_has_letters_or_bytes_for_pieces_comes_back(loaded_run, tmp_path, kind):
    """It was said to lack pieces of its list."""
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 300})
    tokenizer, _ = train_tokenizer(config, SOURCES, [target for _, target in PAIRS], seed=1)
    run = with_model(replace(loaded_run, tokenizer=tokenizer), positions="sinusoidal-halves", first_position=1)
    (tmp_path / "there").mkdir()
    HuggingFace().write(run, tmp_path / "there", quantization=None)
    import_model(tmp_path / "there", tmp_path / "run")
    back = open_run(find_checkpoint(str(tmp_path / "run")))
    lines = [*SOURCES, "unglückliche katze?"]
    assert back.tokenizer.encode_source(lines) == tokenizer.encode_source(lines)
    assert back.tokenizer.decode_target(tokenizer.encode_target(lines)) == lines


def test_a_blank_at_the_end_of_a_text_is_no_other_text(loaded_run, tmp_path, monkeypatch):
    """Their tokenizer leaves it out; a model that writes one was refused."""
    decoded = Tokenizer.decode_target
    monkeypatch.setattr(Tokenizer, "decode_target", lambda self, ids: [f"{text} " for text in decoded(self, ids)])
    found = compared(with_model(loaded_run, positions="sinusoidal-halves", first_position=1), tmp_path / "there")
    assert found.complaints(rounded=False) == []


def test_what_cannot_be_held_is_refused_with_every_reason(loaded_run):
    shape = {"norm": "rms-norm", "activation": "swiglu", "d_head": 6, "final_norm": False, "positions": "rotary"}
    told = "\n".join(HuggingFace().refusals(with_model(loaded_run, **shape)))
    for setting in ("model.norm:", "model.activation:", "model.d_head:", "model.final_norm:", "in the decoder"):
        assert setting in told


def test_a_refusal_names_the_reasons_and_the_other_formats(loaded_run, tmp_path):
    from transformer_cli.errors import UsageError
    from transformer_cli.export.exporting import export

    run = with_model(loaded_run, norm="rms-norm", activation="geglu")
    with pytest.raises(UsageError, match=r"(?s)rms-norm.*geglu") as caught:
        export(run, "hugging-face", tmp_path / "there", lines=SOURCES)
    assert "ctranslate2" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
