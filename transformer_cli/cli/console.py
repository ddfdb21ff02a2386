"""What people read: results on stdout, the conversation on stderr."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO

from transformer_cli.cli.pulse import Pulse
from transformer_cli.errors import ResourceError

LONGEST_LINE = 800
"""Characters, about, of a line of conversation."""

_quiet = False


@dataclass(frozen=True)
class Collected:
    """Where results go instead of stdout, and what nobody should miss instead of stderr."""

    warn: Callable[[str], object] | None
    results: list[str] = field(default_factory=list)


_collected: ContextVar[Collected | None] = ContextVar("collected", default=None)
"""Of this thread: others may do the same for somebody else."""
_is_more_than_results: ContextVar[bool] = ContextVar("is_more_than_results", default=False)


def be_quiet() -> None:
    """From now on the conversation is left out; results and errors stay."""
    global _quiet
    _quiet = _quiet or _collected.get() is None  # of what is collected it is left out anyway, and only there


def is_quiet() -> bool:
    """Whether the conversation is left out."""
    return _quiet or _collected.get() is not None


@contextmanager
def collected(*, warn: Callable[[str], object] | None = None) -> Iterator[list[str]]:
    """Results of this thread go into this list, and the conversation is left out. warn: told what is said even so."""
    there = Collected(warn)
    before = _collected.set(there)
    try:
        yield there.results
    finally:
        _collected.reset(before)


@contextmanager
def more_than_results() -> Iterator[None]:
    """Within it the work goes on when the reader of its results is gone: it ends in files or in a verdict, too."""
    before = _is_more_than_results.set(True)
    try:
        yield
    finally:
        _is_more_than_results.reset(before)


def open_streams() -> None:
    """The standard streams anew: UTF-8 whatever the locale says, "\\n" alone as the line end, and there even when
    closed. They wait where they were left non-blocking; a result that cannot be written is an error, conversation that
    cannot be is not: nobody trains for the sake of the lines on stderr.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file must not get its number
            os.open(os.devnull, os.O_RDONLY)
    if sys.stdin is not None:
        sys.stdin = _as_text(io.BufferedReader(_Descriptor(0)), "surrogateescape")
    sys.stdout = _as_text(io.BufferedWriter(Sink(1, "stdout")), line_buffering=is_terminal(sys.stdout))
    sys.stderr = _as_text(io.BufferedWriter(_Conversation(2)), line_buffering=True)


def result(text: str) -> None:
    """One result on stdout; escaped on a terminal only, so that files and pipes get the very text."""
    if (there := _collected.get()) is not None:
        there.results.append(text)
        return
    _write(sys.stdout, visible(text) if is_terminal(sys.stdout) else text)


def say(text: str, *, to_paste: bool = False) -> None:
    """A line of conversation on stderr. to_paste: it stays one line, however narrow the terminal is."""
    if not is_quiet():
        shown = visible(brief(text))
        _tell(shown if to_paste else _folded(shown))


def warn(text: str, *, even_quiet: bool = False, even_collected: bool = False) -> None:
    """Something unexpected that the work goes on with. even_quiet: so much so that nobody should miss it.
    even_collected: nor should who collects, though who is quiet may."""
    there = _collected.get()
    if (even_quiet or even_collected) and there is not None and there.warn is not None:
        there.warn(text)
    elif even_quiet or not is_quiet():
        _tell(_headed("warning:", "33", text))


def error(message: str, *, hint: str | None = None) -> None:
    """What went wrong and what to do; said even when quiet."""
    lines = [_headed("error:", "1;31", message)]
    if hint:
        lines.append("  " + _headed("hint:", "36", hint, margin=2))
    _tell("\n".join(lines))


def farewell(message: str, *, command: str | None = None) -> None:
    """How work was left by who stopped it, which is no error, and the command that goes on; said even when quiet."""
    lines = [_folded(visible(brief(message)))]
    if command:
        lines.append(f"{styled('to go on:', '36')} {visible(command)}")
    _tell("\n".join(lines))


