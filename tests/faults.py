"""Disks that fail and processes that die, at exactly the Nth operation."""

from __future__ import annotations

import errno
import gc
import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from transformer_cli import files

COUNTED = "TX_FAULTS_COUNTED"
"""Names the file in which all processes of a test session note the faults that befell them."""


def note(kind: str) -> None:
    """A fault happens now."""
    if path := os.environ.get(COUNTED):
        with open(path, "a", encoding="utf-8") as file:  # one short write, which no other process's falls into
            file.write(f"{kind}\n")


def noted(path: Path) -> str:
    """How many there were, in words; empty for none."""
    kinds = Counter(path.read_text(encoding="utf-8").split())
    each = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    return f"{kinds.total()} faults happened: {each}" if kinds else ""


class Saboteur:
    """A disk whose Nth operation raises `failure`; `count` operations succeeded, `struck` says whether it did fail.

    short: where that is a write, half of it succeeds, and the next operation fails: as on a disk that is nearly full.
    """

    def __init__(self, nth: int, failure: BaseException, *, short: bool = False) -> None:
        self.nth = nth
        self.failure = failure
        self.short = short
        self.count = 0
        self.struck = False

    @property
    def kind(self) -> str:
        return errno.errorcode.get(getattr(self.failure, "errno", None) or 0, type(self.failure).__name__)

    def __getattr__(self, name: str) -> Callable:
        operation = getattr(files.Disk(), name)

        def counted(*arguments):
            if self.count + 1 == self.nth and self.short and not self.struck and name in ("write", "append"):
                half = arguments[1][: len(arguments[1]) // 2]
                written = operation(arguments[0], half)
                if name == "write":  # which may be short; the rest is another one
                    self.short = False
                    self.nth += 1
                    self.count += 1
                    return written
            if self.count + 1 == self.nth and not self.struck:
                self.struck = True
                note(self.kind)
                raise self.failure
            self.count += 1
            return operation(*arguments)

        return counted


class Killer:
    """Runs something in a forked process that dies, with no chance to clean up, instead of its Nth operation."""

    def __init__(self, nth: int) -> None:
        self.nth = nth

    def run(self, action: Callable[[], object]) -> bool:
        """Whether it died at that operation; false when it ended first. Any error of its own fails the test."""
        with warnings.catch_warnings():
            # Newer Pythons warn of threads, which torch has; the child uses none and ends by _exit.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            gc.freeze()  # see ranks.py
            code = 1
            try:
                files.disk = _Deadly(self.nth)
                action()
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, _Deadly.CODE), f"the child failed by itself: exit code {code}"
        return code == _Deadly.CODE


class _Deadly(Saboteur):
    CODE, kind = 99, "killed"

    def __init__(self, nth: int) -> None:
        super().__init__(nth, SystemExit())

    def __getattr__(self, name: str) -> Callable:
        counted = super().__getattr__(name)

        def deadly(*arguments):
            try:
                return counted(*arguments)
            except SystemExit:
                os._exit(self.CODE)

        return deadly
