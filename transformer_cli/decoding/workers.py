"""Batches to processes: each has one thread, and the weights of the process that it is forked from.

Small products do not fill two threads: two processes translate half as much again as one with two threads.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe, wait
from typing import Literal, NoReturn

import numpy as np
import torch

from transformer_cli import errors
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.environment import GUEST
from transformer_cli.errors import ResourceError
from transformer_cli.trouble import is_of_memory

Found = list[list[Hypothesis]]
Work = Callable[[int], Found]
"""The number of a batch to what is found for it."""


def worth(wanted: int | Literal["auto"], n_batches: int) -> int:
    """How many processes are to share so many batches; auto: as many as there are threads, with two batches each, but
    one where somebody else's program has called."""
    if sys.platform != "linux" or (wanted == "auto" and GUEST.get()):  # a fork is not safe once libraries have threads
        return 1
    return max(1, min(wanted, n_batches) if wanted != "auto" else min(torch.get_num_threads(), n_batches // 2))


def spread(work: Work, n_batches: int, *, workers: int) -> Generator[tuple[int, Found]]:
    """Every batch's number and what was found for it, in the order in which processes are done with them.

    Raises what a process raises, of several the one with the first batch, or ResourceError; in any case none of them is
    left, not even where this one is killed.
    """
    processes: dict[Connection, int] = {}
    failures: dict[int, Exception] = {}
    left = _Left(n_batches)
    try:
        for _ in range(workers):
            ours, process = _started(work, left, beside=processes)
            processes[ours] = process
        while processes:
            for connection in wait(list(processes)):
                assert isinstance(connection, Connection)
                try:
                    kind, number, said = json.loads(connection.recv_bytes())
                except EOFError:
                    _, status = os.waitpid(processes.pop(connection), 0)
                    if status:
                        raise _ended(status) from None
                    continue
                if kind == "found":
                    yield number, [[Hypothesis(tuple(ids), *rest) for ids, *rest in several] for several in said]
                else:
                    failures[number] = _failure(kind, *said)
                    left.end()  # what others have begun may fail, too, and be what one process would have come to first
        if failures:
            raise failures[min(failures)]
    finally:
        left.close()
        for connection, process in processes.items():
            connection.close()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


class _Left:
    """The numbers that nobody has taken yet: processes forked from one that has them share the place in a file where
    the next one is read, so whoever is done with a batch takes it, and none is taken twice.

    Each reads while it holds the file's lock: Linux lets two reads of one place begin together where a file has no
    name. Whoever is killed holds none.
    """

    def __init__(self, n: int) -> None:
        self._file: int
        if sys.platform == "linux":  # which alone has such files: see `worth`
            self._file = os.memfd_create("batches")
        with open(self._file, "wb", closefd=False) as file:
            file.write(np.arange(n, dtype=np.int64).tobytes())
        os.lseek(self._file, 0, os.SEEK_SET)

    def __iter__(self) -> Iterator[int]:
        while number := self._next():
            yield int.from_bytes(number, sys.byteorder)

    def _next(self) -> bytes:
        with self._alone():
            return os.read(self._file, 8)

    def end(self) -> None:
        """Nobody is to take any more."""
        with self._alone():
            os.lseek(self._file, 0, os.SEEK_END)

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1)


FEWER = "decoding.workers=1 translates in one process"
HINT = f"it may have been memory; {FEWER}"


def _started(work: Work, left: _Left, *, beside: Iterable[Connection]) -> tuple[Connection, int]:
    """Another process, and where to read what it says. beside: the same of those that there are."""
    try:
        ours, theirs = Pipe(duplex=False)
        process = os.fork()
    except OSError as failure:
        what = failure.strerror or failure
        raise ResourceError(f"no process can be started to translate: {what}", hint=FEWER) from failure
    if process == 0:
        for inherited in (ours, *beside):  # which would keep a pipe open that nobody reads any more
            inherited.close()
        _serve(theirs, work, left)
    theirs.close()
    return ours, process


def _serve(connection: Connection, work: Work, numbers: Iterable[int]) -> NoReturn:
    """What a process does; whoever interrupts all of them is heard by the one that forked it."""
    status = 1
    gc.freeze()  # what was garbage there may own threads, which are not here: whoever clears it away waits for ever
    try:
        for interruption in (signal.SIGINT, signal.SIGHUP):
            signal.signal(interruption, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        for number in numbers:
            found = work(number)
            _say(connection, "found", number, [[tuple(vars(one).values()) for one in several] for several in found])
        status = 0
    except errors.TxError as failure:
        _say(connection, type(failure).__name__, number, [failure.message, failure.hint])
        status = 0
    except Exception as failure:
        said, where = f"a process that translated failed: {type(failure).__name__}: {failure}", traceback.format_exc()
        kind, more = (ResourceError.__name__, HINT) if is_of_memory(failure) else (RuntimeError.__name__, where)
        _say(connection, kind, number, [said, more])
        status = 0
    finally:
        os._exit(status)  # nothing of the one that forked it is to be cleaned up twice


def _say(connection: Connection, kind: str, number: int, said: object) -> None:
    connection.send_bytes(json.dumps([kind, number, said], allow_nan=False).encode())


def _failure(kind: str, message: str, more: str) -> Exception:
    """What another process said, as an error here; of a bug with the place there. more: that, or a hint."""
    if kind != RuntimeError.__name__:
        failure: Exception = getattr(errors, kind)(message, hint=more)
        return failure
    failure = RuntimeError(message)
    failure.__cause__ = RuntimeError(more)
    return failure


def _ended(status: int) -> ResourceError:
    code = os.waitstatus_to_exitcode(status)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return ResourceError(f"a process that translated {how}", hint=HINT)
