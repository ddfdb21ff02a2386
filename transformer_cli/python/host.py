"""What belongs to the process that tx is used in: given back as it was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from transformer_cli.environment import GUEST

if TYPE_CHECKING:
    from transformer_cli.machine import Machine, Switches

_lock = Lock()
_found: list[list[Switches]] = []
"""What each call that goes on found, in the order in which they came; a call of another thread ends when it will."""


@contextmanager
def given_back(machine: Machine | None = None) -> Iterator[None]:
    """Whatever is told to PyTorch within, about this process, is untold in the end. machine: what is told at once."""
    as_before = GUEST.set(True)
    try:
        with _switched(machine) if "torch" in sys.modules else _unused():
            yield
    finally:
        GUEST.reset(as_before)


@contextmanager
def random_numbers_given_back() -> Iterator[None]:
    """Whatever is drawn or seeded within, the program goes on with its own numbers, on each device that it may use."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(list(devices)), ExitStack() as last:
        if torch.backends.mps.is_available():
            last.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        yield


@contextmanager
def _switched(machine: Machine | None) -> Iterator[None]:
    from transformer_cli import machine as machines

    mine = [machines.Switches.now()]
    with _lock:
        _found.append(mine)
        if machine is not None:
            machine.use()
        else:
            replace(mine[0], dtype=machines.Switches.dtype).tell()
    try:
        with _plain():
            yield
    finally:
        with _lock:
            _give_back(mine)


@contextmanager
def _plain() -> Iterator[None]:
    """Without what the program has entered for tensors of its own."""
    import torch

    with ExitStack() as entered:
        entered.enter_context(torch.inference_mode(False))
        entered.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                entered.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            entered.enter_context(torch.device("cpu"))
        yield


@contextmanager
def _unused() -> Iterator[None]:
    """Who has not loaded torch has told it nothing."""
    try:
        yield
    finally:
        if (machines := sys.modules.get("transformer_cli.machine")) is not None:
            machines.FOUND.tell()


def _give_back(mine: list[Switches]) -> None:
    """What a later call found that goes on was told by this one: it is to give back what this one found."""
    place = next(place for place, one in enumerate(_found) if one is mine)
    [found] = mine
    if place + 1 < len(_found):
        _found[place + 1][0] = found
        found.tell(of_thread_only=True)
    else:
        found.tell()
    del _found[place]
