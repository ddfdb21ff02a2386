"""The loop: batches in, a better model out; it reads as a summary.

Nothing random has a state here: dropout's bits come from (seed, step, batch), the order of the batches from
(seed, epoch). To continue a run it is enough to know how far it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from transformer_cli.checkpoints.tensors import whole
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch, divided
from transformer_cli.environment import keep_memory
from transformer_cli.errors import ResourceError
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.moving_average import NoAverage
from transformer_cli.training.optimizers import can_leave_out
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress, spent_in_words
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.schedules import Spent, learning_rate
from transformer_cli.training.sharding import Sharding


@dataclass(frozen=True)
class Update:
    """What one update did."""

    loss: float
    """Mean per target token, label smoothing included."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    target_tokens: int
    source_tokens: int
    spent: Spent
    """All that training has taken by its end; no tokens of one that was not made."""
    fault: str | None = None
    """Why it was not made: the first tensor that is not finite."""
    overflowed: float | None = None
    """The loss scale under which gradients overflowed, where it was not made for that."""
    suspects: tuple[int, ...] = ()
    """The sentence pairs of this process that may be why."""
    asked: tuple[float, ...] = ()
    """What `Learner.asked` said, summed over the processes."""


@dataclass
class Portions:
    """In how many parts a batch is learned from, one after the other: in one, as long as memory is enough for it."""

    tell: Callable[[str], None] = lambda line: None
    """Takes what has to be said once it is not."""
    n: int = 1

    def halve(self) -> None:
        self.n *= 2
        self.tell(
            f"not enough memory for a whole batch: each is learned from in {self.n} parts from now on; an update has "
            "as many tokens as before, dropout draws other bits"
        )


@dataclass(frozen=True)
class Learner:
    """What is trained, how, and by whom."""

    sharding: Sharding
    """What computes, on which part of the model."""
    optimizer: torch.optim.Optimizer
    options: TrainingConfig
    seed: int
    world: World
    average: NoAverage = field(default_factory=NoAverage)
    seconds: Callable[[], float] = float
    """What the run would have taken if it ended with the update at hand; the first process tells all."""
    asked: Callable[[], Sequence[float]] = tuple
    """What this process wants to be known to all after an update. Where `is_late`, both are asked before it waits for
    the device: several GPUs, which hear of a signal so, stop an update later."""
    portions: Portions = field(default_factory=Portions)

    @property
    def model(self) -> Transformer:
        """As it is saved: weights in fp32."""
        return self.sharding.model

    @property
    def is_late(self) -> bool:
        """Whether what an update came to is read only after the device was given the update, which it leaves out by
        itself where numbers are not finite: so it has work while this process waits. A CPU has not, and an optimizer
        has to know how."""
        return self.model.output.weight.is_cuda and can_leave_out(self.optimizer)


Epoch = Callable[[int, int], tuple[int, Iterator[Batch]]]
"""(epoch, first batch) -> how many batches the whole epoch has, and those from the first on."""


def fit(learner: Learner, progress: Progress, epoch_of: Epoch, after_update: Callable[[Update], bool]) -> None:
    """Train until an end is reached or `after_update` says stop; progress is moved along in place, before that call."""
    keep_memory()
    options = learner.options
    progress.scale(in_fp16=learner.model.dtype == torch.float16)
    while progress.finished is None:
        n_batches, batches = epoch_of(progress.epoch, progress.batch)
        for window in windows(batches, options.accumulation):
            epochs = progress.epochs_after(len(window), n_batches)
            spent = Spent(epochs=epochs, target_tokens=progress.target_tokens)
            update = train_step(
                learner,
                window,
                step=progress.step + 1,
                spent=spent,
                warmed=progress.warmed,
                scale=progress.loss_scale,
            )
            progress.step += 1
            progress.target_tokens = round(update.spent.target_tokens)
            if progress.warmed is None and not options.warms_by_updates:
                progress.warmed = update.spent.warmed(options)
            progress.batch += len(window)
            progress.not_made += update.fault is not None or update.overflowed is not None
            if update.fault is not None:
                progress.skipped += 1
            elif update.overflowed is None:
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


