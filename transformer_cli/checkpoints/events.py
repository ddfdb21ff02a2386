"""metrics.jsonl: what was measured while a run was trained; no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from transformer_cli import files
from transformer_cli.errors import ModelError
from transformer_cli.wording import counted

METRICS: Final = "metrics.jsonl"
MOST_STEPS = 10**15


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Updates and validations in their order, [] where nothing was measured; a line that is no event is left out.
    ModelError where the file cannot be read.
    """
    return [event for _, event in numbered_events(run_dir) if event is not None]


def numbered_events(run_dir: Path) -> list[tuple[int, dict[str, Any] | None]]:
    """Each line that says something, by its number: an event, or None. The beginning of one at the end is just being
    written, and left out. ModelError as above.
    """
    path = run_dir / METRICS
    if not path.exists():
        return []
    lines = files.read_bytes(path, error=ModelError).split(b"\n")
    if lines[-1].startswith(b"{") and event_of(lines[-1]) is None:
        del lines[-1]
    return [(number, event_of(line)) for number, line in enumerate(lines, 1) if line.strip()]


def damage_of(run_dir: Path, numbered: Iterable[tuple[int, dict[str, Any] | None]]) -> str:
    """Where the file with these lines is damaged, in words, and "" where it is not."""
    strange = [number for number, event in numbered if event is None]
    n = len(strange) - 1
    more = f", nor {'is' if n == 1 else 'are'} {counted(n, 'lines')} more" if n > 0 else ""
    return f"{files.shown(run_dir / METRICS)}, line {strange[0]:,} is no event{more}: it is damaged" if strange else ""


def validation_scores(events: Iterable[dict[str, Any]], name: str) -> tuple[float, ...]:
    """What the validations among them came to, as they are judged: `bleu` or `loss`."""
    found = [event.get(name) for event in events if event.get("event") == "validation"]
    return tuple(score for score in found if isinstance(score, float) and math.isfinite(score))


def score_name(best_by: str) -> str:
    """What the score is called that validations are judged by."""
    return "BLEU" if best_by == "bleu" else "loss"


def best_of(scores: Iterable[float], name: str) -> float | None:
    """The best of the scores of that name; None where there are none."""
    return (min if name == "loss" else max)(scores, default=None)


def event_of(line: bytes) -> dict[str, Any] | None:
    """None for a line that is no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = event.get("step") if isinstance(event, dict) else None
    return event if type(step) is int and 0 <= step < MOST_STEPS else None
