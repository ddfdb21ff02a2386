"""How far the training of a run is, read from what it saved; nothing here imports torch or writes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_cli.checkpoints.find import is_validated, list_checkpoints, step_of
from transformer_cli.checkpoints.manifest import OWES
from transformer_cli.checkpoints.record import read_config
from transformer_cli.errors import TxError
from transformer_cli.files import read_json

LOCK = ".lock"
"""In a run directory while somebody trains there, and locked as that is: of a directory's locks NFS tells no other
machine."""


@dataclass(frozen=True)
class Standing:
    """How far training is: by its newest checkpoint, whichever is used.

    steps: that it makes at most; None where its configuration cannot be read.
    """

    step: int
    steps: int | None
    is_finished: bool
    is_validated: bool

    def __str__(self) -> str:
        of = "" if self.steps is None else f" of {self.steps:,}"
        lacks = {"not finished": not self.is_finished, "never validated": not self.is_validated}
        return ", ".join((f"step {self.step:,}{of}", *(word for word, lacking in lacks.items() if lacking)))


def ranked(scores: Mapping[str, float], losses: Mapping[str, float]) -> list[str]:
    """The steps with a score in validation, best first, of equals the one of the lower loss, then the earlier."""
    return sorted(scores, key=lambda step: (-scores[step], losses.get(step, math.inf), int(step)))


def is_training(run_dir: Path) -> bool:
    """Whether a `tx train` is at work there: it holds a lock, of which other machines know, too; where the system knows
    no such locks, nobody can tell."""
    return _is_locked(run_dir) or _is_locked(run_dir / LOCK)


def _is_locked(path: Path) -> bool:
    try:
        import fcntl  # not on Windows

        descriptor = os.open(path, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def standing_of(run_dir: Path) -> Standing | None:
    """What a run's newest checkpoint says; None where there is none, or it cannot be read: opening it says why."""
    saved = list_checkpoints(run_dir)
    step = step_of(saved[-1].name) if saved else None
    if step is None:
        return None
    try:
        state = read_json(saved[-1] / "state.json")
    except TxError:
        return None
    try:
        steps = read_config(run_dir).training.last_step
    except TxError:
        steps = None
    is_finished = isinstance(state, dict) and bool(state.get("finished")) and not state.get(OWES)
    return Standing(step, steps, is_finished, is_validated(run_dir))
