"""Nobody waits for a process that is gone: each tells the others that it lives, how far it is, and why it ends."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from transformer_cli import environment
from transformer_cli.errors import ResourceError, ToldError, TxError
from transformer_cli.files import json_line

BEAT_S = 0.5
"""Between two signs of life."""
LOST_BEATS, BROKEN_BEATS = 30, 6
"""So many of ours without one of another process's, and that is gone; few are enough once a connection broke."""
STUCK_S, FIRST_S, LONGER = 20.0, 1800.0, 10.0
"""A process that the others wait for is stuck after `LONGER` times what a piece of such work took it so far, but not
before `STUCK_S`; after `FIRST_S` where it did none yet. A preparation, as of a tokenizer, has no limit."""
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
        self._beats = self._meetings = self._touches = 0
        self._kind, self._since = "preparation", time.monotonic()
        self._longest: dict[str, float] = {}
        self._known: set[str] = set()
        self._seen = [("", 0)] * size
        self._moved = [((0, 0), 0)] * size
        self._tell()

    def touch(self, kind: str | None = None) -> None:
        """The main thread has come so far. kind: what it does next, if that is something else."""
        now = time.monotonic()
        self._longest[self._kind] = max(self._longest.get(self._kind, 0.0), now - self._since)
        if kind is not None:
            self._known.add(self._kind)
            self._kind = kind
        self._since = now
        self._touches += 1
        if self.failure is not None:
            raise self._as_error(self.failure)

    def meet(self) -> None:
        """The main thread has come to where all wait for all."""
        self.touch()
        self._meetings, self._touches = self._meetings + 1, 0

    def end(self) -> None:
        """No more of this: all ended well."""
        self._ended.set()
        self.join()

    def blame(self, error: Exception) -> Exception:
        """What ends this process: its error, which all others are told - or theirs, where that came first."""
        if _is_broken(error):  # the one who is gone is named by its silence
            self.lost_beats = BROKEN_BEATS
            self._found.wait(LOST_BEATS * BEAT_S)
        if self.failure is None:
            self._raise(_failure_of(error, self.rank))
        self._found.wait(2 * GRACE_S)
        if self.failure is None:
            return error
        is_own = self.failure.rank == self.rank and (self.failure.is_said or not self._is_heard)
        if is_own and (self.failure.is_said or not _is_broken(error)):  # what broke was theirs, whoever is named
            return error
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
        limit_s = FIRST_S
        if self._kind == "preparation":
            limit_s = math.inf
        elif self._kind in self._known:
            limit_s = max(STUCK_S, LONGER * self._longest[self._kind])
        self.store.set(f"state-{self.rank}", f"{self._beats} {self._meetings} {self._touches} {limit_s:.1f}")

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
        places = [(int(text.split()[1]), int(text.split()[2])) for text in states]
        least = min(places)
        for rank, (text, place) in enumerate(zip(states, places, strict=True)):
            before, same = self._seen[rank]
            self._seen[rank] = (text, same + 1 if text == before else 0)
            # Who waits where all meet is not behind, and begins anew once the last one has come.
            stays = place == least == self._moved[rank][0]
            self._moved[rank] = (place, self._moved[rank][1] + 1 if stays else 0)
            if rank != self.rank and self._seen[rank][1] > self.lost_beats:
                self._raise(Failure(rank, SILENT))
                return None
        behind = [rank for rank, place in enumerate(places) if place == least]
        limits = [float(self._seen[rank][0].split()[3]) for rank in behind]
        waited = [self._moved[rank][1] * BEAT_S for rank in behind]
        if all(seconds > limit_s for seconds, limit_s in zip(waited, limits, strict=True)):
            self._raise(Failure(behind[0], f"is stuck: nothing of it was heard for {min(waited):.0f} seconds"))
        return None

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
        os._exit(ResourceError.exit_code)

    threading.Thread(target=mind, name="mind", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


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
    return True


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