def train_step(
    learner: Learner,
    window: Sequence[Batch],
    *,
    step: int,
    spent: Spent | None = None,
    warmed: Spent | None = None,
    scale: LossScale | None = None,
) -> Update:
    """One update from one or more batches, as if they were one: the loss is divided by all their target tokens. spent:
    what a budget has to know, as it was before, but for the epochs, which are those after it. warmed: where the warm-up
    ended, in a run that knows it."""
    scaled_by = 1.0 if scale is None else scale.factor
    model, options, sharding, optimizer = learner.model, learner.options, learner.sharding, learner.optimizer
    sharding.begin()
    own_targets = sum(batch.n_target_tokens for batch in window)
    parts, losses_there = _learn(learner, window, step=step, is_update=True, scale=scaled_by)
    learned = [parameter for parameter in model.parameters() if parameter.grad is not None]
    held_there = sharding.norm([parameter.grad for parameter in learned if parameter.grad is not None])
    found = torch.stack([*losses_there, held_there])
    # A step waits for the device once, here or after it gave it the update, and once for counts of other processes.
    losses, held = [], 0.0
    if not learner.is_late:
        *losses, held = found.cpu().tolist()
    own_s = learner.seconds() if learner.world.is_main else 0.0
    own = own_targets, sum(batch.n_source_tokens for batch in window), own_s, *learner.asked()
    n_targets, n_sources, seconds, *asked, loss_sum = learner.world.sum(*own, sum(losses))
    unmade = replace(spent or Spent(), step=step, seconds=seconds)
    made = replace(unmade, target_tokens=unmade.target_tokens + n_targets)
    rate = learning_rate(made, options, d_model=model.config.d_model, warmed=warmed)
    for group in optimizer.param_groups:
        group["lr"] = rate
    factor, longest = sharding.factor(n_targets) / scaled_by, options.clip_norm or math.inf
    if learner.is_late:
        total_there = learner.world.total(found[:-1].sum())
        read = on_its_way(torch.cat([found, total_there[None]]))
        sharding.step(optimizer, held_there * factor, total_there, factor=factor, longest=longest)
        *losses, held, loss_sum = read()
    norm = held * factor
    update = Update(
        loss=loss_sum / n_targets,
        gradient_norm=norm,
        learning_rate=rate,
        target_tokens=int(n_targets),
        source_tokens=int(n_sources),
        spent=made,
        asked=tuple(asked),
    )
    if math.isfinite(loss_sum) and not math.isfinite(norm) and scale is not None and scale.shrink():
        optimizer.zero_grad()
        return replace(update, spent=unmade, overflowed=scaled_by)
    if not math.isfinite(loss_sum) or not math.isfinite(norm):
        fault = _first_bad(model)
        optimizer.zero_grad()
        bad = [batch for batch, loss in zip(parts, losses, strict=True) if not math.isfinite(loss)]
        suspects = () if math.isfinite(sum(losses)) and not math.isfinite(loss_sum) else bad or parts
        indices = tuple(index for batch in suspects for index in batch.indices)
        return replace(update, spent=unmade, fault=fault, suspects=indices)
    if not learner.is_late:
        sharding.clip(learned, held_there, norm=norm, factor=factor, longest=longest)
        optimizer.step()
    optimizer.zero_grad()
    learner.average.update(step)
    if scale is not None:
        scale.keep()
    return update


def on_its_way(numbers: Tensor) -> Callable[[], list[float]]:
    """Begin to take them to the CPU. Who asks for them waits for what the device had to do until here, not for what it
    was given since."""
    here = numbers.to("cpu", non_blocking=True)
    arrived = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def read() -> list[float]:
        if arrived is not None:
            arrived.synchronize()
        values: list[float] = here.tolist()
        return values

    return read


def try_out(learner: Learner, batches: Iterable[Batch]) -> None:
    """Learn from each of these batches and forget it: where they are the largest, it is known at once whether memory is
    enough. Room is taken for the moments that the first update will make. Nothing changes but `portions`.
    """
    sharding = learner.sharding
    trained = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
    room = [] if learner.optimizer.state else [torch.empty_like(parameter) for parameter in 2 * trained]
    sharding.begin()
    for batch in batches:
        # Gradients of an earlier batch are there while a later one is learned from.
        window = [batch] * min(2, learner.options.accumulation)
        _learn(learner, window, step=0, is_update=sharding.is_shared(is_last=False))
        learner.optimizer.zero_grad()
    del room


def _learn(
    learner: Learner, window: Sequence[Batch], *, step: int, is_update: bool, scale: float = 1.0
) -> tuple[list[Batch], list[Tensor]]:
    """The parts that batches were learned from in, and the summed loss of each, on the device; gradients are added up.

    is_update: those of other processes, too. Where memory is too little, all begins anew in smaller parts; raises
    ResourceError where there are none, or other processes take part already.
    """
    sharding, portions = learner.sharding, learner.portions
    n_targets = sum(batch.n_target_tokens for batch in window)
    while True:
        parts = [part for batch in window for part in divided(batch, portions.n)]
        losses, is_shared = [], False
        try:
            for number, part in enumerate(parts):
                seed_dropout(learner.seed, step, number, learner.world.rank)
                is_last = is_update and number == len(parts) - 1
                is_shared = is_shared or sharding.is_shared(is_last=is_last)
                losses.append(sharding.learn(part, n_targets=n_targets, is_last=is_last, scale=scale))
            return parts, losses
        except torch.OutOfMemoryError as failure:
            if is_shared or all(len(part.source_lengths_B) < 2 for part in parts):
                raise ResourceError(
                    f"not enough memory to learn from {part.n_source_tokens:,} + {part.n_target_tokens:,} pieces",
                    hint="training.recompute: true needs less, also when this run goes on; in a new one, so does a "
                    "smaller training.budget_tokens",
                ) from failure
        # Not before the failure is gone, which holds what it was about.
        learner.optimizer.zero_grad()
        portions.halve()


def _first_bad(model: nn.Module) -> str:
    """The first weight that is not finite, else the first gradient."""
    named = list(model.named_parameters())
    tensors = [(name, p) for name, p in named] + [(f"the gradient of {name}", p.grad) for name, p in named]
    bad = (name for name, tensor in tensors if tensor is not None and not torch.isfinite(whole(tensor)).all())
    return next(bad, "the loss")


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
    progress.epoch += 1
    progress.batch, progress.epoch_loss, progress.epoch_tokens = 0, 0.0, 0
    progress.shares.clear()
    if options.stop_loss is not None and mean < options.stop_loss:
        return f"mean loss {mean:.4g} of epoch {progress.epoch} is below stop_loss {options.stop_loss:g}"
    if options.max_epochs is not None and progress.epoch >= options.max_epochs:
        return f"max_epochs {options.max_epochs} reached"
    return None


def seed_dropout(seed: int, step: int, batch: int, rank: int) -> None:
    """Let dropout's next bits depend on these four numbers and on nothing before."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, batch, rank]).generate_state(1, np.uint64)[0]) >> 1)
