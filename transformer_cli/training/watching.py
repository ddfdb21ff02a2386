"""Nobody waits for a process that is gone: each tells the others that it lives, how far it is, and why it ends."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from transformer_cli import environment
from transformer_cli.checkpoints.parts import DisturbedError
from transformer_cli.errors import ResourceError, ToldError, TxError
from transformer_cli.files import json_line

BEAT_S = 0.5
"""Between two signs of life."""
LOST_BEATS, BROKEN_BEATS = 30, 6
"""So many of ours without one of another process's, and that is gone; few are enough once a connection broke."""
STUCK_S, FIRST_S, LONGER = 20.0, 1800.0, 10.0
"""A process that the others wait for is stuck after `LONGER` times what a piece of such work took it so far, but not
before `STUCK_S`; after `FIRST_S` where it did none yet. A preparation, as of a tokenizer, lasts as long as it works."""
AGAIN = 2.0
"""Where others are ahead, it is stuck as soon as it rests for `AGAIN` times what it ever did within a piece, but not
before `STUCK_S`: in the first of a kind, too. Who computes does not rest, nor who waits for a disk, for memory or for a
processor; and where nobody is ahead, all may wait for a slow network."""
IDLE_S = 300.0
"""So long a preparation may rest where others are ahead: other processes may work for it."""
SPARE_S, SHARE, SHARE_OF_EACH = 0.05, 0.01, 0.0005
"""Of a processor: seconds, and shares of the time, one for each process, that threads beside the work may take while it
rests. The picture on a terminal takes a share of 0.003; where all meet, 2, 8 and 16 take 0.0046, 0.0065, 0.0079."""
TASKS = Path("/proc/self/task")
GRACE_S = 5.0
"""What a process has to end in good order, before it is ended."""
FAILURE, HEARD = "failure", "heard"
ORPHANED = "what started it, tx or torchrun, is gone"
GO_ON = "the same command goes on from the last checkpoint; a system that is short of memory kills, too"
SILENT = "does not answer any more: killed, stopped, or cut off"


@dataclass(frozen=True)
class Failure:
    """Why a process ended, and so all do."""

    rank: int
    message: str
    hint: str | None = GO_ON
    exit_code: int = ResourceError.exit_code
    is_said: bool = False
    """By that process itself; else the first of the others says it."""


