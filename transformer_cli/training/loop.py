"""The loop: batches in, a better model out; it reads as a summary.

Nothing random has a state here: dropout's bits are seeded anew for each batch (`seed_dropout` in update.py), the order
of the batches comes from (seed, epoch). To continue a run it is enough to know how far it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_cli import heap
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch
from transformer_cli.training.progress import Progress, spent_in_words
from transformer_cli.training.schedules import Spent
from transformer_cli.training.update import Learner, Update, begin, give

Epoch = Callable[[int, int], tuple[int, Iterator[Batch]]]
"""(epoch, first batch) -> how many batches the whole epoch has, and those from the first on."""


def fit(learner: Learner, progress: Progress, epoch_of: Epoch, after_update: Callable[[Update], bool]) -> None:
    """Train until an end is reached or `after_update` says stop; progress is moved along in place, before that call."""
    options = learner.options
    progress.scale(in_fp16=learner.model.dtype == torch.float16)
    while progress.finished is None:
        n_batches, batches = epoch_of(progress.epoch, progress.batch)
        for update in _updates(learner, progress, batches, n_batches):
            heap.enlarge_pages()
            progress.step += 1
            progress.target_tokens = round(update.spent.target_tokens)
            if progress.warmed is None and not options.warms_by_updates:
                progress.warmed = update.spent.warmed(options)
            progress.batch += update.n_batches
            progress.not_made += not update.is_made
            if update.fault is not None:
                progress.skipped += 1
            elif update.is_made:
                progress.skipped = 0
            if update.fault is None:
                progress.epoch_loss += update.loss * update.target_tokens
                progress.epoch_tokens += update.target_tokens
            if progress.batch == n_batches:
                progress.finished = end_epoch(progress, options)
            if update.spent.share(options) >= 1:
                progress.finished = progress.finished or _why_it_ends(options)
            if after_update(update) or progress.finished:
                return


def _updates(learner: Learner, progress: Progress, batches: Iterator[Batch], n_batches: int) -> Iterator[Update]:
    """The updates of an epoch, as each is read; who takes one has moved progress along when it asks for the next.

    Where the learner `is_late` that is once the device has the next one's gradients to compute, and before it is given
    the next one: weights are those of the update that was read, and bits those of reading each at once.
    """
    read: Callable[[], Update] | None = None
    for window in windows(batches, learner.options.accumulation):
        step = progress.step + (1 if read is None else 2)
        gradients = begin(learner, window, step=step, scale=progress.loss_scale)
        if read is not None:
            yield (update := read())
            has_other_scale = progress.loss_scale is not None and progress.loss_scale.factor != gradients.scale
            if update.fault is not None or has_other_scale:
                gradients = begin(learner, window, step=step, scale=progress.loss_scale)
        spent = Spent(epochs=progress.epochs_after(len(window), n_batches), target_tokens=progress.target_tokens)
        read = give(learner, gradients, spent=spent, warmed=progress.warmed, scale=progress.loss_scale)
        if not learner.is_late:
            yield read()
            read = None
    if read is not None:
        yield read()


def tell_first_loss(learner: Learner, tell: Callable[[float], None]) -> None:
    """The mean loss of the first batch here, as soon as it is known: its gradients take twice as long again."""

    def hook(objective: nn.Module, arguments: tuple[Batch], loss: Tensor) -> None:
        handle.remove()
        [batch] = arguments
        if batch.n_target_tokens:
            tell(loss.item() / batch.n_target_tokens)

    handle = learner.sharding.objective.register_forward_hook(hook)


def _why_it_ends(options: TrainingConfig) -> str:
    return f"max_steps {options.last_step} reached" if options.budget is None else spent_in_words(options.budget)


def windows(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """The batches of one update after the other; the last window of an epoch may be shorter."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def end_epoch(progress: Progress, options: TrainingConfig) -> str | None:
    """Turn to the next epoch; returns why training ends here, if it does."""
    mean = progress.epoch_loss / progress.epoch_tokens if progress.epoch_tokens else math.inf
    progress.mean_loss = mean if math.isfinite(mean) else None
    progress.epoch += 1
    progress.batch, progress.epoch_loss, progress.epoch_tokens = 0, 0.0, 0
    progress.shares.clear()
    if options.stop_loss is not None and mean < options.stop_loss:
        return f"mean loss {mean:.4g} of epoch {progress.epoch} is below stop_loss {options.stop_loss:g}"
    if options.max_epochs is not None and progress.epoch >= options.max_epochs:
        return f"max_epochs {options.max_epochs} reached"
    return None
