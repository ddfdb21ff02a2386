"""The checkpoints of a run: where it goes on, which are kept, and what names them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Self

from torch import Tensor

from transformer_cli.checkpoints import parts, store
from transformer_cli.checkpoints.find import CHECKPOINTS, list_checkpoints, step_name, step_of
from transformer_cli.checkpoints.manifest import DamagedError
from transformer_cli.checkpoints.tensors import Portion, portion
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import DivergedError, Interrupted, ModelError, ResourceError, TxError
from transformer_cli.files import guards, remove, shown
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress

AT_ONCE_BYTES = 1 << 26
"""A checkpoint of fewer is written before training goes on; of one with more, what it takes is copied in that time."""
SIGN_S = 0.5
"""Between two signs of life of who waits for one."""
PATIENCE_S = 1800
"""The longest that one may be waited for without the others' thinking that this process is stuck."""


class Keeper:
    """What is done with the checkpoints of a run while it is trained.

    warn: takes what has to be said of them. The main process writes what no process holds a part of; all of them call
    everything here, but for what is done with a copy while training goes on: that is over when the keeper, a context
    manager, is left.
    """

    def __init__(self, run_dir: Path, config: RunConfig, world: World, *, warn: Callable[[str], None]) -> None:
        self.run_dir = run_dir
        self.config = config
        self.world = world
        self.warn = warn
        self.damaged: list[DamagedError] = []
        self.marks_latest = True
        self.took_s = 0.0
        """Of the last checkpoint that was written while training went on; the very last one is waited for."""
        self._pool = ThreadPoolExecutor(1, "saving")
        self._saving: Future[tuple[float, list[str]]] | None = None
        self._begun = 0.0
        self._is_given_up = False
        self._is_shared = False
        self._saves = 0

    def __enter__(self) -> Self:
        guards.append(self._heed)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """What was begun is finished first; given up where a second signal ends all at once, or another process ended,
        whose part may never be written."""
        try:
            if kind is not None and self._saving is not None and not self._saving.done():
                self._is_given_up = issubclass(kind, Interrupted) or not self._comes_to_an_end(self._saving)
            gave_up = self._is_given_up
            self._pool.shutdown()
        finally:
            guards.remove(self._heed)
        if kind is None:
            self.finish()
        elif self._saving is None or (gave_up and issubclass(kind, Interrupted)):
            pass  # there is none, or nobody wants it
        elif (failure := self._saving.exception()) is not None:
            self.warn(f"a checkpoint is missing: {getattr(failure, 'message', failure)}")

    def _comes_to_an_end(self, saving: Future[tuple[float, list[str]]]) -> bool:
        """Whether it did, or will: not where it needs another process, which ended, or patience is over."""
        until = time.monotonic() + PATIENCE_S
        try:
            while not wait([saving], timeout=SIGN_S).done:
                self.world.touch()
                if time.monotonic() > until:
                    return False
        except Interrupted:
            return False
        except TxError:
            return not self._is_shared
        return True

    def newest(self) -> store.Checkpoint | None:
        """The checkpoint to go on from, None where there is none; see `newest_whole`."""
        found = None
        if self.world.is_main:
            found, self.damaged = newest_whole(self.run_dir, with_optimizer=True)
        name = self.world.share("" if found is None else found.path.name)
        if name and not self.world.is_main:
            found = store.load_checkpoint(self.run_dir / CHECKPOINTS / name, with_optimizer=True)
        return found

    def settle(self, progress: Progress) -> None:
        """Before training goes on: damaged checkpoints get out of its way, what is gone is forgotten, and pointers name
        what is there; a kill may have come between a checkpoint and its pointers.
        """
        there = {path.name for path in list_checkpoints(self.run_dir)}
        gone = [step for step in progress.ranked if step_name(int(step)) not in there]
        gone = self.world.share(" ".join(gone)).split()  # of one mind about what is a new best
        progress.forget(*gone)
        if not self.world.is_main:
            return
        for failure in self.damaged:
            aside = store.set_aside(failure.checkpoint)
            self.warn(f"{failure.message}; kept as {shown(aside)}, training goes on after step {progress.step:,}")
        store.point(self.run_dir, "last", progress.step)
        self._tell(self._point(progress.ranked))
        if gone:
            names = ", ".join(step_name(int(step)) for step in gone)
            best = f"best is now {step_name(int(progress.ranked[0]))}" if progress.scores else "none is best now"
            self.warn(f"of the best checkpoints, {names} is not there any more: {best}")

    def save(
        self,
        progress: Progress,
        *,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        tokenizer: str,
        goes_on: bool = False,
    ) -> None:
        """A checkpoint, the pointers to it, and no more old ones than asked for. tokenizer: its fingerprint.

        goes_on: training does, so that a large one may be written meanwhile, from a copy; what goes wrong with it is
        raised by `check`, or by the next one. Of what several processes hold in parts, each writes its own.
        """
        self.finish()
        self.world.wait()  # who had nothing to finish is not the one who is behind
        options, is_main = self.config.training, self.world.is_main
        portions = [portion(tensors, is_main=is_main) for tensors in (model, optimizer)]
        self._is_shared = any(one.is_shared for one in portions)
        is_large = sum(one.size for one in portions) > AT_ONCE_BYTES
        in_background = goes_on and is_large
        if is_large and not goes_on:
            self.world.at("last checkpoint")  # which takes far longer than copies did
        if is_main:
            progress.forget(*progress.ranked[options.keep_best :])
        if is_main or self._is_shared:
            self._saves += 1
            writers = self.world.writers(f"save {self._saves}") if self._is_shared else parts.ALONE
            write = partial(self._write, progress=deepcopy(progress), tokenizer=tokenizer, writers=writers)
            if in_background:
                copies = [one.copied() for one in portions]
                self._begun = time.monotonic()
                self._saving = self._pool.submit(write, *copies)
            else:
                self._tell(write(*portions)[1])
        if not in_background:
            self.world.wait()

    def check(self) -> None:
        """Say what there is to be said of a checkpoint that was written while training went on, and raise what went
        wrong with it, if that is over."""
        if self._saving is not None and self._saving.done():
            self.finish()

    def finish(self) -> None:
        """The same, once it is over."""
        if (saving := self._saving) is None:
            return
        until = time.monotonic() + PATIENCE_S
        while not wait([saving], timeout=SIGN_S).done:
            if time.monotonic() < until:
                self.world.touch()
        self._saving = None
        self.took_s, warnings = saving.result()
        self._tell(warnings)

    def to_end_s(self) -> float:
        """Seconds that an end of training would take now, by what is known of checkpoints that are written while it
        goes on: the rest of the one at hand, and the last one."""
        if self._saving is None:
            return self.took_s
        passed_s = time.monotonic() - self._begun
        return max(self.took_s - passed_s, 0.0) + max(self.took_s, passed_s)

    def _heed(self, path: Path) -> None:
        """Before each operation: end what is written beside training, once it is given up; then clear it away."""
        if self._is_given_up and threading.current_thread() is not threading.main_thread():
            self._is_given_up = False
            raise TxError("it was not finished")

    def _write(
        self,
        model: Portion,
        optimizer: Portion,
        *,
        progress: Progress,
        tokenizer: str,
        writers: parts.Writers,
    ) -> tuple[float, list[str]]:
        """Returns the seconds that it took, and what there is to be said."""
        begin = time.perf_counter()
        try:
            store.save_checkpoint(
                self.run_dir,
                step=progress.step,
                model=model,
                optimizer=optimizer,
                state=progress.as_dict(),
                config=self.config,
                tokenizer=tokenizer,
                writers=writers,
            )
        except BaseException as failure:
            with suppress(RuntimeError):  # nobody is there any more who would wait for it
                writers.post(parts.FAILED)
            if isinstance(failure, DivergedError):
                raise diverged(self.run_dir, failure.message) from failure
            raise
        if not self.world.is_main:
            return time.perf_counter() - begin, []
        warnings = self._point(ranked := progress.ranked)
        recent = list_checkpoints(self.run_dir)[-self.config.training.keep_last :]
        steps = {*map(int, ranked), *(step_of(path.name) for path in recent)}
        store.prune(self.run_dir, {step for step in steps if step is not None})
        return time.perf_counter() - begin, warnings

    def _tell(self, warnings: Sequence[str]) -> None:
        for line in warnings:
            self.warn(line)

    def _point(self, ranked: Sequence[str]) -> list[str]:
        """Let `best` and `runs/latest` name what they should; `last` names a checkpoint since it is saved. Returns what
        there is to be said."""
        there = {path.name for path in list_checkpoints(self.run_dir)}
        best = next((int(step) for step in ranked if step_name(int(step)) in there), None)
        if best is None:
            remove(self.run_dir / "best")
        else:
            store.point(self.run_dir, "best", best)
        if self.marks_latest:
            try:
                store.mark_latest(self.run_dir)
            except ResourceError as failure:  # a convenience, and no reason to stop
                self.marks_latest = False
                return [f"{failure.message}; this run has to be named: -m {shown(self.run_dir)}"]
        return []


