"""Which run a command takes where none is named, and what it says of it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from transformer_cli.cli.app import main
from transformer_cli.sealing import sealed, unsealed

BEER = "ich mochte ein bier"


@pytest.fixture
def several(trained_run, tmp_path, monkeypatch):
    """Two runs, of which the latest was stopped before its first validation."""

    monkeypatch.chdir(tmp_path)
    for name in ("done", "aborted"):
        shutil.copytree(trained_run, Path("runs", name))
    abort(Path("runs/aborted"))
    Path("runs/latest").write_text("aborted\n")
    return tmp_path


def abort(run: Path) -> None:
    """As Ctrl-C leaves a run, as far as its directory tells: without a best, and not finished."""
    (run / "best").unlink()
    for checkpoint in (run / "checkpoints").iterdir():
        state = json.loads((checkpoint / "state.json").read_text())
        data = json.dumps({**state, "scores": {}, "finished": None}).encode()
        (checkpoint / "state.json").write_bytes(data)
        manifest = unsealed((checkpoint / "manifest.json").read_bytes())
        manifest["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (checkpoint / "manifest.json").write_bytes(sealed(manifest))


PASSED = (
    "warning: runs/done is taken, not the latest run, runs/aborted (step 150 of 150, not finished, never validated), "
    "which -m runs/aborted would take\n"
)
UNFINISHED = "warning: runs/aborted is at step 150 of 150, not finished, never validated\n"


@pytest.mark.parametrize(
    "command", [("translate", BEER), ("translate", "--json", BEER), ("visualize-attention", BEER), ("tokenize", BEER)]
)
def test_an_aborted_run_is_passed_over_and_that_is_said_on_stderr_even_when_quiet(several, capfd, command):
    assert main([*command, "-m", "runs/done"]) == 0
    expected = capfd.readouterr().out
    assert main([*command]) == 0
    told = capfd.readouterr()
    assert (told.out, told.err.partition("\n")[0] + "\n") == (expected, PASSED)
    assert main([*command, "-q"]) == 0
    assert capfd.readouterr() == (expected, PASSED)


def test_nobody_is_told_to_name_a_run_that_has_no_checkpoint(several, capfd):
    shutil.rmtree("runs/aborted/checkpoints")
    assert main(["translate", "-q", BEER]) == 0
    said = "warning: runs/done is taken, not the latest run, runs/aborted, which has no checkpoint\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("named", [("-m", "runs/aborted"), ("-c", "aborted.yaml")])
def test_whoever_names_an_unfinished_run_gets_it_and_is_told(several, capfd, named):
    Path("aborted.yaml").write_text("extends: tiny.yaml\nname: aborted\n")
    assert main(["translate", "-q", *named, BEER]) == 0
    assert capfd.readouterr().err == UNFINISHED


def test_whoever_names_a_checkpoint_means_that_one(several, capfd):
    [*_, checkpoint] = sorted(Path("runs/aborted/checkpoints").iterdir())
    assert main(["translate", "-q", "-m", str(checkpoint), BEER]) == 0
    assert capfd.readouterr().err == ""


def test_the_latest_of_several_runs_is_said_to_be_that(several, capfd):
    Path("runs/latest").write_text("done\n")
    assert main(["translate", BEER]) == 0
    assert "de to en, latest of 2 runs\n" in capfd.readouterr().err
    assert main(["tokenize", BEER]) == 0
    assert capfd.readouterr().err == "tokenizer: runs/done/tokenizer, latest of 2 runs\n"
    shutil.rmtree("runs/aborted")
    assert main(["translate", BEER]) == 0
    assert "de to en\n" in capfd.readouterr().err


@pytest.mark.parametrize("command", [("translate", BEER), ("evaluate", "--worst", "0")])
def test_an_ensemble_is_said_to_be_one_in_the_first_line(several, capfd, command):
    """`evaluate -m A -m B` looked like a comparison."""
    models = ("-m", "runs/done", "-m", "runs/done")
    assert main([*command, *models, "--set", "evaluation.resamples=100"]) == 0
    told = capfd.readouterr()
    assert told.err.split("\n")[0] == "an ensemble of 2 models, which translate together:"
    if command[0] == "evaluate":
        assert told.out.split("\n")[0].startswith("an ensemble of 2 models: runs/done/checkpoints/step-")
