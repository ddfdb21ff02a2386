"""The one seam to the disk: whatever has to survive a crash is written here.

A file or directory is written aside (`.tmp-...`), flushed to the disk, and given its name by one rename, so that under
its own name it is either complete or absent. Source: Pillai et al., OSDI 2014, on what a rename does and doesn't order.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from transformer_cli.descriptor import Descriptor, flush
from transformer_cli.errors import DataError, ResourceError, TxError
from transformer_cli.trouble import LONGEST_PART, hint_of, irreplaceable, is_failing, missing, reason_of, room_of

ASIDE = ".tmp-"
"""Prefix of what is being written; left behind only by a process that was killed."""
DOOMED = ".del-"
"""Prefix of what is being deleted, so that a kill half-way leaves nothing that looks valid."""
TEMPORARY = re.compile(rf"^({re.escape(ASIDE)}|{re.escape(DOOMED)})(.+)-[0-9a-f]{{8}}\Z")


class Disk:
    """The calls that change a disk, one method each, so that a test can make the Nth of them fail."""

    def open(self, path: Path, is_there: bool) -> int:
        new = 0 if is_there else os.O_CREAT | os.O_EXCL
        return os.open(path, os.O_WRONLY | new | getattr(os, "O_CLOEXEC", 0), 0o666)

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        flush(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove_file(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()


disk = Disk()
_unfinished: dict[Path, Path] = {}
"""What is being written aside, and the path that it will have."""

guards: list[Callable[[Path], None]] = []
"""Asked for every path before it is changed in any way; one that raises prevents that."""


def ask_guards(path: Path) -> None:
    for guard in guards:
        guard(path)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, or replaces what was there, when the block ends without an error.

    Raises ResourceError where the disk refuses; then, as after an error in the block, nothing has changed.
    """
    path = Path(path)
    check_file(path)  # said before the work, not after it
    make_directory(path.parent)
    with aside(path) as place:
        with create_file(place) as file:
            with suppress(OSError):  # nothing is replaced, or the disk knows no permissions
                shutil.copymode(path, place)  # before there is anything to read: what is private never is not
            yield file
        with writing(path):
            disk.rename(place, path)
    _sync_directory(path.parent)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Give an empty directory to fill; it becomes `path`, whole, when the block ends without an error.

    Every file in it is flushed to the disk first, whoever wrote it. `path` must not exist yet, or be empty.
    Raises ResourceError where the disk refuses; then, as after an error in the block, nothing has changed.
    """
    path = Path(path)
    make_directory(path.parent)
    with aside(path) as place:
        with writing(path):
            disk.make_directory(place)
        yield place
        _sync_tree(place)
        with writing(path):
            disk.rename(place, path)
    _sync_directory(path.parent)


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name beside `path`; what has it is deleted when the block ends, or a signal ends it without unwinding."""
    place = _beside(path, ASIDE)
    _unfinished[place] = path
    try:
        yield place
    finally:
        abandon(place)  # unless it has got its name
        del _unfinished[place]


@contextmanager
def create_file(path: str | Path, *, is_there: bool = False) -> Iterator[BinaryIO]:
    """Open a new file inside an `atomic_directory`, or one that is there, flushed to the disk when the block ends."""
    path = Path(path)
    with writing(path):
        descriptor = disk.open(path, is_there)

    def write(data: memoryview) -> int:
        with writing(path):
            return disk.write(descriptor, data)

    def close() -> None:
        with writing(path):  # NFS may tell only now of what it could not write
            disk.close(descriptor)

    raw = Descriptor(descriptor, write, close)
    file = io.BufferedWriter(raw, buffer_size=1 << 20)
    try:
        yield cast(BinaryIO, file)
        file.flush()
        with writing(path):
            disk.sync(descriptor)
    finally:
        raw.abandoned = True  # what could not be written must not be tried again by close()
        file.close()


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8, atomically; line ends are taken as they are."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON, atomically; NaN and infinity are refused (ValueError), for JSON has none."""
    write_text(path, json_text(value))


