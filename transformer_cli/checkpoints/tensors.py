"""Named tensors to bytes and back, in the safetensors format: nothing in it can run code."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from transformer_cli.checkpoints.fit import Kind, check_kinds
from transformer_cli.errors import DivergedError


def weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint keeps of a model: every parameter and persistent buffer, a tied one once, by its first name."""
    persistent = model.state_dict().keys()
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if name in persistent}


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors file of these tensors; equal tensors give equal bytes.

    Raises DivergedError for NaN or infinity, ValueError for two names of one tensor.
    """
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and first.setdefault(tensor.data_ptr(), name) != name:
            raise ValueError(f"{first[tensor.data_ptr()]} and {name} are the same tensor: a tied tensor is kept once")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DivergedError(
                f"{name} holds {_count_non_finite(tensor)}: not saved; earlier checkpoints are untouched",
                hint="continue from the last checkpoint with a lower training.learning_rate or more warmup_steps",
            )
    return safetensors.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises ValueError where it isn't one."""
    try:
        return safetensors.load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as failure:
        raise ValueError(f"not a safetensors file: {failure}") from failure


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Raise ModelError, naming what differs, unless these are the weights of such a model, be it on the meta device."""
    check_kinds(kinds(tensors), kinds(weights(model)), origin=origin)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy weights into a model, in place, so that what is tied stays tied. Raises ModelError unless they fit."""
    check_fit(model, tensors, origin=origin)
    for name, tensor in weights(model).items():
        tensor.copy_(tensors[name])


def assign_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Give a model on the meta device its weights; what is tied stays tied. Raises ModelError unless they fit."""
    check_fit(model, tensors, origin=origin)
    # Copied, because a file's tensors lie at any address, and products of matrices want PyTorch's own. A tied tensor
    # has one name of several, so that the others seem to be missing.
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, strict=False, assign=True)


def kinds(tensors: Mapping[str, Tensor]) -> dict[str, Kind]:
    """What each tensor's numbers are called, and its shape."""
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _count_non_finite(tensor: Tensor) -> str:
    n_nan = int(torch.isnan(tensor).sum())
    n_infinite = int(torch.isinf(tensor).sum())
    return f"{n_nan:,} NaN and {n_infinite:,} infinite values"
