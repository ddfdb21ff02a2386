"""Sublayers inside their residuals by one call of compiled code, cpp/sublayers.cpp, there and one back: between calls
Python takes as long as some of them, for what it needs has left the processor's cache meanwhile.

N packed tokens, M of the memory, D d_model, H heads, G heads of keys and values, K d_head
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, get_num_threads, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.model.attention import CrossAttention, MultiHeadAttention, SelfAttention, Unread
from transformer_cli.model.blocks import FeedForward, LayerNorm, Linear, PreNorm, Residual, RMSNorm
from transformer_cli.model.compiled import loaded, run
from transformer_cli.model.compiled_products import is_ours, linear
from transformer_cli.model.spans import Hiding, Spans, attention_room, shape_for

Step = Sequence[Any]
"""A residual, its sublayer, and what else that takes; or a norm alone."""
LAYERS = "norm", "first", "last", "shared"
"""Of a sublayer: its norm, two linear layers, and the one that makes keys and values of the memory."""
TENSORS = *(f"{name}{which}" for name in LAYERS for which in ("", "_bias")), "memory", "mask"
"""All that it takes, as they are given to autograd; mask: of attention's dropout."""
MEMORY, MASK = len(TENSORS) - 2, len(TENSORS) - 1
FED, ATTENDED, NORMED = range(3)
DTYPE = torch.bfloat16


def passed(x: Tensor, steps: Iterable[Step]) -> Tensor:
    """What sublayers in their residuals make of x, one after the other: those in a row that compiled code has by one
    call, in the bits that they have one by one."""
    parts: list[Part] = []
    for step, *others in steps:
        whole: AtOnce | None = getattr(step, "at_once", None)
        part = None if whole is None else whole.part(x, *others)
        if part is None:
            x, parts = step(_computed(x, parts), *others), []
        else:
            parts.append(part)
    return _computed(x, parts)


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
            return AttendedToMemory(residual, sublayer, sublayer.query, sublayer.key_value)
        if isinstance(sublayer, SelfAttention) and not sublayer.positions[0].rotates:
            return Attended(residual, sublayer, sublayer.query_key_value)
    return None


def norm_at_once(norm: LayerNorm | RMSNorm) -> AtOnce | None:
    """The same for a norm alone."""
    return AtOnce(norm) if norm.compiled else None


