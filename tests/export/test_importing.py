"""A model of Hugging Face's says in tx what it said there, pieces, logits and translations, or is refused."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from shapes import short, with_model

import transformer_cli as tx
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.data import DataConfig, PhrasebookConfig
from transformer_cli.data.corpus import load_training
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.comparison import compare
from transformer_cli.export.from_hugging_face import ALWAYS, DEFAULTS
from transformer_cli.export.hugging_face import HuggingFace
from transformer_cli.export.importing import import_model

transformers = pytest.importorskip("transformers", reason="the extra `hugging-face` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses.")

SMALL = {
    "d_model": 16,
    **{f"{side}_layers": n for side, n in (("encoder", 2), ("decoder", 1))},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
    "max_position_embeddings": 256,
}
SHAPES = [
    {"activation_function": "swish", "scale_embedding": True},
    {"activation_function": "relu"},
    {"activation_function": "gelu", "tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "scale_embedding": True},
]


@pytest.fixture(scope="session")
def text() -> tuple[list[str], list[str]]:
    """German and English lines."""
    corpus = load_training(DataConfig(phrasebook=PhrasebookConfig(n_pairs=1000)))
    return corpus.source[:400], corpus.target[:400]


def sentencepiece_model(lines: list[str], **options) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=150, minloglevel=2, num_threads=1, **options
    )
    return model.getvalue()


@pytest.fixture(scope="session")
def spms(text) -> list[bytes]:
    """A model of each side, as OPUS-MT has them: pad is unknown to it, and unk, bos and eos are 0, 1, 2."""
    return [sentencepiece_model(lines) for lines in text]


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id) for id in range(3, len(processor))]


def write_tokenizer(
    place: Path, spms: list[bytes], *, separate: bool = False, lacking: Sequence[int] = (0, 0)
) -> list[int]:
    """As OPUS-MT numbers pieces: eos, unk, those of both models in an order of its own, pad. Returns the sizes."""
    sides = [pieces_of(model) for model in spms]
    lists = sides if separate else [list(dict.fromkeys(sides[0] + sides[1]))]
    for name, pieces, n in zip(("vocab.json", "target_vocab.json"), lists, lacking, strict=False):
        random.Random(7).shuffle(pieces)
        names = ["</s>", "<unk>", *pieces[n:], "<pad>"]
        place.joinpath(name).write_text(json.dumps({name: id for id, name in enumerate(names)}), encoding="utf-8")
    for name, model in zip(("source.spm", "target.spm"), spms, strict=True):
        place.joinpath(name).write_bytes(model)
    said = {"tokenizer_class": "MarianTokenizer", "source_lang": "de", "target_lang": "en", "separate_vocabs": separate}
    place.joinpath("tokenizer_config.json").write_text(json.dumps(said))
    return [len(pieces) - n + 3 for pieces, n in zip(lists, lacking, strict=False)]


@pytest.fixture
def marian(tmp_path, spms):
    """marian(lacking=(0, 0), separate=False, **config): a directory of a Marian model with random weights."""

    def make(*, lacking: Sequence[int] = (0, 0), separate: bool = False, **options):
        place = tmp_path / "marian"
        place.mkdir()
        sizes = write_tokenizer(place, spms, separate=separate, lacking=lacking)
        torch.manual_seed(5)
        ids = {"pad_token_id": sizes[-1] - 1, "decoder_start_token_id": sizes[-1] - 1, "eos_token_id": 0}
        if separate:
            ids["decoder_vocab_size"] = sizes[1]
        config = transformers.MarianConfig(vocab_size=sizes[0], **SMALL, **ids, **options, forced_eos_token_id=None)
        model = transformers.MarianMTModel(config).eval()
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "embed_positions" not in name:
                    tensor.copy_(torch.randn_like(tensor) * 0.3 + ("norm.w" in name))
            for table in {model.get_encoder().embed_tokens, model.get_decoder().embed_tokens}:
                table.weight[config.pad_token_id] = 0
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
        model.save_pretrained(place)
        return place

    return make


def opened(run_dir: Path):
    return open_run(find_checkpoint(str(run_dir)))


@torch.inference_mode()
def logits_of_both(place: Path, run_dir: Path, source: str, target: str):
    """Of all pieces that are there, in the order of the original, by the original and by tx; and what else tx has."""
    model = transformers.MarianMTModel.from_pretrained(place).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(place)
    theirs = tokenizer([source], text_target=[target], return_tensors="pt")
    start = torch.tensor([[model.config.decoder_start_token_id]])
    target_in = torch.cat((start, theirs.labels[:, :-1]), dim=1)
    there = model(input_ids=theirs.input_ids, decoder_input_ids=target_in).logits[0]

    run = opened(run_dir)
    ids, [wanted] = [*run.tokenizer.encode_source([source])[0], 3], run.tokenizer.encode_target([target])
    hidden = run.model(torch.tensor([ids]), torch.tensor([len(ids)]), torch.tensor([[2, *wanted]]))
    here = run.model.project(hidden)[0]
    named = {run.tokenizer.target.piece(id): id for id in range(run.tokenizer.target_size)}
    order = [named[piece] for piece in tokenizer.convert_ids_to_tokens(range(there.size(1)))]
    others = sorted(set(range(here.size(1))) - set(order))
    return there, here[:, order], here[:, others]


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_every_shape_of_a_marian_model_gives_equal_logits(marian, tmp_path, text, options):
    place = marian(separate=options.get("share_encoder_decoder_embeddings") is False, **options)
    import_model(place, tmp_path / "run")
    for source, target in list(zip(*text, strict=True))[:5]:
        there, here, others = logits_of_both(place, tmp_path / "run", source, target)
        torch.testing.assert_close(here, there, rtol=0, atol=1e-5)
        assert (others.exp().sum(-1) < 1e-30 * there.exp().sum(-1)).all()


def test_each_of_two_lists_has_its_own_numbers(marian, tmp_path, text):
    """The source's piece that has the number of the target's padding was read as an unknown one."""
    place = marian(separate=True, lacking=(0, 20), share_encoder_decoder_embeddings=False)
    import_model(place, tmp_path / "run")
    pad = json.loads((place / "config.json").read_text(encoding="utf-8"))["pad_token_id"]
    there = transformers.MarianTokenizer.from_pretrained(place)(text[0]).input_ids
    assert any(pad in ids for ids in there)
    for source, target in list(zip(*text, strict=True))[:40]:
        theirs, here, _ = logits_of_both(place, tmp_path / "run", source, target)
        torch.testing.assert_close(here, theirs, rtol=0, atol=1e-5)


def test_pieces_that_its_list_lacks_are_read_as_unknown_ones(marian, tmp_path, text):
    place = marian(lacking=(30, 30))
    import_model(place, tmp_path / "run")
    run, tokenizer = opened(tmp_path / "run"), transformers.MarianTokenizer.from_pretrained(place)
    table = run.model.source_embedding.table.weight.detach()
    original = transformers.MarianMTModel.from_pretrained(place).get_encoder().embed_tokens.weight.detach()
    original = original[:, torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2))).argsort()]
    unknown = 0
    for line, ids in zip(text[0], run.tokenizer.encode_source(text[0]), strict=True):
        there = tokenizer(line).input_ids
        unknown += there.count(tokenizer.unk_token_id)
        assert torch.equal(table[[*ids, 3]], original[there])
    assert unknown > 100
    assert logits_of_both(place, tmp_path / "run", text[0][0], text[1][0])[2].size(1) == 31


@torch.inference_mode()
def test_there_and_back_again_it_has_the_same_logits_and_the_same_beams(marian, tmp_path, text):
    """Hugging Face to tx to Hugging Face, in the three of them."""
    place = marian(scale_embedding=True)
    import_model(place, tmp_path / "run")
    run = opened(tmp_path / "run")
    (tmp_path / "back").mkdir()
    HuggingFace().write(run, tmp_path / "back", quantization=None)
    compared = compare(run, HuggingFace().open(run, tmp_path / "back"), short(run, text[0]))
    assert compared.complaints(rounded=False) == []
    assert compared.logit_difference < 1e-5
    lines, found = text[0][:200], []
    for one in (place, tmp_path / "back"):
        model = transformers.MarianMTModel.from_pretrained(one).eval()
        tokenizer = transformers.MarianTokenizer.from_pretrained(one)
        assert model.config.scale_embedding
        banned = tokenizer.convert_tokens_to_ids(["<pad>", "<unk>"])
        if one != place:
            banned.append(tokenizer.convert_tokens_to_ids("<s>"))
        batch = tokenizer(lines, return_tensors="pt", padding=True)
        options = {"num_beams": 4, "max_length": 13, "suppress_tokens": banned, "do_sample": False}
        ids = model.generate(**batch, **options)
        found.append([[one for one in tokenizer.convert_ids_to_tokens(row) if one[0] != "<"] for row in ids])
    translator = tx.load(tmp_path / "run", device="cpu", precision="fp32")
    translator.config = translator.config.model_copy(update={"max_length": 12, "max_length_factor": 100})
    ours = [list(one.tokens) for one in translator.translate_all(lines, beam_size=4)]
    assert found[1] == found[0]
    assert sum(map(list.__eq__, ours, found[0])) == 200


EXPORTED = [
    {"norm_position": "post"},
    {"norm_position": "post", "output_bias": True, "tied": "decoder", "embedding_scale": False},
    {"norm_position": "post", "tied": "none", "activation": "silu"},
    {"positions": "sinusoidal-halves", "first_position": 1},
    {"positions": "sinusoidal-halves", "first_position": 1, "tied": "none"},
    {"positions": "learned", "max_positions": 64, "output_bias": True},
]


@pytest.mark.parametrize("options", EXPORTED, ids=str)
def test_what_tx_exported_comes_back_bit_for_bit(loaded_run, tmp_path, options):
    run = with_model(loaded_run, **options)
    (tmp_path / "there").mkdir()
    HuggingFace().write(run, tmp_path / "there", quantization=None)
    import_model(tmp_path / "there", tmp_path / "run")
    back = opened(tmp_path / "run")
    assert back.tokenizer.shares_ids
    lines = ["ich mochte ein bier", "unglückliche katze?"]
    assert back.tokenizer.encode_source(lines) == run.tokenizer.encode_source(lines)
    ours, theirs = (dict(one.model.named_parameters()) for one in (run, back))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_a_config_leaves_out_is_what_the_class_has(kind):
    config = transformers.AutoConfig.for_model(kind)
    assert ALWAYS | DEFAULTS[kind] == {name: getattr(config, name) for name in ALWAYS | DEFAULTS[kind]}


def changed(path: Path, **settings) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | settings), encoding="utf-8")


def test_what_cannot_be_held_is_refused_with_every_reason_and_nothing_is_left(marian, tmp_path):
    place = marian()
    changed(place / "config.json", activation_function="gelu_new", decoder_ffn_dim=30, eos_token_id=[0, 1])
    (place / "target.spm").unlink()
    (place / "model.safetensors").unlink()
    with pytest.raises(UsageError) as caught:
        import_model(place, tmp_path / "run")
    for reason in (
        "gelu_new",
        "decoder_ffn_dim 30",
        "eos_token_id: [0, 1]",
        "target.spm is missing",
        "there are no weights",
    ):
        assert reason in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marian"]


def add_weight(place: Path) -> None:
    path = place / "model.safetensors"
    save_file(load_file(path) | {"model.encoder.layernorm_embedding.weight": torch.ones(16)}, path)


def swap_positions(place: Path) -> None:
    path = place / "model.safetensors"
    save_file(load_file(path) | {"model.encoder.embed_positions.weight": torch.ones(8, 16)}, path)


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (add_weight, ModelError, "weights that no marian model has: model.encoder.layernorm_embedding.weight"),
        (swap_positions, UsageError, "encoder: its positions are not the sinusoids"),
        (lambda place: changed(place / "vocab.json", x=10**6), ModelError, "vocab.json is no list of"),
        (lambda place: changed(place / "vocab.json", **{">>fra<<": 5}), ModelError, "vocab.json is no list of"),
        (lambda place: changed(place / "config.json", model_type="t5"), UsageError, "model_type: t5"),
        (
            lambda place: changed(place / "config.json", decoder_start_token_id=9),
            UsageError,
            "is a piece of text and by its number, 9, a mark",
        ),
        (lambda place: changed(place / "config.json", model_type="m2m_100"), ModelError, "layer_norm.weight"),
        (lambda place: changed(place / "config.json", d_model=0), ModelError, "d_model: 0 is not a number above 0"),
        (
            lambda place: changed(place / "config.json", d_model="16"),
            ModelError,
            "d_model is '16', which",
        ),
        (
            lambda place: changed(place / "config.json", activation_function=["relu"]),
            ModelError,
            "is ['relu'], which",
        ),
        (lambda place: changed(place / "config.json", model_type=["marian"]), ModelError, "model_type is ['marian']"),
        (
            lambda place: changed(place / "config.json", dropout=-1),
            ModelError,
            "dropout: -1 is not",
        ),
        (lambda place: changed(place / "config.json", pad_token_id=10**12), ModelError, "there are"),
        (lambda place: changed(place / "config.json", scale_embedding="x"), ModelError, "scale_embedding is"),
        (
            lambda place: changed(place / "config.json", d_model=8),
            ModelError,
            "16, the configuration there says ... x 8",
        ),
        (
            lambda place: changed(place / "generation_config.json", num_beams=[]),
            ModelError,
            "decoding.beam_size: [] is not",
        ),
        (
            lambda place: changed(place / "generation_config.json", length_penalty="x"),
            ModelError,
            "length_penalty: 'x'",
        ),
        (lambda place: changed(place / "tokenizer_config.json", source_lang=7), ModelError, "data.source: 7 is not"),
        (
            lambda place: changed(place / "tokenizer_config.json", unk_token=["x"]),
            ModelError,
            "vocab.json has no ['x']",
        ),
        (lambda place: (place / "source.spm").write_bytes(b"no"), ModelError, "source.spm is not a SentencePiece"),
        (lambda place: (place / "model.safetensors").write_bytes(b"no"), ModelError, "is no safetensors file"),
        (lambda place: (place / "config.json").unlink(), ModelError, "config.json"),
        (lambda place: (place / "tokenizer_config.json").unlink(), UsageError, "does not say what its languages are"),
    ],
)
def test_what_is_damaged_or_another_model_is_refused(marian, tmp_path, damage, error, words):
    place = marian()
    damage(place)
    with pytest.raises(error) as caught:
        import_model(place, tmp_path / "run")
    assert words in caught.value.message
    assert not (tmp_path / "run").exists()


NO_NAMES = ("[]", "[[1, 2, 3]]", "7", "null", "true", '"ab"', "{", "", "[" * 100_000)


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "model.safetensors.index.json"],
)
def test_a_file_that_holds_something_else_is_named(marian, tmp_path, name):
    """It was a bug in tx."""
    place = marian()
    for content in NO_NAMES:
        (place / name).write_text(content, encoding="utf-8")
        with pytest.raises(ModelError, match=re.escape(name)):
            import_model(place, tmp_path / "run")


@pytest.mark.parametrize("listed", [{}, *({"weight_map": value} for value in (None, 7, [], "x", {"a": None}))], ids=str)
def test_an_index_that_names_no_files_is_damaged(marian, tmp_path, listed):
    place = marian()
    (place / "model.safetensors.index.json").write_text(json.dumps(listed), encoding="utf-8")
    with pytest.raises(ModelError, match="does not say which file has which weights"):
        import_model(place, tmp_path / "run")


def test_weights_of_another_shape_are_refused_by_name(marian, tmp_path):
    """Some were cut to what fits, and became another model; most were a bug in tx."""
    place = marian()
    path = place / "model.safetensors"
    whole = load_file(path)
    for n, (name, tensor) in enumerate(whole.items()):
        *rows, width = tensor.shape
        shape = [(*rows, 2 * width), (), (2, *rows, width), (3,), (*rows, width // 2)][n % 5]
        save_file(whole | {name: torch.zeros(shape)}, path)
        with pytest.raises(ModelError, match=rf"{re.escape(name)} is .*the configuration there says"):
            import_model(place, tmp_path / "run")


def test_a_model_of_several_target_languages_is_refused(marian, tmp_path):
    place = marian()
    pieces = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    renamed = {">>fra<<" if id == 7 else piece: id for piece, id in pieces.items()}
    (place / "vocab.json").write_text(json.dumps(renamed), encoding="utf-8")
    with pytest.raises(UsageError, match="language tags, such as >>fra<<"):
        import_model(place, tmp_path / "run")


def test_bpe_models_of_two_languages_cannot_have_one_list(tmp_path, text):
    (tmp_path / "there").mkdir()
    sizes = write_tokenizer(tmp_path / "there", [sentencepiece_model(lines, model_type="bpe") for lines in text])
    pad = {"pad_token_id": sizes[0] - 1, "decoder_start_token_id": sizes[0] - 1}
    config = transformers.MarianConfig(vocab_size=sizes[0], **SMALL, **pad)
    transformers.MarianMTModel(config).save_pretrained(tmp_path / "there")
    with pytest.raises(UsageError, match=r"bpe.*unigram models only"):
        import_model(tmp_path / "there", tmp_path / "run")


def tx_(*arguments: str) -> int:
    return failures.exit_code(lambda: main(list(arguments)))


def test_an_imported_run_is_a_run_like_any_other(marian, tmp_path, text, capfd):
    place = marian(scale_embedding=True)
    assert tx_("import", str(place), "--run-dir", "runs/opus", "--set", "decoding.beam_size=2", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["kind"], said["source"], said["target"]) == ("marian", "de", "en")
    assert tx_("import", str(place), "--run-dir", "runs/opus") == 2
    assert "is there already" in capfd.readouterr().err
    for name, lines in zip(("text.de", "text.en"), text, strict=True):
        Path(name).write_text("\n".join(lines[:40]) + "\n", encoding="utf-8")

    assert tx_("translate", "-m", "runs/opus", "das ist ein hund", "--set", "decoding.max_length=5") == 0
    heard = capfd.readouterr()
    assert "not finished" not in heard.err
    assert tx_("score", "-m", "runs/opus", "--source", "text.de", "--target", "text.en") == 0
    assert tx_("visualize-attention", "-m", "runs/opus", "ein hund", "-o", "page.html") == 0
    assert tx_("count-params", "runs/opus", "--check", "--json") == 0
    counted = json.loads(capfd.readouterr().out.split("\n")[-2])
    assert (counted["name"], counted["parameters"]) == ("opus", said["parameters"])

    learning = ["train", "-c", "runs/opus/config.yaml", "--run-dir", "runs/opus", "--set", "training.max_steps=2"]
    assert tx_(*learning) == 2
    assert "there is no text to learn from" in capfd.readouterr().err
    learning += ["--set", "data.train=text", "--set", "data.valid=text", "--set", "training.warmup_steps=1"]
    assert tx_(*learning, "--set", "model.dropout=0.2") == 2
    assert "model.dropout: 0.1 in the run, 0.2 now" in capfd.readouterr().err
    before = opened(Path("runs/opus")).model.output_bias
    assert tx_(*learning) == 0
    after = opened(Path("runs/opus"))
    assert after.checkpoint.name == "step-00000002"
    assert 0 < (after.model.output_bias - before).abs().max() < 0.1


def test_until_it_learns_what_it_computes_in_may_change(marian, tmp_path, text, monkeypatch):
    """What a first try had chosen was taken for what the run had learned in."""
    run = tmp_path / "run"
    import_model(
        marian(), run, ["training.warmup_steps=1", "training.max_steps=1", "data.train=text", "data.valid=text"]
    )
    for name, lines in zip(("text.de", "text.en"), text, strict=True):
        Path(name).write_text("\n".join(lines[:40]) + "\n", encoding="utf-8")
    learning = ["train", "-c", str(run / "config.yaml"), "--run-dir", str(run)]
    with monkeypatch.context() as broken_off:
        broken_off.setattr("transformer_cli.training.run.fit", lambda *_: pytest.fail("broken off"))
        with pytest.raises(pytest.fail.Exception):
            main([*learning, "--set", "precision=fp32"])
    changed = [f"--set={setting}" for setting in ("precision=bf16", "matmul_precision=high", "threads=1")]
    assert main([*learning, *changed]) == 0
    machine = json.loads((run / "run.json").read_text(encoding="utf-8"))["machine"]
    assert [machine[name] for name in ("precision", "matmul_precision", "threads")] == ["bf16", "high", 1]


def test_weights_that_are_pickled_are_read_too(marian, tmp_path):
    place = marian()
    import_model(place, tmp_path / "safe")
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    import_model(place, tmp_path / "pickled")
    weights = [load_file(opened(tmp_path / name).checkpoint / "model.safetensors") for name in ("safe", "pickled")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@torch.inference_mode()
def test_how_it_generates_is_how_the_run_searches(marian, tmp_path, text, capfd):
    """All but the beam and its penalty was left out, and nobody said so."""
    place = marian(scale_embedding=True)
    pieces = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    some = ["▁the", "e", "▁a"]
    said = {"no_repeat_ngram_size": 2, "min_length": 6, "num_beams": 3, "bad_words_ids": [[len(pieces) - 1], [1]]}
    said["suppress_tokens"] = [pieces[piece] for piece in some]
    changed(place / "generation_config.json", **said, max_length=13, forced_eos_token_id=None)
    assert tx_("import", str(place), "--run-dir", "run") == 0
    assert "warning" not in capfd.readouterr().err
    translator = tx.load("run", device="cpu", precision="fp32", settings={"decoding.max_length": 12})
    assert translator.settings.decoding.banned == some
    model, tokenizer = (
        getattr(transformers, f"Marian{kind}").from_pretrained(place) for kind in ("MTModel", "Tokenizer")
    )
    lines = [f"{line} {line}" for line in text[0][:100]]  # at which the longest length is 12
    ids = model.eval().generate(**tokenizer(lines, return_tensors="pt", padding=True))
    theirs = [[one for one in tokenizer.convert_ids_to_tokens(row) if one[0] != "<"] for row in ids]
    assert [list(one.tokens) for one in translator.translate_all(lines)] == theirs


@pytest.mark.parametrize("beams", [None, 3])
def test_of_two_files_that_say_how_it_generates_the_same_one_counts(marian, tmp_path, beams):
    """Of an older one, too, where transformers heeds the other alone."""
    place = marian()
    changed(place / "config.json", num_beams=5)
    changed(place / "generation_config.json", **({} if beams is None else {"num_beams": beams}))
    theirs = transformers.MarianMTModel.from_pretrained(place).generation_config.num_beams
    import_model(place, tmp_path / "run")
    assert opened(tmp_path / "run").config.decoding.beam_size == (theirs or 1) == (beams or 1)
    (place / "generation_config.json").unlink()
    theirs = transformers.MarianMTModel.from_pretrained(place).generation_config.num_beams
    import_model(place, tmp_path / "older")
    assert opened(tmp_path / "older").config.decoding.beam_size == theirs == 5


def test_what_it_generates_with_and_tx_has_not_is_told(marian, tmp_path, capfd):
    place = marian()
    changed(place / "generation_config.json", repetition_penalty=1.5, do_sample=False, bad_words_ids=[[3, 4]])
    assert tx_("import", str(place), "--run-dir", "run", "--json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["left"] == ["repetition_penalty: 1.5", "bad_words_ids: [3, 4]"]
    assert "warning: it was generated with what tx has not, and is not here: repetition_penalty: 1.5, bad" in told.err


@pytest.mark.parametrize("wrong", [{"bad_words_ids": 5}, {"bad_words_ids": [7]}, {"min_new_tokens": "x"}], ids=str)
def test_a_damaged_way_to_generate_is_a_model_error(marian, tmp_path, wrong):
    place = marian()
    changed(place / "generation_config.json", **wrong)
    with pytest.raises(ModelError, match="which say how to generate, is damaged"):
        import_model(place, tmp_path / "run")


def stored(place: Path, **tensors: torch.Tensor) -> None:
    """Weights of a directory, changed; `__` for a dot."""
    found = load_file(place / "model.safetensors") | {name.replace("__", "."): one for name, one in tensors.items()}
    save_file({name: one.contiguous() for name, one in found.items()}, place / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", ["lm_head.weight", "model.decoder.embed_tokens.weight"])
def test_tables_that_differ_are_not_taken_for_one(marian, tmp_path, name):
    """The first was taken for all of them: another model, without a word."""
    place = marian()
    shared = load_file(place / "model.safetensors")["model.shared.weight"]
    stored(place, **{name: shared.clone()})
    import_model(place, tmp_path / "same")
    stored(place, **{name: torch.randn_like(shared)})
    with pytest.raises(ModelError, match=rf"model\.shared\.weight and {re.escape(name)} differ") as refused:
        import_model(place, tmp_path / "run")
    assert "tie_word_embeddings" in str(refused.value.hint)
    assert not (tmp_path / "run").exists()


@torch.inference_mode()
def test_two_tables_that_one_setting_calls_one_are_two_once_that_is_corrected(marian, tmp_path, text):
    place = marian(tie_word_embeddings=False, share_encoder_decoder_embeddings=True)
    with pytest.raises(ModelError, match="differ; the configuration there says that they are one"):
        import_model(place, tmp_path / "run")
    changed(place / "config.json", share_encoder_decoder_embeddings=False)
    import_model(place, tmp_path / "run")
    there, here, _ = logits_of_both(place, tmp_path / "run", text[0][0], text[1][0])
    torch.testing.assert_close(here, there, rtol=0, atol=1e-5)


def test_numbers_that_are_none_are_named_with_their_file_and_a_bias_of_minus_infinity_is_never(marian, tmp_path):
    """They were numbers that diverged, by a name of ours."""
    place = marian()
    bias = load_file(place / "model.safetensors")["final_logits_bias"]
    bias[0, 5] = -torch.inf
    stored(place, final_logits_bias=bias)
    import_model(place, tmp_path / "run")
    assert opened(tmp_path / "run").model.output_bias.min() == -100
    weight = load_file(place / "model.safetensors")["model.encoder.layers.0.fc1.weight"]
    weight[0, 0] = torch.nan
    stored(place, model__encoder__layers__0__fc1__weight=weight)
    with pytest.raises(ModelError, match=r"marian: model\.encoder\.layers\.0\.fc1\.weight holds NaN or infinity"):
        import_model(place, tmp_path / "other")
    weight[0, 0] = -torch.inf
    shared = load_file(place / "model.safetensors")["model.shared.weight"]
    stored(place, model__encoder__layers__0__fc1__weight=weight, lm_head__weight=shared.clone())
    with pytest.raises(ModelError, match=r"fc1\.weight holds NaN or infinity"):
        import_model(place, tmp_path / "other")
    shared[0, 0] = torch.nan
    stored(place, model__shared__weight=shared, lm_head__weight=shared.clone())
    with pytest.raises(ModelError, match=r"model\.shared\.weight holds NaN or infinity"):  # not that both differ
        import_model(place, tmp_path / "other")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("model.n_heads=8", "model.n_heads: 4"),
        ("model={activation: silu, first_position: 3}", "model.activation: relu, model.first_position: 0"),
        ("model.n_layers=1", "model.n_layers: {'encoder': 2, 'decoder': 1}"),
        ("data.source_eos=false", "data.source_eos: True"),
        ("tokenizer.vocab_size=100", "tokenizer.vocab_size"),
    ],
)
def test_a_setting_that_would_make_another_model_is_refused(marian, tmp_path, setting, told):
    """It was heeded, and the model was another one; or the weights were said not to fit, of a folder that was gone."""
    with pytest.raises(UsageError) as refused:
        import_model(marian(activation_function="relu"), tmp_path / "run", [setting])
    assert f"which has {told}" in refused.value.message
    assert not (tmp_path / "run").exists()


def test_what_only_training_heeds_and_how_it_translates_may_be_set(marian, tmp_path):
    settings = ["model.dropout=0.25", "tokenizer.sampling=0.1", "decoding.beam_size=2"]
    settings += ["data.max_length=3000", "training.budget_tokens=4096"]  # which go together
    import_model(marian(), tmp_path / "run", [*settings, "model.n_layers={encoder: 2, decoder: 1}"])
    assert opened(tmp_path / "run").config.model.dropout == 0.25
