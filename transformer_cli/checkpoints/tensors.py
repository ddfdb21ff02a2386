"""Named tensors to bytes and back, in the safetensors format: nothing in it can run code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from transformer_cli.checkpoints.fit import Kind, check_kinds
from transformer_cli.errors import DivergedError

NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
"""What the format calls a dtype, in its order: the last come first in a file."""
DTYPES = list(NAMES)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint keeps of a model: every parameter and persistent buffer, a tied one once, by its first name."""
    return {name: tensor.detach() for name, tensor in learned(model).items()}


def learned(model: nn.Module) -> dict[str, Tensor]:
    """The same, as optimizers know them."""
    persistent = model.state_dict().keys()
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if name in persistent}


@dataclass(frozen=True)
class Part:
    """Numbers that lie one behind the other in a file."""

    name: str
    """Of the tensor that they are of."""
    offset: int
    """Bytes before them in the file."""
    tensor: Tensor


@dataclass(frozen=True)
class Portion:
    """What one process writes of a safetensors file: all of it, or what it holds of tensors that are held in parts."""

    header: bytes
    """Of the whole file."""
    parts: tuple[Part, ...]
    size: int
    """Bytes of the whole file."""
    is_shared: bool
    """Whether other processes write the rest."""

    def copied(self) -> Portion:
        """The same, on the CPU, whatever becomes of the tensors."""
        copies = (replace(part, tensor=part.tensor.to("cpu", copy=True)) for part in self.parts)
        return replace(self, parts=tuple(copies))

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Where in the file what lies, a part at a time, behind the header. Raises DivergedError for NaN or infinity,
        before it is given."""
        for part in self.parts:
            if part.tensor.is_floating_point() and not torch.isfinite(part.tensor).all():
                raise DivergedError(f"{part.name} holds {_count_non_finite(part.tensor)}: not saved")
            yield part.offset, part.tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def portion(tensors: Mapping[str, Tensor], *, is_main: bool = True) -> Portion:
    """Of the safetensors file of these tensors, what this process writes; equal tensors give equal bytes.

    is_main: whether it writes what no process holds a part of. Raises ValueError for two names of one tensor.
    """
    ordered = _in_order(tensors)
    header = _header(ordered)
    first: dict[int, str] = {}
    parts, end, is_shared = [], len(header), False
    for name, tensor in ordered.items():
        before, held = _held(tensor.detach())
        if held.numel() and first.setdefault(held.data_ptr(), name) != name:
            raise ValueError(f"{first[held.data_ptr()]} and {name} are the same tensor: a tied tensor is kept once")
        is_shared = is_shared or is_part(tensor)
        if held.numel() and (is_main or is_part(tensor)):
            parts.append(Part(name, end + before * held.element_size(), held))
        end += _n_bytes(tensor)
    return Portion(header, tuple(parts), end, is_shared)


def size_in_file(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the safetensors file of these tensors, which may be on the meta device."""
    return len(_header(_in_order(tensors))) + sum(map(_n_bytes, tensors.values()))


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or what several processes hold of it put together, where all of them ask for it."""
    put_together: Callable[[], Tensor] = getattr(tensor, "full_tensor", lambda: tensor)
    return put_together()


def is_part(tensor: Tensor) -> bool:
    """Whether several processes hold it, each a part."""
    return hasattr(tensor, "full_tensor")


def held_here(tensor: Tensor) -> Tensor:
    """The tensor itself, or what this process holds of it; a change of one is a change of the other."""
    own: Callable[[], Tensor] = getattr(tensor, "to_local", lambda: tensor)
    return own()


def as_held(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as another of its shape is held: the tensor itself, or this process's part of it."""
    if not hasattr(like, "device_mesh"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    there = tensor.to(like.device)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises ValueError where it isn't one."""
    try:
        return safetensors.load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as failure:
        raise ValueError(f"not a safetensors file: {failure}") from failure


def mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU, where they lie: in memory is what of them is used. Raises
    ValueError where it isn't one, OSError where it cannot be read.
    """
    try:
        return safetensors.load_file(path)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as failure:
        raise ValueError(f"not a safetensors file: {failure}") from failure


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Raise ModelError, naming what differs, unless these are the weights of such a model, be it on the meta device."""
    check_kinds(kinds(tensors), kinds(weights(model)), origin=origin)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy weights into a model, in place, so that what is tied stays tied. Raises ModelError unless they fit."""
    check_fit(model, tensors, origin=origin)
    for name, tensor in weights(model).items():
        tensor.copy_(as_held(tensors[name], tensor))


def assign_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Give a model on the meta device its weights; what is tied stays tied. Raises ModelError unless they fit."""
    check_fit(model, tensors, origin=origin)
    # Copied, because a file's tensors lie at any address, and products of matrices want PyTorch's own. A tied tensor
    # has one name of several, so that the others seem to be missing.
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, strict=False, assign=True)


def kinds(tensors: Mapping[str, Tensor]) -> dict[str, Kind]:
    """What each tensor's numbers are called, and its shape."""
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors sorts them."""
    return {name: tensors[name] for name in sorted(tensors, key=lambda n: (-DTYPES.index(tensors[n].dtype), n))}


def _held(tensor: Tensor) -> tuple[int, Tensor]:
    """What this process has of a tensor, and how many of its numbers come before that."""
    if not is_part(tensor):
        return 0, tensor
    divided: Any = tensor
    [chunk] = divided.__create_chunk_list__()  # which is how PyTorch's own checkpoints ask
    local = held_here(tensor)
    assert local.shape[1:] == tensor.shape[1:], "rows are divided, and nothing else"
    return chunk.offsets[0] * math.prod(tensor.shape[1:]), local


def _n_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Where in the file each of them lies, one behind the other."""
    entries, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + _n_bytes(tensor)
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _count_non_finite(tensor: Tensor) -> str:
    n_nan = int(torch.isnan(tensor).sum())
    n_infinite = int(torch.isinf(tensor).sum())
    return f"{n_nan:,} NaN and {n_infinite:,} infinite values"
