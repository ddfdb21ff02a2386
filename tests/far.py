"""A device that is not the CPU, on any machine: PyTorch's "meta", whose tensors have shapes and no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FAR = torch.device("meta")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Far(TorchDispatchMode):
    """Within, what a GPU would refuse is an error: an operation on tensors of both devices. So is what would wait for
    it, for there are no values: `item`, `nonzero`, an index of truth values.

    So is fp64 there, which MPS does not have, but where `wide` allows it.
    Only a copy to the CPU may wait. It is counted, and its values are what `answer` gives for the tensor. (Fake tensors
    of PyTorch, which can claim to be on "cuda", cannot go backward in a build without CUDA.)
    """

    def __init__(
        self, answer: Callable[[Tensor], Tensor] = lambda asked: torch.zeros(asked.shape), *, wide: bool = False
    ) -> None:
        super().__init__()
        self.answer, self.wide = answer, wide
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        far = [tensor for tensor in tensors if tensor.device == FAR]
        if not far:
            return func(*args, **kwargs)
        with self:  # inference mode hands on what is made of other operations as it is
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        if func is COPIES[0] and kwargs.get("device") == torch.device("cpu"):
            self.waits += 1
            return self.answer(args[0]).to(kwargs.get("dtype") or args[0].dtype)
        if func is COPIES[1]:
            assert args[0].device == FAR, "a copy to the CPU that nobody answers"
        else:
            near = [tensor for tensor in tensors if tensor.device != FAR and tensor.dim() > 0]
            assert not near, f"{func} of tensors on two devices"
        found = func(*args, **kwargs)
        for tensor in tree_leaves(found):
            assert self.wide or getattr(tensor, "dtype", None) != torch.float64, f"{func} gives fp64"
        return found
