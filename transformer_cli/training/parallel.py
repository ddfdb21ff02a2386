"""Every call to other processes; the identity on one.

Each process has a rank and computes its own batches; counts are summed over all, gradients by sharding.py. What one of
them decides is decided once, and shared.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from transformer_cli import environment, files
from transformer_cli.checkpoints.parts import FAILED, DisturbedError
from transformer_cli.errors import ResourceError, ToldError, TxError
from transformer_cli.training.durations import spelled
from transformer_cli.training.watching import GRACE_S, Watch, minded
from transformer_cli.wording import some

JOINING = timedelta(minutes=10)
"""How long the first process waits for the last one."""
WAITED_S = 15.0
"""Until it says for whom."""
UNLIMITED = timedelta(days=365)
"""Of a wait for others: one may encode text for hours. Who waits in vain is told by the watch."""
POLL_S = 0.02
"""Between two looks at what others posted."""
KNOCK_S = 0.1
"""Between two tries to reach them, for each of which their machine's name may have to be looked up."""
WORKS = "cpu:gloo", "cuda:nccl"
parted: list[object] = []
"""The group of the last world that ended. DDP's wrapper holds it, too, and may outlive that world: were it the last to
let go, it would wait in C++, holding Python's lock, for gloo's thread, which waits for that lock to free the tensors of
what it did last (pytorch/pytorch#56297)."""


@dataclass(frozen=True)
class World:
    """Who this process is among all of them."""

    rank: int = 0
    size: int = 1
    watch: Watch | None = None
    board: Store | None = None
    """Where processes leave word for each other beside training, which must not be waited for with a collective."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value, summed over the processes, in fp64."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        self._meet()
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def total(self, value: Tensor) -> Tensor:
        """Summed over the processes where it lies; on a GPU nobody waits for that."""
        if self.size > 1:
            self._meet()
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Until all are here."""
        self.sum(0.0)

    def share(self, text: str) -> str:
        """The main process's text, on all."""
        return self.gather(text if self.is_main else "")[0]

    def gather(self, text: str) -> list[str]:
        """The text of each process, on all."""
        if self.size == 1:
            return [text]
        self._meet()
        mine = torch.frombuffer(bytearray(text.encode("utf-8") + b"\n"), dtype=torch.uint8)  # none is of nothing
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(mine)]))
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, torch.cat([mine, mine.new_zeros(longest - len(mine))]))
        return [
            found[: int(length) - 1].numpy().tobytes().decode("utf-8")
            for found, length in zip(texts, lengths, strict=True)
        ]

    def first_of_each_machine(self) -> list[int]:
        """One process of each machine, which works for all of it while the others wait; the main process is the
        first."""
        ranks = self.gather(str(environment.local_rank()))
        return [rank for rank, local_rank in enumerate(ranks) if rank == 0 or local_rank == "0"]

    def at(self, kind: str) -> None:
        """What this process does next: others that wait for it know how long such work takes it."""
        if self.watch is not None:
            self.watch.touch(kind)

    @contextmanager
    def within(self, kind: str) -> Iterator[None]:
        """What this process does for a while, until it goes on with what it did."""
        before = "" if self.watch is None else self.watch.kind
        self.at(kind)
        yield
        self.at(before)

    def touch(self) -> None:
        """A part of that is done. Raises what ended another process."""
        if self.watch is not None:
            self.watch.touch()

    def writers(self, what: str) -> Board:
        """All processes, for something that they write together once."""
        assert self.board is not None
        return Board(self.rank, self.size, PrefixStore(what, self.board))

    def part(self) -> None:
        """All have come to the end; nobody is missed from now on."""
        self.wait()
        if self.watch is not None:
            self.watch.end()

    def _meet(self) -> None:
        if self.watch is not None:
            self.watch.meet()


@dataclass
class Board:
    """What processes post for each other, from any thread; see checkpoints/parts.py."""

    rank: int
    size: int
    store: Store
    _until: float = math.inf
    """When there is no use any more in waiting: one failed, and had the time to say why."""

    def post(self, what: str, text: str = "") -> None:
        self.store.set(what, text)

    def posted(self, what: str) -> str:
        while not self.store.check([what]):
            self.pause()
        return self.store.get(what).decode()

    def pause(self) -> None:
        """Raises what the guards of the disk do, too: there is no use in waiting for what will not be written."""
        files.ask_guards(Path())
        if self._until == math.inf and self.store.check([FAILED]):
            self._until = time.monotonic() + GRACE_S  # its own words come first
        if time.monotonic() > self._until:
            raise DisturbedError
        time.sleep(POLL_S)