def newest_whole(run_dir: Path, *, with_optimizer: bool) -> tuple[store.Checkpoint | None, list[DamagedError]]:
    """The newest checkpoint that is as it was saved, and what is wrong with each that is newer. (None, []) where there
    is none at all; ModelError where all are damaged, or one cannot be read for another reason.
    """
    damaged: list[DamagedError] = []
    for path in reversed(list_checkpoints(run_dir)):
        try:
            return store.load_checkpoint(path, with_optimizer=with_optimizer), damaged
        except DamagedError as failure:
            damaged.append(failure)
    if damaged:
        raise ModelError(
            f"{damaged[0].message}, and {shown(run_dir)} has no other that is whole",
            hint="restore it from a copy, or start anew with --overwrite",
        )
    return None, []


def diverged(run_dir: Path, words: str) -> DivergedError:
    """What ends training there once numbers are not finite, and what to do: where a run has a checkpoint it goes on
    from that, with the settings that it has."""
    hint = "lower training.learning_rate, raise training.warmup_steps or choose `precision: fp32`"
    if any(step_of(path.name) for path in list_checkpoints(run_dir)):
        begun = f"--overwrite, or training.init_from={shown(run_dir)}"
        return DivergedError(words, hint=f"in a new run ({begun}), {hint}; what was saved before is untouched")
    return DivergedError(words, hint=f"{hint}, and start again")
