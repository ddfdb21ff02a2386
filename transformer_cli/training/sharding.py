"""Who holds which part of what learns, and how gradients come together: the one seam to PyTorch's own wrappers.

Each process computes the gradients of its sentences' summed loss. Only once all is summed is it known how many targets
there were, by which everything is divided, in the same pass that clips.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from transformer_cli.checkpoints.tensors import held_here, weights, whole
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch
from transformer_cli.model.attention import CrossAttention
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.objective import Objective, objective_of, of_nothing
from transformer_cli.training.optimizers import OnePass, step_unless
from transformer_cli.training.parallel import World
from transformer_cli.training.working import WorkingCopy

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def shard(model: Transformer, options: TrainingConfig, world: World) -> Sharding:
    """The model as these processes train it; to be asked for before an optimizer is made of its parameters."""
    is_divided = world.size > 1 and options.parallel == "fsdp"
    if options.recompute or is_divided:  # each layer is called by itself
        model.encoder.together = model.decoder.together = 1
    if options.recompute:
        for layer in _layers(model):
            layer.forward = _Recomputed(layer.forward)
    if world.size == 1:
        return Alone(model, options)
    return (Divided if is_divided else Replicated)(model, options, world)


class Sharding(ABC):
    """Of several processes; one alone differs where it says so."""

    def __init__(self, model: Transformer, objective: Objective) -> None:
        self.model, self.objective = model, objective

    def copies(self) -> dict[Tensor, Tensor]:
        """What products take in place of which weight, to be made anew with each change of it."""
        return {}

    def gather(self) -> None:
        """Let all gradients be those of the model's weights: of several processes they are."""
        return

    def begin(self) -> None:
        """An update begins, of weights as they are now."""
        if not (self.objective.training and self.objective.model.training):
            self.objective.train()

    @abstractmethod
    def learn(self, batch: Batch, *, n_targets: float, is_last: bool, scale: float = 1.0) -> Tensor:
        """The summed loss of a batch, and its gradients added to those that are there.

        n_targets: of this process in the update. is_last: no batch is added after that. scale: of gradients.
        """

    @abstractmethod
    def is_shared(self, *, is_last: bool) -> bool:
        """Whether other processes take part in such a `learn`, so that this one cannot begin it anew by itself."""

    def length(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Tensor:
        """The norm of their gradients, by the optimizer, if it has all that there are."""
        if isinstance(optimizer, OnePass):
            return optimizer.length()
        return self.norm([parameter.grad for parameter in parameters if parameter.grad is not None])

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of all gradients together, as they are held; on the device. A CPU takes a whole tensor's on a single thread,
        those of its rows on all."""
        rows = [torch.linalg.vector_norm(g, dim=-1) if g.is_cpu and g.dim() > 1 else g for g in gradients]
        return nn.utils.get_total_norm(rows)

    @abstractmethod
    def factor(self, n_targets: float) -> float:
        """What makes gradients as they are held, unscaled, those of the mean loss. n_targets: of all processes."""

    def clip(
        self, parameters: Sequence[nn.Parameter], held: Tensor, *, norm: float, factor: float, longest: float
    ) -> None:
        """Make the gradients those of the mean loss, and no longer than that (Pascanu et al. 2013, section 3.2).

        held: their norm as it is, on the device. norm: that, times the factor.
        """
        gradients = [held_here(parameter.grad) for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor * min(1.0, longest / (norm + 1e-6)))

    def change(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        held: Tensor,
        *,
        norm: float,
        factor: float,
        longest: float,
    ) -> None:
        """The same, and the update."""
        if isinstance(optimizer, OnePass):
            optimizer.scale = factor * min(1.0, longest / (norm + 1e-6))
        else:
            self.clip(parameters, held, norm=norm, factor=factor, longest=longest)
        optimizer.step()

    def step(
        self, optimizer: torch.optim.Optimizer, norm: Tensor, loss: Tensor, *, factor: float, longest: float
    ) -> None:
        """As `change`, in one pass, by an optimizer that can; none of it where numbers, which stay on the
        device, are not finite.

        norm: of the gradients of the mean loss. loss: of all processes.
        """
        bad = (norm.isfinite() & loss.isfinite()).logical_not()
        times_too_long = (norm + 1e-6) / longest
        step_unless(optimizer, bad, divide_by=times_too_long.clamp(min=1.0) / factor)

    def whole(self) -> Transformer:
        """The model in one piece, with its weights as they are now."""
        return self.model


class Alone(Sharding):
    """One process and no wrapper: the number of targets is known, the loss is divided by it, gradients are ready; but
    an optimizer that takes gradients as they are divides them itself."""

    def __init__(self, model: Transformer, options: TrainingConfig) -> None:
        self.working = WorkingCopy(model)
        self._adds_up = False
        """Whether there are gradients that those of the next batch are added to."""
        super().__init__(model, objective_of(self.working.model, options))

    def copies(self) -> dict[Tensor, Tensor]:
        return self.working.copies()

    def gather(self) -> None:
        self.working.gather()

    def begin(self) -> None:
        self._adds_up = False
        self.working.refresh()
        super().begin()

    def learn(self, batch: Batch, *, n_targets: float, is_last: bool, scale: float = 1.0) -> Tensor:
        loss: Tensor = self.objective(batch)
        (loss * scale if self.working.is_followed else loss / n_targets * scale).backward()
        if not is_last or self._adds_up:
            self.gather()
        self._adds_up = not is_last
        return loss.detach()

    def is_shared(self, *, is_last: bool) -> bool:
        return False

    def factor(self, n_targets: float) -> float:
        return 1 / n_targets if self.working.is_followed else 1.0

    def clip(
        self, parameters: Sequence[nn.Parameter], held: Tensor, *, norm: float, factor: float, longest: float
    ) -> None:
        if factor != 1:
            super().clip(parameters, held, norm=norm, factor=factor, longest=longest)
        elif norm > longest - 1e-6:  # what torch would leave room for; else it multiplies with 1
            nn.utils.clip_grads_with_norm_(parameters, longest, held)


class Uncompiled(DistributedDataParallel):
    """Without asking torch.compile whether it is at work, which alone takes as long to import as torch."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        asked = _Asked()
        vars(torch).setdefault("_dynamo", asked)  # an attribute alone: who imports it gets it
        try:
            super().__init__(module, **options)
        finally:
            if vars(torch).get("_dynamo") is asked:
                del vars(torch)["_dynamo"]

    _inside_ddp_forward = contextmanager(inspect.unwrap(DistributedDataParallel._inside_ddp_forward))


class _Asked:
    """What it is asked, in torch.compile's place; for all else that is imported."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")

    def __getattr__(self, name: str) -> Any:
        vars(torch).pop("_dynamo", None)  # which it looks for while it is imported
        return getattr(import_module("torch._dynamo"), name)


class Replicated(Sharding):
    """Each process has the whole model; gradients are summed while the way back is still going on (Li et al. 2020)."""

    def __init__(self, model: Transformer, options: TrainingConfig, world: World) -> None:
        super().__init__(model, objective_of(model, options))
        self.world = world
        self.usual = _usual_targets(options)
        world.wait()  # it waits for all itself, where nobody would be missed
        self.wrapped = Uncompiled(self.objective, gradient_as_bucket_view=True)
        # It lays its buckets out anew after the first way back, in the order that it saw, and the order of sums within
        # a bucket moves bits: a run that goes on must have them as one that was never stopped.
        self.learn(of_nothing(), n_targets=0, is_last=True)
        self.objective.zero_grad()

    def learn(self, batch: Batch, *, n_targets: float, is_last: bool, scale: float = 1.0) -> Tensor:
        self.world.touch()  # the first forward waits for the others
        with nullcontext() if is_last else self.wrapped.no_sync():
            loss: Tensor = self.wrapped(batch if batch.n_target_tokens else of_nothing())
            self.world.touch()  # who has not come so far is who the others wait for
            (loss * (scale / self.usual)).backward()
        return loss.detach()

    def is_shared(self, *, is_last: bool) -> bool:
        return is_last

    def factor(self, n_targets: float) -> float:
        return self.world.size * self.usual / n_targets  # it has divided by how many processes there are


class Divided(Sharding):
    """Each process has a part of every weight, gradient and moment; what a layer needs is whole while it computes
    (Zhao et al. 2023; PyTorch's FSDP2)."""

    def __init__(self, model: Transformer, options: TrainingConfig, world: World) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy

        super().__init__(model, objective_of(model, options))
        self.world = world
        self.usual = _usual_targets(options)
        self.plain = _without_weights(model)
        mesh = init_device_mesh(model.output.weight.device.type, (world.size,))
        # In bf16 and fp16 as in working.py: layers are cast, before they travel; their gradients are summed in fp32.
        narrow = model.dtype if model.dtype in (torch.bfloat16, torch.float16) else None
        wide = torch.float32 if narrow else None
        policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=wide, cast_forward_inputs=False)
        # Keys and values of the memory are made before the first layer of the decoder is called.
        crossing = [module for module in model.modules() if isinstance(module, CrossAttention)]
        apart = [part for one in crossing for part in (one.key_value, one.key_norm) if [*part.parameters()]]
        for module in (*apart, *_layers(model)):
            self._divide(module, mesh=mesh, mp_policy=policy)
        self.root = self._divide(self.objective, mesh=mesh)

    def learn(self, batch: Batch, *, n_targets: float, is_last: bool, scale: float = 1.0) -> Tensor:
        self.root.set_requires_gradient_sync(is_last)
        loss: Tensor = self.objective(batch if batch.n_target_tokens else of_nothing())
        self.world.touch()
        (loss * (scale / self.usual)).backward()
        return loss.detach()

    def is_shared(self, *, is_last: bool) -> bool:
        return True

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of what each process has, put together: of whole tensors PyTorch would ask anew, for each, how it is held."""
        own = super().norm([held_here(gradient) for gradient in gradients])
        return self.world.total(own.square()).sqrt()

    def factor(self, n_targets: float) -> float:
        return self.usual / n_targets

    def whole(self) -> Transformer:
        made = copy.deepcopy(self.plain)
        now = {name: whole(held) for name, held in weights(self.model).items()}
        made.load_state_dict(now, strict=False, assign=True)  # a tied tensor has one name of several
        return made

    def _divide(self, module: nn.Module, **options: Any) -> FSDPModule:
        """Gradients are summed, not averaged; and a process that comes to a module says so before it waits there."""
        from torch.distributed.fsdp import fully_shard

        divided = fully_shard(module, **options)
        divided.set_gradient_divide_factor(1.0)
        divided.set_force_sum_reduction_for_comms(True)  # gloo has no other
        module.register_forward_pre_hook(lambda *_: self.world.touch(), prepend=True)
        return divided


class _Recomputed:
    """A layer's forward that keeps what comes in, and computes the rest again on the way back (Chen et al. 2016)."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self.forward = forward

    def __call__(self, *inputs: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return self.forward(*inputs)
        return checkpoint(self.forward, *inputs, use_reentrant=False)


def _usual_targets(options: TrainingConfig) -> float:
    """About as many as a process has in an update: what all divide by before they know how many there are, so that
    fp16 holds the gradients. A power of two, by which no bit is lost."""
    return 2.0 ** (options.budget_tokens * options.accumulation).bit_length()


def _layers(model: Transformer) -> list[nn.Module]:
    return [*model.encoder.layers, *model.decoder.layers]


def _without_weights(model: Transformer) -> Transformer:
    """A copy without numbers, which takes no memory."""
    return copy.deepcopy(model, {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in model.parameters()})
