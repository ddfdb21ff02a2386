"""How far a run's training is said to be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.checkpoints.find import step_name
from transformer_cli.checkpoints.standing import standing_of
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config

WHOLE = dump_config(RunConfig(training={"max_steps": 600}))


def run_at(step: int, *, finished: str | None, best: bool, config: str = WHOLE) -> Path:
    checkpoint = Path("runs", "x", "checkpoints", step_name(step))
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (checkpoint / "state.json").write_text(json.dumps({"finished": finished}))
    Path("runs/x/config.yaml").write_text(config)
    if best:
        Path("runs/x/best").write_text(checkpoint.name + "\n")
    return Path("runs/x")


@pytest.mark.parametrize(
    ("finished", "best", "said"),
    [
        (None, False, "step 35 of 600, not finished, never validated"),
        (None, True, "step 35 of 600, not finished"),
        ("patience: no better validation in 5", True, "step 35 of 600"),
    ],
)
def test_what_is_missing_is_named(tmp_path, finished, best, said):
    assert str(standing_of(run_at(35, finished=finished, best=best))) == said


def test_the_newest_checkpoint_tells_not_the_best_one(tmp_path):
    run_at(100, finished=None, best=True)
    assert str(standing_of(run_at(1500, finished=None, best=False))) == "step 1,500 of 600, not finished"


def test_what_cannot_be_read_is_not_said(tmp_path):
    run = run_at(35, finished=None, best=True, config="training: {max_steps: many}\n")
    assert str(standing_of(run)) == "step 35, not finished"
    (run / "checkpoints" / step_name(35) / "state.json").write_text("{")
    assert standing_of(run) is None
    assert standing_of(Path("nowhere")) is None


def test_telling_it_does_not_import_torch():
    program = "import sys, transformer_cli.checkpoints.standing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
