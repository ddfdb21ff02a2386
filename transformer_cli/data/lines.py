"""What a line of text is, and what none may be: bytes to lines, every line that was touched counted by reason.

A line ends at "\\n" and nowhere else, so U+2028, U+0085, form feeds, NUL and a "\\r" in its middle belong to it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transformer_cli import files
from transformer_cli.data.charsets import BOM, not_utf8, refuse_wide
from transformer_cli.errors import DataError

BOM_REMOVED = "byte order mark removed"
CR_STRIPPED = "carriage return stripped"
LONGEST_LINE = 4 * 1024 * 1024
"""Bytes; longer than any book, and what SentencePiece takes within a minute."""


@dataclass(frozen=True)
class Lines:
    """The lines of one file or stream, without their ends."""

    lines: list[str]
    counts: dict[str, int]
    """Lines that were touched, by reason."""


def refuse_pipe(path: Path) -> None:
    """DataError for what can be read only once; whether it may be read at all, says who opens it."""
    with suppress(PermissionError):
        if path.is_fifo():
            raise DataError(f"{files.shown(path)} is a pipe, not a file", hint="save what it gives to a file first")


def split_lines(data: bytes, name: str, *, lines_before: int = 0, bytes_before: int = 0) -> Lines:
    """Bytes to lines; `name` is what an error calls them. One "\\r" before each end, and a BOM at the start, go.

    lines_before, bytes_before: what of the same text came earlier. Raises DataError for bytes that are not UTF-8, and
    for a line of more than LONGEST_LINE bytes.
    """
    counts: Counter[str] = Counter()
    skipped = 0
    if not bytes_before and data.startswith(BOM):
        counts[BOM_REMOVED] = 1
        skipped = len(BOM)
    try:
        text = data[skipped:].decode("utf-8")
    except UnicodeDecodeError as failure:
        position = failure.start + skipped
        raise not_utf8(data, position, name, lines_before=lines_before, bytes_before=bytes_before) from None
    refuse_wide(data, name, bytes_before=bytes_before)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=lines_before + 1):
        if 4 * len(line) > LONGEST_LINE and len(line.encode("utf-8")) > LONGEST_LINE:
            raise too_long(name, number)
    for index, line in enumerate(lines):
        if line.endswith("\r"):
            lines[index] = line[:-1]
            counts[CR_STRIPPED] += 1
    return Lines(lines, dict(counts))


def too_long(name: str, number: int) -> DataError:
    """A line that no text has: its pieces would take minutes and gigabytes, and then end in an abort."""
    return DataError(
        f"{name}, line {number:,} has more than {LONGEST_LINE:,} bytes",
        hint="a text has one sentence per line; is this file a text, with line feeds?",
    )


def check_line(text: str, *, place: str) -> None:
    """DataError, naming the place, for a string that is more than one line, or no Unicode text (a lone surrogate)."""
    if "\n" in text:
        raise DataError(f"{place}: a sentence is one line, but this holds a line break: {text!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as failure:
        raise DataError(
            f"{place}: character {failure.start + 1} is not text (bytes that are not UTF-8, or half a surrogate pair)",
            hint="write it in UTF-8",
        ) from None
