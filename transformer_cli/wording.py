"""Numbers in messages, with the word for what they count."""

from __future__ import annotations


def counted(n: int, what: str) -> str:
    """`96 heads`, `1 head`. what: for several."""
    one = what.removesuffix("es") if what.endswith(("ches", "sses", "xes")) else what.removesuffix("s")
    return f"{n:,} {one if n == 1 else what}".rstrip()
