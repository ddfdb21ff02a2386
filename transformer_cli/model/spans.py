"""Attention to sentences that lie behind one another, by cpp/attention.cpp: nothing is moved or padded.

N packed tokens, of queries, M of keys, B sentences, H heads, G heads of keys and values, K d_head, T longest sentence,
or more, L the same as masks have it, X any features
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, get_num_threads
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.config.model import POSITIONS, ModelConfig
from transformer_cli.model.compiled import GRAIN, loaded, run
from transformer_cli.model.compiled_products import MOST
from transformer_cli.model.layout import Packed
from transformer_cli.model.positions import ROTATIONS, PositionEncoding


def suits(config: ModelConfig) -> bool:
    """Whether a model's attention can be computed so: heads fill registers, and positions turn queries as compiled code
    can, or not at all, and add nothing to scores."""
    kinds = (POSITIONS.load(config.positions_of(stack)) for stack in ("encoder", "decoder"))
    known = (kind.rotate in ROTATIONS and kind.relate is PositionEncoding.relate for kind in kinds)
    return config.head_width % GRAIN == 0 and all(known)


class InPlace(Packed):
    """Heads are only looked at: (N, count, K)."""

    has_kernels = False

    def heads(self, x_NX: Tensor, counts: Sequence[int], d_head: int) -> Sequence[Tensor]:
        return _Parts.apply(x_NX, list(counts), d_head)

    def rotated(self, x_NHK: Tensor, positions: PositionEncoding) -> Tensor:
        if not positions.rotates:
            return x_NHK
        return positions.rotate_rows(_side_by_side(x_NHK), self.positions_N, end=self.length)

    def merge(self, x_NHK: Tensor) -> Tensor:
        return x_NHK.flatten(1)

    def ids(self, ids_BT: Tensor) -> Tensor:
        ids_N = ids_BT.new_zeros(self.n_rows)
        ids_N.numpy()[: self.n_real] = ids_BT.numpy()[self._tokens]
        return ids_N

    @cached_property
    def positions_N(self) -> Tensor:
        """Of each token in its sentence; 0 behind the last one."""
        positions_N = torch.zeros(self.n_rows, dtype=torch.int64)
        positions_N.numpy()[: self.n_real] = self._tokens[1]
        return positions_N

    @cached_property
    def _tokens(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of each token, which is its sentence, and where in that it stands: by NumPy: for so few numbers it takes a
        fifth of the time."""
        lengths_B, ends_B = self.lengths_B.numpy(), self.starts[1:].numpy()
        sentences_N = np.arange(len(lengths_B)).repeat(lengths_B)
        return sentences_N, np.arange(self.n_real) - (ends_B - lengths_B).repeat(lengths_B)

    @cached_property
    def starts(self) -> Tensor:
        """Of each sentence, and the end of the last: (B + 1,)."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths_B.cumsum(0)])


class Dense(InPlace):
    """The same with hardly any padding, where all products are our own, for which no kernel is made."""

    @staticmethod
    def rows(n: int) -> int:
        return -(-n // GRAIN) * GRAIN if n <= MOST else InPlace.rows(n)


@dataclass(frozen=True)
class Spans:
    """Queries see the keys of their own sentence; causal: of these, none that is later."""

    queries: InPlace
    keys: InPlace
    causal: bool = False

    def attend(self, query_NHK: Tensor, key_MGK: Tensor, value_MGK: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(Q K^T / sqrt(d_k)) V, (N, H, K), zero where there is no token. mask: of dropout, None or a factor for
        each weight, (B, H, L, L)."""
        return _Attention.apply(query_NHK, key_MGK, value_MGK, mask, self)

    def mask_shape(self, n_heads: int) -> tuple[int, int, int, int]:
        return len(self.queries.lengths_B), n_heads, self.keys.length, self.queries.length

    @cached_property
    def weight_starts(self) -> Tensor:
        """Where the weights of each sentence begin, of one head, and where the last end: (B + 1,)."""
        padded_B = (self.queries.lengths_B + GRAIN - 1) // GRAIN * GRAIN
        return torch.cat([torch.zeros(1, dtype=torch.int64), (self.keys.lengths_B * padded_B).cumsum(0)])

    @cached_property
    def n_weights(self) -> int:
        """Of one head."""
        return int(self.weight_starts[-1])

    @cached_property
    def shape(self) -> Shape:
        """What all layers have in common of it."""
        return Shape(
            sentences=len(self.queries.lengths_B),
            query_rows=self.queries.n_rows,
            key_rows=self.keys.n_rows,
            mask_queries=self.queries.length,
            mask_keys=self.keys.length,
            query_starts=self.queries.starts.data_ptr(),
            key_starts=self.keys.starts.data_ptr(),
            weight_starts=self.weight_starts.data_ptr(),
            longest=self.keys.length,
            is_causal=self.causal,
        )


