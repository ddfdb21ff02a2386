"""`tx compare`: two runs on the same text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import PAIRS
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_cli.cli import compare, failures
from transformer_cli.cli.app import main
from transformer_cli.config.data import DataConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.data.corpus import load_validation
from transformer_cli.errors import UsageError
from transformer_cli.sealing import sealed, unsealed

TARGETS = [target for _, target in PAIRS]


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["compare", *arguments]))


def changed(run: Path, to: str, *overrides: str) -> None:
    """A copy of the run under another configuration."""
    shutil.copytree(run, to)
    Path(to, "config.yaml").write_text(dump_config(load_config(f"{to}/config.yaml", overrides)))


@pytest.fixture
def runs(trained_run: Path) -> None:
    """`long`, which knows the text by heart, and `short`, which stops after three pieces."""
    shutil.copytree(trained_run, "long")
    changed(trained_run, "short", "decoding.max_length=3", "name=short")


def test_scores_settings_and_sentences_of_two_runs(runs: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("long", "short", "--sentences", "2", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert found["settings"] == {"decoding.max_length": [None, 3]}
    changed(Path("short"), "narrow", "decoding.beam_size=1", "name=narrow")
    assert tx("long", "narrow", "-b", "2", "--json") == 0
    assert [*json.loads(capfd.readouterr().out)["settings"]] == ["decoding.max_length"]  # the beam was the same
    changed(Path("narrow"), "judged", "evaluation.tokenize=char", "name=judged")
    assert tx("long", "judged", "--set", "decoding.beam_size=2", "--json") == 0
    assert [*json.loads(capfd.readouterr().out)["settings"]] == ["decoding.max_length"]  # and who judges is one
    long, short = found["systems"]
    assert (long["run"], short["run"], found["set"]) == ("long", "short", "test")
    assert (long["scores"][0]["value"], long["scores"][0]["margin"]) == (pytest.approx(100), 0)
    assert short["differences"][0]["value"] == short["scores"][0]["value"] - long["scores"][0]["value"] < 0
    assert 0 < short["differences"][0]["p_bootstrap"] < 0.05
    assert 0 < short["differences"][0]["p_randomization"] < 0.05
    sentences = short["sentences"]
    assert sentences["n_better"] == 0
    assert sentences["n_same"] + sentences["n_worse"] == sentences["n_lines"] == len(PAIRS)
    assert len(sentences["worse"]) == 2


def test_a_shape_that_is_only_written_otherwise_does_not_differ(runs: None, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor is it another than the one that was trained."""
    changed(Path("long"), "same", "model.n_layers={encoder: 1, decoder: 1}", "model.n_kv_heads=2")
    assert tx("long", "same", "--sentences", "0", "--json") == 0
    assert json.loads(capfd.readouterr().out)["settings"] == {}


def test_each_run_computes_as_its_own_configuration_says(
    runs: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is global to the process is set for each in turn."""
    changed(Path("short"), "rough", "matmul_precision=medium", "name=rough")
    changed(Path("short"), "exact", "matmul_precision=highest", "name=exact")
    found, translate = [], compare.translate

    def noted(*arguments):
        found.append(torch.get_float32_matmul_precision())
        return translate(*arguments)

    monkeypatch.setattr(compare, "translate", noted)
    before = torch.get_float32_matmul_precision()
    try:
        assert tx("rough", "exact", "rough", "--json") == 0
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == ["medium", "highest", "medium"]
    assert capfd.readouterr().out


def test_a_warning_says_which_of_the_runs_it_is_about(runs: None, capfd: pytest.CaptureFixture[str]) -> None:
    """It was "since no translation has four words in a row", whoever had written them."""
    assert tx("long", "short", "--sentences", "0") == 0
    said = capfd.readouterr().err
    assert "warning: test, short: BLEU is 0, since no translation has four words in a row" in said
    assert tx("short", "short", "--sentences", "0") == 0
    assert "warning: test: BLEU is 0, since" in capfd.readouterr().err


def test_of_tx_s_own_text_the_comparison_is_warned_of_all_the_same(
    runs: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No warning was shown, as if all were about its capitals."""
    found = compare.own_texts
    monkeypatch.setattr(
        compare, "own_texts", lambda *of, **how: [replace(text, is_own=True) for text in found(*of, **how)]
    )
    assert tx("long", "short", "--sentences", "0") == 0
    said = capfd.readouterr().err
    assert "warning: test, short: BLEU is 0, since no translation has four words in a row" in said
    assert "lower-cased" not in said


def test_lines_that_are_refused_are_told_of_every_run_once_all_are_compared(
    runs: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `tx evaluate` does: it ended at the first run that refused one, and compared nothing."""
    changed(Path("short"), "strict", "decoding.long=refuse", "decoding.max_source_length=4", "name=strict")
    changed(Path("long"), "stricter", "decoding.long=refuse", "decoding.max_source_length=2", "name=stricter")
    assert tx("long", "strict", "stricter", "--sentences", "0", "--json") == 3
    shown = capfd.readouterr()
    assert [one["run"] for one in json.loads(shown.out)["systems"]] == ["long", "strict", "stricter"]
    assert "12 lines have more pieces than the model translates at once (4); their" in shown.err
    assert "\ntest, stricter: 12 of 12 lines have more pieces than the model translates at once (2)" in shown.err
    assert "error: test, strict: " in shown.err
    assert "hint: --set decoding.long=split" in shown.err


def test_a_run_that_learned_what_it_is_compared_by_is_named(
    trained_run: Path, runs: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where it is the first one's test set: the training text is the other one's."""
    changed(trained_run, "strange", 'data.test={"pairs": [["etwas anderes", "something else"]]}')
    Path("short/lines.npy").unlink()  # of a run that did not look
    assert tx("long", "short") == 0
    err = capfd.readouterr().err
    assert f"pairs that the training text of long has, too: {len(PAIRS)}" in err
    assert "training text of short" not in err
    assert tx("strange", "long") == 0
    assert "has, too" not in capfd.readouterr().err


def test_runs_are_compared_on_each_test_set_of_the_first(
    trained_run: Path, runs: None, capfd: pytest.CaptureFixture[str]
) -> None:
    named = {"a": {"pairs": PAIRS[:3]}, "b": {"pairs": PAIRS[3:]}}
    changed(trained_run, "named", f"data.test={json.dumps(named)}")
    assert tx("named", "short", "--json") == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["set"], one["systems"][1]["lines"]) for one in found] == [("a", 3), ("b", 9)]