def append(path: str | Path, data: bytes) -> None:
    """Add to the end of a file, made if it isn't there; a log, not worth waiting for the disk."""
    with writing(Path(path)):
        disk.append(Path(path), data)


def json_text(value: Any) -> str:
    """The one way in which this program lays out a JSON file."""
    return _escaped(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)) + "\n"


def json_line(value: Any) -> str:
    """A result or an event on one line. JSON has no infinity: a number that is not finite becomes null."""
    return _escaped(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _escaped(text: str) -> str:  # bytes of a file's name that are not UTF-8 are half characters in Python
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_bytes(path: str | Path, *, error: type[TxError] = DataError, hint: str | None = None) -> bytes:
    """The content of a regular file, or `error` with the path and the reason."""
    try:
        if (path := Path(path)).exists() and not path.is_file():
            raise error(f"{shown(path)} is not a file", hint=hint)
        return path.read_bytes()
    except FileNotFoundError:
        raise error(f"{shown(path)} {missing(path)}", hint=hint) from None
    except OSError as failure:
        raise unreadable(path, failure, error=error, hint=hint) from failure


def unreadable(
    path: str | Path, failure: OSError, *, error: type[TxError] = DataError, hint: str | None = None
) -> TxError:
    """What to raise where a file cannot be read: `error`, unless it is the system that has no room for it, or a disk
    that fails, of which the file knows nothing."""
    words = f"{shown(path)} cannot be read: {reason_of(failure)}"
    if is_failing(failure) or failure.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return ResourceError(words, hint=hint_of(failure))
    return error(words, hint=hint_of(failure, reads=True) or hint)  # what may not be read may be whole


def read_text(path: str | Path, *, error: type[TxError] = DataError, hint: str | None = None) -> str:
    """The content of a UTF-8 file, without a byte order mark, or `error` with the path and the reason."""
    data = read_bytes(path, error=error, hint=hint)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as failure:
        raise error(f"{shown(path)} is not UTF-8: byte {failure.start}", hint=hint) from failure


def read_json(path: str | Path, *, error: type[TxError] = DataError, hint: str | None = None) -> Any:
    """The value in a JSON file, or `error` with the path and the place."""
    return parse_json(read_text(path, error=error, hint=hint), path, error=error, hint=hint)


def parse_json(text: str, path: str | Path, *, error: type[TxError], hint: str | None = None) -> Any:
    """The value of a JSON text that came from `path`, or `error` with the path and the place."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as failure:
        place = f"line {failure.lineno}, column {failure.colno}: {failure.msg}"
        raise error(f"{shown(path)} is not JSON: {place}", hint=hint) from failure
    except (ValueError, RecursionError) as failure:
        raise error(f"{shown(path)} is not JSON that can be read: {failure}", hint=hint) from failure


def sha256(path: str | Path, *, error: type[TxError] = DataError, hint: str | None = None) -> str:
    """The hexadecimal SHA-256 of a file's content, or `error` with the path and the reason."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as failure:
        raise unreadable(path, failure, error=error, hint=hint) from failure


def check_file(path: str | Path) -> None:
    """ResourceError where `atomic_file` would be refused, as far as can be told without writing."""
    check_directory(Path(path).parent)
    if wrong := irreplaceable(path):
        raise ResourceError(f"cannot write {shown(path)}: {wrong}", hint="name another file")


def check_directory(path: str | Path) -> None:
    """ResourceError where `make_directory` would be refused, or what writes into it, as far as can be told so."""
    there = next(place for place in (Path(path), *Path(path).parents) if os.path.lexists(place))
    if not there.is_dir():
        words = f"cannot write into {shown(there)}: it is a {'link' if there.is_symlink() else 'file'}, not a directory"
        raise ResourceError(words, hint="choose another directory, or move that away")
    if not os.access(there, os.W_OK | os.X_OK):
        with writing(there):
            reason = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(reason, os.strerror(reason))


def make_directory(path: str | Path) -> None:
    """Create a directory and its parents where they are missing, each flushed to the disk."""
    path = Path(path)
    with writing(path):
        if path.is_dir():
            return
        make_directory(path.parent)
        try:
            disk.make_directory(path)
        except FileExistsError:
            if not path.is_dir():  # else somebody was faster, which is as good
                check_directory(path)
                raise
    _sync_directory(path.parent)


def rename(old: Path, new: Path) -> None:
    """Give a file or directory another name in its directory."""
    with writing(old, verb="rename"):
        disk.rename(old, new)
    _sync_directory(old.parent)


def remove(path: str | Path) -> None:
    """Delete a directory or a file, if it is there: renamed first, so that no half of it is ever seen; what somebody
    has open may stay, under that other name, until `sweep`."""
    path = Path(path)
    doomed = _beside(path, DOOMED)
    with writing(path, verb="remove"):
        try:
            disk.rename(path, doomed)
        except FileNotFoundError:
            return
        _delete(doomed)
    _sync_directory(path.parent)


def sweep(directory: str | Path) -> list[str]:
    """Delete what killed processes left in `directory`, half-written or half-deleted, and what could not be deleted
    while somebody had it open; returns the names of what is gone."""
    if not (directory := Path(directory)).is_dir():
        return []
    with writing(directory, verb="clean up"):
        for path in (left := sorted(path for path in directory.iterdir() if TEMPORARY.match(path.name))):
            _delete(path)
    return [path.name for path in left if not os.path.lexists(path)]


def abandon(*paths: Path) -> None:
    """Delete what is being written aside, or all of that: for a process that ends without unwinding."""
    for path in paths or tuple(_unfinished):
        with suppress(OSError):
            _delete(path)


def shown(path: str | Path) -> str:
    """A path for a message: as it is, or quoted and escaped where it holds what must not reach a terminal."""
    text = str(path)
    return text if text.isprintable() else repr(text)


@contextmanager
def writing(path: Path, *, verb: str = "write") -> Iterator[None]:
    """Turn an OSError, of other libraries too, into a ResourceError that names the path, the reason and the remedy."""
    ask_guards(path)
    try:
        yield
    except OSError as failure:
        words = f"cannot {verb} {shown(_final(path))}: {reason_of(failure)}{room_of(failure, path)}"
        raise ResourceError(words, hint=hint_of(failure)) from failure


def _final(path: Path) -> Path:
    """The name that something written aside will have: the one that the user knows."""
    ours = {place.name: path.name for place, path in tuple(_unfinished.items())}
    return Path(*(ours.get(part) or TEMPORARY.sub(r"\2", part) for part in path.parts))


def _beside(path: Path, prefix: str) -> Path:
    """A name beside `path` that nothing has: with all of `path`'s name in it, or as much as file systems take."""
    name = path.name.encode(errors="replace")[: LONGEST_PART - len(prefix) - 9].decode(errors="ignore")
    return path.with_name(f"{prefix}{name}-{secrets.token_hex(4)}")


def _sync_tree(directory: Path) -> None:
    """Flush every file of a directory, then the directory itself, the deepest first."""
    for folder, _, names in os.walk(directory, topdown=False):
        for name in sorted(names):
            path = Path(folder, name)
            with writing(path):
                _sync(path)
        _sync_directory(Path(folder))


def _sync_directory(path: Path) -> None:
    with writing(path):
        try:
            _sync(path)
        except OSError as failure:
            # Some network file systems know no fsync of a directory, or nobody may read it; no more could be done.
            if failure.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM):
                raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    """Delete a file or a tree through the seam, as far as it can be now; a symbolic link is a file.

    On NFS a file that is open somewhere stays, as `.nfs...`, and its directory with it, until it is closed; and what
    the server was asked twice to delete is not there the second time.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir()):
                _delete(entry)
            disk.remove_directory(path)
        elif os.path.lexists(path):
            disk.remove_file(path)
    except OSError as failure:
        if failure.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
            raise