class Watch(threading.Thread):
    """A process's eye on the others, and its voice. store: where they meet, for this thread alone."""

    def __init__(self, store: Store, *, rank: int, size: int) -> None:
        super().__init__(name="watch", daemon=True)
        self.store, self.rank, self.size = store, rank, size
        self.failure: Failure | None = None
        self._first: Failure | None = None
        self.lost_beats = LOST_BEATS
        self._is_heard = False
        self._ended = threading.Event()
        self._found = threading.Event()
        self._launcher = environment.launcher()
        self._beats = self._meetings = self._steps = self._signs = 0
        self.kind, self._since = "preparation", time.monotonic()
        self._longest: dict[str, float] = {}
        self._rests, self._used_s, self._longest_rest = self._since, 0.0, 0.0
        self._is_for_all = self._is_for_disk = False
        self._known: set[str] = set()
        self._seen = [("", 0)] * size
        self._moved: list[tuple[tuple[int, ...], int]] = [((), 0)] * size
        self._processes: list[str] = []
        self.store.set(f"process-{rank}", _identity(os.getpid()))
        self._tell()

    def touch(self, kind: str | None = None, *, is_for_disk: bool = False) -> None:
        """The main thread has come so far. kind: what it does next, if that is something else. is_for_disk: it waits
        for a disk, as others need not: a sign of life, but no step that all make."""
        now = time.monotonic()
        self._longest[self.kind] = max(self._longest.get(self.kind, 0.0), now - self._since)
        # What others or a disk took long over says nothing of this process.
        if not self._is_for_all and not self._is_for_disk and self.kind != "preparation":
            self._longest_rest = max(self._longest_rest, now - self._rests)
        if is_for_disk:  # before anything by which it is judged: see `_tell`
            self._signs += 1
        else:
            self._steps += 1
        if kind is not None:
            self._known.add(self.kind)
            self.kind = kind
        self._since = self._rests = now
        self._is_for_all, self._is_for_disk = False, is_for_disk
        if self.failure is not None:
            raise self._as_error(self.failure)

    def meet(self) -> None:
        """The main thread has come to where all wait for all."""
        self.touch()
        self._meetings, self._steps, self._is_for_all = self._meetings + 1, 0, True

    def end(self) -> None:
        """No more of this: all ended well."""
        self._ended.set()
        self.join()

    def blame(self, error: Exception) -> Exception:
        """What ends this process: its error, which all others are told - or theirs, where that came first."""
        if _is_broken(error):
            self.lost_beats = BROKEN_BEATS
        if _is_broken(error) or isinstance(error, DisturbedError):  # one is named by its silence, one by its words
            self._found.wait(LOST_BEATS * BEAT_S)
        if self.failure is None:
            self._raise(_failure_of(error, self.rank))
        self._found.wait(2 * GRACE_S)
        if self.failure is None:
            return error
        is_own = self.failure.rank == self.rank and (self.failure.is_said or not self._is_heard)
        if is_own and (self.failure.is_said or not _is_broken(error)):  # what broke was theirs, whoever is named
            return error
        if self.rank == 0 and isinstance(error, TxError) and error.message == self.failure.message:
            return error  # all are refused by the same: no process is to be named
        return self._as_error(self.failure)

    def run(self) -> None:
        """Until the end, see that there are answers, or that there is a failure."""
        talker = threading.Thread(target=self._talk, name="talk", daemon=True)
        talker.start()
        beats, silent = 0, 0
        while not self._ended.wait(BEAT_S) and self.failure is None:
            beats, silent = self._beats, silent + 1 if self._beats == beats else 0
            if silent > self.lost_beats:
                self.failure = self._first or Failure(0, SILENT)
        self._found.set()
        if self.failure is None:
            talker.join()
        elif not self._ended.wait(GRACE_S):
            error = self._as_error(self.failure)
            if error.message:
                os.write(2, f"error: {error.message}\n".encode())
            environment.leave_no_folder()
            os._exit(error.exit_code)

    def _talk(self) -> None:
        """Tell and look, which may last for ever where the process that keeps the store was stopped."""
        while not self._ended.wait(BEAT_S) and self.failure is None:
            try:
                self._tell()
                self.failure = self._look()
            except RuntimeError:  # whoever has heard of the failure may be gone before the others have
                self.failure = self._first or Failure(0, "is gone, or torchrun is, where all processes meet")

    def _tell(self) -> None:
        self._beats += 1
        limits = self._limits()  # first: one of an earlier place is lenient, one of a later place would be wrong here
        state = f"{self._beats} {self._meetings} {self._steps} {self._signs}"
        self.store.set(f"state-{self.rank}", " ".join([state, *(f"{limit_s:.1f}" for limit_s in limits)]))

    def _limits(self) -> tuple[float, float]:
        """Seconds that the piece of work at hand may take, by what is known now: in any case, and where others are
        ahead. For the thread that tells."""
        limit_s, idle_s = FIRST_S, max(STUCK_S, AGAIN * self._longest_rest)
        if (kind := self.kind) == "preparation":  # which may be another one at once
            limit_s, idle_s = math.inf, IDLE_S
        elif kind in self._known:
            limit_s = max(STUCK_S, LONGER * self._longest[kind])
        now, used_s = time.monotonic(), time.process_time() - time.thread_time()
        since, rests = self._since, self._rests
        may_use_s = SPARE_S + (SHARE + SHARE_OF_EACH * self.size) * (now - rests)
        if used_s - self._used_s > may_use_s or is_held():
            rests = self._rests = now
            self._used_s = used_s
        if self._is_for_disk:  # which may be slow, but is waited for as a whole preparation is only while it works
            idle_s = FIRST_S if kind == "preparation" else math.inf
        return limit_s, min(limit_s, max(rests - since, 0.0) + idle_s)

    def _look(self) -> Failure | None:
        """The failure that there is; or one is found, and there with the next beat."""
        if known := self.store.compare_set(FAILURE, "", "").decode():
            self._first = failure = Failure(**json.loads(known))
            self.store.add(HEARD, 1)
            self._is_heard = failure.rank == self.rank and self._linger()
            return failure
        if not lives(self._launcher):
            self._raise(Failure(self.rank, ORPHANED))
        states = [state.decode() for state in self.store.multi_get([f"state-{rank}" for rank in range(self.size)])]
        moves = [tuple(map(int, text.split()[1:4])) for text in states]
        if not self._processes:
            told = [self.store.compare_set(f"process-{rank}", "", "") for rank in range(self.size)]
            self._processes = [process.decode() for process in told]
        places = [move[:2] for move in moves]
        least = min(places)
        for rank, (text, place, move) in enumerate(zip(states, places, moves, strict=True)):
            before, same = self._seen[rank]
            self._seen[rank] = (text, same + 1 if text == before else 0)
            # Who waits where all meet is not behind, and begins anew once the last one has come.
            stays = place == least and move == self._moved[rank][0]
            self._moved[rank] = (move, self._moved[rank][1] + 1 if stays else 0)
            if rank != self.rank and self._seen[rank][1] > self.lost_beats:
                self._raise(Failure(rank, SILENT))
                self._wake(rank)
                return None
        behind = [rank for rank, place in enumerate(places) if place == least]
        some_are_ahead = len(behind) < self.size
        limits = [float(self._seen[rank][0].split()[5 if some_are_ahead else 4]) for rank in behind]
        waited = [self._moved[rank][1] * BEAT_S for rank in behind]
        if all(seconds > limit_s for seconds, limit_s in zip(waited, limits, strict=True)):
            self._raise(Failure(behind[0], f"is stuck: nothing of it was heard for {min(waited):.0f} seconds"))
        return None

    def _wake(self, rank: int) -> None:
        """Let a process of this machine that was stopped (SIGSTOP) go on, so that it hears that all end: torchrun would
        wait for it for half a minute."""
        known = self._processes[rank]
        process = int(known.split()[1]) if known else 0
        if known and _identity(process) == known:
            with suppress(OSError):
                os.kill(process, signal.SIGCONT)

    def _raise(self, failure: Failure) -> None:
        """Make this the failure of all, unless there is one."""
        try:
            self._first = Failure(**json.loads(self.store.compare_set(FAILURE, "", json_line(asdict(failure)))))
        except RuntimeError:  # nobody is left to be told
            self.failure = self._first or failure

    def _linger(self) -> bool:
        """Until all have heard, or are gone: the store may end with this process. Returns whether all have."""
        end = time.monotonic() + GRACE_S
        while self.store.add(HEARD, 0) < self.size:
            if time.monotonic() > end:
                return False
            time.sleep(BEAT_S / 10)
        return True

    def _as_error(self, failure: Failure) -> TxError:
        """What another process failed by."""
        if failure.is_said or self.rank != int(failure.rank == 0):
            return ToldError(failure.exit_code)
        error = TxError(f"process {failure.rank} of {self.size}: {failure.message}", hint=failure.hint)
        error.exit_code = failure.exit_code
        return error


