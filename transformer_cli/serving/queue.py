"""Requests wait in one queue, and one thread answers them: those that ask for the same go together."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformer_cli.serving.messages import Refused

GATHER_S = 0.005
"""After several were answered at once, who may all ask again: the first of them would else go alone."""
Outcomes = list[list[Any] | Exception]
"""For each job."""
Work = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""Options, and texts with what belongs to each alone, to an answer for each, in order."""


@dataclass(eq=False)
class Job:
    """A request that waits. answers: what comes back; cancelled once its deadline is past."""

    work: Work
    options: Hashable
    texts: Sequence[Any]
    answers: asyncio.Future[list[Any]]


class Queue:
    """Of one event loop, which alone touches it; only the work itself is done by another thread."""

    def __init__(
        self, *, most_together: int, most_waiting: int, deadline_s: float, taken: Callable[[int], object]
    ) -> None:
        """most_together: texts that are answered at once, unless they are of one request. taken: is told how many
        are."""
        self.most_together, self.most_waiting, self.deadline_s = most_together, most_waiting, deadline_s
        self._taken = taken
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Event()

    @property
    def n_waiting(self) -> int:
        """Texts that nobody works on yet."""
        return sum(len(job.texts) for job in self._waiting)

    async def ask(self, work: Work, options: Hashable, texts: Sequence[Any]) -> list[Any]:
        """The answers to these texts, once it is their turn; what the work raises. Refused where too many wait already,
        or where it takes too long."""
        if self._waiting and self.n_waiting + len(texts) > self.most_waiting:
            raise Refused(503, f"{self.n_waiting:,} texts are waiting already: try again later")
        job = Job(work, options, texts, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._arrived.set()
        try:
            async with asyncio.timeout(self.deadline_s):
                return await job.answers
        except TimeoutError:
            raise Refused(503, f"not answered within {self.deadline_s:g} s: try again later") from None
        finally:
            if job in self._waiting:
                self._waiting.remove(job)

    async def answer(self) -> None:
        """Answer whoever asks, until cancelled: work that goes on then, nobody waits for any more."""
        loop, at_work = asyncio.get_running_loop(), _AtWork()
        with ThreadPoolExecutor(1, thread_name_prefix="answering") as thread, at_work.given_up():
            while True:
                await self._arrived.wait()
                if jobs := self._take():
                    self._taken(sum(len(job.texts) for job in jobs))
                    outcomes = await loop.run_in_executor(thread, at_work.do, _outcomes, jobs)
                    for job, outcome in zip(jobs, outcomes, strict=True):
                        _hand_over(job, outcome)
                    if len(jobs) > 1:
                        await asyncio.sleep(GATHER_S)

    def _take(self) -> list[Job]:
        """The oldest request, and those that can go with it, oldest first."""
        taken: list[Job] = []
        n_texts = 0
        for job in list(self._waiting):
            goes_along = not taken or (
                (job.work, job.options) == (taken[0].work, taken[0].options)
                and n_texts + len(job.texts) <= self.most_together
            )
            if goes_along:
                taken.append(job)
                n_texts += len(job.texts)
                self._waiting.remove(job)
        if not self._waiting:
            self._arrived.clear()
        return taken


class _AtWork:
    """What another thread does, and how it is made to stop."""

    def __init__(self) -> None:
        self._lock, self._thread = threading.Lock(), 0

    def do(self, work: Callable[[Sequence[Job]], Outcomes], jobs: Sequence[Job]) -> Outcomes:
        self._thread = threading.get_ident()
        try:
            return work(jobs)
        finally:
            with self._lock:
                self._thread = 0

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """In the end, by SystemExit as soon as it is in Python's code again: to wait for one long text may take
        minutes."""
        try:
            yield
        finally:
            with self._lock:
                if self._thread:
                    raising = ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(*raising)


def _outcomes(jobs: Sequence[Job]) -> Outcomes:
    """What is found for each, or what went wrong. Those that fail together are tried alone: nobody is to fail because
    of another's text."""
    try:
        answers = jobs[0].work(jobs[0].options, [text for job in jobs for text in job.texts])
        assert len(answers) == sum(len(job.texts) for job in jobs)
    except Exception as failure:
        return [failure] if len(jobs) == 1 else [outcome for job in jobs for outcome in _outcomes([job])]
    rest = iter(answers)
    return [list(islice(rest, len(job.texts))) for job in jobs]


def _hand_over(job: Job, outcome: list[Any] | Exception) -> None:
    if job.answers.done():  # its deadline is past
        return
    if isinstance(outcome, Exception):
        job.answers.set_exception(outcome)
    else:
        job.answers.set_result(outcome)
