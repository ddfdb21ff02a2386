"""The weights as products take them: in bf16 or fp16, made once for each update from the master weights in fp32."""

from __future__ import annotations

import copy
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from transformer_cli.model.blocks import LayerNorm, Linear, RMSNorm
from transformer_cli.model.transformer import Model

M = TypeVar("M", bound=Model)


class WorkingCopy(Generic[M]):
    """What reads and learns for a model whose weights stay in fp32 (Micikevicius et al. 2018, section 3.1).

    In fp32 it is the model itself. Else the layers' weights are copies; as soon as one has its gradient, that is
    added to the gradient of the model's own weight, in fp32; but an optimizer that makes the copies takes gradients as
    they are, and then it is only done where there are others to add. Embeddings are shared: what a frequent piece
    gathers would be lost in the 8 bits of bf16.
    """

    def __init__(self, model: M) -> None:
        self.model = model
        self._weights: list[nn.Parameter] = []
        self._own: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._versions: list[int] = []
        self._hooks: list[RemovableHandle] = []
        self.is_followed = False
        """Whether an optimizer makes the copies, and takes gradients as they are."""
        if model.dtype not in (torch.bfloat16, torch.float16):
            return
        in_layers = (Linear, LayerNorm, RMSNorm)
        shared = {p for m in model.modules() if not isinstance(m, in_layers) for p in m.parameters(recurse=False)}
        made = {p: p if p in shared else _rounded(p, model.dtype) for p in model.parameters()}
        self.model = copy.deepcopy(model, {id(own): held for own, held in made.items()})
        for own, copied in made.items():
            if own is not copied:
                self._weights.append(own)
                self._own.append(own.detach())
                self._copies.append(copied)
                if own.requires_grad:
                    self._hooks.append(copied.register_post_accumulate_grad_hook(partial(_add, own)))

    def copies(self) -> dict[Tensor, Tensor]:
        """What is made of which weight, for who makes it with each change of his own, and takes its gradients."""
        self.is_followed = True
        for hook in self._hooks:
            hook.remove()
        return dict(zip(self._weights, self._copies, strict=True))

    def gather(self) -> None:
        """Add gradients that copies still have to those of the model's own weights."""
        for own, copied in zip(self._weights, self._copies, strict=True):
            if copied.grad is not None:
                _add(own, copied)

    def refresh(self) -> None:
        """Take the weights as they are now: of an optimizer that makes copies, if anybody else has changed any."""
        versions = [own._version for own in self._own]
        if self._own and not (self.is_followed and versions == self._versions):
            with torch.no_grad():
                torch._foreach_copy_(self._copies, self._own)
            self._versions = versions


def _rounded(own: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(own.detach().to(dtype), own.requires_grad)


def _add(own: Tensor, copied: Tensor) -> None:
    grad, copied.grad = copied.grad, None
    assert grad is not None
    if own.grad is None:
        own.grad = grad.to(own.dtype)
    else:
        own.grad += grad
