"""Lines read where they lie: of a file nothing is in memory but where each of its lines begins."""

from __future__ import annotations

import errno
import os
import tempfile
from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from io import BufferedReader, FileIO
from itertools import accumulate
from pathlib import Path
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.charsets import BOM, not_utf8, refuse_wide
from transformer_cli.data.lines import BOM_REMOVED, CR_STRIPPED, LONGEST_LINE, refuse_pipe, too_long
from transformer_cli.data.stream import opened, read_some
from transformer_cli.errors import DataError, ResourceError, TxError
from transformer_cli.files import shown
from transformer_cli.trouble import hint_of, reason_of, room_of

BLOCK = 4096
"""Lines that are text at a time."""

Places = npt.NDArray[np.int64]

_ELSEWHERE = "TMPDIR may name another folder, and a text that is unpacked beforehand (`gunzip -k`) needs none"

# White space in UTF-8 begins with one of these; nearly every line is known to have text by its first byte.
_MAYBE_BLANK = np.zeros(256, dtype=bool)
_MAYBE_BLANK[[*range(33), 0xC2, 0xE1, 0xE2, 0xE3, 0xEF]] = True


class Digest(Protocol):
    """A hash that is not finished."""

    def update(self, data: bytes, /) -> None: ...


class Text(Sequence[str]):
    """Lines that are read when they are asked for."""

    counts: dict[str, int]
    """Lines that were touched, by reason."""
    blank: Places
    """The places of those without text."""
    has_files_to_name = False
    """Whether a line's number alone does not say where it is."""

    @abstractmethod
    def utf8(self, start: int, stop: int) -> bytes:
        """These lines, each with a line feed behind it."""

    @abstractmethod
    def without(self, places: Places) -> Text:
        """All but those at these places."""

    @abstractmethod
    def where(self, place: int) -> tuple[str | None, int]:
        """The file of a line, if it is in one, and its number there, or among all that there were, from 1."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[place] for place in range(start, stop, step)]
            return [
                line for first in range(start, stop, BLOCK) for line in self._block(first, min(first + BLOCK, stop))
            ]
        place = range(len(self))[index]
        return self.utf8(place, place + 1)[:-1].decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            yield from self._block(first, min(first + BLOCK, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _block(self, start: int, stop: int) -> list[str]:
        return self.utf8(start, stop)[:-1].decode("utf-8").split("\n")


class FileText(Text):
    """The lines of a file, by the rules of `lines.split_lines`; checked, and hashed, in one pass."""

    def __init__(self, path: str | Path, digest: Digest, unpacked: Open | None = None) -> None:
        """digest: is updated with the lines, each with a line feed behind it. unpacked: what `unpack` made of a `.gz`,
        in this process or in another one; else that is done while it is read.

        Raises DataError: missing, damaged, not UTF-8, a line of more than LONGEST_LINE bytes. ResourceError where the
        temporary folder does not take what is unpacked.
        """
        path = Path(path)
        self.name = shown(path)
        refuse_pipe(path)
        with ExitStack() as stack:
            source = stack.enter_context(opened(path) if unpacked is None else unpacked.again())
            is_packed = path.suffix == ".gz" and unpacked is None
            file = stack.enter_context(_unpacking(self.name)) if is_packed else None
            counts: Counter[str] = Counter()
            starts, blank = [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
            n_lines = n_bytes = 0
            rest, data = b"", b"more"
            hashing, hashed = stack.enter_context(ThreadPoolExecutor(1)), None
            as_found = _state_of(source.fileno())
            while data:
                data = read_some(source, self.name)
                if not data and not n_bytes and rest == BOM:  # nothing stands behind it
                    rest, counts[BOM_REMOVED] = b"", 1
                if file is not None:
                    _add(file, data)
                block = rest + (data or b"\n" * bool(rest))
                whole = block.rfind(b"\n") + 1
                block, rest = block[:whole], block[whole:]
                ends, without_text = _looked_through(block, self.name, n_lines, n_bytes)
                skipped = len(BOM) if not n_bytes and block.startswith(BOM) else 0
                n_returns = block.count(b"\r\n") if b"\r" in block else 0
                plain = (block.replace(b"\r\n", b"\n") if n_returns else block)[skipped:]
                if hashed is not None:
                    hashed.result()
                hashed = hashing.submit(digest.update, plain)  # while the next block is read
                starts[0] += skipped
                counts += Counter({BOM_REMOVED: int(skipped > 0), CR_STRIPPED: n_returns})
                starts.append(ends + n_bytes)
                blank.append(without_text + n_lines)
                n_lines, n_bytes = n_lines + len(ends), n_bytes + len(block)
                if len(rest) > LONGEST_LINE:
                    raise too_long(self.name, n_lines + 1)
            if _state_of(source.fileno()) != as_found:
                raise _changed(self.name)
            self._file = unpacked or Open(os.dup((file or source).fileno()))
        self._is_unpacked = path.suffix == ".gz"
        self._as_scanned = self._state()
        self.counts = dict(counts)
        self.starts: Places = np.concatenate(starts)
        """Where each line begins, in bytes, and one that would follow the last."""
        self.blank = np.concatenate(blank)
        self.kept: npt.NDArray[np.int32] | None = None
        """The places of these lines in the file; None where they are all of them."""

    def __len__(self) -> int:
        return len(self.starts) - 1 if self.kept is None else len(self.kept)

    def utf8(self, start: int, stop: int) -> bytes:
        if start == stop:
            return b""
        first, last = start, stop - 1
        if self.kept is not None:
            first, last = int(self.kept[first]), int(self.kept[last])
        data = self._read(int(self.starts[first]), int(self.starts[last + 1]))
        if self.kept is not None and last - first != stop - 1 - start:
            lines = data.split(b"\n")
            data = b"".join(lines[place] + b"\n" for place in self.kept[start:stop] - first)
        return data.replace(b"\r\n", b"\n") if CR_STRIPPED in self.counts else data

    def without(self, places: Places) -> FileText:
        left = copy(self)
        places_kept = np.delete(np.arange(len(self), dtype=np.int32), places)
        left.kept = places_kept if self.kept is None else self.kept[places_kept]
        blank = np.setdiff1d(self.blank, places)
        left.blank = blank - np.searchsorted(places, blank)
        return left

    def where(self, place: int) -> tuple[str | None, int]:
        return self.name, 1 + (place if self.kept is None else int(self.kept[place]))

    def _read(self, start: int, stop: int) -> bytes:
        """The bytes from start to stop, and a line feed that the last line of a file lacks."""
        try:
            data = self._file.read(stop - start, start)
            state = self._state()
        except OSError as failure:
            raise self._unreadable(failure) from failure
        if state != self._as_scanned:
            raise _changed(self.name)
        if len(data) == stop - start:
            return data
        if len(data) == stop - start - 1 and stop == self.starts[-1]:
            return data + b"\n"
        raise self._unreadable(OSError(errno.EIO, os.strerror(errno.EIO)))

    def _unreadable(self, failure: OSError) -> TxError:
        hint = hint_of(failure, reads=True)
        if not self._is_unpacked:
            return files.unreadable(self.name, failure, hint=hint)
        return ResourceError(
            f"{self.name}, unpacked into {shown(tempfile.gettempdir())}, cannot be read: {reason_of(failure)}",
            hint=_or_elsewhere(hint),
        )

    def _state(self) -> tuple[int, int]:
        return _state_of(self._file.descriptor)


def _state_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _changed(name: str) -> DataError:
    return DataError(
        f"{name} was changed while it was read",
        hint="restore it and run the same command again; a text must stay as it is until training has ended",
    )


class JoinedText(Text):
    """The lines of several texts, one after the other."""

    has_files_to_name = True

    def __init__(self, parts: Sequence[Text]) -> None:
        self.parts = parts
        self.counts = dict(sum((Counter(part.counts) for part in parts), Counter()))
        self.limits = [0, *accumulate(map(len, parts))]
        """Where each part begins, and the end."""
        self.blank = np.concatenate([part.blank + begin for part, begin in self._each()])

    def __len__(self) -> int:
        return self.limits[-1]

    def utf8(self, start: int, stop: int) -> bytes:
        clipped = ((part, max(start - begin, 0), min(stop - begin, len(part))) for part, begin in self._each())
        return b"".join(part.utf8(first, end) for part, first, end in clipped if first < end)

    def without(self, places: Places) -> JoinedText:
        inside = ((part, places - begin) for part, begin in self._each())
        return JoinedText([part.without(here[(here >= 0) & (here < len(part))]) for part, here in inside])

    def where(self, place: int) -> tuple[str | None, int]:
        number = bisect_right(self.limits, place) - 1
        return self.parts[number].where(place - self.limits[number])

    def _each(self) -> Iterator[tuple[Text, int]]:
        return zip(self.parts, self.limits, strict=False)


class ListedText(Text):
    """Lines that are in memory."""

    def __init__(
        self, lines: Sequence[str], kept: Places | None = None, *, origins: Sequence[tuple[str | None, int]] = ()
    ) -> None:
        """kept: the places that they had before others were left out. origins: what `where` says of those places, where
        they are of another text."""
        self.lines, self.kept, self.origins = lines, np.arange(len(lines)) if kept is None else kept, origins
        self.has_files_to_name = bool(origins)
        self.counts = {}
        self.blank = np.array([place for place, line in enumerate(lines) if not line.strip()], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lines)

    def utf8(self, start: int, stop: int) -> bytes:
        return "".join(f"{line}\n" for line in self.lines[start:stop]).encode("utf-8")

    def without(self, places: Places) -> ListedText:
        left_out = set(places.tolist())
        lines = [line for place, line in enumerate(self.lines) if place not in left_out]
        return ListedText(lines, np.delete(self.kept, places), origins=self.origins)

    def where(self, place: int) -> tuple[str | None, int]:
        number = int(self.kept[place])
        return self.origins[number] if self.origins else (None, 1 + number)


class Open:
    """A file that is closed when nobody reads it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read(self, n: int, start: int) -> bytes:
        """So many bytes from there, or as many as there are: the system may give them bit by bit."""
        parts = []
        while n > 0 and (data := os.pread(self.descriptor, n, start)):
            parts.append(data)
            n, start = n - len(data), start + len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def again(self) -> BufferedReader:
        """From its beginning."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        return os.fdopen(os.dup(self.descriptor), "rb")


def unpack(path: Path) -> Open:
    """What is in a `.gz`, in a file of the system's temporary folder that has no name there: it is gone with the last
    process that has it open, however that ends. Raises as FileText does."""
    refuse_pipe(path)
    with opened(path) as source, _unpacking(name := shown(path)) as file:
        while data := read_some(source, name):
            _add(file, data)
        return Open(os.dup(file.fileno()))


def as_text(lines: Sequence[str]) -> Text:
    """Lines of any kind."""
    return lines if isinstance(lines, Text) else ListedText(lines)


def where_in_words(lines: Sequence[str], places: Iterable[int]) -> str:
    """The files of these lines, and their numbers there; of what is in no file, which pairs they belong to."""
    text, found = as_text(lines), dict[str | None, list[int]]()
    for place in sorted(places):
        name, number = text.where(place)
        found.setdefault(name, []).append(number)
    numbers = {name: ", ".join(f"{number:,}" for number in some) for name, some in found.items()}
    several = {name: "s" * (len(some) > 1) for name, some in found.items()}
    return "; ".join(
        f"pair{several[name]} {some}" if name is None else f"{name}, line{several[name]} {some}"
        for name, some in numbers.items()
    )


def update(digest: Digest, text: Text) -> None:
    """Hash the lines of a text, each with a line feed behind it."""
    for start in range(0, len(text), BLOCK):
        digest.update(text.utf8(start, min(start + BLOCK, len(text))))


@contextmanager
def _unpacking(name: str) -> Iterator[FileIO]:
    """A file without a name, to unpack this one into; ResourceError where the temporary folder does not take it."""
    try:
        with tempfile.TemporaryFile(buffering=0) as file:  # a buffer would be written once more when it is closed
            yield file
    except OSError as failure:
        folder = tempfile.tempdir  # None where none was found
        place, room = (shown(folder), room_of(failure, Path(folder, "x"))) if folder else ("any temporary folder", "")
        raise ResourceError(
            f"{name} cannot be unpacked into {place}: {reason_of(failure)}{room}",
            hint=_or_elsewhere(hint_of(failure)),
        ) from failure


def _or_elsewhere(hint: str | None) -> str:
    return f"{hint}; {_ELSEWHERE}" if hint else _ELSEWHERE


def _add(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[files.disk.write(file.fileno(), left) :]


def _looked_through(block: bytes, name: str, n_lines: int, n_bytes: int) -> tuple[Places, Places]:
    """Where the lines of a block of whole lines end, in bytes, and the places of those without text. n_lines, n_bytes:
    what came before. DataError for what is no text."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as failure:
        raise not_utf8(block, failure.start, name, lines_before=n_lines, bytes_before=n_bytes) from None
    refuse_wide(block, name, bytes_before=n_bytes)
    data = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n")) + 1
    begins = np.concatenate([np.zeros(1, dtype=np.int64), ends])[:-1]
    if len(long := np.flatnonzero(ends - begins > LONGEST_LINE + 1)):
        raise too_long(name, n_lines + int(long[0]) + 1)
    doubtful = np.flatnonzero(_MAYBE_BLANK[data[begins]])
    first = len(BOM) if not n_bytes and block.startswith(BOM) else 0
    is_blank = [not block[max(begins[place], first) : ends[place]].decode("utf-8").strip() for place in doubtful]
    return ends, doubtful[np.array(is_blank, dtype=bool)]
