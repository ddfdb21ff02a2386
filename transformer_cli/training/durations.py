"""Seconds, as people read them."""

from __future__ import annotations


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
