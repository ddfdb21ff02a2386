"""Section 3.2: scaled dot-product attention and multi-head attention.

B batch, T queries, S keys, H heads, G heads of keys and values, J heads of keys of all sentences (B * G), K d_head
(the paper's d_k and d_v), X any features
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.config.model import ModelConfig
from transformer_cli.model.blocks import Dropout, Linear, RMSNorm
from transformer_cli.model.layout import Layout
from transformer_cli.model.positions import PositionEncoding
from transformer_cli.model.products import has_bf16_products
from transformer_cli.model.spans import Hiding, Spans


class ScaledDotProductAttention(nn.Module):
    """Section 3.2.1, equation 1: softmax(Q K^T / sqrt(d_k)) V.

    Four paths with the same result. `fused` calls PyTorch's kernel, which never holds the weights and needs no mask to
    hide the future; written out, the softmax is a module of its own, whose output is the weights; where that one learns
    on a CPU, its gradient is written out, too; and spans bring compiled code (spans.py). On a CPU, what is written out
    and does not learn is computed in fp32 at least: a few queries at a time are as fast as in bf16, and need no kernel
    for each shape.
    """

    kernel: ClassVar[Callable[..., Tensor]] = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        """causal: queries see no later keys, and nothing else is hidden from them or added to their scores."""
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = Dropout(config.attention_dropout)
        self.causal = causal
        self.fused = False

    @property
    def hides_future(self) -> bool:
        """Whether later keys are hidden without a mask."""
        return self.fused and self.causal

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, bias: Hiding) -> Tensor:
        """bias: what masks.as_bias made, broadcastable to (B, H, T, S). Returns (B, H, T, K). Or spans, with vectors as
        these have them."""
        if isinstance(bias, Spans):
            mask = self.dropout.mask(bias.mask_shape(query_BHTK.size(1)), like=query_BHTK)
            return bias.attend(query_BHTK, key_BHSK, value_BHSK, mask)
        if self.fused:
            p = self.dropout.p if self.training else 0.0
            is_causal = self.causal and bias is None
            return self.kernel(query_BHTK, key_BHSK, value_BHSK, bias, dropout_p=p, is_causal=is_causal)
        if self.training and query_BHTK.device.type == "cpu":
            mask_BHTS = self.dropout.mask((*query_BHTK.shape[:3], key_BHSK.size(2)), like=query_BHTK)
            return _SoftmaxAverage.apply(query_BHTK, key_BHSK, value_BHSK, bias, mask_BHTS)
        dtype = query_BHTK.dtype
        if query_BHTK.device.type == "cpu":
            query_BHTK, key_BHSK, value_BHSK = (x.to(_wide(dtype)) for x in (query_BHTK, key_BHSK, value_BHSK))
        scores_BHTS = self.scores(query_BHTK / math.sqrt(query_BHTK.size(-1)), key_BHSK)
        if bias is not None:
            scores_BHTS = scores_BHTS + bias
        return self.average(self.dropout(self.softmax(scores_BHTS)), value_BHSK).to(dtype)

    def scores(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """(B, H, T, S)."""
        return query_BHTK @ key_BHSK.transpose(-2, -1)

    def average(self, weights_BHTS: Tensor, value_BHSK: Tensor) -> Tensor:
        """(B, H, T, K)."""
        return weights_BHTS @ value_BHSK


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: Concat(head_1, ..., head_H) W^O; the two classes below say where queries and keys come from."""

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__()
        self.n_heads, self.kv_heads, self.d_head = config.n_heads, config.kv_heads, config.head_width
        self.width, self.kv_width = config.n_heads * config.head_width, config.kv_heads * config.head_width
        kind = GroupedAttention if config.kv_heads < config.n_heads else ScaledDotProductAttention
        self.attend = kind(config, causal=causal)
        self.output = Linear(self.width, config.d_model, bias=config.biases.attention)
        self.query_norm, self.key_norm = (
            RMSNorm(config.head_width, eps=1e-6) if config.qk_norm else nn.Identity() for _ in range(2)
        )


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values from the same place; W^Q, W^K and W^V are one matrix, one product."""

    def __init__(self, config: ModelConfig, positions: PositionEncoding, *, causal: bool = False) -> None:
        """causal: no query sees a later key."""
        super().__init__(config, causal=causal and not positions.relates)
        self.widths = (self.width, self.kv_width, self.kv_width)
        self.query_key_value = Linear(config.d_model, sum(self.widths), bias=config.biases.attention)
        self.positions = (positions,)  # the stack's, and no part of this

    def forward(self, x: Tensor, bias: Hiding, layout: Layout) -> Tensor:
        """x: as the layout has it, and so is what comes out."""
        query, key, value = self.project(x, layout)
        query, key = (layout.rotated(heads, *self.positions) for heads in (query, key))
        return self.output(layout.merge(self.attend(query, key, value, bias)))

    def project(self, x: Tensor, layout: Layout) -> Sequence[Tensor]:
        """Queries (B, H, T, K), keys and values, each (B, G, T, K)."""
        heads = (self.n_heads, self.kv_heads, self.kv_heads)
        query, key, value = layout.heads(self.query_key_value(x), heads, self.d_head)
        return self.query_norm(query), self.key_norm(key), value


@dataclass
class Unread:
    """The memory itself, of which each layer makes its keys and values when it comes to it."""

    memory: Tensor
    layout: Layout


Memory = Sequence[Tensor] | Unread
"""Keys and values of the encoder's output, or what they are to be made of."""


