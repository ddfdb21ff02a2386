"""Sublayers inside their residuals by one call of compiled code, cpp/sublayers.cpp, there and one back: between calls
Python takes as long as some of them, for what it needs has left the processor's cache meanwhile.

N packed tokens, M of keys, D d_model, F d_ff, X features of all heads of queries, or with those of keys and values, H
heads, G heads of keys and values, K d_head
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, get_num_threads, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.model.attention import CrossAttention, MultiHeadAttention, SelfAttention
from transformer_cli.model.blocks import FeedForward, LayerNorm, Linear, PreNorm, Residual, RMSNorm
from transformer_cli.model.compiled import loaded, run
from transformer_cli.model.compiled_products import is_ours, linear
from transformer_cli.model.layout import Layout
from transformer_cli.model.spans import Hiding, Spans, attention_room, room_beside, shape_for

Step = Sequence[Any]
"""A residual, its sublayer, and what else that takes."""
WEIGHTS = "norm", "norm_bias", "first", "first_bias", "last", "last_bias"
"""Of a sublayer's norm and its two linear layers."""
TENSORS = *WEIGHTS, "key", "value", "mask"
"""All that it takes, as they are given to autograd."""
DTYPE = torch.bfloat16


def passed(x: Tensor, steps: Iterable[Step]) -> Tensor:
    """What sublayers in their residuals make of x, one after the other: those in a row that compiled code has by one
    call, in the bits that they have one by one."""
    parts: list[Part] = []
    for residual, sublayer, *others in steps:
        part = None if residual.at_once is None else residual.at_once.part(x, *others)
        if part is None:
            x, parts = residual(_together(x, parts), sublayer, *others), []
        else:
            parts.append(part)
    return _together(x, parts)


def at_once(residual: Residual, sublayer: nn.Module) -> AtOnce | None:
    """What makes all of it a part of such a call, where compiled code has it: the same numbers, in the same bits, but
    for those below 2^-126, which that code makes 0."""
    layers = [module for module in sublayer.modules() if isinstance(module, Linear)]
    is_compiled = isinstance(residual.norm, LayerNorm | RMSNorm) and residual.norm.compiled
    if not is_compiled or any(layer.product is not linear for layer in layers):
        return None
    if type(sublayer) is FeedForward and sublayer.rectifies:
        return Fed(residual, sublayer)
    if isinstance(sublayer, MultiHeadAttention) and isinstance(sublayer.query_norm, nn.Identity):
        if isinstance(sublayer, CrossAttention):
            return AttendedToMemory(residual, sublayer, sublayer.query)
        if isinstance(sublayer, SelfAttention) and not sublayer.positions[0].rotates:
            return Attended(residual, sublayer, sublayer.query_key_value)
    return None


class Sizes(ctypes.Structure):
    """Sublayer in sublayers.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "width", "inner", "context", "weights", "threads")),
        *((name, ctypes.c_uint64) for name in ("seed", "inner_seed")),
        *((name, ctypes.c_uint32) for name in ("share", "inner_share")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("centred", "first")),
    )


class Part(NamedTuple):
    """A sublayer that is still to be computed."""

    sizes: Sizes
    kept: int
    """Numbers in fp32 that the way back needs of the way there."""
    tensors: Sequence[Tensor | None]
    """As `TENSORS` has them, the weights in bf16; the memory's keys and values, (M, G, K) each, are none where they are
    made together with the queries; mask: of attention's dropout."""
    spans: Spans | None = None
    heads: tuple[int, int, int] = (0, 0, 0)
    """H, G, K."""


