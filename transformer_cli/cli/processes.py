"""`tx train --processes N`: what torchrun would start on one machine, with one end and one exit code for all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from types import FrameType

from transformer_cli import environment
from transformer_cli.cli.signals import WORDS
from transformer_cli.errors import ResourceError, UsageError

GRACE_S = 7.0
"""What is left to the others once one has failed: they end by themselves, unless they were stopped."""
BRIEFLY = "timeout:1 attempts:2"
"""How a process asks a name server (resolv.conf(5)). Where none answers, as behind some firewalls, PyTorch waits for
the name of whoever connects, be it this machine itself: two processes begin 9 s later, by the usual 5 s and 2 attempts
45 s."""


def check_room(n: int) -> None:
    """UsageError for more processes than any machine of so many processors is for: each needs a third of a gigabyte for
    PyTorch alone, and a machine without memory ends what it finds. Two may always be tried."""
    there = environment.processors()
    if n > max(2, there):
        raise UsageError(
            f"--processes {n}, but there {'is' if there == 1 else 'are'} {there} processor{'s' * (there != 1)} here",
            hint="start at most one per processor, and on GPUs one per GPU; torchrun starts more all the same",
        )


def run_all(n: int, command: Sequence[str]) -> int:
    """Run so many processes of `tx`; returns the exit code of the first that failed, else 0. Signals go to all, and
    Ctrl-Z pauses all.

    ResourceError for one that was killed where no other could tell: before all knew of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    says = {"WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    says |= {environment.LAUNCHER: os.getpid(), "PYTHONPATH": environment.import_path()}
    usual = {"OMP_NUM_THREADS": str(max(1, environment.processors() // n)), "RES_OPTIONS": BRIEFLY}
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    def pause(number: int, frame: FrameType | None) -> None:
        forward(signal.SIGSTOP, frame)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # until `fg` or `bg`; where no shell could do that, the system does not stop it
        signal.signal(number, pause)
        forward(signal.SIGCONT, frame)

    if hasattr(signal, "SIGTSTP") and signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, pause)
    for number in WORDS:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    try:
        for rank in range(n):
            told = {name: str(value) for name, value in {**says, "RANK": rank, "LOCAL_RANK": rank}.items()}
            # In a session of its own: a Ctrl-C, or a Ctrl-Z, comes once, through us.
            child = subprocess.Popen(
                command, env=usual | os.environ | told, stdin=subprocess.DEVNULL, start_new_session=True
            )
            children.append(child)
        codes = _codes(children)
    finally:
        for child in children:
            child.kill()
            child.wait()
    if said := [code for code in codes.values() if code > 0]:
        return said[0]
    if killed := [rank for rank, code in codes.items() if code and -code not in WORDS]:
        raise ResourceError(
            f"process {killed[0]} of {n} was ended by {signal.Signals(-codes[killed[0]]).name}",
            hint="the same command goes on from the last checkpoint; a system that is short of memory kills, too",
        )
    return next((128 - code for code in codes.values() if code), 0)


def _codes(children: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """By their ranks, in the order of their ends, of all that are gone as soon as all are or had the time to go."""
    codes: dict[int, int] = {}
    end = float("inf")
    while len(codes) < len(children) and time.monotonic() < end:
        for rank, child in enumerate(children):
            if rank not in codes and (code := child.poll()) is not None:
                codes[rank] = code
                if code:
                    end = min(end, time.monotonic() + GRACE_S)
        time.sleep(0.05)
    return codes
