"""The runs of a folder at a glance; nothing here imports torch or writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_cli.checkpoints.events import best_of, damage_of, numbered_events, score_name, validation_scores
from transformer_cli.checkpoints.find import (
    RUNS,
    WEIGHTS,
    default_run,
    find_checkpoint,
    is_run,
    is_validated,
    list_checkpoints,
)
from transformer_cli.checkpoints.record import read_config, read_record
from transformer_cli.checkpoints.standing import Standing, is_training, standing_of
from transformer_cli.errors import ModelError, TxError
from transformer_cli.files import shown
from transformer_cli.trouble import reason_of


@dataclass(frozen=True)
class Overview:
    """A run at a glance.

    score: of the best validation so far, under the name `score_name`; scores: of all validations, in their order.
    is_default: it is taken where none is named. is_training: a `tx train` is at work in it now. saved: when its newest
    checkpoint was, in seconds since 1970. n_bytes: on the disk, all of it. tests: what `tx evaluate` found, by test
    set: of which checkpoint, and scores and sacreBLEU's signatures by metric. missing: what it cannot be used without.
    trouble: why nothing else is said. doubt: why its scores may not be all that there were.
    """

    path: Path
    n_bytes: int
    is_default: bool
    is_training: bool = False
    standing: Standing | None = None
    score_name: str = "BLEU"
    scores: tuple[float, ...] = ()
    saved: float | None = None
    tests: dict[str, dict[str, Any]] | None = None
    missing: tuple[str, ...] = ()
    trouble: str = ""
    doubt: str = ""
    is_readable: bool = True

    @property
    def score(self) -> float | None:
        return best_of(self.scores, self.score_name)

    def as_json(self) -> dict[str, Any]:
        standing = self.standing
        return {
            "run": str(self.path),
            "default": self.is_default,
            "step": standing and standing.step,
            "steps": standing and standing.steps,
            "training": self.is_training,
            "finished": standing is not None and standing.is_finished,
            "validated": standing is not None and standing.is_validated,
            "score_name": self.score_name,
            "score": self.score,
            "scores": list(self.scores),
            "tests": self.tests or {},
            "saved": self.saved,
            "bytes": self.n_bytes,
            "missing": list(self.missing),
            "trouble": self.trouble or self.doubt or None,
        }


def overviews(folder: Path = RUNS) -> list[Overview]:
    """Those of the runs in a folder, or of the run that it is itself: the one that was saved last comes first.

    Raises ModelError where there is none.
    """
    found = [folder] if _may_be_run(folder) else [path for path in _entries(folder) if _may_be_run(path)]
    if not found:
        is_above = any(map(_may_be_run, _entries(below := folder / RUNS)))
        hint = f"look into the folder below: tx runs {shown(below)}" if is_above else "train one: tx train -c tiny.yaml"
        raise ModelError(f"there is no run in {shown(folder)}", hint=hint)
    return sorted(map(_overview, found), key=lambda one: (-(one.saved or 0.0), str(one.path)))


def _overview(run_dir: Path) -> Overview:
    try:
        return _seen(run_dir)
    except OSError as failure:  # as where it is somebody else's
        where = shown(failure.filename or run_dir)
        why = f"{where} cannot be read: {reason_of(failure)}"
        return Overview(run_dir, 0, is_default=False, trouble=why, is_readable=False)


def _seen(run_dir: Path) -> Overview:
    known: dict[str, Any] = {
        "path": run_dir,
        "n_bytes": bytes_in(run_dir),
        "is_default": _is_default(run_dir),
        "is_training": is_training(run_dir),
    }
    try:
        best_by = read_config(run_dir).training.best_by
        saved = list_checkpoints(run_dir)
        lines = numbered_events(run_dir)
        return Overview(
            **known,
            standing=standing_of(run_dir),
            score_name=score_name(best_by),
            scores=validation_scores((event for _, event in lines if event is not None), best_by),
            saved=saved[-1].stat().st_mtime if saved else None,
            tests=_tests(read_record(run_dir)),
            missing=tuple(_missing(run_dir)) if saved else (),
            doubt=damage_of(run_dir, lines),
        )
    except TxError as failure:
        return Overview(
            **known, trouble=failure.message, is_readable=not isinstance(failure.__cause__, PermissionError)
        )


def _missing(run_dir: Path) -> Iterator[str]:
    """What the checkpoint that other commands take has not, there or beside it."""
    if not (run_dir / "tokenizer" / "tokenizer.json").is_file():
        yield "tokenizer"
    try:
        used = find_checkpoint(str(run_dir))
    except ModelError:
        yield "best checkpoint" if is_validated(run_dir) else "last checkpoint"
    else:
        if not (used / WEIGHTS).is_file():
            yield "weights"


def _tests(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "checkpoint": found.get("checkpoint"),
            "scores": {score["name"]: score["value"] for score in found["scores"]},
            "signatures": {score["name"]: score.get("signature") for score in found["scores"]},
        }
        for name, found in record.get("scores", {}).items()
    }


def _may_be_run(path: Path) -> bool:
    try:
        return is_run(path)
    except PermissionError:  # perhaps; it is listed as one that nobody could read
        return True


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name[0] != "."] if folder.is_dir() else []


def _is_default(run_dir: Path) -> bool:
    try:
        return os.path.samefile(default_run().path, run_dir)
    except (ModelError, OSError):
        return False


def bytes_in(directory: Path) -> int:
    """Of all files, of none where it is none; of those that go meanwhile, as those of a training run do, nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
