"""Threads that wait for each other spin on an idle machine, and sleep beside others who need the processors.

The threads of OpenMP meet after every operation. One that spins until the others are there goes on at once, which is a
quarter of the speed of small models; but beside a busy process it holds the processor that the one needs for whom all
wait, and training is several times slower. libgomp reads how long to spin once, when it is loaded - unless it manages
more threads than there are processors: then threads sleep nearly at once (`do_spin` in its config/linux/wait.h). So
when threads of this process stand in line, one more thread begins that has a team of its own, and both do nothing; when
nobody stands in line any more, it ends. No number changes: the team that computes is the same.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path

import torch

from transformer_cli.environment import processors, spins_by_default, tells_who_waits
from transformer_cli.heap import is_limited
from transformer_cli.threads import Companion, could_start

TASKS = Path("/proc/self/task")
EVERY_S = 0.25
CROWDED = 0.25
"""Seconds that threads stood in line, in one second, all together: on an idle machine up to 0.15 were seen, beside one
busy process at least 0.4."""
SHORTEST_S, LONGEST_S = 2.0, 64.0
"""How long nobody must have stood in line before threads spin again."""
SPARE = 16
"""Threads that others could still start beside those that do nothing: where a user or a container may have only so
many, none are taken away."""


@dataclass
class Courtesy:
    """Whether threads that wait should sleep. Spinning is tried again after a while; where that was too early, the
    next while is twice as long."""

    asleep: bool = False
    patience_s: float = SHORTEST_S
    _since_s: float = 0.0
    """How long nobody stood in line, or, of threads that spin, how long they have."""

    def saw(self, in_line: float, seconds: float) -> bool:
        """What to do from now on. in_line: seconds that threads stood in line during the last `seconds`."""
        crowded = in_line > CROWDED * seconds
        if crowded and not self.asleep:
            again = self._since_s < self.patience_s
            self.patience_s = min(2 * self.patience_s, LONGEST_S) if again else SHORTEST_S
        self._since_s = 0.0 if crowded else self._since_s + seconds
        if crowded:
            self.asleep = True
        elif self.asleep and self._since_s >= self.patience_s:
            self.asleep, self._since_s = False, 0.0
        return self.asleep


def spin_while_idle(threads: int) -> None:
    """Watch, for as long as this process lives, whether its threads stand in line: not where the user has said how to
    wait, where a single thread computes or most processors are free, nor where Linux does not tell; nor where the user
    limits memory, of which each thread reserves some.
    """
    is_asked = spins_by_default() and not is_limited()
    if is_asked and tells_who_waits() and threads > 1 and processors() < 2 * threads:
        _watch(threads)


@functools.cache
def _watch(threads: int) -> None:
    """Once for each number of threads."""
    Companion(functools.partial(_look, Crowd(threads)), name="spinning").start()


def _look(crowd: Crowd, over: threading.Event) -> None:
    courtesy, before, then = Courtesy(), inf, time.monotonic()
    while not over.wait(EVERY_S):
        try:
            now, waited = time.monotonic(), in_line_s()
        except OSError:  # as where no more files can be opened
            continue
        # A thread that ended takes what it waited with it.
        if courtesy.saw(max(waited - before, 0.0), now - then):
            crowd.gather()
        else:
            crowd.leave()
        before, then = waited, now


class Crowd:
    """Threads that do nothing, so many that libgomp manages more than there are processors."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._teams = ceil((processors() - threads + 1) / (threads - 1))
        self._members: list[Companion] = []
        self._is_welcome = True

    def gather(self) -> None:
        if self._members or not self._is_welcome:
            return
        self._is_welcome = could_start(self._teams * self._threads + SPARE)
        for _ in range(self._teams if self._is_welcome else 0):
            member = Companion(self._idle, name="idle")
            with suppress(RuntimeError):  # no more of them can be started
                member.start()
                self._members.append(member)

    def leave(self) -> None:
        for member in self._members:
            member.end()
        self._members = []

    def _idle(self, over: threading.Event) -> None:
        torch.zeros(self._threads << 15).add_(1)  # large enough for all of a team
        over.wait()


def in_line_s() -> float:
    """How long the threads of this process could have run, but for others who did, since each of them began."""
    waited = 0
    for task in os.listdir(TASKS):
        try:
            waited += int((TASKS / task / "schedstat").read_text(encoding="utf-8").split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    return waited / 1e9