class Sizes(ctypes.Structure):
    """Sublayer in sublayers.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "rows", "width", "inner", "context", "weights")),
        *((name, ctypes.c_int64) for name in ("keys", "shared", "threads")),
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
    """As `TENSORS` has them, in bf16; none where there is no such layer, memory or mask."""
    read: Unread | None = None
    spans: Spans | None = None
    heads: tuple[int, int, int] = (0, 0, 0)
    """H, G, K."""


class AtOnce:
    """A norm alone, or with more a sublayer in its residual, which becomes a part of a call of compiled code."""

    def __init__(self, norm: Any, *layers: Linear, kind: int = NORMED, **sizes: int) -> None:
        """layers: its linear ones, in the order of `LAYERS`. sizes: what else is known beforehand."""
        self.layers = norm, *layers
        form = {"eps": norm.eps, "centred": isinstance(norm, LayerNorm)}
        self.sizes = Sizes(kind=kind, width=norm.weight.numel(), **form, **sizes)
        self.shapes = [layer.weight.shape for layer in self.layers]
        self.none = [None] * (MEMORY - 2 * len(self.layers))

    def part(self, x: Tensor, *others: Any) -> Part | None:
        """others: what it takes beside x. None where the code does not suit these."""
        return self._part(x, self._sizes(x)) if _suits(x) else None

    def _sizes(self, x: Tensor) -> Sizes:
        """Those that are the same each time, and how many rows x has."""
        sizes = Sizes.from_buffer_copy(self.sizes)
        sizes.rows, sizes.threads = x.size(0), get_num_threads()
        assert x.size(1) == sizes.width
        return sizes

    def _part(self, x: Tensor, sizes: Sizes, memory: Tensor | None = None, mask: Tensor | None = None) -> Part:
        return Part(sizes, _kept(sizes), [*self._weights(), *self.none, memory, mask])

    def _weights(self) -> list[Tensor | None]:
        """As these are now: who divides them puts others in their place."""
        held = [layer._parameters.get(name) for layer in self.layers for name in ("weight", "bias")]
        found = [x if x is None or x.dtype == DTYPE else x.to(DTYPE) for x in held]
        assert [x.shape for x in found[::2] if x is not None] == self.shapes
        assert all(x is None or (x.is_cpu and x.is_contiguous()) for x in found)
        return found


class Fed(AtOnce):
    def __init__(self, residual: Residual, sublayer: FeedForward) -> None:
        up, down = sublayer.up, sublayer.down
        super().__init__(residual.norm, up, down, kind=FED, inner=up.out_features, first=_is_first(residual))
        self.dropout, self.inner = residual.dropout, sublayer.dropout

    def part(self, x: Tensor, *others: Any) -> Part | None:
        if not _suits(x):
            return None
        sizes = self._sizes(x)
        sizes.inner_seed, sizes.inner_share = self.inner.drawn()
        sizes.seed, sizes.share = self.dropout.drawn()
        return self._part(x, sizes)


class Attended(AtOnce):
    def __init__(self, residual: Residual, sublayer: MultiHeadAttention, into: Linear, *others: Linear) -> None:
        """others: what makes keys and values of the memory, if that is what is attended to."""
        widths = {"inner": into.out_features, "context": sublayer.width, "first": _is_first(residual)}
        layers = into, sublayer.output, *others
        super().__init__(residual.norm, *layers, kind=ATTENDED, shared=2 * sublayer.kv_width * len(others), **widths)
        self.heads = sublayer.n_heads, sublayer.kv_heads, sublayer.d_head
        self.dropout, self.inner = residual.dropout, sublayer.attend.dropout

    def part(self, x: Tensor, *others: Any) -> Part | None:
        _, bias, _ = others
        return self._attended(x, None, bias)

    def _attended(self, x: Tensor, memory: Tensor | None, bias: Hiding) -> Part | None:
        if not _suits(x) or not isinstance(bias, Spans) or (memory is not None and not _suits(memory)):
            return None
        sizes, n_heads = self._sizes(x), self.heads[0]
        mask = self.inner.mask(bias.mask_shape(n_heads), like=x)
        sizes.seed, sizes.share = self.dropout.drawn()
        sizes.weights = bias.n_weights * n_heads
        assert bias.queries.n_rows == sizes.rows
        assert mask is None or (mask.dtype == DTYPE and mask.is_contiguous())
        if memory is not None:
            sizes.keys = memory.size(0)
            assert memory.shape == (bias.keys.n_rows, sizes.width)
            assert memory.is_contiguous()
        return self._part(x, sizes, memory, mask)._replace(spans=bias, heads=self.heads)


class AttendedToMemory(Attended):
    def part(self, x: Tensor, *others: Any) -> Part | None:
        _, memory, bias, _ = others
        part = self._attended(x, memory.memory, bias) if isinstance(memory, Unread) else None
        return None if part is None else part._replace(read=memory)


def _is_first(residual: Residual) -> bool:
    return isinstance(residual, PreNorm)


def _suits(x: Tensor) -> bool:
    return x.dtype == DTYPE and x.dim() == 2 and is_ours(x.dtype, x.size(0))


def _kept(sizes: Sizes) -> int:
    return int(loaded().sublayer_kept(ctypes.byref(sizes)))


def _computed(x: Tensor, parts: Sequence[Part]) -> Tensor:
    """What they make of x. Where nothing is kept for the way back, one needs less memory than all."""
    for some in [parts] if torch.is_grad_enabled() else [[part] for part in parts]:
        if some:
            reads = [part.read for part in some if part.read is not None]
            tensors = (tensor for part in some for tensor in part.tensors)
            x, *memory = _Sublayers.apply(x.contiguous(), some, *tensors)
            for read, passed_on in zip(reads, memory * len(reads), strict=True):
                read.memory = passed_on  # by what comes next, whose gradient of it comes here first
    return x


class _Call(ctypes.Structure):
    """Call in sublayers.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("at", "shape", *TENSORS, "kept", "output", *(f"of_{name}" for name in TENSORS[:MASK]))
    )


