"""Numbers, lists and characters in messages."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NAMED = 8
"""Characters that are named, one by one."""


def counted(n: int, what: str) -> str:
    """`96 heads`, `1 head`. what: for several."""
    one = what.removesuffix("es") if what.endswith(("ches", "sses", "xes")) else what.removesuffix("s")
    return f"{n:,} {one if n == 1 else what}".rstrip()


def what_is(value: object) -> str:
    """`3.5 (float)`: a value, shortened, and its type where it does not show that."""
    return f"{value!r:.60}" + f" ({type(value).__name__})" * (value is not None and not isinstance(value, str))


def listed(names: Sequence[str], word: str) -> str:
    """`de, en or fr`. word: between the last two."""
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def some(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`. most: so many are named."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def named(text: str) -> str:
    """Characters, with what tells apart those that look alike or like nothing."""
    cut = "..." * (len(text) > LONGEST_NAMED)
    text = text[:LONGEST_NAMED]
    codes = " ".join(f"U+{ord(char):04X}" for char in text) + cut
    seen = text + cut if text.isprintable() else ""
    return {"": "nothing", " ": "a space"}.get(text) or (f"{seen} ({codes})" if seen else codes)
