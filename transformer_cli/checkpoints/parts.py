"""How the files of a checkpoint get to the disk: by one process, or each process its part of them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from transformer_cli.checkpoints.manifest import File, Name
from transformer_cli.checkpoints.tensors import Portion
from transformer_cli.errors import ResourceError
from transformer_cli.files import ask_guards, create_file, shown, unreadable

FAILED = "failed"
"""What a process posts whose part will never be there."""
SEEN_S = 60.0
"""After that long a file that one machine made is seen on all, where it is on a disk of all."""


class DisturbedError(ResourceError):
    """Why a process cannot write its part: another one failed. What counts is what that one says."""

    def __init__(self) -> None:
        super().__init__("another process could not write its part of a checkpoint")


class Writers(Protocol):
    """Processes that write a checkpoint together, and this one's place among them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def post(self, what: str, text: str = "") -> None:
        """Let the others read that."""

    def posted(self, what: str) -> str:
        """What one of them posted, as soon as it has. Raises as `pause` does."""

    def pause(self) -> None:
        """For a moment. Raises what ended another of them, DisturbedError where one failed that has not said why."""


@dataclass(frozen=True)
class _Alone:
    rank: int = 0
    size: int = 1

    def post(self, what: str, text: str = "") -> None:
        pass

    def posted(self, what: str) -> str:
        raise LookupError(what)

    def pause(self) -> None:
        pass


ALONE = _Alone()


@dataclass(frozen=True)
class _Written:
    """What one process wrote of a file."""

    spans: list[tuple[int, int]]
    """From where, and how many bytes."""
    sha256: str
    """Of all of them, one behind the other."""


def write_together(path: Path, aside: Path, portions: Mapping[Name, Portion], writers: Writers) -> dict[Name, File]:
    """Write the first process's part into an empty directory that will be `path`; comes back once the others' are
    there, too."""
    for name, portion in portions.items():
        _begin(aside / name, portion)
    writers.post("place", aside.name)
    written = {name: _write_portion(aside / name, portion) for name, portion in portions.items()}
    for rank in range(1, writers.size):
        writers.posted(f"written by {rank}")
    writers.post("written")
    for name, one in written.items():
        _check(aside / name, one, known_as=path / name)
    for rank in range(1, writers.size):
        writers.posted(f"checked by {rank}")
    return {name: _file(aside / name, portions[name], written[name], writers) for name in portions}


def write_file(path: Path, content: bytes, *, known_as: Path) -> File:
    """Write a file of a few bytes, by one process. known_as: the path that it will have. ResourceError unless it reads
    back."""
    with create_file(path) as file:
        file.write(content)
    written = _Written([(0, len(content))], hashlib.sha256(content).hexdigest())
    _check(path, written, known_as=known_as)
    return File(bytes=len(content), sha256=written.sha256)


def _begin(path: Path, portion: Portion) -> None:
    """A file as long as it will be: what lies beyond its end another machine may take for zeros of its own."""
    with create_file(path) as file:
        file.write(portion.header)
        if portion.size > len(portion.header):
            file.seek(portion.size - 1)
            file.write(b"\0")


def _write_portion(path: Path, portion: Portion) -> _Written:
    """Write it behind the header that is there, which counts as its own."""
    digest, spans = hashlib.sha256(portion.header), [(0, len(portion.header))]
    with create_file(path, is_there=True) as file:
        for offset, piece in portion.pieces():
            digest.update(piece)
            spans.append((offset, len(piece)))
            if file.tell() != offset:
                file.seek(offset)
            file.write(piece)
    return _Written(spans, digest.hexdigest())


def write_beside(path: Path, aside: Path, portions: Mapping[Name, Portion], writers: Writers) -> None:
    """Write this process's part into the directory that the first one made; it is checked once all have written."""
    _wait_for(aside, portions, writers)
    try:
        written = {name: _write_portion(aside / name, portion) for name, portion in portions.items()}
        writers.post(f"written by {writers.rank}")
        writers.posted("written")
        for name, one in written.items():
            _check(aside / name, one, known_as=path / name)
    except ResourceError:
        # Where the first one failed, it clears that away, file by file, and says why: only what is there was refused.
        _wait_for(aside, portions, writers)
        raise
    writers.post(f"checked by {writers.rank}")
    writers.posted("saved")


def _wait_for(aside: Path, names: Iterable[Name], writers: Writers) -> None:
    """Until all these files are seen here; ResourceError where they are not."""
    until = time.monotonic() + SEEN_S
    while not all(os.path.isfile(aside / name) for name in names):
        if time.monotonic() > until:
            raise ResourceError(
                f"process {writers.rank} does not see what the first one made in {shown(aside.parent)}",
                hint="each process writes its part of a checkpoint: the run directory has to be on a disk that all "
                "machines see under the same path",
            )
        writers.pause()


def _check(place: Path, written: _Written, *, known_as: Path) -> None:
    """ResourceError unless the disk gives that back."""
    if _digest(place, written.spans) != written.sha256:
        raise ResourceError(
            f"{shown(known_as)} does not read back as it was written: not saved",
            hint="earlier checkpoints are untouched; check the disk, or save on another one",
        )


def _file(place: Path, portion: Portion, written: _Written, writers: Writers) -> File:
    """For the manifest, of what all have written."""
    digest = written.sha256 if writers.size == 1 else _digest(place, [(0, portion.size)])
    return File(bytes=portion.size, sha256=digest)


def _digest(path: Path, spans: Iterable[tuple[int, int]]) -> str:
    """The sha256 of so many bytes from there on each, one after the other."""
    digest, room = hashlib.sha256(), memoryview(bytearray(1 << 20))
    try:
        with path.open("rb", buffering=0) as file:
            for offset, left in spans:
                file.seek(offset)
                while left and (n := file.readinto(room[: min(left, len(room))])):
                    digest.update(room[:n])
                    left -= n
                    ask_guards(path)
    except OSError as failure:
        raise unreadable(path, failure, error=ResourceError) from failure
    return digest.hexdigest()
