"""Optimisers, and their state as named tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.checkpoints.tensors import as_held
from transformer_cli.config.training import OPTIMIZERS, TrainingConfig
from transformer_cli.errors import ModelError

Groups = list[dict[str, Any]]
"""Parameters, as a recipe gets them, in groups that differ in their `weight_decay`; the loop sets the rate, `lr`, of
each before each update."""


def build_optimizer(model: nn.Module, options: TrainingConfig) -> torch.optim.Optimizer:
    """The configured one over all that is trained; weight decay applies to the matrices of linear layers alone."""
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    make: Callable[[Groups, TrainingConfig], torch.optim.Optimizer] = OPTIMIZERS.load(options.optimizer)
    return make(groups, options)


def adam(groups: Groups, options: TrainingConfig) -> torch.optim.Adam:
    """Kingma & Ba 2015."""
    return torch.optim.Adam(groups, **_as_torch_calls_it(groups, options))


def adamw(groups: Groups, options: TrainingConfig) -> torch.optim.AdamW:
    """Loshchilov & Hutter 2019."""
    return torch.optim.AdamW(groups, **_as_torch_calls_it(groups, options))


def _as_torch_calls_it(groups: Groups, options: TrainingConfig) -> dict[str, Any]:
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    # The loop sets the rate before each update.
    return {"lr": 0.0, "betas": tuple(options.betas), "eps": options.eps, "fused": devices <= {"cpu", "cuda"}}


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's memory, of Adam `PARAMETER.exp_avg`, `.exp_avg_sq` and `.step`; empty before a step.

    All that is kept for a parameter is a tensor, a number or one of the parameter's shape.
    """
    return {
        f"{name}.{moment}": tensor
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment, tensor in optimizer.state[parameter].items()
        if isinstance(tensor, Tensor)
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `state_tensors` took. Raises ModelError where a tensor is missing or of another shape."""
    if not tensors and _remembers(optimizer):
        raise ModelError(
            "the checkpoint's optimizer state is empty: training would not go on as it was",
            hint="a mean that `tx average` made has none: go on with one of the checkpoints themselves",
        )
    moments = sorted({name.rpartition(".")[2] for name in tensors})
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        state = {}
        for moment in moments:
            tensor = tensors.get(f"{name}.{moment}")
            if tensor is None or tensor.shape not in (parameter.shape, torch.Size([])):
                raise ModelError(f"the checkpoint's optimizer state does not fit the model at {name}.{moment}")
            there = tensor.to(parameter.device, torch.float32)
            state[moment] = as_held(there, parameter) if there.shape == parameter.shape else there
        optimizer.state[parameter] = state


def _remembers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an update leaves anything in its state, which a copy of it tells."""
    one = copy.deepcopy(optimizer)
    for group in one.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    one.step()
    return any(isinstance(value, Tensor) for state in one.state.values() for value in state.values())
