"""What a run says while it goes on."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import pytest

from transformer_cli.training.loop import Progress, Update
from transformer_cli.training.reporting import SILENCE_S, Reporter

UPDATE = Update(loss=2.0, learning_rate=1e-3, gradient_norm=1.0, source_tokens=4, target_tokens=6)


def lines_of(seconds_per_update: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said in 100 updates that take so long each, of 1,000 in all."""
    clock = itertools.count(step=seconds_per_update)
    now = [next(clock)]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    said: list[str] = []
    progress = Progress()
    reporter = Reporter(None, say=said.append, bar=False, log_every=50, total_steps=1000, progress=progress)
    for _ in range(100):
        now[0] = next(clock)
        progress.step += 1
        reporter.update(progress, UPDATE)
    return said


def test_a_line_comes_every_so_many_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lines_of(0.5, monkeypatch)
    assert first.split()[:2] == ["step", "50"]
    assert "20 tokens/s  0:25 passed, about 7:55 to step 1,000" in first
    assert "0:50 passed, about 7:30 to step 1,000" in second


def test_a_slow_run_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [int(line.split()[1]) for line in lines_of(SILENCE_S / 20, monkeypatch)]
    assert steps == [20, 40, 50, 70, 90, 100]


def test_an_infinite_perplexity_is_null_in_the_metrics(tmp_path: Path) -> None:
    """It was written as `Infinity`, which is no JSON."""
    reporter = Reporter(tmp_path, say=str, bar=False, log_every=50, total_steps=1000, progress=Progress())
    reporter.validation(Progress(step=50), {"loss": 800.0, "perplexity": math.inf}, is_best=True)
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"loss": 800.0, "perplexity": null' in text