class CrossAttention(MultiHeadAttention):
    """Queries from the decoder, keys and values from the encoder's output, the memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        bias = config.biases.attention
        self.query = Linear(config.d_model, self.width, bias=bias)
        self.key_value = Linear(config.d_model, 2 * self.kv_width, bias=bias)

    def forward(self, x: Tensor, memory: Memory, bias: Hiding, layout: Layout) -> Tensor:
        """memory: keys and values, made once by `remember`; the layout is that of x."""
        if isinstance(memory, Unread):
            memory = self.remember(memory.memory, memory.layout)
        (query,) = layout.heads(self.query(x), (self.n_heads,), self.d_head)
        return self.output(layout.merge(self.attend(self.query_norm(query), *memory, bias)))

    def remember(self, memory: Tensor, layout: Layout) -> Sequence[Tensor]:
        """Keys and values of the memory, each (B, G, S, K)."""
        key, value = layout.heads(self.key_value(memory), (self.kv_heads, self.kv_heads), self.d_head)
        return self.key_norm(key), value


def _of_copies(query_BHTK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    n = query_BHTK.size(1) // key_BGSK.size(1)
    key_BHSK, value_BHSK = (x[:, :, None].expand(-1, -1, n, -1, -1).flatten(1, 2) for x in (key_BGSK, value_BGSK))
    return F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSK, bias, **options)


class GroupedAttention(ScaledDotProductAttention):
    """H heads of queries over G of keys and values, which H / G neighbours share (Ainslie et al. 2023).

    Written out, the queries of a group stand below each other as if they were one head's; nothing is copied per head.
    PyTorch's kernel gets copies: of shared ones it takes the one that holds all weights, but without a mask, in bf16 or
    fp16, on GPUs since Ampere.
    """

    kernel = staticmethod(_of_copies)

    def scores(self, query_BHTK: Tensor, key_BGSK: Tensor) -> Tensor:
        return super().scores(_regrouped(query_BHTK, key_BGSK.size(1)), key_BGSK).view(*query_BHTK.shape[:3], -1)

    def average(self, weights_BHTS: Tensor, value_BGSK: Tensor) -> Tensor:
        return (
            super().average(_regrouped(weights_BHTS, value_BGSK.size(1)), value_BGSK).view(*weights_BHTS.shape[:3], -1)
        )


def _regrouped(x_BHTX: Tensor, n_groups: int) -> Tensor:
    """(B, H, T, ...) to (B, G, H / G * T, ...)."""
    return x_BHTX.reshape(x_BHTX.size(0), n_groups, -1, x_BHTX.size(3))


def stacked(model: nn.Module) -> dict[nn.Module, tuple[int, ...]]:
    """The linear layers that are several matrices below each other, W^Q, W^K and W^V, and how many rows each has."""
    found: dict[nn.Module, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            found[module.query_key_value] = module.widths
        elif isinstance(module, CrossAttention):
            found[module.key_value] = (module.kv_width, module.kv_width)
    return found


class _SoftmaxAverage(torch.autograd.Function):
    """softmax(Q K^T / sqrt(d_k) + bias) V, and its gradient.

    Softmax is in fp32 at least, whatever the precision of the vectors, and so are products, but on a processor that has
    those of bf16: there what goes into a product and what comes out is rounded to it. Queries that share keys and
    values stand below each other as if they were one head's.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """mask: of dropout, None or a factor for each weight."""
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        query_JTK, key_JSK, value_JSK = _side_by_side(query, key, value)
        scores = torch.bmm(query_JTK, key_JSK.transpose(1, 2)).to(_wide(query.dtype))
        scores = scores.view(*query.shape[:3], key.size(2)).mul_(query.size(-1) ** -0.5)
        if bias is not None:
            scores += bias
        weights = scores.softmax(-1)
        ctx.save_for_backward(query, key, value, weights, mask)  # type: ignore[arg-type]
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)  # type: ignore[attr-defined]
        used_JTS = _below_each_other(weights if mask is None else weights * mask, like=key_JSK)
        return torch.bmm(used_JTS, value_JSK).view_as(query).to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors  # type: ignore[attr-defined]
        query_JTK, key_JSK, value_JSK = _side_by_side(query, key, value)
        used_JTS = _below_each_other(weights if mask is None else weights * mask, like=key_JSK)
        grad_JTK = grads[0].to(query_JTK.dtype).reshape(query_JTK.shape)
        grad_value = torch.bmm(used_JTS.transpose(1, 2), grad_JTK)
        grad_scores = torch.bmm(grad_JTK, value_JSK.transpose(1, 2)).to(weights.dtype).view_as(weights)
        if mask is not None:
            grad_scores *= mask
        grad_scores = torch._softmax_backward_data(grad_scores, weights, -1, weights.dtype)
        grad_bias = None
        if ctx.needs_input_grad[3]:  # type: ignore[attr-defined]
            shape, dtype = ctx.bias  # type: ignore[attr-defined]
            grad_bias = grad_scores.sum_to_size(shape).to(dtype)
        grad_JTS = _below_each_other(grad_scores * query.size(-1) ** -0.5, like=key_JSK)
        grad_query = torch.bmm(grad_JTS, key_JSK).view_as(query)
        grad_key = torch.bmm(grad_JTS.transpose(1, 2), query_JTK).view_as(key)
        grads = (grad_query, grad_key, grad_value.view_as(value))
        return *(grad.to(query.dtype) for grad in grads), grad_bias, None


def _side_by_side(query_BHTK: Tensor, *keys_values_BGSK: Tensor) -> tuple[Tensor, ...]:
    """Each (J, ..., K), in the precision of their products."""
    dtype = query_BHTK.dtype if has_bf16_products(query_BHTK) else _wide(query_BHTK.dtype)
    B, G = keys_values_BGSK[0].shape[:2]
    queries_JTK = query_BHTK.to(dtype).view(B * G, -1, query_BHTK.size(3))
    return queries_JTK, *(x.to(dtype).flatten(0, 1) for x in keys_values_BGSK)


def _below_each_other(scores_BHTS: Tensor, *, like: Tensor) -> Tensor:
    """(J, H / G * T, S), in the dtype of `like`, which are the keys or values."""
    return scores_BHTS.to(like.dtype).view(like.size(0), -1, scores_BHTS.size(3))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
