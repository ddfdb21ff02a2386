"""What metrics.jsonl gets, for TensorBoard, too."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.checkpoints.events import read_events
from transformer_cli.config.training import TrainingConfig
from transformer_cli.needs import needed

FOLDER = "tensorboard"
EXTRA = "tensorboard"
NO_CURVES = {"step", "elapsed_s"}
VERSION = "brain.Event:2"
"""Of the file's format."""


def require_tensorboard(options: TrainingConfig) -> None:
    """ResourceError where it is asked for but not installed."""
    if options.tensorboard:
        needed(EXTRA)


class Board:
    """A file of events with a curve for each number in metrics.jsonl: `update/loss`, `validation/bleu`, and of single
    directions `validation/bleu/de-en`.

    A run that goes on writes it anew from metrics.jsonl, which has each event once however often a run was stopped. The
    new file begins with a mark by which TensorBoard forgets what was before. The file before it stays: a TensorBoard
    that is reading it finds the new one from there, and would be lost if it were deleted.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER
        files.make_directory(self.folder)
        for path in sorted(self.folder.glob("events.out.tfevents.*.tx"))[:-1]:
            files.remove(path)
        now = time.time()
        events = [event for event in read_events(run_dir) if isinstance(event.get("event"), str)]
        passed = list(_elapsed(events))
        begun = now - max(passed, default=0.0)
        self.path = self.folder / f"events.out.tfevents.{time.time_ns():020d}.tx"
        start = _module("event_pb2").SessionLog(status="START")
        records = [_record(begun, file_version=VERSION), _record(begun, step=0, session_log=start)]
        records += [_scalars(begun + elapsed, event) for event, elapsed in zip(events, passed, strict=True)]
        files.append(self.path, b"".join(records))

    def take(self, event: Mapping[str, Any]) -> None:
        """An event that metrics.jsonl has got."""
        files.append(self.path, _scalars(time.time(), event))


def _elapsed(events: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    """Seconds of training before each; of a validation those before the update that it followed."""
    elapsed = 0.0
    for event in events:
        passed = event.get("elapsed_s")
        elapsed = passed if isinstance(passed, float) else elapsed
        yield elapsed


def _scalars(wall_time: float, event: Mapping[str, Any]) -> bytes:
    summary = _module("summary_pb2").Summary
    each = event.get("directions")
    numbers = {**event, **{f"bleu/{name}": score for name, score in (each.items() if isinstance(each, dict) else ())}}
    values = [
        summary.Value(tag=f"{event['event']}/{name}", simple_value=number)
        for name, number in numbers.items()
        if type(number) in (int, float) and name not in NO_CURVES and math.isfinite(number)
    ]
    return _record(wall_time, step=event["step"], summary=summary(value=values))


def _record(wall_time: float, **parts: Any) -> bytes:
    """An event as the file has it: with its length, and sums to check it by."""
    record = io.BytesIO()
    event = _module("event_pb2").Event(wall_time=wall_time, **parts)
    needed("tensorboard.summary.writer.record_writer").RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()


def _module(name: str) -> Any:
    return needed(f"tensorboard.compat.proto.{name}")
