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
    """What does all of it, where compiled code has it: the same numbers, in the same bits."""
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
    if not _suits(x):
        return residual.around(x, sublayer)
    drawn = *sublayer.dropout.drawn(), *residual.dropout.drawn()
    weights = _weights(x, residual.norm, sublayer.up, sublayer.down)
    made: Tensor = _Fed.apply(x.contiguous(), *weights, (_form(residual), drawn))
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
    weights = _weights(x, residual.norm, into, sublayer.output)
    heads = sublayer.n_heads, sublayer.kv_heads, sublayer.d_head
    others = _form(residual), residual.dropout.drawn(), heads, spans
    made: Tensor = _Attended.apply(x.contiguous(), *weights, *memory, mask, others)
    return made


def _suits(x: Tensor) -> bool:
    return x.dim() == 2 and is_ours(x.dtype, len(x))


def _form(residual: Residual) -> tuple[float, bool, bool]:
    """The norm's epsilon, whether it is centred, and whether it comes first."""
    norm = residual.norm
    assert isinstance(norm, LayerNorm | RMSNorm)
    return norm.eps, isinstance(norm, LayerNorm), isinstance(residual, PreNorm)


def _weights(x: Tensor, *modules: Any) -> list[Tensor | None]:
    """Of each its weight and its bias, in x's dtype."""
    found = [weight for module in modules for weight in (module.weight, module.bias)]
    return [None if weight is None else weight.to(x.dtype) for weight in found]


def _room(*sizes: int, back: bool) -> Tensor:
    """What it works in. sizes: rows, the width outside, and the widths of what linear layers make and take inside."""
    return torch.empty(loaded().sublayer_room(*sizes, back, get_num_threads()))


def _learned(needed: Sequence[bool], *weights: Tensor | None) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Room for the gradients of a norm and two linear layers, weights and biases by turns, and those that autograd
    wants: a bias's is made also where there is none."""
    made: list[Tensor | None] = []
    for n, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        assert weight is not None
        is_made = n == 0 or needed[2 * n]
        made += [torch.empty_like(weight) if is_made else None, weight.new_empty(len(weight)) if bias is None else None]
        if bias is not None:
            made[-1] = torch.empty_like(bias)
    return made, [of if needs else None for of, needs in zip(made, needed, strict=True)]


class _Fed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_ND: Tensor, *others: Any) -> Tensor:
        *weights, (form, drawn) = others
        (rows, width), inner_width = x_ND.shape, len(weights[2])
        beside_ND, output_ND = torch.empty_like(x_ND), torch.empty_like(x_ND)
        inner_NF, moments = x_ND.new_empty(rows, inner_width), torch.empty(rows, 3)
        sizes = rows, width, inner_width
        places = beside_ND, moments, inner_NF, output_ND, _room(*sizes, width, back=False)
        run("fed", x_ND.dtype, x_ND, *weights, *places, *sizes, *form, *drawn, get_num_threads())
        ctx.save_for_backward(x_ND, *weights, beside_ND, moments, inner_NF)
        ctx.others = form[1:], drawn  # type: ignore[attr-defined]
        return output_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, *weights, beside_ND, moments, inner_NF = ctx.saved_tensors  # type: ignore[attr-defined]
        (form, drawn), needed = ctx.others, ctx.needs_input_grad  # type: ignore[attr-defined]
        (rows, width), inner_width = x_ND.shape, inner_NF.size(1)
        made, wanted = _learned(needed[1:7], *weights)
        of_x_ND, sizes, (norm, _, *layers) = torch.empty_like(x_ND), (rows, width, inner_width), weights
        known = grads[0].contiguous(), x_ND, norm, *layers, beside_ND, moments, inner_NF
        places = of_x_ND, *made, _room(*sizes, width, back=True)
        run("fed_back", x_ND.dtype, *known, *places, *sizes, *form, *drawn, get_num_threads())
        return of_x_ND, *wanted, None


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_ND: Tensor, *others: Any) -> Tensor:
        *weights, key_MGK, value_MGK, mask, (form, drawn, heads, spans) = others
        (rows, width), (n_heads, _, d_head) = x_ND.shape, heads
        sizes = rows, width, len(weights[2]), n_heads * d_head
        beside_ND, output_ND = torch.empty_like(x_ND), torch.empty_like(x_ND)
        projected_NX, context_NX = (x_ND.new_empty(rows, features) for features in sizes[2:])
        weights_of = torch.empty(int(spans.weight_starts[-1]) * n_heads)
        shape, place = _shape(spans, heads, projected_NX, key_MGK, value_MGK)
        moments = torch.empty(rows, 3)
        known = ctypes.addressof(shape), x_ND, *weights, key_MGK, value_MGK, mask
        places = beside_ND, moments, projected_NX, weights_of, context_NX, output_ND, _room(*sizes, back=False)
        run("attended", x_ND.dtype, *known, *places, *sizes, *form, *drawn, get_num_threads())
        del place
        saved = key_MGK, value_MGK, mask, beside_ND, moments, projected_NX, weights_of, context_NX
        ctx.save_for_backward(x_ND, *weights, *saved)
        ctx.others = form[1:], drawn, heads, spans  # type: ignore[attr-defined]
        return output_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, *saved = ctx.saved_tensors  # type: ignore[attr-defined]
        weights, (key_MGK, value_MGK, mask, *found) = saved[:6], saved[6:]
        (form, drawn, heads, spans), needed = ctx.others, ctx.needs_input_grad  # type: ignore[attr-defined]
        projected_NX, context_NX = found[2], found[4]
        sizes = *x_ND.shape, projected_NX.size(1), context_NX.size(1)
        made, wanted = _learned(needed[1:7], *weights)
        of_x_ND = torch.empty_like(x_ND)
        of_memory = (None, None) if key_MGK is None else room_beside(key_MGK, value_MGK)
        shape, place = _shape(spans, heads, projected_NX, key_MGK, value_MGK)
        steps = [sizes[2] if of is None else of.stride(0) for of in of_memory]
        shape.of_query_step, (shape.of_key_step, shape.of_value_step) = sizes[2], steps
        norm, _, *layers = weights
        known = grads[0].contiguous(), x_ND, norm, *layers, key_MGK, value_MGK, mask, *found
        places, address = (of_x_ND, *made, *of_memory, _room(*sizes, back=True)), ctypes.addressof(shape)
        run("attended_back", x_ND.dtype, address, *known, *places, *sizes, *form, *drawn, get_num_threads())
        del place
        return of_x_ND, *wanted, *of_memory, None, None


def _shape(
    spans: Spans, heads: tuple[int, int, int], projected_NX: Tensor, key_MGK: Tensor | None, value_MGK: Tensor | None
) -> tuple[ctypes.Structure, Tensor]:
    """For queries in what was projected, and for keys and values that are there, too, if nowhere else."""
    steps = [projected_NX.size(1) if x is None else x.stride(0) for x in (projected_NX, key_MGK, value_MGK)]
    return shape_for(spans, *heads, *steps)
