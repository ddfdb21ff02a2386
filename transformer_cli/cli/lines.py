"""The lines that a command works on: arguments, a file, or what comes in through a pipe."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, cast

from transformer_cli.cli import console
from transformer_cli.cli.pulse import PATIENCE_S
from transformer_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    from io import BufferedReader

    from transformer_cli.data.lines import Lines


@dataclass(frozen=True)
class Incoming:
    """Lines that come in block by block. counts: those that were touched so far, by reason. total: if it is known."""

    blocks: Iterable[list[str]]
    counts: Mapping[str, int]
    total: int | None = None


@dataclass(frozen=True)
class Request:
    """A line to translate, what its translation begins with, and what came with it and goes out with it."""

    source: str
    prefix: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    """By name, as JSON."""


class Where:
    """Which lines something is in, counted from 1: a few numbers, and how many more."""

    MOST_NAMED = 5

    def __init__(self) -> None:
        self.n = 0
        self._first: list[str] = []

    def add(self, number: int) -> None:
        self.n += 1
        if len(self._first) < self.MOST_NAMED:
            self._first.append(f"{number:,}")

    def __str__(self) -> str:
        more = f" and {self.n - len(self._first):,} more" if self.n > len(self._first) else ""
        return f"line{'s' * (self.n > 1)} {', '.join(self._first)}{more}"


def given_lines(text: list[str] | None, input_file: str | None, *, without: str = "") -> Lines | None:
    """The lines of the arguments, of a file (`-` is stdin), or of stdin where something is fed to it; None if nothing
    is given. without: what comes of that, in words, for whoever waits for the end of stdin. Raises UsageError for text
    and a file together, DataError for what cannot be read.
    """
    from transformer_cli.data.lines import Lines, split_lines
    from transformer_cli.data.stream import read_lines

    _refuse_both(text, input_file)
    if text:
        return Lines(_arguments(text), {})
    if input_file is not None and input_file != "-":
        return read_lines(input_file)
    if input_file is None and not _is_fed():
        return None
    return split_lines(_stdin(without), "stdin")


@contextmanager
def incoming_lines(text: list[str] | None, input_file: str | None) -> Iterator[Incoming]:
    """The lines of the arguments, of a file of any kind, or of stdin (`-` or nothing), without waiting for the last.

    Raises UsageError for text and a file together, DataError for what cannot be read, at once or while it is read.
    """
    from transformer_cli.data.stream import LineStream, opened

    _refuse_both(text, input_file)
    if text:
        lines = _arguments(text)
        yield Incoming([lines], {}, len(lines))
    elif input_file is not None and input_file != "-":
        from transformer_cli.files import shown

        with opened(Path(input_file)) as file:
            stream = LineStream(file, shown(input_file))
            yield Incoming(stream, stream.counts)
    elif sys.stdin is None:
        yield Incoming([], {}, 0)
    else:
        stream = LineStream(cast("BufferedReader", sys.stdin.buffer), "stdin")
        yield Incoming(stream, stream.counts)


def as_request(line: str, place: str) -> Request:
    """A plain line; DataError, naming the place, for what is no text."""
    from transformer_cli.data.lines import check_line

    check_line(line, place=place)
    return Request(line)


def parse_request(line: str, place: str) -> Request:
    """A JSON object with a `source` and possibly a `prefix`; DataError, naming the place, for anything else."""
    from transformer_cli.data.lines import check_line

    try:
        found = json.loads(
            line, parse_constant=_not_a_number, parse_float=_Number, parse_int=_Number, object_pairs_hook=_object
        )
        fields = {name: _json(value) for name, value in found.items()} if isinstance(found, dict) else {}
    except json.JSONDecodeError as failure:
        raise _not_json(place, f"{failure.msg} at character {failure.pos + 1:,}") from None
    except ValueError as failure:
        raise _not_json(place, str(failure)) from None
    except RecursionError:
        raise _not_json(place, "it is nested too deeply") from None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        raise DataError(f"{place} is no object with a text called `source`", hint='expected: {"source": "..."}')
    source, prefix = found["source"], found.get("prefix", "")
    if not isinstance(prefix, str):
        raise DataError(f"{place}: `prefix` is not a text")
    check_line(source, place=f"{place}, source")
    check_line(prefix, place=f"{place}, prefix")
    others = {name: text for name, text in fields.items() if name not in ("source", "prefix")}
    check_line("".join(others.values()), place=place)
    return Request(source, prefix, others)


def _refuse_both(text: list[str] | None, input_file: str | None) -> None:
    if text and input_file is not None:
        raise UsageError("text and --input are both given", hint="give one of them")


def _arguments(text: list[str]) -> list[str]:
    from transformer_cli.data.lines import check_line

    lines = [line for argument in text for line in argument.split("\n")]
    for number, line in enumerate(lines, start=1):
        check_line(line, place=f"line {number} of the text")
    for argument in text:
        if os.path.isfile(argument):
            console.warn(f"{argument} is taken for text; a file of that name is read by -i")
    if len(text) > 1 and all(len(argument.split()) == 1 for argument in text):
        console.warn(f"{len(text):,} arguments are {len(text):,} lines; quotes make one of them")
    return lines


def _not_json(place: str, reason: str) -> DataError:
    return DataError(f"{place} is not JSON that can be read: {reason}", hint='expected: {"source": "..."}')


@dataclass(frozen=True)
class _Number:
    """As it is written: 1e-400 and 0.1000000000000000055 would not survive as a float, nor a long integer as an int."""

    text: str


def _not_a_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _json(value: Any) -> str:
    """JSON again, of what was read with `_Number` for numbers."""
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(name)}: {_json(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # half characters are left for `check_line` to find


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{name!r} is there twice in one object")
        fields[name] = value
    return fields


def _stdin(without: str) -> bytes:
    """All of it; where that takes its time, and nobody is typing, it is said once."""
    if sys.stdin is None:
        return b""
    otherwise = f" (</dev/null {without})" if without else ""
    waiting = Timer(PATIENCE_S, console.say, [f"reading stdin to its end ...{otherwise}"])
    waiting.daemon = True
    if not sys.stdin.isatty():
        waiting.start()
    try:
        return sys.stdin.buffer.read()
    finally:
        waiting.cancel()


def _is_fed() -> bool:
    """Whether stdin is a pipe, a socket (as of Node, or of sshd) or a file that is not empty: not a terminal, nor the
    null device of a daemon."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or no file at all
        return False
    is_stream = stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
    return is_stream or (stat.S_ISREG(status.st_mode) and status.st_size > 0)
