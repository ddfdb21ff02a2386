"""A disk that refuses, in words: why, how much room is left, what to do; whether memory lacks, and what to do then."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Some = TypeVar("Some")
Found = TypeVar("Found")

LONGEST_PART, LONGEST = 255, 4095
"""Bytes between two slashes of a path, and in all: what file systems take."""
MOUNTS = "/proc/self/mountinfo"
_OCTAL = re.compile(r"\\([0-7]{3})")
"""What stands there for white space."""

_FAILING = {
    errno.EIO: "that disk fails, or its server does: the system's log (`dmesg`) may say why",
    errno.ESTALE: "the server no longer has that file, or has another in its place: run the same command again",
    errno.ETIMEDOUT: "the server of that disk does not answer: run the same command again once it does",
    errno.EHOSTDOWN: "the server of that disk does not answer: run the same command again once it does",
    errno.ENOLINK: "that disk is no longer there: mount it again, then run the same command again",
    errno.ENOTCONN: "that disk is no longer there: mount it again, then run the same command again",
}
"""Whatever was asked of the disk; the last is said of one that a program stands for, as sshfs does."""

_REFUSING = {
    errno.ENOSPC: "free some space on that disk, then run the same command again",
    errno.EDQUOT: "your quota is used up: free some space, then run the same command again",
    errno.EFBIG: "the file system or `ulimit -f` limits the size of a file",
    errno.EACCES: "you may not write there: change the permissions or choose another directory",
    errno.EPERM: "you may not write there: change the permissions or choose another directory",
    errno.EROFS: "that file system is read-only: choose another directory",
    errno.ENOTDIR: "a part of that path is a file: choose another directory, or move the file away",
    errno.EEXIST: "something of that name is there already: move it away",
    errno.ENOTEMPTY: "something of that name is there already: move it away",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "`ulimit -n` limits how many files may be open: raise it",
    errno.ENFILE: "the system has too many files open: close other programs",
}

_HIDING = dict.fromkeys(
    (errno.EACCES, errno.EPERM), "you may not read it: ask its owner, or change the permissions if you are"
)
"""Where nothing was to be written."""


def hint_of(failure: OSError, *, reads: bool = False) -> str | None:
    """What to do. reads: where nothing was to be written."""
    return (_FAILING | (_HIDING if reads else _REFUSING)).get(failure.errno or 0)


def barred(path: str) -> str:
    """The folder on the way there that may not be entered, or the path itself where there is none."""
    folders = map(str, reversed(Path(path).parents))
    return next((folder for folder in folders if os.path.isdir(folder) and not os.access(folder, os.X_OK)), path)


def irreplaceable(path: str | Path) -> str:
    """Why what is there cannot, or must not, be replaced; "" where it may be. A file can be mounted by itself, as a
    container's may be, or be another's in a directory where everybody may write, as /tmp."""
    if os.path.isdir(path):
        return "it is a directory"
    if os.path.lexists(path) and _is_mounted(path):
        return "it is mounted there by itself, and cannot be replaced"
    if os.path.exists(path) and not os.access(path, os.W_OK):
        return "it is write-protected"
    with suppress(OSError):
        folder, there = os.stat(os.path.dirname(path) or "."), os.lstat(path)
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, there.st_uid):
            return "it is somebody else's, who alone may replace it there (the directory is sticky)"
    return ""


def _is_mounted(path: str | Path) -> bool:
    """By the list of mounts, which is Linux's: a file of the same disk does not tell otherwise."""
    place = os.path.realpath(path)
    with suppress(OSError), open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return any(_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4]) == place for line in file)
    return False


def is_failing(failure: OSError) -> bool:
    """Whether it is the disk's fault, whatever was asked of it."""
    return failure.errno in _FAILING


def is_of_memory(failure: BaseException) -> bool:
    """Whether memory is not enough, in any of the ways in which Python and PyTorch say so; the latter's kind is not
    imported."""
    words = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "can't start new thread")
    known = isinstance(failure, MemoryError) or type(failure).__name__ == "OutOfMemoryError"
    return known or any(word in str(failure).lower() for word in words)


def in_halves(work: Callable[[Some], Found], whole: Some, halves: Callable[[Some], Sequence[Some]]) -> Iterator[Found]:
    """What comes of a whole; where memory is not enough for that at once, of either half of it, and so on. halves: one
    alone where there are none."""
    try:
        found = work(whole)
    except Exception as failure:
        if not is_of_memory(failure) or len(parts := halves(whole)) < 2:
            raise
    else:
        yield found
        return
    for part in parts:  # no longer while the failure is known, and with it all that was in memory
        yield from in_halves(work, part, halves)


def halved(items: Sequence[Any]) -> list[Sequence[Any]]:
    """Those of a sequence."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else [items]


def reason_of(failure: OSError) -> str:
    return failure.strerror or str(failure) or type(failure).__name__


def missing(path: str | Path) -> str:
    """What to say of a path where nothing can be opened: a link may be there, and lead nowhere."""
    to = f"is a symbolic link to {os.readlink(path)!r}, which " if os.path.islink(path) else ""
    return f"{to}does not exist"


def room_of(failure: OSError, path: Path) -> str:
    """How much is free, where that is the trouble."""
    if failure.errno != errno.ENOSPC:
        return ""
    for place in path.parents:
        with suppress(OSError):
            return f" ({shutil.disk_usage(place).free:,} bytes free)"
    return ""
