"""What people read: results on stdout, the conversation on stderr."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from transformer_cli.errors import ResourceError

_quiet = False


def be_quiet() -> None:
    """From now on the conversation is left out; results and errors stay."""
    global _quiet
    _quiet = True


def is_quiet() -> bool:
    """Whether the conversation is left out."""
    return _quiet


def speak_utf8() -> None:
    """Standard streams in UTF-8 whatever the locale says, "\\n" alone as the line end, and there even when closed."""
    sys.stdout = sys.stdout or _Nowhere(os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb"))
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


def result(text: str) -> None:
    """One result on stdout; escaped on a terminal only, so that files and pipes get the very text."""
    _write(sys.stdout, visible(text) if is_terminal(sys.stdout) else text)


def say(text: str = "") -> None:
    """A line of conversation on stderr."""
    if not _quiet:
        _write(sys.stderr, visible(text))


def warn(text: str) -> None:
    """Something unexpected that the work goes on with."""
    if not _quiet:
        _write(sys.stderr, f"{_styled('warning:', '33')} {visible(text)}")


def error(message: str, *, hint: str | None = None) -> None:
    """What went wrong and what to do; said even when quiet."""
    lines = [f"{_styled('error:', '1;31')} {visible(message)}"]
    if hint:
        lines.append(f"  {_styled('hint:', '36')} {visible(hint)}")
    _write(sys.stderr, "\n".join(lines))


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream, rather than a file or a program."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def has_colour(stream: TextIO) -> bool:
    """Colours only for a person whose terminal has them and who did not decline (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """The text with characters that could drive a terminal, or reorder what it shows, written as escapes."""
    return "".join(char if _is_harmless(char) else char.encode("unicode_escape").decode("ascii") for char in text)


def _is_harmless(char: str) -> bool:
    return char in "\n\t" or not (
        char < " " or "\x7f" <= char <= "\x9f" or char in BIDIRECTIONAL or "\ud800" <= char <= "\udfff"
    )


BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class _Nowhere(io.TextIOWrapper):
    """What stands for a stdout that is closed, and keeps its number from the next file that is opened."""

    def write(self, text: str) -> int:
        raise ResourceError("stdout is closed: there is nowhere to write the result to")


def _styled(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if has_colour(sys.stderr) else text


def _write(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
