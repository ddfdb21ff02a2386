"""A sign of life: on a terminal no command is silent for long, whatever it is doing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from transformer_cli.training.durations import duration

PATIENCE_S = 0.7
"""So long after the last word the sign appears."""
PERIOD_S = 0.25
WHEEL = "◐◓◑◒"
WORKING = "working"
LIBRARIES = {
    "torch": "PyTorch",
    "sacrebleu": "sacreBLEU",
    "matplotlib": "Matplotlib",
    "ctranslate2": "CTranslate2",
    "transformers": "transformers",
    "onnx": "ONNX",
    "onnxruntime": "ONNX Runtime",
}
"""What takes a while to import, and how it is called."""


class Pulse:
    """Shows on stderr what is being done, and for how long nothing was said, until something is. Whoever is forked has
    none.

    is_wanted: whether somebody looks at a terminal and asked for conversation. columns: how wide that is.
    """

    def __init__(self, is_wanted: Callable[[], bool], columns: Callable[[], int]) -> None:
        self.is_wanted, self.columns = is_wanted, columns
        self._lock = threading.RLock()
        self._doing: list[str] = []
        self._n_pauses = 0
        self._is_shown = self._is_within_line = False
        self._said = time.monotonic()
        os.register_at_fork(after_in_child=self._forked)

    def start(self) -> None:
        threading.Thread(target=self._look, name="pulse", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            with self._lock:
                silent_s = time.monotonic() - self._said
                if silent_s >= PATIENCE_S and not self._n_pauses and not self._is_within_line and self.is_wanted():
                    self._is_shown = True
                    _draw(self._line(silent_s))

    def hush(self, data: bytes = b"") -> None:
        """This is about to be written to the terminal: take the sign away."""
        with self._lock:
            if self._is_shown:
                _draw("")
            self._is_shown, self._said = False, time.monotonic()
            self._is_within_line = not data.endswith(b"\n") if data else self._is_within_line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No sign: somebody else shows one, or it is for the person to type."""
        self.hush()
        self._n_pauses += 1
        try:
            yield
        finally:
            self._n_pauses -= 1
            self.hush()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """What the sign says meanwhile."""
        self._doing.append(what)
        try:
            yield
        finally:
            self._doing.pop()

    def _line(self, silent_s: float) -> str:
        wheel = WHEEL[int(silent_s / PERIOD_S) % len(WHEEL)]
        what = _library() or (self._doing[-1] if self._doing else WORKING)
        return f"{wheel} {what}  {duration(int(silent_s))}"[: self.columns() - 1]

    def _forked(self) -> None:
        self._lock, self._is_shown = threading.RLock(), False


def _draw(line: str) -> None:
    """In the place of what was there. It matters to nobody where a terminal takes it later, or never."""
    with suppress(OSError):
        os.write(2, f"\r{line}\x1b[K".encode())


def _library() -> str | None:
    """What is being imported, whoever asked for it."""
    for name, title in LIBRARIES.items():
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            return f"loading {title}"
    return None