@contextmanager
def joined(device: str, tell: Callable[[str], None] = lambda words: None) -> Iterator[World]:
    """The world that torchrun describes, alone without it; an error of one process is an error of all. tell: takes what
    the first process waits for.

    Raises ResourceError where the others cannot be reached.
    """
    here = environment.place()
    if here.size == 1:
        yield World()
        return
    world = _join(here, device, tell)
    watch = world.watch
    assert watch is not None

    def touch(_: object) -> None:
        if threading.current_thread() is threading.main_thread():  # what else writes says nothing of how far that is
            watch.touch(is_for_disk=True)

    files.guards.append(touch)
    try:
        yield world
        if watch.is_alive():
            world.part()
    except Exception as failure:
        if watch.is_alive():  # and stays so: even an end may last for ever
            reason = watch.blame(failure)
        else:  # all came to the same end
            reason = failure if world.is_main or not isinstance(failure, TxError) else ToldError(failure.exit_code)
        if reason is failure:
            raise
        raise reason from failure
    finally:
        files.guards.remove(touch)
        if not watch.is_alive():
            parted[:] = [dist.group.WORLD]
            dist.destroy_process_group()


def _join(here: environment.Place, device: str, tell: Callable[[str], None]) -> World:
    kind = device.split(":")[0]
    if kind == "cuda":
        torch.cuda.set_device(device)
    try:
        with minded():
            rank, size = here.rank, here.size
            store: Any = _store(here)  # whose `clone` its stubs leave out
            world = _agree(PrefixStore(f"launch {environment.launch()}", store), rank, size, tell)
            backends = ",".join(work for work in WORKS if work.split(":")[0] in ("cpu", kind))
            own = PrefixStore(f"{world} work", store)
            dist.init_process_group(backends, store=own, rank=rank, world_size=size, timeout=UNLIMITED)
            watch = Watch(PrefixStore(f"{world} watch", store.clone()), rank=rank, size=size)
            board = PrefixStore(f"{world} board", store.clone())
            # Every state is there before it is looked at, and nobody connects to the store any more: who keeps it looks
            # up the name of each that does, and answers nobody for so long, 5 to 30 s where a name server is silent.
            World(rank, size).wait()
    except (dist.DistError, RuntimeError, OSError) as failure:
        raise ResourceError(
            f"process {here.rank} of {here.size} cannot reach the others: {str(failure)[:200]}",
            hint=environment.HINT,
        ) from failure
    watch.start()
    return World(rank=rank, size=size, watch=watch, board=board)


def _store(here: environment.Place) -> Store:
    """The first process's, or torchrun's, as PyTorch's rendezvous gives it; but that one waits for the others in C++,
    where no signal is heard. Raises TimeoutError where nobody answers."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = here.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    until = time.monotonic() + JOINING.total_seconds()
    while not serves:
        with suppress(OSError, UnicodeError), socket.create_connection((host, port), timeout=1.0):
            break
        if time.monotonic() > until:
            raise TimeoutError(f"nobody answered at {host}:{port} within {_spelled(JOINING)}")
        time.sleep(KNOCK_S)
    return TCPStore(host, port, here.size, serves, timeout=JOINING, multi_tenant=True, wait_for_workers=False)


def _agree(store: Store, rank: int, size: int, tell: Callable[[str], None]) -> str:
    """A name that all processes of this world have, and none of an earlier one at the same store, wherever that ended:
    who comes says what nobody said before, and the first one answers until all have its answer. The store is theirs
    alone, or who met another run's by its port would be taken for one of them.

    Raises TimeoutError where one does not come.
    """
    mine, others, begin = secrets.token_hex(8), range(1, size), time.monotonic()
    is_told = rank > 0
    if rank:
        store.set(f"comes {rank}", mine)
    while (waited_s := time.monotonic() - begin) < JOINING.total_seconds():
        if rank == 0:
            for other in others:
                if store.check([f"comes {other}"]):
                    store.set(f"answer to {store.get(f'comes {other}').decode()}", mine)
            if store.check([f"{mine} has {other}" for other in others]):
                store.set(f"{mine} is complete", "")
                return mine
            if waited_s > WAITED_S and not is_told and (absent := _absent(store, mine, size)):
                is_told = True
                tell(f"waiting for {absent} for {_spelled(JOINING)} at most")
        elif store.check([f"answer to {mine}"]):
            world = store.get(f"answer to {mine}").decode()
            store.set(f"{world} has {rank}", "")
            if store.check([f"{world} is complete"]):
                return world
        time.sleep(POLL_S)
    absent = "" if rank else _absent(store, mine, size)
    raise TimeoutError(f"{f'{absent} never' if absent else 'not all'} came within {_spelled(JOINING)}")


def _absent(store: Store, world: str, size: int) -> str:
    """Who has not come to a world yet; empty where all have."""
    absent = [str(other) for other in range(1, size) if not store.check([f"{world} has {other}"])]
    return f"process{'es' * (len(absent) > 1)} {some(absent, 8)} of {size:,}" if absent else ""


def _spelled(span: timedelta) -> str:
    return spelled(span.total_seconds())
