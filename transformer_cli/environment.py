"""What the environment says, as torchrun tells each process that it starts; and what it says to torch."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass

from transformer_cli.errors import UsageError

HINT = "torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT: start tx by it, or unset them all"

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
SPINS = "10000"
KERNELS, FEWER_KERNELS, LARGE_BATCH = "512", "128", 4096
KEPT_BY_PYTORCH, KEPT_BY_ONEDNN = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
WITH_ROOM_TO_WORK = "32"
LAUNCHER = "TX_LAUNCHER"
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
OWN_TIMES = "/proc/self/schedstat"
GUEST: ContextVar[bool] = ContextVar("guest", default=False)
"""Whether another program has called tx, in a process of its own: that may have threads, which no fork has."""
_clears_up = False
"""Whether the folder of that name is nobody's who set it."""


def tells_who_waits() -> bool:
    """Whether this system says how long threads could have run, but did not: Linux does, if it counts at all."""
    try:
        with open(OWN_TIMES, encoding="utf-8") as file:
            return int(file.read().split()[0]) > 0
    except (OSError, ValueError, IndexError):
        return False


DEFAULTS = {
    ("TORCH_CPP_LOG_LEVEL",): "ERROR",
    WAITING: SPINS if tells_who_waits() else "500",
    (KEPT_BY_PYTORCH,): KERNELS,
    (KEPT_BY_ONEDNN, "DNNL_PRIMITIVE_CACHE_CAPACITY"): KERNELS,
}
"""What torch finds where the user has set none of the names: the first of them gets the value.

What torch logs of connections that break, tx says in words of its own.

Threads that wait for each other spin, which is faster on a machine that does nothing else and several times slower
beside a single busy process: the one that spins takes the processor of the one that all wait for. So they spin while
nobody else is there (spinning.py), and where that cannot be known only for microseconds, in which most waits end.

The last two bound how much compiled code is kept for shapes seen before, by PyTorch and by oneDNN: about what small
batches use, half of what they would keep of a text whose every batch is new (docs/measurements.md). Training lowers
them, see `keep_fewer_kernels`.
"""


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


def prepare() -> None:
    """Before torch is loaded, which reads them once: set what it should find, never over what the user has set. And
    remember which torchrun started this process, as long as it is its parent; and clear up behind torch in the end."""
    for names, value in DEFAULTS.items():
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = value
    global _clears_up
    if COMPILED not in os.environ:
        _clears_up = True
        atexit.register(leave_no_folder)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        os.environ.setdefault(LAUNCHER, str(os.getppid()))


def leave_no_folder() -> None:
    """torch.compile makes a folder once a library imports it, and names it there; what it compiled, it keeps. For who
    ends without what Python does at exit, too."""
    with suppress(KeyError, OSError):
        if _clears_up:
            os.rmdir(os.environ[COMPILED])


def keep_fewer_kernels(budget_tokens: int) -> None:
    """Of what training by such batches compiles, before anything is computed; never over what the user has set.

    With each product that PyTorch keeps there is room for it to work in, which grows with the batch. The code itself
    stays with oneDNN, which finds it within microseconds; and of large batches that keeps fewer, too, for the time that
    compiling takes matters less.
    """
    fewer = {KEPT_BY_PYTORCH: WITH_ROOM_TO_WORK}
    if budget_tokens >= LARGE_BATCH:
        fewer[KEPT_BY_ONEDNN] = FEWER_KERNELS
    for name, value in fewer.items():
        if os.environ.get(name) == KERNELS:
            os.environ[name] = value


def repeat_sums() -> None:
    """Before a GPU is used: let cuBLAS add in the same order each time, as PyTorch asks for where it has to."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def spins_by_default() -> bool:
    """Whether threads that wait for each other spin because tx said so."""
    return all(os.environ.get(name) == (SPINS if name == WAITING[0] else None) for name in WAITING)


def import_path() -> str:
    """PYTHONPATH by which another Python finds this package wherever this one did: with -P it does not look in the
    current folder, whose files are the user's."""
    return os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *filter(None, [os.environ.get("PYTHONPATH")])])


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_rank() -> int | None:
    """Which of the processes on this machine this one is, and so which GPU is its own; None where nothing is said."""
    return _whole("LOCAL_RANK")


def local_size() -> int:
    """How many processes train on this machine together; one where nothing is said."""
    return _whole("LOCAL_WORLD_SIZE") or 1


def launcher() -> int | None:
    """The process that started this one as one of several, and waits for it; None where nobody says so."""
    return _whole(LAUNCHER)


def launch() -> str:
    """What processes that were started together have in common. Of `--processes` no others have it, of torchrun where
    it was told an id or is --standalone; empty where nobody says."""
    return os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get(LAUNCHER, "")


def _whole(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if not value.isascii() or not value.isdecimal() or len(value) > 9 or (name == "WORLD_SIZE" and int(value) == 0):
        raise UsageError(f"{name} is {value[:40]!r}: expected a whole number", hint=HINT)
    return int(value)
