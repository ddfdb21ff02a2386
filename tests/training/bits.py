"""Runs that are stopped and go on, and what tells whether two of them ended alike."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint


def final_state(run_dir: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    last = load_checkpoint(list_checkpoints(run_dir)[-1], with_optimizer=True)
    if last.state["warmed"] is not None:
        last.state["warmed"].pop("seconds")
    return last.model, last.optimizer or {}, {k: v for k, v in last.state.items() if k not in ("elapsed_s", "passed_s")}


def assert_same_bits(one: Path, two: Path) -> None:
    for left, right in zip(final_state(one)[:2], final_state(two)[:2], strict=True):
        assert left.keys() == right.keys()
        assert [name for name in left if not torch.equal(left[name], right[name])] == []
    assert final_state(one)[2] == final_state(two)[2]
    assert events(one) == events(two)


def events(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock says."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("tokens_per_s", "elapsed_s", "mfu")} for line in lines
    ]


@contextmanager
def at_update(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Within, `action` happens while that update, counted from here, is being made: behind the optimiser's step."""
    updates = itertools.count(1)
    hook = register_optimizer_step_post_hook(lambda *_: action() if next(updates) == number else None)
    try:
        yield
    finally:
        hook.remove()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