class _Calls:
    """What compiled code is told of parts, and what it works in; to be kept until it is done."""

    def __init__(
        self,
        parts: Sequence[Part],
        tensors: Sequence[Tensor | None],
        kept: Sequence[Tensor],
        output_ND: Tensor | None,
        made: Sequence[Tensor | None] | None = None,
    ) -> None:
        """kept: of each part, and behind it what it makes, but for the last. output_ND: what that makes. made: room for
        the gradients of the tensors, on the way back."""
        calls, shapes = [], []
        size, of_tensors = len(TENSORS), [None] * len(tensors) if made is None else made
        for n, part in enumerate(parts):
            own, of_own = (x[n * size : (n + 1) * size] for x in (tensors, of_tensors))
            of_attention = 0
            if part.spans is not None:
                steps = _steps(part)
                shapes.append(shape_for(part.spans, *part.heads, *steps, *steps))
                of_attention = ctypes.addressof(shapes[-1])
            where = kept[n].data_ptr()
            output = where + 4 * part.kept
            places = [0 if x is None else x.data_ptr() for x in (*own, *of_own[:MASK])]
            call = ctypes.addressof(part.sizes), of_attention, *places[:size], where, output, *places[size:]
            calls.append(_Call(*call))
        calls[-1].output = 0 if output_ND is None else output_ND.data_ptr()
        self.calls, self.shapes = (_Call * len(calls))(*calls), shapes
        self.place = torch.empty(max(map(attention_room, shapes), default=0))
        for shape in shapes:
            shape.room = self.place.data_ptr()
        rooms = (loaded().sublayer_room(ctypes.byref(part.sizes), made is not None) for part in parts)
        self.room = torch.empty(max(rooms))


def _steps(part: Part) -> tuple[int, int, int]:
    """From token to token: of queries, and of keys and values, which lie beside these or, of a memory, each other."""
    of_keys = part.sizes.shared or part.sizes.inner
    return part.sizes.inner, of_keys, of_keys


class _Sublayers(torch.autograd.Function):
    """What they make, and the memory, if they read one: its gradients are added up in the order of their layers."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_ND: Tensor, parts: Sequence[Part], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        output_ND, made = torch.empty_like(x_ND), x_ND.numel() * x_ND.itemsize // 4
        # One for each: of what is larger than heap.py keeps, the system would take and clear every page each time.
        kept = [torch.empty(part.kept + made) for part in parts[:-1]] + [torch.empty(parts[-1].kept)]
        given = _Calls(parts, tensors, kept, output_ND)
        run("sublayers", x_ND.dtype, ctypes.addressof(given.calls), len(parts), x_ND, given.room)
        ctx.save_for_backward(x_ND, *kept, *tensors)  # type: ignore[arg-type]
        ctx.parts = [part._replace(tensors=(), read=None) for part in parts]  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        memories = [memory for memory in tensors[MEMORY :: len(TENSORS)] if memory is not None]
        return output_ND, *(memory.view_as(memory) for memory in memories[:1])

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Any, ...]:
        parts: Sequence[Part] = ctx.parts  # type: ignore[attr-defined]
        x_ND, *saved = ctx.saved_tensors  # type: ignore[attr-defined]
        kept, tensors = saved[: len(parts)], saved[len(parts) :]
        needed, size = ctx.needs_input_grad[2:], len(TENSORS)  # type: ignore[attr-defined]
        made: list[Tensor | None] = []
        for n in range(0, len(tensors), size):
            made += _learned(needed[n : n + size], tensors[n : n + size])
        found = [of if needs else None for of, needs in zip(made, needed, strict=True)]
        memories = [n for n in range(MEMORY, len(tensors), size) if needed[n]]
        of_memory = torch.empty_like(tensors[memories[0]]) if memories else None
        later = grads[1] if of_memory is not None and len(grads) > 1 else None
        if of_memory is not None and later is not None:
            of_memory.copy_(later)
        for n in memories:
            assert tensors[n].data_ptr() == tensors[memories[0]].data_ptr()
            made[n], found[n] = of_memory, of_memory if n == memories[0] else None
        of_x_ND, beside_2ND = torch.empty_like(x_ND), x_ND.new_empty(min(2, len(parts) - 1), *x_ND.shape)
        given = _Calls(parts, tensors, kept, None, made)
        grad_ND = torch.zeros_like(x_ND) if grads[0] is None else grads[0].contiguous()
        known = ctypes.addressof(given.calls), len(parts), later is not None, grad_ND, x_ND
        run("sublayers_back", x_ND.dtype, *known, of_x_ND, beside_2ND, given.room)
        return of_x_ND, None, *found


def _learned(needed: Sequence[bool], tensors: Sequence[Any]) -> list[Tensor | None]:
    """Room for the gradients of a part's tensors but the memory: only that of a matrix is not made where nobody wants
    it; that of the bias of a layer also where it has none."""
    made: list[Tensor | None] = []
    for n, x in enumerate(tensors[:MEMORY]):
        above = tensors[n - 1] if n % 2 else None
        if x is None:
            made.append(None if above is None else above.new_empty(above.size(0)))
        else:
            made.append(torch.empty_like(x) if needed[n] or x.dim() == 1 else None)
    return [*made, None, None]