def test_runs_are_compared_on_what_the_first_was_validated_with(
    trained_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Held out, for no file has that."""
    changed(trained_run, "first", "data.valid=50%", "data.test=null")
    changed(trained_run, "second", "decoding.max_length=3", "data.valid=10%", "data.test=null")
    held_out = load_validation(load_config("first/config.yaml").data)
    Path("first/run.json").unlink()  # which knows what the run was validated with before
    assert tx("first", "second", "--valid", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert held_out is not None
    sentences = found["systems"][1]["sentences"]
    assert (found["set"], sentences["n_lines"]) == ("valid", len(held_out))
    assert tx("first", "second", "--valid", "--source", "a", "--reference", "b") == 2
    assert "leave out --valid" in capfd.readouterr().err


def test_sentences_are_those_that_differ_most_by_their_own_chrf(runs: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("short", "long", "--sentences", str(len(PAIRS)), "--json") == 0
    contrast = json.loads(capfd.readouterr().out)["systems"][1]["sentences"]
    differences = []
    for pair in contrast["better"]:
        reference = TARGETS[pair["line"] - 1]
        assert pair["references"] == [reference]
        assert pair["source"] == PAIRS[pair["line"] - 1][0]
        assert pair["translations"][1] == reference
        theirs = [CHRF().sentence_score(text, [reference]).score for text in pair["translations"]]
        assert pair["scores"] == pytest.approx(theirs)
        differences.append(theirs[1] - theirs[0])
    assert len(differences) == contrast["n_better"] > 2
    assert differences == sorted(differences, reverse=True)


def test_people_read_the_same_in_tables(runs: None, capfd: pytest.CaptureFixture[str]) -> None:
    Path("in.de").write_text("".join(f"{source}\n" for source, _ in PAIRS[:4]))
    Path("ref.en").write_text("".join(f"{target}\n" for target in TARGETS[:4]))
    assert tx("long", "short", "long", "--source", "in.de", "--reference", "ref.en", "--sentences", "1") == 0
    shown = capfd.readouterr().out
    lines = shown.splitlines()
    assert lines[0] == "in.de:"
    assert "3 systems (4 lines)" in lines
    assert f"BLEU     long    {BLEU().corpus_score(TARGETS[:4], [TARGETS[:4]]).score:.2f}" in shown
    assert [line.split() for line in lines if line.startswith("decoding.")] == [
        ["decoding.max_length", "null", "3", "null"]
    ]
    assert "Where short is worse than long: 4 lines" in shown
    assert "better than" not in shown
    assert sum(" reference  " in line for line in lines) == 1
    assert [line for line in lines if "write the same" in line] == ["long and long write the same 4 lines"]


def test_what_cannot_be_compared_is_said_before_anything_is_translated(
    trained_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed(trained_run, "other", "data.source=fr")
    for path in Path("other/checkpoints").glob("*/manifest.json"):
        manifest = unsealed(path.read_bytes())
        path.write_bytes(sealed(manifest | {"data": manifest["data"] | {"source": "fr"}}))
    assert tx("other") == 2
    assert "fewer than two runs" in capfd.readouterr().err
    assert tx("other", "other", "--source", "in.de") == 2
    assert "--source and --reference need each other" in capfd.readouterr().err
    assert tx(str(trained_run), "nowhere") == 4
    assert tx(str(trained_run), "other") == 2
    assert "other translates fr to en" in capfd.readouterr().err


@pytest.mark.parametrize("to", ["en", None])
def test_a_run_of_both_directions_is_the_baseline_of_one_of_them(to: str | None) -> None:
    one = DataConfig(source="de", target="en")
    both = DataConfig.model_validate({"source": "de", "target": "en", "train": [{"text": "x", "both": True}]})
    runs = [SimpleNamespace(path=Path("x"), languages="", config=SimpleNamespace(data=data)) for data in (both, one)]
    compare._refuse_other_languages(runs[::-1], to)
    if to is None:
        with pytest.raises(UsageError) as failure:
            compare._refuse_other_languages(runs, to)
        assert (failure.value.hint or "").endswith("; --to en compares one of them")
    else:
        compare._refuse_other_languages(runs, to)
    with pytest.raises(UsageError):
        compare._refuse_other_languages(runs, "de")
