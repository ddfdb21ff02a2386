"""Signals and the end of the time ask training to stop; it does so after the update at hand, everything saved."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Self

from transformer_cli.errors import Interrupted
from transformer_cli.training.durations import spelled

HOW = {
    getattr(signal, name): words
    for name, words in {
        "SIGINT": "stopped",
        "SIGTERM": "stopped by SIGTERM",
        "SIGHUP": "the terminal was closed: stopped",
        "SIGUSR1": "stopped by SIGUSR1",
    }.items()
    if hasattr(signal, name)  # not everywhere
}
"""How what was interrupted is told."""
AGAIN_S = 1.0
"""The same signal within this time is the same request: what signals a whole job reaches a process by itself, and by
what started it."""
TIME_IS_OVER = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""What Slurm sends before it ends a job, for the same reason."""


class StopRequest:
    """While it is entered, a first signal is only noted; a second one, a second later or another one, ends the program
    at once."""

    def __init__(
        self,
        acknowledge: Callable[[], None] = lambda: None,
        *,
        hours: float | None = None,
        since: float | None = None,
    ) -> None:
        """acknowledge: called by the handler of the first one, wherever the program is. hours: until the time is over,
        since then, by time.monotonic(), or from now on."""
        self.acknowledge = acknowledge
        self.hours = hours
        self.end = None if hours is None else (time.monotonic() if since is None else since) + 3600 * hours
        self.signal_number: int | None = None
        self._noted = -math.inf
        self.reason: int | None = None
        """What was agreed on: a signal to another process does not make the first one to this a second."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        try:
            for number in HOW:
                # `nohup` ignores the one; `&` in a script the other, which somebody may send for all that
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        except ValueError:  # not in the main thread: whoever is there handles signals
            self._previous.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def asked(self, *, next_s: float) -> list[float]:
        """What asked this process to stop, a number for each of HOW, to be summed over the processes: a signal, or that
        the time is over within next_s seconds."""
        if self.end is not None and time.monotonic() + next_s > self.end:
            self.end = -math.inf  # and stays so, whatever is told next
        is_over = self.end == -math.inf
        asked = TIME_IS_OVER if is_over and self.signal_number is None else self.signal_number
        return [float(number == asked) for number in HOW]

    def is_agreed(self, counts: Iterable[float]) -> bool:
        """Whether any process was asked, and why: all get the same answer. counts: what `asked` said, summed."""
        self.reason = next((number for number, count in zip(HOW, counts, strict=True) if count), None)
        return self.reason is not None

    @property
    def is_of_time(self) -> bool:
        """Whether what was agreed on is that the time is over, as far as this process knows: it has got no signal."""
        return self.end is not None and self.reason == TIME_IS_OVER != self.signal_number

    def interruption(self, what: str) -> Interrupted:
        """What to raise once all is saved."""
        number = self.reason
        assert number is not None
        limit = f"training.max_hours, {spelled(3600 * (self.hours or 0))}"
        how = f"{limit}, is nearly over: stopped" if self.is_of_time else HOW[number]
        return Interrupted(f"{how} {what}", signal_number=number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == self.signal_number and now - self._noted < AGAIN_S:
            return
        if self.signal_number is not None:
            raise Interrupted(f"{HOW[number]} at once; whatever was saved is whole", signal_number=number)
        self.signal_number, self._noted = number, now
        self.acknowledge()
