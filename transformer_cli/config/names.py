"""Names of files and runs as people give them: what can be one, and how a message shows it."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from transformer_cli.trouble import LONGEST, LONGEST_PART

NOT_UTF8 = "has bytes that are not UTF-8"


def why_impossible(name: str) -> str | None:
    """Why no file can have this name, in the words that follow it in a message; None for one that can."""
    try:
        parts = name.encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        return NOT_UTF8
    if not name.strip():
        return "is empty"
    if "\0" in name:
        return "has the character NUL in it"
    if max(map(len, parts)) > LONGEST_PART or len(name.encode("utf-8")) > LONGEST:
        return f"is too long, with {len(name):,} characters"
    return "is a symbolic link that leads round in a circle" if _is_circle(name) else None


def shorten(text: str, length: int = 40) -> str:
    """The text on one line, its middle left out where it is long, control characters escaped."""
    if len(text) > length:
        text = f"{text[: length // 2]}...{text[-length // 4 :]}"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def typed(path: str | Path) -> str:
    """A path in a command to paste, as a shell and tx take it; one that begins with a dash would be an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def _is_circle(name: str) -> bool:
    try:
        os.stat(name)
    except OSError as failure:
        return failure.errno == errno.ELOOP
    return False
