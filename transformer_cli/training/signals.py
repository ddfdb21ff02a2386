"""Ctrl-C, SIGTERM and a closed terminal ask training to stop; it does so after the update at hand, everything saved."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from transformer_cli.errors import Interrupted

HOW = {
    getattr(signal, name): words
    for name, words in {
        "SIGINT": "stopped",
        "SIGTERM": "stopped by SIGTERM",
        "SIGHUP": "the terminal was closed: stopped",
    }.items()
    if hasattr(signal, name)  # not everywhere
}
"""How what was interrupted is told."""


class StopRequest:
    """While it is entered, a first signal is only noted; a second one ends the program at once."""

    def __init__(self, acknowledge: Callable[[], None] = lambda: None) -> None:
        """acknowledge: called by the handler of the first one, wherever the program is."""
        self.acknowledge = acknowledge
        self.signal_number: int | None = None
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

    @property
    def is_made(self) -> bool:
        return self.signal_number is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise Interrupted(f"{HOW[number]} at once; the last checkpoint is whole", signal_number=number)
        self.signal_number = number
        self.acknowledge()
