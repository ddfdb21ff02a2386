"""Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal end the program from its first moment: little is imported before."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

WORDS = {
    getattr(signal, name): word
    for name, word in {
        "SIGINT": "interrupted",
        "SIGTERM": "terminated",
        "SIGHUP": "the terminal was closed",
        "SIGUSR1": "ended by SIGUSR1",
    }.items()
    if hasattr(signal, name)  # not everywhere
}


AGAIN_S = 0.02
"""Until a signal that was dropped comes again."""


class Ended(BaseException):
    """A signal, unwinding the stack so that `finally` and `with` clean up; a second one ends the program as it is."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_by_signals() -> None:
    """From now on. What is to be ignored (`nohup`) still is, but not SIGINT, which every `&` in a script ignores."""
    for number in WORDS:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    sys.unraisablehook = _raised_where_nobody_hears


def die_by_signals() -> None:
    """From now on nothing is unwound."""
    for number in WORDS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def speaks() -> bool:
    """Whether this process says how it was ended: of several that train together, all of whom are told, the first. One
    that knows only how many there are, as what a queue starts may, is none of them."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "") in ("", "0")


def _end(number: int, frame: FrameType | None) -> None:
    die_by_signals()
    if _is_importing(frame):
        # A module in C++ that runs Python while it is loaded may swallow an exception, or abort; torch does both.
        try:
            if pulse := getattr(sys.modules.get("transformer_cli.cli.console"), "pulse", None):
                pulse.hush()
            if speaks():
                os.write(2, f"{WORDS[number]}\n".encode())
            if abandon := getattr(sys.modules.get("transformer_cli.files"), "abandon", None):
                abandon()
            if leave_no_folder := getattr(sys.modules.get("transformer_cli.environment"), "leave_no_folder", None):
                leave_no_folder()
        finally:
            os._exit(128 + number)
    raise Ended(number)


def _raised_where_nobody_hears(told: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised while it frees an object, or looks for garbage: a signal that came then comes again,
    a moment later."""
    if not isinstance(told.exc_value, Ended):
        return sys.__unraisablehook__(told)
    import threading  # which takes a moment that nothing else here does

    end_by_signals()
    threading.Timer(AGAIN_S, os.kill, (os.getpid(), told.exc_value.number)).start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
