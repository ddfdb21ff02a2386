"""The checkpoints of a run: where it goes on, which are kept, and what names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import CHECKPOINTS
from transformer_cli.checkpoints.tensors import come_along
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError, ResourceError
from transformer_cli.files import remove, shown
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress


class Keeper:
    """What is done with the checkpoints of a run while it is trained.

    warn: takes what has to be said of them. Only the main process writes; all of them call everything here.
    """

    def __init__(self, run_dir: Path, config: RunConfig, world: World, *, warn: Callable[[str], None]) -> None:
        self.run_dir = run_dir
        self.config = config
        self.world = world
        self.warn = warn
        self.damaged: list[store.DamagedError] = []
        self.marks_latest = True

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
        there = {path.name for path in store.list_checkpoints(self.run_dir)}
        gone = [step for step in progress.ranked if store.step_name(int(step)) not in there]
        gone = self.world.share(" ".join(gone)).split()  # of one mind about what is a new best
        progress.scores = {step: score for step, score in progress.scores.items() if step not in gone}
        if not self.world.is_main:
            return
        for failure in self.damaged:
            aside = store.set_aside(failure.checkpoint)
            self.warn(f"{failure.message}; kept as {shown(aside)}, training goes on after step {progress.step:,}")
        store.point(self.run_dir, "last", progress.step)
        self._point(progress)
        if gone:
            names = ", ".join(store.step_name(int(step)) for step in gone)
            best = f"best is now {store.step_name(int(progress.ranked[0]))}" if progress.scores else "none is best now"
            self.warn(f"of the best checkpoints, {names} is not there any more: {best}")

    def save(
        self, progress: Progress, *, model: dict[str, Tensor], optimizer: dict[str, Tensor], tokenizer: str
    ) -> None:
        """A checkpoint, the pointers to it, and no more old ones than asked for. tokenizer: its fingerprint."""
        if self.world.is_main:
            options = self.config.training
            progress.scores = {step: progress.scores[step] for step in progress.ranked[: options.keep_best]}
            store.save_checkpoint(
                self.run_dir,
                step=progress.step,
                model=model,
                optimizer=optimizer,
                state=progress.as_dict(),
                config=self.config,
                tokenizer=tokenizer,
            )
            self._point(progress)
            recent = store.list_checkpoints(self.run_dir)[-options.keep_last :]
            keep = {int(step) for step in progress.scores} | {int(path.name.rsplit("-", 1)[1]) for path in recent}
            store.prune(self.run_dir, keep)
        else:
            come_along(model, optimizer)
        self.world.wait()

    def _point(self, progress: Progress) -> None:
        """Let `best` and `runs/latest` name what they should; `last` names a checkpoint since it is saved."""
        there = {path.name for path in store.list_checkpoints(self.run_dir)}
        best = next((int(step) for step in progress.ranked if store.step_name(int(step)) in there), None)
        if best is None:
            remove(self.run_dir / "best")
        else:
            store.point(self.run_dir, "best", best)
        if self.marks_latest:
            try:
                store.mark_latest(self.run_dir)
            except ResourceError as failure:  # a convenience, and no reason to stop
                self.marks_latest = False
                self.warn(f"{failure.message}; this run has to be named: -m {shown(self.run_dir)}")


def newest_whole(run_dir: Path, *, with_optimizer: bool) -> tuple[store.Checkpoint | None, list[store.DamagedError]]:
    """The newest checkpoint that is as it was saved, and what is wrong with each that is newer. (None, []) where there
    is none at all; ModelError where all are damaged, or one cannot be read for another reason.
    """
    damaged: list[store.DamagedError] = []
    for path in reversed(store.list_checkpoints(run_dir)):
        try:
            return store.load_checkpoint(path, with_optimizer=with_optimizer), damaged
        except store.DamagedError as failure:
            damaged.append(failure)
    if damaged:
        raise ModelError(
            f"{damaged[0].message}, and {shown(run_dir)} has no other that is whole",
            hint="restore it from a copy, or start anew with --overwrite",
        )
    return None, []
