"""What the environment says: which of how many processes this one is, as torchrun tells each that it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from transformer_cli.errors import UsageError

HINT = "torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT: start tx by it, or unset them all"


@dataclass(frozen=True)
class Place:
    """A process among `size` of them, counted from 0."""

    rank: int
    size: int


def place() -> Place:
    """Of this process; the only one where nothing is said. UsageError for what torchrun would not say."""
    size = _whole("WORLD_SIZE")
    rank = _whole("RANK")
    if size is None and rank is not None:
        raise UsageError("RANK is set, but WORLD_SIZE is not", hint=HINT)
    if size is None or size == 1:
        return Place(0, 1)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UsageError(f"WORLD_SIZE is {size}, but {' and '.join(missing)} missing", hint=HINT)
    if rank is None or not rank < size:
        raise UsageError(f"RANK is {rank}, but WORLD_SIZE is {size}", hint=HINT)
    if not 0 < (_whole("MASTER_PORT") or 0) < 2**16:
        raise UsageError(f"MASTER_PORT is {os.environ['MASTER_PORT'][:40]!r}, which is no port", hint=HINT)
    return Place(rank, size)


def local_rank() -> int | None:
    """Which of the processes on this machine this one is, and so which GPU is its own; None where nothing is said."""
    return _whole("LOCAL_RANK")


def _whole(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if not value.isascii() or not value.isdecimal() or len(value) > 9 or (name == "WORLD_SIZE" and int(value) == 0):
        raise UsageError(f"{name} is {value[:40]!r}: expected a whole number", hint=HINT)
    return int(value)
