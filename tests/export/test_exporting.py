"""An export is whole, compared and right, or absent."""

from __future__ import annotations

import importlib.metadata
import io
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from shapes import with_model

from transformer_cli import needs
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.errors import UsageError
from transformer_cli.export.card import _scores, card
from transformer_cli.export.comparison import Comparison
from transformer_cli.export.ctranslate2 import _search
from transformer_cli.export.exporting import check_format, export
from transformer_cli.export.weights import Weights

pytest.importorskip("ctranslate2", reason="the extra `ctranslate2` is not installed")


def tx(*arguments):
    return failures.exit_code(lambda: main(list(arguments)))


def test_what_was_written_translates_and_keeps_how_it_compares(here, tmp_path, capfd):
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there"), "--json") == 0
    said = json.loads(capfd.readouterr().out)
    kept = json.loads((tmp_path / "there" / "comparison.json").read_text(encoding="utf-8"))
    assert said == {"place": str(tmp_path / "there"), **kept}
    assert kept["exact"]["equal_texts"] == len(kept["exact"]["lines"]) == 12
    assert kept["exact"]["lines"][0]["text_there"] == "i want a beer"
    assert kept["exact"]["agreeing"] == 1
    assert kept["rounded"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"norm": "rms-norm"},
            ("model.norm: rms-norm; its encoder-decoders have layer-norm", "ctranslate2 and onnx can"),
        ),
        ({"qk_norm": True}, ("model.qk_norm: true;", "no format can: only tx reads such a model")),
    ],
)
def test_a_refusal_names_who_else_can(loaded_run, options, told):
    with pytest.raises(UsageError) as refused:
        export(with_model(loaded_run, **options), "hugging-face", "there", lines=["ein bier"])
    assert (told[0] in refused.value.message, refused.value.hint) == (True, told[1])