def has_cursor() -> bool:
    """Whether somebody looks at a terminal that can draw over what it drew."""
    return is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person looks at the stream, rather than a file or a program."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def has_colour(stream: TextIO) -> bool:
    """Colours only for a person whose terminal has them and who did not decline (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """The text with characters that could drive a terminal, or reorder what it shows, written as escapes."""
    return "".join(char if _is_harmless(char) else char.encode("unicode_escape").decode("ascii") for char in text)


def brief(text: str) -> str:
    """The text, the middle of a line left out that nobody would read: what was found may be of any size."""
    lines = text.split("\n")
    too_long = 3 * LONGEST_LINE // 2
    return "\n".join(
        f"{line[:LONGEST_LINE]} [...] {line[-LONGEST_LINE // 4 :]}" if len(line) > too_long else line for line in lines
    )


def _is_harmless(char: str) -> bool:
    return char in "\n\t" or not (
        char < " " or "\x7f" <= char <= "\x9f" or char in BIDIRECTIONAL or "\ud800" <= char <= "\udfff"
    )


BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class ReaderIsGone(BrokenPipeError):
    """Whoever read the results wants no more of them (`| head -1`): the program ends quietly."""


class _Descriptor(io.RawIOBase):
    """A stream that waits for its other end. Node, some shells and notebooks hand over pipes that do not wait; Python
    then takes "nothing there yet" for the end, and drops what does not fit.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return self.is_terminal

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with pulse.paused():
            while True:
                try:
                    data = os.read(self.descriptor, len(buffer))
                except BlockingIOError:
                    select.select([self.descriptor], [], [])
                else:
                    buffer[: len(data)] = data
                    return len(data)

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        if self.is_terminal:
            pulse.hush(bytes(rest[-1:]))
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self.descriptor], [])
        return len(data)


class Sink(_Descriptor):
    """Where results go that no file holds: stdout, a pipe, a device.

    Raises ReaderIsGone (but within more_than_results), or ResourceError with the name, once; whatever a buffer tries
    again after that is dropped.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor)
        self.name = name
        self.is_given_up = False

    def write(self, data: Any) -> int:
        if self.is_given_up:
            return len(data)
        try:
            return super().write(data)
        except OSError as failure:
            self.is_given_up = True
            if isinstance(failure, BrokenPipeError):
                if _is_more_than_results.get():
                    return len(data)
                raise ReaderIsGone from None
            if failure.errno == errno.EBADF:
                raise ResourceError(f"{self.name} is closed: there is nowhere to write the result to") from None
            raise ResourceError(f"cannot write {self.name}: {failure.strerror or failure}") from failure


class _Conversation(_Descriptor):
    """stderr, closed or full or not."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _as_text(stream: Any, errors: str = "backslashreplace", *, line_buffering: bool = False) -> io.TextIOWrapper:
    """errors: what becomes of bytes that are not UTF-8, or of half a character; files are called so, no text is."""
    return io.TextIOWrapper(stream, encoding="utf-8", errors=errors, newline="\n", line_buffering=line_buffering)


def columns() -> int:
    """Of the terminal that the conversation is read on."""
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(2).columns or 80
    except (OSError, ValueError):
        return 80


pulse = Pulse(lambda: not is_quiet() and has_cursor(), columns)


def _headed(head: str, code: str, text: str, *, margin: int = 0) -> str:
    return _folded(f"{head} {visible(brief(text))}", margin=margin).replace(head, styled(head, code), 1)


def _folded(text: str, *, margin: int = 0) -> str:
    """Broken between words where a person's terminal would break it within one; not what is indented, a place in a
    file. margin: what stands before it, and before what goes on.
    """
    if not is_terminal(sys.stderr):
        return text
    room = max(20, columns() - margin)
    lines = []
    for line in text.split("\n"):
        fits = len(line) <= room or line.startswith(" ")
        parts = [line] if fits else textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
        lines.append(f"\n{' ' * margin}".join(parts))
    return "\n".join(lines)


def styled(text: str, code: str, *, on: TextIO | None = None) -> str:
    """The text with an SGR code around it, where the stream, stderr unless another is named, has colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if has_colour(sys.stderr if on is None else on) else text


def _tell(text: str) -> None:
    """On stderr, if there is one: a program of Python's may have none, or have closed it."""
    if sys.stderr is not None and not getattr(sys.stderr, "closed", False):
        _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
