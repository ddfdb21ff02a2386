"""A model in ONNX Runtime says what it says in tx, whatever its shape."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from shapes import compared_by, one_by_one, with_model

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.export.onnx import Onnx

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

SOURCES = ["ich mochte ein bier", "die unglückliche katze schläft nicht und trinkt", "der hund", "?"]


def compared(run, place):
    return compared_by(Onnx(), run, place, SOURCES)


@pytest.mark.parametrize("options", one_by_one(), ids=str)
def test_every_option_of_the_model_gives_equal_logits_scores_and_texts_or_is_refused(loaded_run, tmp_path, options):
    """The search is tx's own, so it finds the same where the numbers are the same."""
    run = with_model(loaded_run, **options)
    if options == {"qk_norm": True}:
        assert [one.split(":")[0] for one in Onnx().refusals(run)] == ["model.qk_norm"]
        return
    found = compared(run, tmp_path / "there")
    assert found.logit_difference < 1e-5
    assert found.complaints(rounded=False) == []
    assert found.equal_texts == len(SOURCES)


def test_a_source_without_end_mark_stays_without(loaded_run, tmp_path):
    data = loaded_run.config.data.model_copy(update={"source_eos": False})
    run = replace(loaded_run, config=loaded_run.config.model_copy(update={"data": data}))
    assert compared(run, tmp_path / "there").complaints(rounded=False) == []


def tx(*arguments):
    return failures.exit_code(lambda: main(list(arguments)))


def test_the_card_shows_how_it_is_used_and_it_writes_what_tx_writes(trained_run, tmp_path, capfd, monkeypatch):
    assert tx("export", "onnx", "-m", str(trained_run), "-o", "there") == 0
    capfd.readouterr()
    code = Path("there/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    Path("there/usage.py").write_text(code.replace("...", "ich mochte ein bier"), encoding="utf-8")
    monkeypatch.chdir("there")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")  # which exporting has set
    runpy.run_path("usage.py")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"  # whoever runs it would have told Microsoft
    assert code.index("ORT_DISABLE_TELEMETRY") < code.index("import numpy as np, onnxruntime")
    assert capfd.readouterr().out == "i want a beer\n"


def test_a_temporary_folder_without_room_is_named(trained_run, capfd, monkeypatch):
    """onnx does not look whether what it writes there arrives: what it read again was "a bug in tx"."""
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    assert tx("export", "onnx", "-m", str(trained_run), "-o", "there", "--quantization", "int8") == 5
    told = capfd.readouterr().err
    assert f"cannot write {tempfile.gettempdir()}/tx: No space left on device (1,000 bytes free)" in told
    assert "TMPDIR may name another folder" in told
    assert not Path("there").exists()


def test_rounded_weights_are_smaller_and_still_agree(trained_run, tmp_path, capfd):
    """Of both graphs ONNX Runtime logged, with --quiet too, that they should be prepared first: advice on another
    way to round than the one that is chosen."""
    for name, options in {"exact": (), "rounded": ("--quantization", "int8")}.items():
        assert tx("export", "onnx", "-m", str(trained_run), "-o", name, *options) == 0
    assert "WARNING" not in capfd.readouterr().err
    kept = json.loads(Path("rounded/comparison.json").read_text(encoding="utf-8"))
    assert kept["rounded"]["agreeing"] > 0.9
    assert kept["rounded"]["logit_difference"] > kept["exact"]["logit_difference"]
    assert Path("rounded/decoder.onnx").read_bytes() != Path("exact/decoder.onnx").read_bytes()