class AtOnce:
    """A sublayer in its residual, which becomes a part of a call of compiled code."""

    def __init__(self, residual: Residual, first: Linear, last: Linear, *, context: int = 0) -> None:
        """first, last: its linear layers. context: features of all heads together."""
        norm: Any = residual.norm
        self.dropout, self.layers = residual.dropout, (norm, first, last)
        form = {"eps": norm.eps, "centred": isinstance(norm, LayerNorm), "first": isinstance(residual, PreNorm)}
        self.sizes = Sizes(width=first.in_features, inner=first.out_features, context=context, **form)
        self.shapes = norm.weight.shape, first.weight.shape, last.weight.shape
        assert self.shapes[0] == (first.in_features,)
        assert self.shapes[2] == (first.in_features, context or first.out_features)

    def part(self, x: Tensor, *others: Any) -> Part | None:
        """others: what it takes beside x. None where the code does not suit these."""
        raise NotImplementedError

    def _weights(self) -> list[Tensor | None]:
        """As these are now: who divides them puts others in their place."""
        held = [layer._parameters.get(name) for layer in self.layers for name in ("weight", "bias")]
        found = [x if x is None or x.dtype == DTYPE else x.to(DTYPE) for x in held]
        assert tuple(x.shape for x in found[::2] if x is not None) == self.shapes
        assert all(x is None or (x.is_cpu and x.is_contiguous()) for x in found)
        return found

    def _sizes(self, x: Tensor, *, weights: int = 0, inner: tuple[int, int] = (0, 0)) -> Sizes:
        """weights: of attention. inner: the seed and share of dropout inside."""
        sizes = Sizes.from_buffer_copy(self.sizes)
        sizes.rows, sizes.weights, sizes.threads = x.size(0), weights, get_num_threads()
        sizes.inner_seed, sizes.inner_share = inner
        sizes.seed, sizes.share = self.dropout.drawn()
        assert x.size(1) == sizes.width
        return sizes


class Fed(AtOnce):
    def __init__(self, residual: Residual, sublayer: FeedForward) -> None:
        super().__init__(residual, sublayer.up, sublayer.down)
        self.inner = sublayer.dropout

    def part(self, x: Tensor) -> Part | None:
        if not _suits(x):
            return None
        sizes = self._sizes(x, inner=self.inner.drawn())
        return Part(sizes, _kept(sizes), [*self._weights(), None, None, None])


class Attended(AtOnce):
    def __init__(self, residual: Residual, sublayer: MultiHeadAttention, into: Linear) -> None:
        super().__init__(residual, into, sublayer.output, context=sublayer.width)
        self.inner, self.heads = sublayer.attend.dropout, (sublayer.n_heads, sublayer.kv_heads, sublayer.d_head)

    def part(self, x: Tensor, bias: Hiding, layout: Layout) -> Part | None:
        return self._of((None, None), x, bias)

    def _of(self, memory: Sequence[Tensor | None], x: Tensor, bias: Hiding) -> Part | None:
        if not _suits(x) or not isinstance(bias, Spans):
            return None
        n_heads, *shared = self.heads
        mask = self.inner.mask(bias.mask_shape(n_heads), like=x)
        sizes = self._sizes(x, weights=bias.n_weights * n_heads)
        assert sizes.rows == bias.queries.n_rows
        for one in memory:
            assert one is None or (one.dtype == DTYPE and one.is_cpu)
            assert one is None or one.shape == (bias.keys.n_rows, *shared)
            assert one is None or one.stride()[1:] == (shared[1], 1)
        assert mask is None or (mask.dtype == DTYPE and mask.is_contiguous())
        return Part(sizes, _kept(sizes), [*self._weights(), *memory, mask], bias, self.heads)


class AttendedToMemory(Attended):
    def part(self, x: Tensor, memory: Sequence[Tensor], bias: Hiding, layout: Layout) -> Part | None:  # type: ignore[override]
        return self._of(memory, x, bias)


def _suits(x: Tensor) -> bool:
    return x.dtype == DTYPE and x.dim() == 2 and is_ours(x.dtype, x.size(0))


def _kept(sizes: Sizes) -> int:
    return int(loaded().sublayer_kept(ctypes.byref(sizes)))


def _together(x: Tensor, parts: Sequence[Part]) -> Tensor:
    """What they make of x. Where nothing is kept for the way back, one needs less memory than all."""
    for some in [parts] if torch.is_grad_enabled() else [[part] for part in parts]:
        if some:
            x = _Together.apply(x.contiguous(), some, *(tensor for part in some for tensor in part.tensors))
    return x


