"""The lines that a command works on: arguments, a file, or what comes in through a pipe."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from transformer_cli.errors import UsageError

if TYPE_CHECKING:
    from transformer_cli.data.corpus import Lines


def given_lines(text: list[str] | None, input_file: str | None) -> Lines | None:
    """The lines of the arguments, of a file (`-` is stdin), or of stdin where something is fed to it; None if nothing
    is given. Raises UsageError for text and a file together, DataError for what cannot be read.
    """
    from transformer_cli.data.corpus import Lines, check_line, read_lines, split_lines

    if text and input_file is not None:
        raise UsageError("text and --input are both given", hint="give one of them")
    if text:
        lines = [line for argument in text for line in argument.split("\n")]
        for number, line in enumerate(lines, start=1):
            check_line(line, place=f"line {number} of the text")
        return Lines(lines, {})
    if input_file is not None and input_file != "-":
        return read_lines(input_file)
    if input_file is None and not _is_fed():
        return None
    return split_lines(sys.stdin.buffer.read() if sys.stdin is not None else b"", "stdin")


def _is_fed() -> bool:
    """Whether stdin is a pipe or a file that is not empty: not a terminal, nor the null device of a daemon."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or no file at all
        return False
    return stat.S_ISFIFO(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_size > 0)
