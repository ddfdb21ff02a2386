"""Threads that work beside the program, and end before it does.

One that Python finds in PyTorch's code when it ends, it unwinds through C++ that allows no such thing: "terminate
called without an active exception", and exit code 134 whatever came before. Whatever touches tensors in the background
is a Companion, therefore.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Companion(threading.Thread):
    """work: gets `over`, and returns soon after that is set."""

    def __init__(self, work: Callable[[threading.Event], None], *, name: str) -> None:
        self.over = threading.Event()
        super().__init__(target=work, args=(self.over,), name=name, daemon=True)

    def start(self) -> None:
        """RuntimeError where no more threads can be started."""
        super().start()
        _started.add(self)

    def end(self) -> None:
        self.over.set()
        if self.is_alive():  # it is not in a process that was forked from the one that started it
            self.join()


class Turn:
    """One thread after the other. A process that was forked meanwhile waits for nobody."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *failure: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: Any) -> Turn:
        return Turn()


def could_start(n: int) -> bool:
    """Whether so many threads more can be started, now: libgomp ends the process where one of its own cannot."""
    over, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(n):
            thread = threading.Thread(target=over.wait, name="trial", daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):
        return False
    finally:
        over.set()
        for thread in started:
            thread.join()
    return True


_started: weakref.WeakSet[Companion] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Until none is left: one that was still at work may have started another."""
    while left := [one for one in list(_started) if one.is_alive()]:
        for one in left:
            one.end()
