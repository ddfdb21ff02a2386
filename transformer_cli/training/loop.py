"""The loop: batches in, a better model out; it reads as a summary.

Nothing random has a state here: dropout's bits come from (seed, step, batch), the order of the batches from
(seed, epoch). To continue a run it is enough to know how far it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch
from transformer_cli.model.layout import Packed
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.loss import cross_entropy
from transformer_cli.training.moving_average import NoAverage
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.schedules import learning_rate
from transformer_cli.training.working import WorkingCopy


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
    fault: str | None = None
    """Why it was not made: the first tensor that is not finite."""
    suspects: tuple[int, ...] = ()
    """The sentence pairs of this process that may be why."""


@dataclass(frozen=True)
class Learner:
    """What is trained, how, and by whom."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    options: TrainingConfig
    seed: int
    world: World
    average: NoAverage = field(default_factory=NoAverage)

    @cached_property
    def working(self) -> WorkingCopy[Transformer]:
        """What reads for the model."""
        return WorkingCopy(self.model)


Epoch = Callable[[int, int], tuple[int, Iterator[Batch]]]
"""(epoch, first batch) -> how many batches the whole epoch has, and those from the first on."""


def fit(
    learner: Learner,
    progress: Progress,
    epoch_of: Epoch,
    after_update: Callable[[Update], bool],
    *,
    first_loss: Callable[[float], None] | None = None,
) -> None:
    """Train until an end is reached or `after_update` says stop; progress is moved along in place, before that call.

    first_loss: told the mean loss of the first batch here, as soon as it is known.
    """
    options = learner.options
    while progress.finished is None:
        n_batches, batches = epoch_of(progress.epoch, progress.batch)
        for window in windows(batches, options.accumulation):
            update = train_step(learner, window, step=progress.step + 1, first_loss=first_loss)
            first_loss = None
            progress.step += 1
            progress.batch += len(window)
            progress.skipped = 0 if update.fault is None else progress.skipped + 1
            if update.fault is None:
                progress.epoch_loss += update.loss * update.target_tokens
                progress.epoch_tokens += update.target_tokens
            if progress.batch == n_batches:
                progress.finished = end_epoch(progress, options)
            if progress.step >= options.max_steps:
                progress.finished = progress.finished or f"max_steps {options.max_steps} reached"
            if after_update(update) or progress.finished:
                return


def train_step(
    learner: Learner, window: Sequence[Batch], *, step: int, first_loss: Callable[[float], None] | None = None
) -> Update:
    """One update from one or more batches, as if they were one: the loss is divided by all their target tokens."""
    model, options, world = learner.model, learner.options, learner.world
    learner.working.refresh()
    reader = learner.working.model.train()
    n_targets, n_sources = world.sum(
        sum(batch.n_target_tokens for batch in window), sum(batch.n_source_tokens for batch in window)
    )
    losses_there: list[Tensor] = []
    for number, batch in enumerate(window):
        if batch.n_target_tokens == 0:  # more processes than batches
            losses_there.append(torch.zeros((), device=model.output.weight.device))
            continue
        seed_dropout(learner.seed, step, number, world.rank)
        batch_loss = loss_of(reader, batch, smoothing=options.label_smoothing)
        if first_loss is not None and not losses_there:
            first_loss(batch_loss.item() / batch.n_target_tokens)
        (batch_loss / n_targets).backward()
        losses_there.append(batch_loss.detach())
    if world.size > 1:
        world.add_up(_gradients(model))
    model.target_embedding.forget_padding()
    model.source_embedding.forget_padding()
    learned = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm_there = nn.utils.get_total_norm([parameter.grad for parameter in learned if parameter.grad is not None])
    # The only time that a step waits for the device.
    *losses, norm = torch.stack([*losses_there, norm_there]).cpu().tolist()
    longest = options.clip_norm or math.inf
    if norm > longest - 1e-6:  # what torch would leave room for; else it multiplies with 1
        nn.utils.clip_grads_with_norm_(learned, longest, norm_there)  # Pascanu et al. 2013, section 3.2
    (loss_sum,) = world.sum(sum(losses))
    rate = learning_rate(step, options, d_model=model.config.d_model)
    update = Update(
        loss=loss_sum / n_targets,
        gradient_norm=norm,
        learning_rate=rate,
        target_tokens=int(n_targets),
        source_tokens=int(n_sources),
    )
    if not math.isfinite(loss_sum) or not math.isfinite(norm):
        fault = _first_bad(model)
        learner.optimizer.zero_grad()
        bad = [batch for batch, loss in zip(window, losses, strict=True) if not math.isfinite(loss)]
        suspects = () if math.isfinite(sum(losses)) and not math.isfinite(loss_sum) else bad or window
        return replace(update, fault=fault, suspects=tuple(index for batch in suspects for index in batch.indices))
    for group in learner.optimizer.param_groups:
        group["lr"] = rate
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    learner.average.update(step)
    return update


def _gradients(model: nn.Module) -> list[Tensor]:
    """Of all that is trained, in the same order on all processes: zeros where this one had no batch."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in learned if parameter.grad is not None]


def _first_bad(model: nn.Module) -> str:
    """The first weight that is not finite, else the first gradient."""
    named = list(model.named_parameters())
    tensors = [(name, p) for name, p in named] + [(f"the gradient of {name}", p.grad) for name, p in named]
    bad = (name for name, tensor in tensors if tensor is not None and not torch.isfinite(tensor).all())
    return next(bad, "the loss")


def loss_of(model: Transformer, batch: Batch, *, smoothing: float) -> Tensor:
    """Summed loss of a batch under teacher forcing: the input is the target shifted right by one."""
    device = model.output.weight.device
    source_BS, target_in_BT, target_out_BT = (
        ids.to(device, non_blocking=True) for ids in (batch.source_BS, batch.target_in_BT, batch.target_out_BT)
    )
    source, target = Packed(batch.source_lengths_B, device), Packed(batch.target_lengths_B, device)
    hidden_ND = model.packed(source_BS, target_in_BT, source, target)
    targets_N = target.ids(target_out_BT)
    return cross_entropy(hidden_ND, model.output.weight, targets_N, bias_V=model.output_bias, smoothing=smoothing)


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
