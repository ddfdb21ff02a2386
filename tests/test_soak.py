"""scripts/soak, for seconds: whatever befalls a run, it ends in the bits of the one that was left alone."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.checkpoints.find import list_checkpoints

SOAK: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "soak"))
RUN = """
name: soak
device: cpu
precision: fp32
threads: 1
tokenizer: {vocab_size: 60, sampling: 0.3}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_layers: 1, dropout: 0.2}
training: {budget_tokens: 64, ema: 0.9, max_steps: 60, validate_every: 20, checkpoint_every: 5, log_every: 10,
  best_by: loss, validation_bleu: false}
data:
  max_length: 64
  train: {pairs: PAIRS}
  valid: {pairs: PAIRS}
"""
PAIRS = [[f"der hund {one} {other}", f"the dog {one} {other}"] for one in ("schläft", "trinkt") for other in "abcdefgh"]


def soak(folder: Path, command: list[str]) -> Any:
    run = RUN.replace("PAIRS", json.dumps(PAIRS))
    return SOAK["Soak"](folder, 1, seed=1, kinds=("kill", "terminate"), command=command, run=run)


def test_kills_and_signals_move_no_bit(tmp_path: Path, warm: list[str]) -> None:
    subject = soak(tmp_path, warm)
    survived, start, late = subject.survived, subject.start, 0

    def counting(name: str, *, n_faults: int) -> int:
        nonlocal late
        before = survived.faults.total()
        code: int = start(name, n_faults=n_faults)
        late += (survived.faults.total() - before) * (code == 0)  # it had just ended by itself
        return code

    subject.start = counting
    subject.until(3)
    assert survived.faults.total() == 3
    assert survived.ended >= 1
    assert survived.codes.total() == 3 - late + survived.codes[0]


def test_what_is_lost_is_found(tmp_path: Path, trained_run: Path) -> None:
    for name in ("alone", "soaked"):
        shutil.copytree(trained_run, tmp_path / name)
    subject = soak(tmp_path, ["false"])
    subject.compare()
    weights = list_checkpoints(tmp_path / "soaked")[-1] / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SOAK["LostError"], match="other bits"):
        subject.compare()
    weights.write_bytes(data)
    metrics = tmp_path / "soaked" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text("utf-8").splitlines(keepends=True)[1:]), "utf-8")
    with pytest.raises(SOAK["LostError"], match="another history"):
        subject.compare()


def test_a_start_that_nothing_befell_has_to_end_well(tmp_path: Path) -> None:
    with pytest.raises(SOAK["LostError"], match="exit code 1"):
        soak(tmp_path, ["false"]).until(1)