def test_the_card_shows_how_it_is_used(trained_run, capfd, monkeypatch):
    assert tx("export", "ctranslate2", "-m", str(trained_run), "-o", "there") == 0
    capfd.readouterr()
    card = Path("there/README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1].split("```")[0].replace("...", "ich mochte ein bier")
    Path("there/usage.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir("there")
    runpy.run_path("usage.py")
    assert capfd.readouterr().out == "i want a beer\n"
    assert "24,704 parameters" in card


def test_the_card_searches_as_the_run_does(trained_run, capfd, monkeypatch):
    """It had the beam alone."""
    piece = open_run(find_checkpoint(str(trained_run))).tokenizer.target.names[-1]
    search = "{beam_size: 3, length_penalty: 0.5, no_repeat_ngram: 2, min_length: 4, max_length: 9}"
    settings = ["--set", f"decoding={search}", "--set", f"decoding.banned=[{piece!r}]"]
    assert tx("export", "ctranslate2", "-m", str(trained_run), "-o", "there", *settings) == 0
    made = {}

    class Translator:
        def __init__(self, place):
            pass

        def translate_batch(self, sources, **options):
            made.update(options)
            return [SimpleNamespace(hypotheses=[[]])]

    monkeypatch.setattr("ctranslate2.Translator", Translator)
    code = Path("there/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    Path("there/usage.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir("there")
    runpy.run_path("usage.py")
    assert made == {
        "beam_size": 3,
        "length_penalty": 0.5,
        "no_repeat_ngram_size": 2,
        "min_decoding_length": 4,
        "max_decoding_length": 9,
        "suppress_sequences": [[piece]],
        "disable_unk": True,
    }


def test_a_mark_that_a_translation_begins_with_counts_there(loaded_run):
    """As of M2M100's languages, in both limits."""
    decoding = DecodingConfig(min_length=4, max_length=9)
    run = replace(loaded_run, config=loaded_run.config.model_copy(update={"decoding": decoding}))
    target = SimpleNamespace(names=[], given=(7,))
    marked = replace(run, tokenizer=SimpleNamespace(target=target))
    found = [{name: n for name, n in _search(one).items() if "decoding" in name} for one in (run, marked)]
    assert found == [{"min_decoding_length": n, "max_decoding_length": n + 5} for n in (4, 5)]


def test_the_card_names_norwegian_as_a_language(trained_run):
    """In YAML `no` is false."""
    run = open_run(find_checkpoint(str(trained_run)))
    config = run.config.model_copy(update={"data": run.config.data.model_copy(update={"source": "no"})})
    found = SimpleNamespace(equal_texts=1, lines=[""], agreeing=1.0, steps=1, logit_difference=0.0)
    front = card(replace(run, config=config), "CTranslate2", found, usage="", tags={}).split("---")[1]
    assert yaml.safe_load(front) == {"language": ["no", "en"], "pipeline_tag": "translation"}


def test_the_card_says_by_which_search_a_score_was_come_by():
    """A signature does not, and a greedy score stood beside a program that searches by a beam."""
    scores = [{"name": "BLEU", "value": 95.86, "signature": "nrefs:1"}]
    beams = {beam: DecodingConfig(beam_size=beam).model_dump() for beam in (1, 5)}
    kept = {f"test{beam}": {"decoding": decoding, "scores": scores} for beam, decoding in beams.items()}
    another = {"another": {"scores": scores, "checkpoint": "step-00000002"}}
    kept["test1"]["checkpoint"] = "step-00000001"
    assert _scores(kept | another | {"older": {"scores": scores}}, "step-00000001") == [
        "- BLEU 95.9 on test1 (greedy; nrefs:1)",
        "- BLEU 95.9 on test5 (beam 5, length penalty 1; nrefs:1)",
        "- BLEU 95.9 on older (nrefs:1)",
    ]


def test_rounded_weights_are_compared_after_exact_ones(here, tmp_path, capfd):
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there"), "--quantization", "int8") == 0
    kept = json.loads((tmp_path / "there" / "comparison.json").read_text(encoding="utf-8"))
    assert kept["exact"]["logit_difference"] < 1e-4 < kept["rounded"]["logit_difference"]
    assert kept["rounded"]["agreeing"] > 0.9
    assert not (tmp_path / "there" / "exact").exists()
    assert "int8" in kept["engine"]
    exact, rounded = capfd.readouterr().err.split("rounded to int8:")  # the first was said to be in int8, too
    assert " in float32: 12 lines" in exact
    assert " in int8" in rounded


def test_another_answer_is_refused_and_leaves_nothing(here, tmp_path, capfd, monkeypatch):
    honest = Weights.__getitem__

    def wrong(self, name):
        array = honest(self, name)
        return array + np.float32(0.01) if name == "encoder.norm.weight" else array

    monkeypatch.setattr(Weights, "__getitem__", wrong)
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there")) == 4
    told = capfd.readouterr().err
    assert "does not say what tx says, on 12 lines" in told
    assert "logits differ by up to" in told
    assert list(tmp_path.iterdir()) == []


def test_other_lines_can_be_compared_on(here, tmp_path, capfd):
    (tmp_path / "lines").write_text("der hund\n\ndie katze\n", encoding="utf-8")
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there"), "-i", str(tmp_path / "lines"), "--json") == 0
    compared = json.loads(capfd.readouterr().out)["exact"]["lines"]
    assert [line["source"] for line in compared] == ["der hund", "die katze"]


def test_no_line_to_compare_on_is_told(here, tmp_path, capfd):
    (tmp_path / "lines").write_text("\n", encoding="utf-8")
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there"), "-i", str(tmp_path / "lines")) == 3
    assert "no line to compare the engines on" in capfd.readouterr().err


def test_nothing_is_replaced(here, tmp_path, capfd):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there")) == 2
    assert "is there already" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pytorch"], "there is no format 'pytorch'"),
        (["ctranslate2", "--quantization", "int3"], "ctranslate2 knows no 'int3'"),
    ],
)
def test_what_there_is_not_is_told_with_all_that_there_is(here, tmp_path, capfd, arguments, words):
    assert tx("export", *arguments, "-o", str(tmp_path / "there")) == 2
    told = capfd.readouterr().err
    assert words in told
    assert "choose one of" in told


@pytest.mark.parametrize(
    ("name", "meant"),
    [("huggingface", "hugging-face"), ("HF", "hugging-face"), ("transformers", "hugging-face"), ("ct2", "ctranslate2")],
)
def test_a_format_by_another_name_is_told_ours(name, meant):
    with pytest.raises(UsageError, match=f"there is no format '{name}'") as caught:
        check_format(name, None)
    assert caught.value.hint == f"did you mean {meant}?"


def test_a_missing_extra_is_named_before_anything_is_done(here, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there")) == 5
    assert "[ctranslate2]'" in capfd.readouterr().err


def test_an_extra_that_is_too_old_is_named_with_what_is_there(here, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(needs.EXTRAS, "ctranslate2", ("ctranslate2", "400.0"))
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there")) == 5
    installed = importlib.metadata.version("ctranslate2")
    assert f"ctranslate2, version 400.0 or newer; {installed} is installed" in capfd.readouterr().err


def test_a_package_that_another_distribution_brings_is_taken(monkeypatch):
    """The modules of onnxruntime-gpu are those of onnxruntime, which is then no distribution."""

    def absent(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(needs, "_version", absent)
    assert needs.lacking("ctranslate2") is None


SAME = Comparison(
    steps=10,
    logit_difference=1e-6,
    largest_logit=5.0,
    agreeing=1.0,
    score_difference=1e-6,
    largest_score=9.0,
    cut_otherwise=0,
    joined_otherwise=0,
    such_as="",
    lines=(),
)


@pytest.mark.parametrize(
    ("change", "exact", "rounded"),
    [
        ({}, 0, 0),
        ({"logit_difference": 1e-3}, 1, 0),
        ({"logit_difference": float("nan")}, 1, 0),
        ({"score_difference": 1e-2}, 1, 0),
        ({"agreeing": 0.95}, 1, 0),
        ({"agreeing": 0.5}, 1, 1),
        ({"cut_otherwise": 1}, 1, 1),
        ({"joined_otherwise": 1}, 1, 1),
        ({"cut_otherwise": 2, "logit_difference": 1.0, "agreeing": 0.1}, 3, 2),
    ],
)
def test_whatever_differs_is_a_complaint_but_what_rounding_explains(change, exact, rounded):
    found = replace(SAME, **change)
    assert (len(found.complaints(rounded=False)), len(found.complaints(rounded=True))) == (exact, rounded)


def test_a_tokenizer_that_cuts_otherwise_is_found(here, tmp_path, capfd, monkeypatch):
    from transformer_cli.export.ctranslate2 import Engine

    honest = Engine.encode
    monkeypatch.setattr(Engine, "encode", lambda self, lines: [ids[::-1] for ids in honest(self, lines)])
    assert tx("export", "ctranslate2", "-o", str(tmp_path / "there")) == 4
    assert "12 lines of other pieces, such as 'ich mochte ein bier'" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["checkpoints/new", "out", "data/deep/er"])
def test_an_export_among_the_files_of_a_run_is_refused(trained_run, inside, capfd):
    command = ["export", "onnx", "-m", str(trained_run), "-o", str(trained_run / inside)]
    assert failures.exit_code(lambda: main(command)) == 2
    assert f"lies in the run {trained_run}" in capfd.readouterr().err
    assert not (trained_run / inside).exists()


def test_an_export_replaces_no_link_and_goes_no_way_up(tmp_path, capfd):
    (tmp_path / "link").symlink_to("nowhere")
    for place in ("link", "deep/../up"):
        command = ["export", "onnx", "-o", place]
        assert failures.exit_code(lambda command=command: main(command)) == 2
        assert "is a link or goes up by `..`" in capfd.readouterr().err
    assert not (tmp_path / "deep").exists()


def test_an_export_may_go_beside_the_folder_that_one_is_in(trained_run, tmp_path, monkeypatch):
    """`-o ../there` was refused."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert tx("export", "ctranslate2", "-m", str(trained_run), "-o", "../there") == 0
    assert (tmp_path / "there/model.bin").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("export", "ctranslate2", "-m", "runs/tiny", "-o"),
        ("average", "runs/tiny", "--last", "1", "-o"),
        ("import", "nowhere", "--run-dir"),
    ],
    ids=["export", "average", "import"],
)
def test_nothing_takes_the_place_of_the_folder_that_one_is_in(trained_run, command, tmp_path, capfd, monkeypatch):
    """`-o .` was "a bug in tx". A shell in a folder that was replaced would stay in the old one."""
    monkeypatch.chdir(tmp_path)
    command = [str(trained_run) if word == "runs/tiny" else word for word in command]
    assert tx(*command, ".") == tx(*command, str(tmp_path)) == 2
    assert "error: . is the folder that you are in" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_text_to_compare_on_may_come_through_stdin(trained_run, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ich mochte ein bier\n")))
    assert main(["export", "onnx", "-m", str(trained_run), "-o", str(tmp_path / "there"), "-i", "-", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["exact"]["lines"]) == 1
