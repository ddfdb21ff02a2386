"""Seconds, as people read and write them."""

from __future__ import annotations

import re

from transformer_cli.config.names import shorten
from transformer_cli.errors import UsageError

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", re.ASCII)
_HOURS = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII)


def duration(seconds: float) -> str:
    """1:05:07, or 5:07 under an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def spelled(seconds: float) -> str:
    """50 s, 12 min, 3 h 20 min or 56 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = int(seconds / 60 + 0.5)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 10 else f"{round(minutes / 60):,} h"


def hours_of(text: str) -> float:
    """Hours: a number, 11.5, or as Slurm has them, 11:30:00, with a day more 1-11:30:00. Raises UsageError."""
    try:
        if found := _CLOCK.fullmatch(text):
            days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
            time = days * 24 + hours + minutes / 60 + seconds / 3600
        else:
            time = float(text) if _HOURS.fullmatch(text) else 0.0
    except (ValueError, OverflowError):
        time = 0.0
    if not 0 < time < float("inf"):
        hint = "for example 11.5, which are hours, or 11:30:00; 0:05:00 are five minutes"
        raise UsageError(f"'{shorten(text)}' is no time", hint=hint)
    return time
