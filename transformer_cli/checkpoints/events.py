"""metrics.jsonl: what was measured while a run was trained; no torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from transformer_cli import files
from transformer_cli.errors import ModelError

METRICS: Final = "metrics.jsonl"


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Updates and validations in their order, [] where nothing was measured; a line that is no event is left out, as
    half of one is that is just being written. ModelError where the file cannot be read.
    """
    path = run_dir / METRICS
    if not path.exists():
        return []
    found = map(event_of, files.read_bytes(path, error=ModelError).split(b"\n"))
    return [event for event in found if event is not None]


def validation_scores(run_dir: Path, name: str) -> tuple[float, ...]:
    """What the validations came to, as they are judged: `bleu` or `loss`."""
    found = [event.get(name) for event in read_events(run_dir) if event.get("event") == "validation"]
    return tuple(score for score in found if isinstance(score, float) and math.isfinite(score))


def event_of(line: bytes) -> dict[str, Any] | None:
    """None for a line that is no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and type(event.get("step")) is int else None
