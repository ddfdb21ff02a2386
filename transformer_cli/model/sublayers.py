"""A sublayer inside its residual by one call of compiled code, cpp/sublayers.cpp, there and one back: between calls
Python takes as long as some of them, for what it needs has left the processor's cache meanwhile.

N packed tokens, M of keys, D d_model, F d_ff, X features of all heads of queries, or with those of keys and values, H
heads, G heads of keys and values, K d_head
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, get_num_threads, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.model.attention import CrossAttention, MultiHeadAttention, SelfAttention
from transformer_cli.model.blocks import FeedForward, LayerNorm, Linear, PreNorm, Residual, RMSNorm
from transformer_cli.model.compiled import loaded, run
from transformer_cli.model.compiled_products import is_ours, linear
from transformer_cli.model.layout import Layout
from transformer_cli.model.spans import Hiding, Spans, room_beside, shape_for


def at_once(residual: Residual, sublayer: nn.Module) -> Callable[..., Tensor] | None:
    """What does all of it, where compiled code has it: the same numbers, in the same bits, but for those below 2^-126,
    which that code makes 0."""
    layers = [module for module in sublayer.modules() if isinstance(module, Linear)]
    is_compiled = isinstance(residual.norm, LayerNorm | RMSNorm) and residual.norm.compiled
    if not is_compiled or any(layer.product is not linear for layer in layers):
        return None
    if type(sublayer) is FeedForward and sublayer.rectifies:
        return fed
    if isinstance(sublayer, MultiHeadAttention) and isinstance(sublayer.query_norm, nn.Identity):
        if isinstance(sublayer, CrossAttention):
            return attended_to_memory
        if isinstance(sublayer, SelfAttention) and not sublayer.positions[0].rotates:
            return attended
    return None


def fed(residual: Residual, x: Tensor, sublayer: FeedForward) -> Tensor:
    """As `residual.around`, and so are those below."""
    if not _suits(x):
        return residual.around(x, sublayer)
    inner = sublayer.dropout.drawn()
    sizes = _sizes(residual, x, sublayer.up.out_features, inner=inner)
    weights = _weights(x, sizes, residual.norm, sublayer.up, sublayer.down)
    made: Tensor = _Fed.apply(x.contiguous(), *weights, sizes)
    return made


def attended(residual: Residual, x: Tensor, sublayer: SelfAttention, bias: Hiding, layout: Layout) -> Tensor:
    if not _suits(x) or not isinstance(bias, Spans):
        return residual.around(x, sublayer, bias, layout)
    return _attended(residual, x, sublayer, sublayer.query_key_value, (None, None), bias)


def attended_to_memory(
    residual: Residual, x: Tensor, sublayer: CrossAttention, memory: Sequence[Tensor], bias: Hiding, layout: Layout
) -> Tensor:
    if not _suits(x) or not isinstance(bias, Spans):
        return residual.around(x, sublayer, memory, bias, layout)
    return _attended(residual, x, sublayer, sublayer.query, memory, bias)


def _attended(
    residual: Residual,
    x: Tensor,
    sublayer: MultiHeadAttention,
    into: Linear,
    memory: Sequence[Tensor | None],
    spans: Spans,
) -> Tensor:
    mask = sublayer.attend.dropout.mask(spans.mask_shape(sublayer.n_heads), like=x)
    n_weights = int(spans.weight_starts[-1]) * sublayer.n_heads
    sizes = _sizes(residual, x, into.out_features, context=sublayer.width, weights=n_weights)
    others = sizes, (sublayer.n_heads, sublayer.kv_heads, sublayer.d_head), spans
    weights = _weights(x, sizes, residual.norm, into, sublayer.output)
    assert len(x) == spans.queries.n_rows
    for one in memory:
        assert one is None or one.shape == (spans.keys.n_rows, sublayer.kv_heads, sublayer.d_head)
        assert one is None or one.stride()[1:] == (sublayer.d_head, 1)
    made: Tensor = _Attended.apply(x.contiguous(), *weights, *memory, mask, others)
    return made


def _suits(x: Tensor) -> bool:
    return x.dim() == 2 and is_ours(x.dtype, len(x))


class _Sizes(ctypes.Structure):
    """Sublayer in sublayers.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "width", "inner", "context", "weights", "threads")),
        *((name, ctypes.c_uint64) for name in ("seed", "inner_seed")),
        *((name, ctypes.c_uint32) for name in ("share", "inner_share")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("centred", "first")),
    )

    def kept(self) -> Tensor:
        """Room for what the way back needs of the way there."""
        return torch.empty(loaded().sublayer_kept(ctypes.byref(self)))

    def room(self, *, back: bool) -> Tensor:
        """What it works in."""
        return torch.empty(loaded().sublayer_room(ctypes.byref(self), back))


