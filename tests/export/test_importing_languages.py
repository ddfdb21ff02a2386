"""M2M100's and NLLB's models say in tx what they said in transformers, pieces, logits and translations."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path

import pytest
import sentencepiece
import torch
from shapes import short
from test_importing import SMALL, changed, opened, sentencepiece_model, spms, text, tx_  # noqa: F401

import transformer_cli as tx
from transformer_cli.decoding.scoring import Likelihood, Pair, score_ids, score_texts
from transformer_cli.decoding.texts import banned_ids
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.comparison import compare
from transformer_cli.export.hugging_face import HuggingFace
from transformer_cli.export.importing import import_model
from transformer_cli.export.languages import LANGUAGES

transformers = pytest.importorskip("transformers", reason="the extra `hugging-face` is not installed")
PAIRS = {"m2m100": ("de", "en"), "nllb": ("deu_Latn", "eng_Latn")}
SHAPES = [
    {},
    {"activation_function": "gelu", "scale_embedding": False, "encoder_layers": 1, "decoder_layers": 2},
    {"tie_word_embeddings": False, "max_position_embeddings": 64},
]


@pytest.fixture(scope="session")
def model(text) -> bytes:  # noqa: F811
    """One BPE model of both languages; its marks are unk, bos and eos, 0 to 2."""
    return sentencepiece_model([*text[0], *text[1]], model_type="bpe")


def write_tokenizer(place: Path, kind: str, model: bytes) -> int:
    """As facebook's models have it; returns how many ids there are."""
    place.joinpath("sentencepiece.bpe.model").write_bytes(model)
    if kind == "nllb":
        from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as codes

        tokenizer = transformers.NllbTokenizer.from_pretrained(place, extra_special_tokens=codes)
        tokenizer.save_pretrained(place)
        return len(tokenizer)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(id) for id in range(3, len(processor))]
    random.Random(7).shuffle(pieces)
    ids = {piece: id for id, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
    place.joinpath("vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    place.joinpath("tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer"}))
    return len(ids) + 100 + 8


@pytest.fixture
def many(tmp_path, model):
    """many(kind, **config): a directory of a model with random weights."""

    def make(kind: str = "m2m100", **options):
        place = tmp_path / kind
        place.mkdir()
        torch.manual_seed(5)
        config = transformers.M2M100Config(vocab_size=write_tokenizer(place, kind, model), **(SMALL | options))
        made = transformers.M2M100ForConditionalGeneration(config)
        with torch.no_grad():
            for name, tensor in made.named_parameters():
                tensor.copy_(torch.randn_like(tensor) * 0.3 + ("norm.w" in name))
        made.save_pretrained(place)
        return place

    return make


def languages(kind: str) -> list[str]:
    return [f"data.{side}={language}" for side, language in zip(("source", "target"), PAIRS[kind], strict=True)]


def original(place: Path, kind: str):
    source, target = PAIRS[kind]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(place).eval()
    return model, transformers.AutoTokenizer.from_pretrained(place, src_lang=source, tgt_lang=target)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("options", SHAPES, ids=str)
@torch.inference_mode()
def test_every_shape_gives_equal_logits(many, tmp_path, text, kind, options):  # noqa: F811
    place = many(kind, **options)
    import_model(place, tmp_path / "run", languages(kind))
    theirs, tokenizer = original(place, kind)
    run = opened(tmp_path / "run")
    pieces = {run.tokenizer.target.piece(id): id for id in range(3, run.tokenizer.target_size)}
    named = {id: tokenizer.convert_tokens_to_ids(name) for name, id in pieces.items() if not name.startswith("<there")}
    assert len(named) == len(set(named.values())) > 100 + len(LANGUAGES["m2m100"].split())
    for source, target in list(zip(*text, strict=True))[:5]:
        batch = tokenizer([source], text_target=[target], return_tensors="pt")
        start = torch.full((1, 1), theirs.config.decoder_start_token_id)
        there = theirs(batch.input_ids, decoder_input_ids=torch.cat((start, batch.labels[:, :-1]), 1)).logits[0]
        [ids], [wanted] = run.tokenizer.encode_source([source]), run.tokenizer.encode_target([target])
        hidden = run.model(torch.tensor([[*ids, 3]]), torch.tensor([len(ids) + 1]), torch.tensor([[2, *wanted]]))
        here = run.model.project(hidden)[0]
        torch.testing.assert_close(here[:, [*named]], there[:, [*named.values()]], rtol=0, atol=1e-5)
        assert here[:, 2].max() < -90  # the row that a translation begins with is the end mark's, once more


@pytest.mark.parametrize("kind", PAIRS)
@torch.inference_mode()
def test_of_200_sentences_every_beam_and_text_is_that_of_its_own_generate(many, tmp_path, text, kind):  # noqa: F811
    place = many(kind)
    import_model(place, tmp_path / "run", languages(kind))
    theirs, tokenizer = original(place, kind)
    translator = tx.load(tmp_path / "run", device="cpu", precision="fp32")
    target, lines = translator.tokenizer.target, text[0][:200]
    may = [id for id in range(3, target.size) if id not in target.banned_ids]
    banned = {*range(theirs.config.vocab_size)} - {*tokenizer.convert_tokens_to_ids([target.piece(id) for id in may])}
    mark = tokenizer.convert_tokens_to_ids(target.mark)
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    options = {
        "num_beams": 4,
        "max_length": 14,
        "suppress_tokens": [*banned],
        "do_sample": False,
        "length_penalty": 1.0,
    }
    made = theirs.generate(**batch, **options, forced_bos_token_id=mark)
    texts = tokenizer.batch_decode(made, skip_special_tokens=True)
    translator.config = translator.config.model_copy(update={"max_length": 12, "max_length_factor": 100})
    ours = list(translator.translate_all(lines, beam_size=4))
    found = [[one for one in tokenizer.convert_ids_to_tokens(row[1:]) if one not in ("</s>", "<pad>")] for row in made]
    assert [list(one.tokens) for one in ours] == found
    assert all(tokens[0] == target.mark and len(tokens) > 3 for tokens in found)
    assert [one.text for one in ours] == [one.removeprefix(target.mark).strip() for one in texts]
    pairs = [Pair([*part.source_ids, 3], part.ids, ended=not part.truncated) for one in ours for part in one.parts]
    scored = [one.log_probability for one in score_ids(translator, pairs)]
    assert scored == pytest.approx([one.log_probability for one in ours], abs=1e-4)


@torch.inference_mode()
def test_there_and_back_again_it_has_the_same_logits_and_the_same_texts(many, tmp_path, text):  # noqa: F811
    """Hugging Face to tx to Hugging Face, and to tx once more."""
    place = many()
    import_model(place, tmp_path / "run", languages("m2m100"))
    run = opened(tmp_path / "run")
    (tmp_path / "back").mkdir()
    HuggingFace().write(run, tmp_path / "back", quantization=None)
    found = compare(run, HuggingFace().open(run, tmp_path / "back"), short(run, list(text[0])))
    assert found.complaints(rounded=False) == []
    assert found.logit_difference < 1e-5
    target, texts = run.tokenizer.target, []
    names = [target.piece(id) for id in range(3, target.size) if id not in target.banned_ids]
    for one in (place, tmp_path / "back"):
        model, tokenizer = original(one, "m2m100")
        allowed = {*tokenizer.convert_tokens_to_ids(names)}
        banned = [id for id in range(model.config.vocab_size) if id not in allowed]
        batch = tokenizer(text[0][:200], return_tensors="pt", padding=True)
        options = {"num_beams": 4, "max_length": 14, "do_sample": False, "suppress_tokens": banned}
        made = model.generate(**batch, **options, forced_bos_token_id=tokenizer.convert_tokens_to_ids(target.mark))
        texts.append([one.removeprefix(target.mark) for one in tokenizer.batch_decode(made, skip_special_tokens=True)])
    assert [one.strip() for one in texts[0]] == [one.strip() for one in texts[1]]
    import_model(tmp_path / "back", tmp_path / "again")
    again = opened(tmp_path / "again")
    assert again.tokenizer.encode_source(text[0][:50]) == run.tokenizer.encode_source(text[0][:50])
    assert again.config.data.source == "de"


@torch.inference_mode()
def test_a_mark_is_no_piece_of_a_translations_length_and_begins_an_empty_text_too(many, tmp_path, text):  # noqa: F811
    """With a most of one piece each text was empty, and `tx score` had the end mark of another search for it."""
    import_model(many(), tmp_path / "run", languages("m2m100"))
    translator = tx.load(tmp_path / "run", device="cpu", precision="fp32")
    mark = translator.tokenizer.target.mark
    with pytest.raises(UsageError, match=f"'{mark}' is a mark"):  # every translation would be empty
        banned_ids(translator.config.model_copy(update={"banned": (mark,)}), translator.tokenizer)
    for least, most in ((1, 1), (3, 4)):
        translator.config = translator.config.model_copy(update={"min_length": least, "max_length": most})
        for one in translator.translate_all(list(text[0][:20])):
            assert one.tokens[0] == mark
            assert least <= len(one.tokens) - 1 <= most
    assert score_texts(translator, ["", " "], ["", "x"]) == [Likelihood((), ()), None]
    [empty] = score_texts(translator, [text[0][0]], [""])
    source = translator.encode_source(text[0][:1])
    begun = torch.tensor([[2, *translator.tokenizer.target.given]])
    hidden = translator.model(torch.tensor(source), torch.tensor([len(source[0])]), begun)
    wanted = translator.model.project(hidden)[0, -1].log_softmax(-1)[3].item()
    assert empty.log_probability == pytest.approx(wanted, abs=1e-4)
    assert empty.tokens == (mark, "</s>")


def test_marks_that_no_tokenizer_has_are_refused_by_hugging_face(many, tmp_path):
    import_model(many("nllb"), tmp_path / "run", languages("nllb"))
    [reason] = HuggingFace().refusals(opened(tmp_path / "run"))
    assert "eng_Latn before every text" in reason


def test_a_language_is_named_or_nothing_is_imported(many, tmp_path):
    place = many()
    with pytest.raises(UsageError) as caught:
        import_model(place, tmp_path / "run", ["data.source=deu"])
    assert "data.source=deu has to be one of its 100 languages, such as de" in caught.value.message
    assert "data.target=... has to be one of" in caught.value.message
    assert not (tmp_path / "run").exists()


def test_sources_that_end_in_their_mark_are_refused(many, tmp_path):
    place = many("nllb")
    changed(place / "tokenizer_config.json", legacy_behaviour=True)
    with pytest.raises(UsageError, match="sources there end in the mark"):
        import_model(place, tmp_path / "run", languages("nllb"))


def test_a_list_of_languages_is_enough_without_the_other_tokenizer_file(many, tmp_path):
    place = many("nllb")
    names = [token["content"] for token in json.loads((place / "tokenizer.json").read_text())["added_tokens"]]
    (place / "tokenizer.json").unlink()
    marks = [name for name in names if name[0] != "<"]
    (place / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": marks}))
    import_model(place, tmp_path / "run", languages("nllb"))
    run = opened(tmp_path / "run")
    there = transformers.M2M100ForConditionalGeneration.from_pretrained(place).get_encoder().embed_tokens.weight
    row = run.model.source_embedding.table.weight[run.tokenizer.source.mark_id]
    assert torch.equal(row, there[4 + 147 + marks.index("deu_Latn")])


@pytest.mark.parametrize("entry", [{"id": 5}, {"content": "deu_Latn"}, {"content": 7, "id": 5}, "deu_Latn", None])
def test_a_damaged_list_of_marks_is_a_model_error(many, entry, tmp_path):
    place = many("nllb")
    changed(place / "tokenizer.json", added_tokens=[entry])
    with pytest.raises(ModelError, match="added tokens of its tokenizer are damaged"):
        import_model(place, tmp_path / "run", languages("nllb"))


@pytest.mark.parametrize("names", [[7], [["deu_Latn"]], [None]])
def test_damaged_names_of_languages_are_a_model_error(many, names, tmp_path):
    place = many("nllb")
    (place / "tokenizer.json").unlink()
    changed(place / "tokenizer_config.json", additional_special_tokens=names)
    with pytest.raises(ModelError, match="added tokens of its tokenizer are damaged"):
        import_model(place, tmp_path / "run", languages("nllb"))


def test_the_languages_of_its_tokenizer_are_all_there():
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as codes

    assert {name: " ".join(listed) for name, listed in codes.items()} == LANGUAGES


def test_a_run_of_a_language_pair_is_a_run_like_any_other(many, tmp_path, text, capfd):  # noqa: F811
    place = many()
    settings = [argument for one in languages("m2m100") for argument in ("--set", one)]
    assert tx_("import", str(place), "--run-dir", "runs/many", *settings, "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["source"], said["target"]) == ("de", "en")
    for name, lines in zip(("text.de", "text.en"), text, strict=True):
        Path(name).write_text("\n".join(lines[:40]) + "\n", encoding="utf-8")
    assert tx_("translate", "-m", "runs/many", "-i", "text.de", "-o", "out", "--set", "decoding.max_length=6") == 0
    assert tx_("score", "-m", "runs/many", "--source", "text.de", "--target", "text.en") == 0
    Path("nothing").write_text("\n" * 40, encoding="utf-8")
    capfd.readouterr()
    assert tx_("score", "-m", "runs/many", "--source", "text.de", "--target", "nothing", "--json") == 0
    scores = [json.loads(line).get("log_probability") for line in capfd.readouterr().out.splitlines()]
    assert all(score < 0 for score in scores[:40])  # of the end mark, where a mark of the language would be sure
    assert tx_("visualize-attention", "-m", "runs/many", "ein hund", "-o", "maps.json") == 0
    source = json.loads(Path("maps.json").read_text(encoding="utf-8"))["source"]
    assert source["pieces"][0] == "__de__"
    assert source["words"][:2] == [0, 1]
    assert tx_("count-params", "runs/many", "--check") == 0
    learning = ["--set", "training.max_steps=2", "--set", "data.train=text", "--set", "data.valid=text"]
    assert tx_("train", "-c", "runs/many/config.yaml", "--run-dir", "runs/many", *learning) == 0
    assert opened(Path("runs/many")).checkpoint.name == "step-00000002"


def test_other_engines_begin_with_the_same_mark(many, tmp_path, text, capfd):  # noqa: F811
    place = many(scale_embedding=False)
    import_model(place, tmp_path / "run", languages("m2m100"))
    Path("lines").write_text("\n".join(text[0][:3]) + "\n", encoding="utf-8")
    by_itself = ["translate", "-m", "run", "-i", "lines", "-b", "1", "--set", "decoding.max_length=8"]
    capfd.readouterr()
    said = []
    for engine in ("native", "ctranslate2"):
        assert tx_(*by_itself, "--set", f"decoding.engine={engine}", "--json") == 0
        said.append([json.loads(line) for line in capfd.readouterr().out.rstrip().split("\n")])
    assert [one["tokens"] for one in said[0]] == [one["tokens"] for one in said[1]]
    assert [one["score"] for one in said[0]] == pytest.approx([one["score"] for one in said[1]], abs=1e-4)
    for format in ("ctranslate2", "onnx"):
        assert tx_("export", format, "-m", "run", "-o", format, "-i", "lines", "--set", "decoding.beam_size=1") == 0
        code = Path(format, "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
        Path(format, "usage.py").write_text(code.replace("...", text[0][0]), encoding="utf-8")
        capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(format)
            runpy.run_path("usage.py")
        assert capfd.readouterr().out.startswith(said[0][0]["translation"])
    assert tx_("export", "hugging-face", "-m", "run", "-o", "hf", "-i", "lines") == 0


@pytest.mark.parametrize(
    "settings", [['data.source="de"', "data.target= en"], ["data={source: de, target: en}"]], ids=["quoted", "together"]
)
def test_languages_are_read_as_all_settings_are(many, tmp_path, settings):
    assert import_model(many(), tmp_path / "run", settings).target == "en"


def test_a_language_that_nobody_named_is_like_none(many, tmp_path):
    with pytest.raises(UsageError, match=r"data\.source=\.\.\. has to be one of its 100 languages, such as af, am, ar"):
        import_model(many(), tmp_path / "run")


@torch.inference_mode()
def test_from_a_language_into_itself_both_sides_begin_with_its_mark(many, tmp_path, text):  # noqa: F811
    """They began with none, and each line had other scores."""
    place = many()
    import_model(place, tmp_path / "run", ["data.source=de", "data.target=de"])
    theirs = transformers.AutoTokenizer.from_pretrained(place, src_lang="de", tgt_lang="de")
    run = opened(tmp_path / "run")
    assert run.tokenizer.source.mark == run.tokenizer.target.mark == "__de__"
    [ids] = run.tokenizer.encode_source(text[0][:1])
    assert [run.tokenizer.source.piece(id) for id in ids] == theirs.convert_ids_to_tokens(theirs(text[0][0]).input_ids)[
        :-1
    ]


@torch.inference_mode()
def test_the_least_length_counts_as_many_pieces_there_and_here(many, tmp_path, text):  # noqa: F811
    """There the mark counts, too."""
    place = many()
    changed(place / "generation_config.json", min_length=9, max_length=9, num_beams=1)
    import_model(place, tmp_path / "run", languages("m2m100"))
    run = opened(tmp_path / "run")
    theirs, tokenizer = original(place, "m2m100")
    batch = tokenizer(text[0][:8], return_tensors="pt", padding=True)
    made = theirs.generate(**batch, forced_bos_token_id=tokenizer.get_lang_id("en"))
    translator = tx.load(tmp_path / "run", device="cpu", precision="fp32", settings={"decoding.max_length": 7})
    ours = [len(one.tokens) for one in translator.translate_all(text[0][:8])]
    assert ours == [made.size(1) - 1] * 8 == [8] * 8  # the mark and seven pieces
    (tmp_path / "back").mkdir()
    HuggingFace().write(run, tmp_path / "back", quantization=None)
    assert json.loads((tmp_path / "back" / "generation_config.json").read_text())["min_length"] == 9