@contextmanager
def minded() -> Iterator[None]:
    """Within, where the others are waited for before there is a watch, this process ends with the one that started it:
    the others may never come then."""
    launcher, is_over = environment.launcher(), threading.Event()

    def mind() -> None:
        while lives(launcher):
            if is_over.wait(BEAT_S):
                return
        os.write(2, f"error: {ORPHANED}\n".encode())
        environment.leave_no_folder()
        os._exit(ResourceError.exit_code)

    threading.Thread(target=mind, name="mind", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def is_held() -> bool:
    """Whether any thread of this process waits for a disk or for memory, or its main thread for a processor; so it may
    be where the system does not say."""
    try:
        tasks = [*TASKS.iterdir()]
    except OSError:
        return True
    for task in tasks:
        state = "".join(_stat(task)[:1])  # nothing of one that has ended
        if state == "D" or (state not in ("S", "") and task.name == str(os.getpid())):
            return True
    return False


def _identity(process: int) -> str:
    """Which of all processes of all machines this is: its machine, its number there, and when it began, by the system's
    clock; empty where the system does not say."""
    found = _stat(Path("/proc", str(process)))
    return f"{os.uname().nodename} {process} {found[19]}" if found else ""


def _stat(place: Path) -> list[str]:
    """What the system says of a process or thread, from its state on (proc_pid_stat(5)); nothing where it does not."""
    try:
        return (place / "stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def lives(process: int | None) -> bool:
    """Whether it is there; nobody is always there."""
    if process is None:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, as where torchrun is root's
        return True
    return _stat(Path("/proc", str(process)))[:1] != ["Z"]  # which has ended, and nobody has asked how


def _is_broken(error: Exception) -> bool:
    """Whether a connection to another process broke, by the words of whoever held it."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "Connection"))
    )


def _failure_of(error: Exception, rank: int) -> Failure:
    """An error of ours that is not the main process's is said by that one, which has the terminal."""
    if isinstance(error, TxError):
        return Failure(rank, error.message, error.hint, error.exit_code, is_said=rank == 0)
    code = ResourceError.exit_code if isinstance(error, OSError | MemoryError) else 1
    return Failure(rank, f"{type(error).__name__}: {' '.join(str(error).split())}", None, code, is_said=True)
