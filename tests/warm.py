"""`tx` as a process of its own that need not import torch first: it is forked from one that has.

`python tests/warm.py SOCKET` serves until its stdin ends. `python tests/warm.py SOCKET ARGUMENTS...` is `tx ARGUMENTS`
with the streams, folder, environment, signals and exit code of whoever started it; only what happens before and while
torch is imported is not to be seen here.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress

MODULES = (
    "checkpoints.store",
    "cli.app",
    "cli.evaluate",
    "cli.train",
    "cli.translate",
    "decoding.translator",
    "evaluation.report",
    "machine",
    "training.run",
)
"""With torch and all else that takes time."""
LENGTH = 4
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def ask(server: str, arguments: list[str]) -> int:
    """What `tx` ends with: its exit code, or minus the number of the signal that killed it."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(server)
        request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(asking, [len(request).to_bytes(LENGTH, "big")], [0, 1, 2])
        asking.sendall(request)
        pid = int.from_bytes(asking.recv(LENGTH), "big")
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # whoever reads what it writes waits for it alone
            os.dup2(nowhere, stream)
        return int.from_bytes(asking.recv(LENGTH), "big", signed=True)


def serve(server: str) -> None:
    """Answer everybody until stdin ends; a handler and a `tx` for each."""
    for module in MODULES:
        importlib.import_module(f"transformer_cli.{module}")
    gc.freeze()  # none of it is garbage, and whoever is forked need not look
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(server)
        listening.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            asked, _ = listening.accept()
            if os.fork() == 0:
                try:
                    listening.close()
                    handle(asked)
                finally:
                    os._exit(0)
            asked.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def handle(asked: socket.socket) -> None:
    """Run what is asked for in a child; kill it where whoever asked is gone."""
    head, streams, _, _ = socket.recv_fds(asked, LENGTH, 3)
    arguments, environment, folder = json.loads(asked.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
    lives, held = os.pipe()
    child = os.fork()
    if child == 0:
        asked.close()
        os.close(lives)
        run(arguments, environment, folder, streams)
    os.close(held)
    for stream in streams:
        os.close(stream)
    asked.sendall(child.to_bytes(LENGTH, "big"))
    if asked in select.select([asked, lives], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    asked.sendall(code.to_bytes(LENGTH, "big", signed=True))


def run(arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> None:
    """Be `tx`, to the end."""
    from transformer_cli.__main__ import main

    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        if told := environment.get("PYTHONIOENCODING"):
            encoding, _, errors = told.partition(":")
            sys.stdin.reconfigure(encoding=encoding, errors=errors)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["tx", *arguments]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        with suppress(OSError):
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        code = ask(sys.argv[1], sys.argv[2:])
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)
