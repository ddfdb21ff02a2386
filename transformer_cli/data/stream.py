"""Lines as they come in: from a file or a pipe of any size, without waiting for its end."""

from __future__ import annotations

import difflib
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from transformer_cli.data.lines import LONGEST_LINE, Lines, refuse_pipe, split_lines, too_long
from transformer_cli.errors import DataError
from transformer_cli.files import shown, unreadable
from transformer_cli.trouble import missing

BLOCK_BYTES = 1 << 20
BLOCK_LINES = 4096
"""What is handed on at once is no more than this, but for a line that is longer."""
MOST_BESIDE = 5
"""Names of files that a hint lists."""
FETCHED = "multi30k", "multi30k-tok", "iwslt14", "wmt14"
"""Folders that presets read and `scripts/get_corpus` fills."""


class Source(Protocol):
    """Bytes that may not be there yet: a buffered file, a pipe, a compressed file."""

    def read1(self, size: int, /) -> bytes:
        """Some bytes as soon as there are any, at most so many; none at the end."""


class LineStream:
    """Blocks of lines: whatever lines are there by now, as soon as there is one.

    name: what an error calls the source. The text rules are those of `lines.split_lines`. Raises DataError: not UTF-8,
    damaged, unreadable; ResourceError: the disk fails.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name = source, name
        self.counts: Counter[str] = Counter()
        """Lines that were touched so far, by reason."""

    def __iter__(self) -> Iterator[list[str]]:
        unfinished: list[bytes] = []
        n_lines = n_bytes = 0
        at_end = False
        while not at_end:
            data = read_some(self.source, self.name)
            at_end = not data
            whole, end, rest = data.rpartition(b"\n")
            if not end and not at_end:
                unfinished.append(data)
                if sum(map(len, unfinished)) > LONGEST_LINE:
                    raise too_long(self.name, n_lines + 1)
                continue
            block = b"".join((*unfinished, whole, end))
            unfinished = [rest]
            found = split_lines(block, self.name, lines_before=n_lines, bytes_before=n_bytes)
            self.counts.update(found.counts)
            n_lines, n_bytes = n_lines + len(found.lines), n_bytes + len(block)
            for start in range(0, len(found.lines), BLOCK_LINES):
                yield found.lines[start : start + BLOCK_LINES]


def read_lines(path: str | Path) -> Lines:
    """The lines of a UTF-8 file, or of one compressed as `.gz`.

    Raises DataError: missing (naming the nearest file there is), damaged, not UTF-8 (file, line and byte), or
    with a line of more than LONGEST_LINE bytes.
    """
    path = Path(path)
    refuse_pipe(path)
    with opened(path) as file:
        stream = LineStream(file, shown(path))
        lines = [line for block in stream for line in block]
    return Lines(lines, dict(stream.counts))


def read_some(source: Source, name: str) -> bytes:
    """What comes next of a source, none at its end; DataError, naming it, where it is damaged or unreadable,
    ResourceError where the disk fails."""
    try:
        return source.read1(BLOCK_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise DataError(f"{name} is damaged: {failure}", hint="test it with `gzip -t`") from None
    except OSError as failure:
        raise unreadable(name, failure) from failure


def opened(path: Path) -> BufferedReader | gzip.GzipFile:
    """A file, compressed or not, or a pipe that has a name; DataError where it cannot be opened, ResourceError where
    the disk or the system refuses."""
    if os.path.isdir(path):  # pathlib's own question raises where a folder may not be entered
        raise DataError(f"{shown(path)} is not a file")
    try:
        return Compressed(path, "rb") if path.suffix == ".gz" else path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{shown(path)} {missing(path)}", hint=_nearest(path)) from None
    except OSError as failure:
        raise unreadable(path, failure) from failure


class Compressed(gzip.GzipFile):
    """A `.gz` that is read; one of no bytes at all is damaged, where the library sees an empty text."""

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        if not data and self.mtime is None:  # no header was read
            raise EOFError("it is empty, without even a header")
        return data


def _nearest(path: Path) -> str:
    """What is there instead of a missing file."""
    folder = path.parent
    if not folder.is_dir():
        if folder.name in FETCHED:
            return f"scripts/get_corpus {folder.name}, in a clone of tx, fetches it"
        above = next(parent for parent in folder.absolute().parents if parent.is_dir())
        return f"the folder {shown(folder)} does not exist; {shown(above)} does"
    # Nobody means what cannot be read, or a hidden file without its dot.
    hidden = path.name.startswith(".")
    try:
        there = _names(one for one in folder.iterdir() if one.is_file() and one.name.startswith(".") == hidden)
    except PermissionError:
        return f"what {shown(folder.absolute())} has may not be looked at"
    beside = [name for name in there if name.startswith(f"{path.stem}.")]
    is_mistyped = len(beside) == 1 and difflib.get_close_matches(path.suffix, [Path(beside[0]).suffix], cutoff=0.7)
    if beside and not is_mistyped:  # the other side of a pair is never what is meant
        named = ", ".join(beside[:MOST_BESIDE]) + ", ..." * (len(beside) > MOST_BESIDE)
        are = "are" if len(beside) > 1 else "is"
        return f"beside it {are} {named}; of a prefix, data.source and data.target say what follows the dot"
    if close := difflib.get_close_matches(path.name, there, n=1, cutoff=0.7):
        return f"did you mean {shown(folder / close[0])}?"
    return f"no file in {shown(folder.absolute())} has a name like it"


def _names(paths: Iterable[Path]) -> list[str]:
    return sorted(path.name for path in paths)