Hiding = Tensor | Spans | None
"""What hides keys: added to scores, or said by where sentences begin; None: nothing does."""


STEPS = "query_step", "key_step", "value_step", "of_query_step", "of_key_step", "of_value_step"
"""From token to token, and those of their gradients."""


class Shape(ctypes.Structure):
    """Shape in attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("sentences", "heads", "sharing", "features", *STEPS)),
        *((name, ctypes.c_int64) for name in ("query_rows", "key_rows", "mask_queries", "mask_keys")),
        *((name, ctypes.c_void_p) for name in ("query_starts", "key_starts", "weight_starts", "room")),
        *((name, ctypes.c_int64) for name in ("longest", "is_causal", "threads")),
    )


class _Parts(torch.autograd.Function):
    """Heads beside each other; their gradients are as well, if `_Attention` made them, and nothing is copied."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_NX: Tensor, counts: list[int], d_head: int) -> tuple[Tensor, ...]:
        return x_NX.unflatten(-1, (-1, d_head)).split(counts, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        n, _, d_head = grads[0].shape
        width = sum(grad.size(1) for grad in grads)
        if _are_beside(*grads) and grads[0].stride(0) == width * d_head:
            return grads[0].as_strided((n, width * d_head), (width * d_head, 1)), None, None
        return torch.cat(grads, dim=1).flatten(1), None, None


def _are_beside(*parts_NHK: Tensor) -> bool:
    """Whether heads lie beside each other, token by token."""
    first, end = parts_NHK[0], parts_NHK[0].data_ptr()
    for part in parts_NHK:
        if (
            part.data_ptr() != end
            or part.stride() != first.stride()
            or part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        ):
            return False
        end += part.size(1) * part.size(2) * part.itemsize
    return True


def room_beside(*parts_NHK: Tensor) -> Sequence[Tensor]:
    """Room for the gradients of heads, beside each other where they are."""
    if not _are_beside(*parts_NHK):
        return [part.new_empty(part.shape) for part in parts_NHK]
    (n, _, d_head), counts = parts_NHK[0].shape, [part.size(1) for part in parts_NHK]
    return parts_NHK[0].new_empty((n, sum(counts), d_head)).split(counts, dim=1)


class _Attention(torch.autograd.Function):
    """With weights and all sums in fp32, whatever the precision of the vectors."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spans: Spans
    ) -> Tensor:
        query, key, value = (_side_by_side(x) for x in (query, key, value))
        output = query.new_empty(query.shape)
        weights = torch.empty(spans.n_weights * query.size(1))
        _call("forward", spans, query, key, value, mask, output, weights)
        ctx.save_for_backward(query, key, value, mask, weights)  # type: ignore[arg-type]
        ctx.spans = spans  # type: ignore[attr-defined]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, weights = ctx.saved_tensors  # type: ignore[attr-defined]
        spans: Spans = ctx.spans  # type: ignore[attr-defined]
        whole = query.size(0) == key.size(0) and _are_beside(query, key, value)
        made = room_beside(query, key, value) if whole else (query.new_empty(query.shape), *room_beside(key, value))
        _call("backward", spans, query, key, value, mask, grads[0].contiguous(), weights, made=made)
        return *made, None, None


def _side_by_side(x_NHK: Tensor) -> Tensor:
    """The numbers of each token without gaps."""
    _, _, width = x_NHK.shape
    return x_NHK if x_NHK.stride()[1:] == (width, 1) else x_NHK.contiguous()


def _call(
    what: str,
    spans: Spans,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *others: Tensor | None,
    made: Sequence[Tensor] = (),
) -> None:
    (_, n_heads, d_head), of_heads = query.shape, (x.stride(0) for x in (query, key, value))
    shape = shape_for(spans, n_heads, key.size(1), d_head, *of_heads, *(x.stride(0) for x in made))
    place = torch.empty(attention_room(shape))
    shape.room = place.data_ptr()
    run(what, query.dtype, ctypes.addressof(shape), query, key, value, *others, *made)


def shape_for(spans: Spans, n_heads: int, kv_heads: int, d_head: int, *steps: int) -> Shape:
    """What compiled code has to know, but for the room that it works in. steps: from token to token, of queries, keys
    and values, and of their gradients."""
    shape = Shape.from_buffer_copy(spans.shape)
    shape.heads, shape.sharing, shape.features, shape.threads = kv_heads, n_heads // kv_heads, d_head, get_num_threads()
    for name, step in zip(STEPS, steps, strict=False):
        setattr(shape, name, step)
    return shape


def attention_room(shape: Shape) -> int:
    """How many numbers in fp32 all threads of such an attention work in."""
    return int(shape.threads * loaded().attention_room(shape.longest, shape.features))
