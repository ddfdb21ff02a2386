"""Several processes that train together, each forked from this one."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

_says: dict[int, Path] = {}
"""Where each process leaves its last words."""


def start(n: int, action: Callable[[int], object], errors: Path) -> list[int]:
    """So many copies of this process that do this, each told its rank, and end; their numbers.

    errors: a folder where each leaves `RANK`: the message of what it raised. Exit codes are those of the program.
    """
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"):
        import_module(name)  # what PyTorch's wrappers load, for seconds: once here, not in each of them
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    says = {"WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [_fork(action, {**says, "RANK": rank, "LOCAL_RANK": rank}, errors / str(rank)) for rank in range(n)]


def codes(children: list[int], *, limit_s: float, grace_s: float = 6) -> list[int]:
    """The exit codes of all, minus the number of a signal. Who is there after the limit, or that long after the end of
    another, is killed. What those said that did not end well is printed, for pytest to show where a test fails."""
    found, end = dict.fromkeys(children, -signal.SIGKILL), time.monotonic() + limit_s
    left = set(children)
    while left and time.monotonic() < end:
        for child in sorted(left):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                found[child] = os.waitstatus_to_exitcode(status)
                left.remove(child)
                end = min(end, time.monotonic() + grace_s)
        time.sleep(0.01)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for rank, (child, code) in enumerate(found.items()):
        if code:
            print(f"process {rank} ended with {code}: {_says[child].read_text()}")
    return list(found.values())


def _fork(action: Callable[[int], object], says: dict[str, object], errors: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # see faults.Killer
        child = os.fork()
    if child:
        _says[child] = errors
        return child
    gc.freeze()  # what is garbage there may own threads, which are not here: to wait for one would end this process
    code = 1
    try:
        os.environ.update({name: str(value) for name, value in says.items()})
        with open(errors, "w") as stderr:
            os.dup2(stderr.fileno(), 2)
        faulthandler.enable()  # there, not where this test run said
        action(int(str(says["RANK"])))
        code = 0
    except BaseException as error:
        code = getattr(error, "exit_code", 1)
        os.write(2, f"{getattr(error, 'message', '') or type(error).__name__}\n".encode())
        if code == 1:
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
