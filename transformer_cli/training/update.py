"""One update: gradients, what the device is given to make of them, and what that came to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from transformer_cli.checkpoints.tensors import whole
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch, divided
from transformer_cli.errors import ResourceError
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.moving_average import NoAverage
from transformer_cli.training.objective import of_nothing
from transformer_cli.training.optimizers import OnePass, can_leave_out
from transformer_cli.training.parallel import World
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.schedules import Spent, learning_rate
from transformer_cli.training.sharding import Sharding
from transformer_cli.trouble import is_of_memory


@dataclass(frozen=True)
class Update:
    """What one update did."""

    loss: float
    """Of the objective, a mean per target token: label smoothing is included, and R-Drop's disagreement."""
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
    n_batches: int = 1
    """Of each process that it was learned from."""
    others_in_parts: int = 0
    """Processes but the first, whose own `Portions` tell, that learn from a batch in several parts."""

    @property
    def is_made(self) -> bool:
        return self.fault is None and self.overflowed is None


@dataclass
class Portions:
    """In how many parts (micro-batches) a batch is learned from, whose gradients add up: in one, as long as memory is
    enough for it."""

    tell: Callable[[str], None] = lambda line: None
    """Takes what has to be said once it is not."""
    n: int = 1
    leave: Callable[[int], None] = lambda n: None
    """Takes what the next start has to begin with, where others cannot begin anew."""

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

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, OnePass):
            self.optimizer.follow(copies=self.sharding.copies())

    @property
    def model(self) -> Transformer:
        """As it is saved: weights in fp32."""
        return self.sharding.model

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The model's, found once: Python walks through all modules for it, 0.2 ms of small models and 0.3 of base."""
        return [*self.model.parameters()]

    @property
    def is_late(self) -> bool:
        """Whether what an update came to is read only in the next one, between its gradients and the update by them, so
        that the device has work while this process waits; it leaves out by itself what is not finite. A CPU has no work
        then, and an optimizer has to know how."""
        return self.model.output.weight.is_cuda and can_leave_out(self.optimizer)


@dataclass(frozen=True)
class Gradients:
    """Those of an update, which a device may still be computing; not divided by anything yet."""

    window: Sequence[Batch]
    parts: list[Batch]
    """What was learned from, one after the other."""
    found: Tensor
    """The summed loss of each, and the norm of the gradients as they are held; on the device."""
    step: int
    scale: float
    """What the loss was multiplied with."""


def begin(learner: Learner, window: Sequence[Batch], *, step: int, scale: LossScale | None = None) -> Gradients:
    """The gradients of one or more batches, as if they were one, by weights as they are now; any others are gone."""
    sharding, factor = learner.sharding, 1.0 if scale is None else scale.factor
    learner.optimizer.zero_grad()
    sharding.begin()
    parts, losses_there = _learn(learner, window, step=step, is_update=True, scale=factor)
    held_there = sharding.length(learner.optimizer, learner.parameters)
    return Gradients(window, parts, torch.stack([*losses_there, held_there]), step=step, scale=factor)


def give(
    learner: Learner,
    gradients: Gradients,
    *,
    spent: Spent | None = None,
    warmed: Spent | None = None,
    scale: LossScale | None = None,
) -> Callable[[], Update]:
    """An update by these gradients, the loss divided by all target tokens; returns what waits for the device and says
    what it came to, to be called once, before the next is given.

    spent: what a budget has to know, as it was before, but for the epochs, which are those after it. warmed: where the
    warm-up ended, in a run that knows it.
    """
    options, sharding, optimizer = learner.options, learner.sharding, learner.optimizer
    window, found = gradients.window, gradients.found
    # A step waits for the device once, here or in the next one, and once for counts of other processes.
    numbers = [] if learner.is_late else found.cpu().tolist()
    own_s = learner.seconds() if learner.world.is_main else 0.0
    own_targets = sum(batch.n_target_tokens for batch in window)
    is_other = learner.portions.n > 1 and not learner.world.is_main
    own = own_targets, sum(batch.n_source_tokens for batch in window), own_s, is_other, *learner.asked()
    n_targets, n_sources, seconds, others, *asked, loss_sum = learner.world.sum(*own, sum(numbers[:-1]))
    before = spent or Spent()
    made = replace(before, step=gradients.step, seconds=seconds, target_tokens=before.target_tokens + n_targets)
    rate = learning_rate(made, options, d_model=learner.model.config.d_model, warmed=warmed)
    for group in optimizer.param_groups:
        group["lr"] = rate
    factor, longest = sharding.factor(n_targets) / gradients.scale, options.clip_norm or math.inf

    def judged(losses: Sequence[float], held: float, loss_sum: float) -> Update:
        update = Update(
            loss=loss_sum / n_targets,
            gradient_norm=held * factor,
            learning_rate=rate,
            target_tokens=int(n_targets),
            source_tokens=int(n_sources),
            spent=made,
            asked=tuple(asked),
            n_batches=len(window),
            others_in_parts=int(others),
        )
        return _judged(learner, gradients, update, losses, scale)

    if learner.is_late:
        total_there = learner.world.total(found[:-1].sum())
        arriving = on_its_way(torch.cat([found, total_there[None]]))
        sharding.step(optimizer, found[-1] * factor, total_there, factor=factor, longest=longest)
        optimizer.zero_grad()

        def read() -> Update:
            *losses, held, loss_sum = arriving()
            return _followed(learner, judged(losses, held, loss_sum), scale)

        return read
    update = judged(numbers[:-1], numbers[-1], loss_sum)
    if update.is_made:
        norm = update.gradient_norm
        learner.average.prepare(int(made.step))
        sharding.change(optimizer, learner.parameters, found[-1], norm=norm, factor=factor, longest=longest)
    optimizer.zero_grad()
    _followed(learner, update, scale)
    return lambda: update