class _Call(ctypes.Structure):
    """Call in sublayers.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("at", "shape", *TENSORS, "kept", "output", *(f"of_{name}" for name in TENSORS[:-1]))
    )


class _Calls:
    """What compiled code is told of parts, and what it works in; to be kept until it is done."""

    def __init__(
        self,
        parts: Sequence[Part],
        tensors: Sequence[Tensor | None],
        kept: Tensor,
        output_ND: Tensor | None,
        made: Sequence[Tensor | None] | None = None,
    ) -> None:
        """output_ND: of the last. made: room for the gradients of the tensors, on the way back."""
        calls, shapes, where = [], [], kept.data_ptr()
        of_tensors: Sequence[Tensor | None] = [None] * len(tensors) if made is None else made
        size = len(TENSORS)
        for n, part in enumerate(parts):
            own, of_own = (x[n * size : (n + 1) * size] for x in (tensors, of_tensors))
            of_attention = 0
            if part.spans is not None:
                steps = [*_steps(part, own), *(() if made is None else _steps(part, of_own))]
                shapes.append(shape_for(part.spans, *part.heads, *steps))
                of_attention = ctypes.addressof(shapes[-1])
            output = where + 4 * part.kept
            places = [0 if x is None else x.data_ptr() for x in (*own, *of_own[:-1])]
            call = ctypes.addressof(part.sizes), of_attention, *places[:size], where, output, *places[size:]
            calls.append(_Call(*call))
            where = output + part.sizes.rows * part.sizes.width * DTYPE.itemsize
        calls[-1].output = 0 if output_ND is None else output_ND.data_ptr()
        self.calls, self.shapes = (_Call * len(calls))(*calls), shapes
        self.place = torch.empty(max(map(attention_room, shapes), default=0))
        for shape in shapes:
            shape.room = self.place.data_ptr()
        rooms = (loaded().sublayer_room(ctypes.byref(part.sizes), made is not None) for part in parts)
        self.room = torch.empty(max(rooms))


def _steps(part: Part, tensors: Sequence[Tensor | None]) -> tuple[int, int, int]:
    """From token to token: of queries, and of keys and values, which are made together with them if nowhere else."""
    inner, (key_MGK, value_MGK) = part.sizes.inner, tensors[6:8]
    return inner, inner if key_MGK is None else key_MGK.stride(0), inner if value_MGK is None else value_MGK.stride(0)


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_ND: Tensor, parts: Sequence[Part], *tensors: Tensor | None) -> Tensor:
        output_ND, between = torch.empty_like(x_ND), (len(parts) - 1) * x_ND.numel() * x_ND.itemsize // 4
        kept = torch.empty(sum(part.kept for part in parts) + between)
        given = _Calls(parts, tensors, kept, output_ND)
        run("sublayers", x_ND.dtype, ctypes.addressof(given.calls), len(parts), x_ND, given.room)
        ctx.save_for_backward(x_ND, kept, *tensors)  # type: ignore[arg-type]
        ctx.parts = parts  # type: ignore[attr-defined]
        return output_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Any, ...]:
        x_ND, kept, *tensors = ctx.saved_tensors  # type: ignore[attr-defined]
        parts: Sequence[Part] = ctx.parts  # type: ignore[attr-defined]
        needed, size = ctx.needs_input_grad[2:], len(TENSORS)  # type: ignore[attr-defined]
        made: list[Tensor | None] = []
        for n in range(0, len(tensors), size):
            made += _learned(needed[n : n + size], tensors[n : n + size])
        of_x_ND, beside_2ND = torch.empty_like(x_ND), x_ND.new_empty(min(2, len(parts) - 1), *x_ND.shape)
        given = _Calls(parts, tensors, kept, None, made)
        known = ctypes.addressof(given.calls), len(parts), grads[0].contiguous(), x_ND
        run("sublayers_back", x_ND.dtype, *known, of_x_ND, beside_2ND, given.room)
        return of_x_ND, None, *(of if needs else None for of, needs in zip(made, needed, strict=True))


def _learned(needed: Sequence[bool], tensors: Sequence[Any]) -> list[Tensor | None]:
    """Room for the gradients of a part's tensors but the mask: only that of a matrix is not made where nobody wants it;
    a bias's also where there is none."""
    *weights, key_MGK, value_MGK, _ = tensors
    made: list[Tensor | None] = []
    for n, weight in enumerate(weights):
        if weight is None:
            made.append(weights[0].new_empty(weights[n - 1].size(0)))
        else:
            made.append(torch.empty_like(weight) if needed[n] or weight.dim() == 1 else None)
    made += (None, None) if key_MGK is None else room_beside(key_MGK, value_MGK)
    return [*made, None]
