"""Sections 3.1 and 3.3: what layers are made of, residual wrappers, norms, feed-forward networks, dropout.

B batch, T length, D d_model, F d_ff
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from transformer_cli.config.model import ModelConfig
from transformer_cli.model.compiled import dropped, normed


class Residual(nn.Module, ABC):
    """Section 3.1: a sublayer inside a residual connection with a norm; PreNorm or PostNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = NORMS[config.norm](config)
        self.dropout = Dropout(config.dropout)
        self.at_once: Any = None
        """What makes all of it a part of one call, where there is that (sublayers.py)."""

    @abstractmethod
    def forward(self, x: Tensor, sublayer: Callable[..., Tensor], *others: Any) -> Tensor:
        """x and what the sublayer makes of it. others: what else that takes."""


class PreNorm(Residual):
    """x + dropout(sublayer(norm(x))): the residual stream itself is never normalised (Xiong et al. 2020)."""

    def forward(self, x: Tensor, sublayer: Callable[..., Tensor], *others: Any) -> Tensor:
        x, normed_x = _with_norm(self.norm, x)
        return self.dropout.add(x, sublayer(normed_x, *others))


class PostNorm(Residual):
    """norm(x + dropout(sublayer(x))), as in the paper."""

    def forward(self, x: Tensor, sublayer: Callable[..., Tensor], *others: Any) -> Tensor:
        return self.norm(self.dropout.add(x, sublayer(x, *others)))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool) -> Tensor:
    product = F.linear(x, weight, bias)
    return F.relu(product) if rectified else product


class Linear(nn.Linear):
    """x W^T + b, computed in x's dtype: weights stay in fp32 for the optimiser, products follow the activations."""

    product: Callable[..., Tensor] = staticmethod(_linear)

    def forward(self, x: Tensor, *, rectified: bool = False) -> Tensor:
        """rectified: max(0, what it would be)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self.product(x, self.weight.to(x.dtype), bias, rectified=rectified)


class LayerNorm(nn.LayerNorm):
    """Ba et al. 2016; statistics in fp32 whatever x's dtype."""

    compiled = False
    at_once: Any = None
    """As a residual has it, where this is a step by itself."""

    def forward(self, x: Tensor) -> Tensor:
        if self.compiled:
            return _with_norm(self, x)[1]
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """x / rms(x) times a weight: no mean, no bias (Zhang & Sennrich 2019)."""

    compiled = False
    at_once: Any = None
    bias = None
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        if self.compiled:
            return _with_norm(self, x)[1]
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def _with_norm(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """x and its norm; compiled, their gradients are added as they are made."""
    if isinstance(norm, LayerNorm | RMSNorm) and norm.compiled:
        return normed(x, norm.weight, norm.bias, norm.eps, centred=isinstance(norm, LayerNorm))
    return x, norm(x)


class FeedForward(nn.Module):
    """Section 3.3, equation 2: FFN(x) = activation(x W1 + b1) W2 + b2, at each position alike.

    W1 is `up`, W2 is `down`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(config.d_model, config.d_ff, bias=config.biases.feed_forward)
        self.down = Linear(config.d_ff, config.d_model, bias=config.biases.feed_forward)
        self.dropout = Dropout(config.activation_dropout)
        self.activation = ACTIVATIONS[config.activation]
        self.rectifies = config.activation == "relu"

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(self.dropout(self.inner(x_BTD)))

    def inner(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, F)."""
        return self.up(x_BTD, rectified=True) if self.rectifies else self.activation(self.up(x_BTD))


class GatedFeedForward(FeedForward):
    """FFN(x) = (activation(x W) * (x V)) W2 (Shazeer 2020, section 2); SiLU makes it SwiGLU, GELU GEGLU.

    W is `gate`, V is `up`, W2 is `down`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gate = Linear(config.d_model, config.d_ff, bias=config.biases.feed_forward)

    def inner(self, x_BTD: Tensor) -> Tensor:
        return self.activation(self.gate(x_BTD)) * self.up(x_BTD)


class Dropout(nn.Module):
    """Zero each element with probability p and scale the rest by 1 / (1 - p) (Srivastava et al. 2014).

    On the CPU it draws 16 random bits per element, many at once: PyTorch's own draws one float at a time and takes
    several times as long. The probability is then the nearest multiple of 2^-16, and the scale that of the
    probability really used. All bits come from PyTorch's default generator, or where it is compiled a seed for them.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.compiled = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.compiled:
            return dropped(x, None, *self.drawn())
        return _Masked.apply(x, self._mask(x.shape, x)) if x.device.type == "cpu" else F.dropout(x, self.p)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropout(x), in one pass."""
        if not self.training or self.p == 0:
            return residual + x
        if self.compiled:
            return dropped(x, residual, *self.drawn())
        if x.device.type != "cpu":
            return residual + F.dropout(x, self.p)
        return _MaskedAdd.apply(residual, x, self._mask(x.shape, x))

    def mask(self, shape: Sequence[int], *, like: Tensor) -> Tensor | None:
        """What dropout would multiply with: 0 or the scale; None where it does nothing."""
        if not self.training or self.p == 0:
            return None
        return self._mask(shape, like) if like.device.type == "cpu" else F.dropout(like.new_ones(shape), self.p)

    def drawn(self) -> tuple[int, int]:
        """A seed for compiled code, which draws by it, and the share that it drops; 0 where it does nothing."""
        if not self.training or self.p == 0:
            return 0, 0
        seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None)
        return int(seed.item()) % 2**64, self.share

    @property
    def share(self) -> int:
        """The probability in 2^-16. Of the nearest to 1, nothing would be left to scale."""
        return min(round(self.p * 2**16), 2**16 - 1)

    def _mask(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """0 or the scale for each element of such a shape, in the dtype of `like`."""
        n, last = math.prod(shape), self.share - 2**15 - 1  # the greatest number of those that mean zero
        words = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[:n].view(tuple(shape))
        if self.share == 0:
            return torch.ones(tuple(shape), dtype=like.dtype)
        # In place it makes numbers, 0 and 1: casting truth values takes several times as long as all of this.
        kept, scale = bits.gt_(last), 2**16 / (2**16 - self.share)
        if like.dtype.itemsize > kept.dtype.itemsize:
            return kept.to(like.dtype).mul_(scale)
        mask = kept.mul_(int(torch.tensor(scale, dtype=like.dtype).view(torch.int16))).view(like.dtype)
        return mask if n % 4 == 0 else mask.clone()  # not the rest of the last word, too

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Masked(torch.autograd.Function):
    """x * mask, remembering only the mask."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grads[0] * mask, None


class _MaskedAdd(torch.autograd.Function):
    """residual + x * mask, remembering only the mask."""

    @staticmethod
    def forward(ctx: FunctionCtx, residual: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.addcmul(residual, x, mask)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grads[0], grads[0] * mask, None


RESIDUALS: dict[str, type[Residual]] = {"pre": PreNorm, "post": PostNorm}
NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "layer-norm": lambda config: LayerNorm(config.d_model, eps=1e-5, bias=config.biases.norm),
    "rms-norm": lambda config: RMSNorm(config.d_model, eps=1e-6),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


def feed_forward(config: ModelConfig) -> FeedForward:
    """Plain or gated, as the activation's name says."""
    return GatedFeedForward(config) if config.gated else FeedForward(config)
