"""Who holds which part of what learns, and how gradients come together: the one seam to PyTorch's own wrappers.

Each process computes the gradients of its sentences' summed loss. Only once all is summed is it known how many targets
there were, by which everything is divided, in the same pass that clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.objective import Objective, of_nothing
from transformer_cli.training.parallel import World
from transformer_cli.training.working import WorkingCopy


def shard(model: Transformer, options: TrainingConfig, world: World) -> Alone:
    """The model as these processes train it; to be asked for before an optimizer is made of its parameters."""
    return Alone(model, options) if world.size == 1 else Replicated(model, options, world)


class Alone:
    """One process and no wrapper: the number of targets is known, the loss is divided by it, gradients are ready."""

    def __init__(self, model: Transformer, options: TrainingConfig) -> None:
        self.model = model
        self.working = WorkingCopy(model)
        self.objective = Objective(self.working.model, smoothing=options.label_smoothing)

    def begin(self) -> None:
        """An update begins, of weights as they are now."""
        self.working.refresh()
        self.objective.train()

    def learn(self, batch: Batch, *, n_targets: float, is_last: bool) -> Tensor:
        """The summed loss of a batch, and its gradients added to those that are there.

        n_targets: of this process in the update. is_last: no batch is added after that.
        """
        loss: Tensor = self.objective(batch)
        (loss / n_targets).backward()
        return loss.detach()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of all gradients together, as they are held; on the device."""
        return nn.utils.get_total_norm(gradients)

    def factor(self, n_targets: float) -> float:
        """What makes gradients as they are held those of the mean loss. n_targets: of all processes."""
        return 1.0

    def clip(
        self, parameters: Sequence[nn.Parameter], held: Tensor, *, norm: float, factor: float, longest: float
    ) -> None:
        """Make the gradients those of the mean loss, and no longer than that (Pascanu et al. 2013, section 3.2).

        held: their norm as it is, on the device. norm: that, times the factor.
        """
        if norm > longest - 1e-6:  # what torch would leave room for; else it multiplies with 1
            nn.utils.clip_grads_with_norm_(parameters, longest, held)


class Replicated(Alone):
    """Each process has the whole model; gradients are summed while the way back is still going on (Li et al. 2020)."""

    def __init__(self, model: Transformer, options: TrainingConfig, world: World) -> None:
        self.model = model
        self.world = world
        self.objective = Objective(model, smoothing=options.label_smoothing)
        self.wrapped = DistributedDataParallel(self.objective, gradient_as_bucket_view=True)
        # It lays its buckets out anew after the first way back, in the order that it saw, and the order of sums within
        # a bucket moves bits: a run that goes on must have them as one that was never stopped.
        self.learn(of_nothing(), n_targets=0, is_last=True)
        self.objective.zero_grad()

    def begin(self) -> None:
        self.objective.train()

    def learn(self, batch: Batch, *, n_targets: float, is_last: bool) -> Tensor:
        with nullcontext() if is_last else self.wrapped.no_sync():
            loss: Tensor = self.wrapped(batch if batch.n_target_tokens else of_nothing())
            self.world.touch()  # who has not come so far is who the others wait for
            loss.backward()
        return loss.detach()

    def factor(self, n_targets: float) -> float:
        return self.world.size / n_targets  # it has divided by how many processes there are

    def clip(
        self, parameters: Sequence[nn.Parameter], held: Tensor, *, norm: float, factor: float, longest: float
    ) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor * min(1.0, longest / (norm + 1e-6)))