def _sizes(
    residual: Residual, x: Tensor, width: int, *, context: int = 0, weights: int = 0, inner: tuple[int, int] = (0, 0)
) -> _Sizes:
    """width: of what the first linear layer makes. inner: the seed and share of dropout inside."""
    norm, (seed, share), (rows, d_model) = residual.norm, residual.dropout.drawn(), x.shape
    assert isinstance(norm, LayerNorm | RMSNorm)
    form = norm.eps, isinstance(norm, LayerNorm), isinstance(residual, PreNorm)
    return _Sizes(rows, d_model, width, context, weights, get_num_threads(), seed, inner[0], share, inner[1], *form)


def _weights(x: Tensor, sizes: _Sizes, norm: Any, first: Linear, last: Linear) -> list[Tensor | None]:
    """Of each its weight and its bias, in x's dtype."""
    assert len(norm.weight) == sizes.width
    assert first.weight.shape == (sizes.inner, sizes.width)
    assert last.weight.shape == (sizes.width, sizes.context or sizes.inner)
    found = norm.weight, norm.bias, first.weight, first.bias, last.weight, last.bias
    return [weight if weight is None or weight.dtype == x.dtype else weight.to(x.dtype) for weight in found]


def _learned(needed: Sequence[bool], weights: Sequence[Any]) -> list[Tensor | None]:
    """Room for the gradients of a norm and two linear layers, weights and biases by turns: only that of a matrix is not
    made where nobody wants it; a bias's also where there is none."""
    made: list[Tensor | None] = []
    for n, (weight, needs) in enumerate(zip(weights, needed, strict=True)):
        shape = weights[n - 1].shape[:1] if weight is None else weight.shape
        made.append(weights[0].new_empty(shape) if needs or len(shape) == 1 else None)
    return made


def _wanted(needed: Sequence[bool], made: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Those that autograd asks for."""
    return [of if needs else None for of, needs in zip(made, needed, strict=True)]


class _Fed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_ND: Tensor, *others: Any) -> Tensor:
        *weights, sizes = others
        output_ND, kept = torch.empty_like(x_ND), sizes.kept()
        places = kept, output_ND, sizes.room(back=False)
        run("fed", x_ND.dtype, ctypes.addressof(sizes), x_ND, *weights, *places)
        ctx.save_for_backward(x_ND, *weights, kept)
        ctx.sizes = sizes  # type: ignore[attr-defined]
        return output_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, *weights, kept = ctx.saved_tensors  # type: ignore[attr-defined]
        sizes, (norm, _, *layers) = ctx.sizes, weights  # type: ignore[attr-defined]
        made = _learned(needed := ctx.needs_input_grad[1:7], weights)  # type: ignore[attr-defined]
        of_x_ND = torch.empty_like(x_ND)
        known = ctypes.addressof(sizes), grads[0].contiguous(), x_ND, norm, *layers, kept
        run("fed_back", x_ND.dtype, *known, of_x_ND, *made, sizes.room(back=True))
        return of_x_ND, *_wanted(needed, made), None


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_ND: Tensor, *others: Any) -> Tensor:
        *weights, key_MGK, value_MGK, mask, (sizes, heads, spans) = others
        output_ND, kept = torch.empty_like(x_ND), sizes.kept()
        shape, place = shape_for(spans, *heads, *_steps(sizes, key_MGK, value_MGK))
        known = ctypes.addressof(sizes), ctypes.addressof(shape), x_ND, *weights, key_MGK, value_MGK, mask
        run("attended", x_ND.dtype, *known, kept, output_ND, sizes.room(back=False))
        del place
        ctx.save_for_backward(x_ND, *weights, key_MGK, value_MGK, mask, kept)
        ctx.others = sizes, heads, spans  # type: ignore[attr-defined]
        return output_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, *weights, key_MGK, value_MGK, mask, kept = ctx.saved_tensors  # type: ignore[attr-defined]
        (sizes, heads, spans), (norm, _, *layers) = ctx.others, weights  # type: ignore[attr-defined]
        made = _learned(needed := ctx.needs_input_grad[1:7], weights)  # type: ignore[attr-defined]
        of_memory = (None, None) if key_MGK is None else room_beside(key_MGK, value_MGK)
        shape, place = shape_for(spans, *heads, *_steps(sizes, key_MGK, value_MGK))
        shape.of_query_step, shape.of_key_step, shape.of_value_step = _steps(sizes, *of_memory)
        of_x_ND, structs = torch.empty_like(x_ND), (ctypes.addressof(sizes), ctypes.addressof(shape))
        known = grads[0].contiguous(), x_ND, norm, *layers, key_MGK, value_MGK, mask, kept
        run("attended_back", x_ND.dtype, *structs, *known, of_x_ND, *made, *of_memory, sizes.room(back=True))
        del place
        return of_x_ND, *_wanted(needed, made), *of_memory, None, None


def _steps(sizes: _Sizes, key_MGK: Tensor | None, value_MGK: Tensor | None) -> tuple[int, int, int]:
    """From token to token: of queries, and of keys and values, which are made together with them if nowhere else."""
    of_memory = (sizes.inner if x is None else x.stride(0) for x in (key_MGK, value_MGK))
    return sizes.inner, *of_memory