def _judged(
    learner: Learner, gradients: Gradients, update: Update, losses: Sequence[float], scale: LossScale | None
) -> Update:
    """It, or why it is none. losses: the summed loss of each part."""
    if math.isfinite(update.loss) and math.isfinite(update.gradient_norm):
        return update
    spent = replace(update.spent, target_tokens=update.spent.target_tokens - update.target_tokens)
    if math.isfinite(update.loss) and scale is not None and scale.shrink():
        return replace(update, spent=spent, overflowed=gradients.scale)
    if learner.is_late:  # they are gone
        begin(learner, gradients.window, step=gradients.step, scale=scale)
    learner.sharding.gather()
    fault = _first_bad(learner.model)
    learner.optimizer.zero_grad()
    bad = [part for part, loss in zip(gradients.parts, losses, strict=True) if not math.isfinite(loss)]
    suspects = () if math.isfinite(sum(losses)) and not math.isfinite(update.loss) else bad or gradients.parts
    indices = tuple(index for part in suspects for index in part.indices)
    return replace(update, spent=spent, fault=fault, suspects=indices)


def _followed(learner: Learner, update: Update, scale: LossScale | None) -> Update:
    """What else changes with an update that is made."""
    if update.is_made:
        learner.average.update(int(update.spent.step))
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
    sharding, optimizer = learner.sharding, learner.optimizer
    ready = {*(optimizer.reserve() if isinstance(optimizer, OnePass) else optimizer.state)}
    trained = [parameter for parameter in learner.parameters if parameter.requires_grad and parameter not in ready]
    # Of zeros: a system gives memory only to who writes to it, and ends then whoever is too large.
    room = [torch.zeros_like(parameter) for parameter in 2 * trained]
    is_alone = not sharding.is_shared(is_last=True)
    with learner.world.within("trial"):
        sharding.begin()
        for batch in batches:
            # Gradients of an earlier batch are there while a later one is learned from.
            window = [batch] * min(2, learner.options.accumulation)
            _learn(learner, window, step=0, is_update=is_alone or sharding.is_shared(is_last=False))
            optimizer.zero_grad()
    del room


def _learn(
    learner: Learner, window: Sequence[Batch], *, step: int, is_update: bool, scale: float = 1.0
) -> tuple[list[Batch], list[Tensor]]:
    """The parts that batches were learned from in, and the summed loss of each, on the device; gradients are added up.

    is_update: those of other processes, too. Where memory is too little, all begins anew in smaller parts; raises
    ResourceError where there are none, or other processes take part already: then all begin so when they start again.
    """
    sharding, portions = learner.sharding, learner.portions
    n_targets = sum(batch.n_target_tokens for batch in window)
    while True:
        parts = [part for batch in window for part in divided(batch, portions.n)]
        if sharding.is_shared(is_last=False):  # all learn from as many, whatever there is in them
            parts += [of_nothing()] * (portions.n * len(window) - len(parts))
        losses, is_shared = [], False
        try:
            for number, part in enumerate(parts):
                seed_dropout(learner.seed, step, number, learner.world.rank)
                is_last = is_update and number == len(parts) - 1
                is_shared = is_shared or sharding.is_shared(is_last=is_last)
                losses.append(sharding.learn(part, n_targets=n_targets, is_last=is_last, scale=scale))
            return parts, losses
        except Exception as failure:
            if not is_of_memory(failure):
                raise
            is_divisible = any(len(part.source_lengths_B) > 1 for part in parts)
            if is_shared or not is_divisible:
                hint = "training.recompute: true needs less, also when this run goes on; in a new one, so does a "
                hint += "smaller training.budget_tokens"
                if is_divisible:
                    portions.leave(2 * portions.n)
                    hint = f"the same command goes on with each batch in {2 * portions.n} parts"
                raise ResourceError(
                    f"not enough memory to learn from {part.n_source_tokens:,} + {part.n_target_tokens:,} pieces",
                    hint=hint,
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


def seed_dropout(seed: int, step: int, batch: int, rank: int) -> None:
    """Let dropout's next bits depend on these four numbers and on nothing before."""
    number = int(np.random.SeedSequence([seed, step, batch, rank]).generate_state(1, np.uint64)[0]) >> 1
    # For each device that nobody uses torch.manual_seed notes down where it was called from, half a millisecond in all.
    is_used = torch.cuda.is_initialized() or torch.backends.mps.is_available()
    seed_all = torch.manual_seed if is_used else torch.default_generator.manual_seed
    seed_all(number)
