"""What a model computes by the C++ in cpp/, where that can be compiled for this processor.

N packed tokens, or candidates of a row, H heads, K d_head, P positions, X twice d_head, R rows of logits, V vocabulary,
U ids that are wanted, D features
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, get_num_threads
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.autograd.graph import increment_version

from transformer_cli.compiler import Library, keeps, library
from transformer_cli.processor import gains_without_tiles

GRAIN = 16
"""Numbers that a register has, at most: rows and heads are of a multiple of them."""
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}

ARGUMENTS = {
    "forward": "s x x x X X f",
    "backward": "s x x x X X f x x x",
    "drop": "X X X n seed share real threads",
    "embed": "f i f i X real n n threads",
    "embed_back": "X i f real n n n flag threads",
    "norm": "X X X X f n n real flag threads",
    "norm_back": "X X f X X X X X f n n flag threads",
    "rotate": "x n x n f i n n n flag threads",
    "linear_back": "X X X X f X n n threads",
    "turn": "X f X n n threads",
    "multiply": "X X X f f X f n n n flag flag threads",
    "learn": "X X f f f n n n flag threads",
    "smoothed": "X i f f f real n n threads",
    "compared": "X i f f f real real n n threads",
    "add": "f X f n n flag threads",
    "narrow": "f X f f n n threads",
    "even": "X f i real f f f n n threads",
    "cross_entropy": "X f X f X f i X f f f f double double n n n n n flag threads",
    "adam": "i d n double double double double double double flag threads",
    "length": "i d n threads",
    "sublayers": "s n X f",
    "sublayers_back": "s n flag X X X X f",
    "attend_past": "s s X f f X",
    "attend_source": "s s X f f X",
    "attend_within": "s s X X",
    "remember": "s s X f f n",
    "join": "s f h X n n flag threads",
    "step": "s s s f f f f f f f",
    "product": "s s n X h n flag threads",
    "likeliest": "X i f f f i d i n n n n n n threads",
}
"""s is a struct, X a tensor in the precision of the function, x one with gaps, which the struct tells, h one in fp32 or
bf16, f one in fp32, d one in fp64, i one of ids or places; a tensor may be None. Some are called by others alone."""
DTYPES = {"f": torch.float32, "d": torch.float64, "i": torch.int64}
_KINDS = {name: kinds.split() for name, kinds in ARGUMENTS.items()}
_OF_TENSORS = {"X", "x", "h", *DTYPES}
C_TYPES = {
    **dict.fromkeys(("s", *_OF_TENSORS), ctypes.c_void_p),
    "n": ctypes.c_int64,
    "seed": ctypes.c_uint64,
    "share": ctypes.c_uint32,
    "real": ctypes.c_float,
    "double": ctypes.c_double,
    "flag": ctypes.c_int,
    "threads": ctypes.c_int,
}


@cache
def code() -> Library:
    """What there is of it here."""
    found = library(Path(__file__).with_name("cpp"))
    if (loaded := found.loaded) is not None:
        for name, kinds in _KINDS.items():
            for precision in NAMES.values():
                if hasattr(loaded, f"{name}_{precision}"):
                    getattr(loaded, f"{name}_{precision}").argtypes = [C_TYPES[kind] for kind in kinds]
        for name in ("panel_width", "multiplies_pairs", "multiplies_tiles"):
            getattr(loaded, name).restype = ctypes.c_int64
        for name in ("attention", "linear", "narrow", "norm", "product"):
            room = getattr(loaded, f"{name}_room")
            room.argtypes, room.restype = [ctypes.c_int64] * 2, ctypes.c_int64
        loaded.cross_entropy_room.argtypes, loaded.cross_entropy_room.restype = [ctypes.c_int64] * 6, ctypes.c_int64
        loaded.sublayer_kept.restype = loaded.sublayer_room.restype = ctypes.c_int64
    return found


def code_to_keep() -> Library:
    """The same for what is over in seconds, as translating is: nothing where each process would compile it anew, unless
    this one has done so, as to train."""
    return code() if code.cache_info().currsize or keeps() else Library()


def run(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    """A function of the code, in its form for a precision; of tensors it gets where they lie, and nothing else tells it
    what they are."""
    places = []
    for kind, x in zip(_KINDS[name], arguments, strict=True):
        if kind in _OF_TENSORS and x is not None:
            assert x.is_cpu, (name, kind, x.device)
            assert x.dtype in (NAMES if kind == "h" else (DTYPES.get(kind, dtype),)), (name, kind, x.dtype)
            assert kind == "x" or x.is_contiguous(), (name, kind, x.stride())
            places.append(x.data_ptr())
        else:
            places.append(x)
    getattr(loaded(), f"{name}_{NAMES[dtype]}")(*places)


@cache
def panel_width() -> int:
    """Columns of a panel, as products of our own read weights."""
    return int(loaded().panel_width())


@cache
def multiplies_pairs() -> bool:
    """Whether they have an instruction that multiplies in bf16."""
    return bool(loaded().multiplies_pairs())


@cache
def is_soon_in_bf16() -> bool:
    """Whether they are there as soon as oneDNN's: by tiles (AMX), which the system has to allow; or by pairs, where the
    processor has no tiles, of which oneDNN's would be."""
    return bool(loaded().multiplies_tiles()) or (multiplies_pairs() and gains_without_tiles())


def dropped(x: Tensor, residual: Tensor | None, seed: int, share: int) -> Tensor:
    """x without a share of its elements, in 2^-16, at random by this seed, and the others scaled; and a residual
    added."""
    made: Tensor = _Dropped.apply(x, residual, seed, share)
    return made


class TiedTable:
    """A table that is an embedding and the output projection while one loss is made: the gradient of either is as large
    as the table, but that of embeddings, of some rows, which are added to the other's at the end."""

    def __init__(self, table_VD: Tensor) -> None:
        self.rows: list[tuple[Tensor, Tensor, float]] = []
        """Gradients of vectors, their ids, and what these were scaled by."""
        self.table_VD: Tensor = _Tied.apply(table_VD, self.rows)


def embedded(
    table: Tensor | TiedTable,
    ids_N: Tensor,
    places_PD: Tensor | None,
    positions_N: Tensor,
    *,
    scale: float,
    dtype: torch.dtype,
) -> Tensor:
    """The vector of each id, (N, D), times a scale and, if there are such, with that of its position. Padding, which is
    id 0, learns nothing."""
    table_VD, rows = (table.table_VD, table.rows) if isinstance(table, TiedTable) else (table, None)
    made: Tensor = _Embedded.apply(table_VD, ids_N, places_PD, positions_N, scale, dtype, rows)
    return made


def normed(
    x: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float, *, centred: bool = True
) -> tuple[Tensor, Tensor]:
    """x, (..., D), and its layer norm, or not centred its RMS norm. What learns from both is added up without a pass of
    its own."""
    return _Norm.apply(x, weight_D.to(x.dtype), None if bias_D is None else bias_D.to(x.dtype), eps, centred)


def rotated(x_NHK: Tensor, waves_PX: Tensor, positions_N: Tensor) -> Tensor:
    """Heads turned by the positions of their rows, each of which has in waves the K cosines of its features, and K
    sines, those of the first of each pair below 0."""
    made: Tensor = _Rotated.apply(x_NHK, waves_PX, positions_N)
    return made


def rotate(x_NHK: Tensor, into_NHK: Tensor, waves_PX: Tensor, positions_N: Tensor, *, back: bool = False) -> Tensor:
    """The same without autograd; into: x itself, or room for it. back: by as much the other way."""
    (rows, heads, width), steps = x_NHK.shape, (x_NHK.stride(0), into_NHK.stride(0))
    assert x_NHK.stride()[1:] == into_NHK.stride()[1:] == (width, 1)
    assert waves_PX.size(1) == 2 * width
    assert int(positions_N.max()) < len(waves_PX)
    places = x_NHK, steps[0], into_NHK, steps[1], waves_PX, positions_N
    run("rotate", x_NHK.dtype, *places, rows, heads, width, back, get_num_threads())
    return into_NHK


def smoothed(logits_RV: Tensor, targets_R: Tensor, even_R: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses of rows, and shares, which times what logits become are their gradients; of padding both are 0. training/
    loss.py tells what that leaves out. even_R: taken off the losses."""
    losses_R, shares_R = torch.empty_like(even_R), torch.empty_like(even_R)
    sizes, tensors = logits_RV.shape, (logits_RV, targets_R, even_R, losses_R, shares_R)
    run("smoothed", logits_RV.dtype, *tensors, smoothing, *sizes, get_num_threads())
    return losses_R, shares_R


def compared(
    logits_RV: Tensor, targets_R: Tensor, even_R: Tensor, smoothing: float, apart: float
) -> tuple[Tensor, Tensor]:
    """The same of two predictions of each target, none of them padding: all by p, behind them all by q. `apart` times
    KL(p || q) is a part of the losses of p, KL(q || p) of those of q."""
    n, losses_R = len(logits_RV) // 2, torch.empty_like(even_R)
    tensors = logits_RV, targets_R, even_R, even_R[n:], losses_R
    run("compared", logits_RV.dtype, *tensors, smoothing, apart, n, logits_RV.size(1), get_num_threads())
    return losses_R, torch.ones_like(even_R)


def likeliest(
    logits_RV: Tensor,
    n: int,
    banned: Tensor,
    *,
    n_looked_at: int | None = None,
    x_RD: Tensor | None = None,
    table_VD: Tensor | None = None,
    bias_V: Tensor | None = None,
    only_U: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The log-probabilities in fp64 and ids of the n likeliest, best first, of equals the first: (R, n). What is banned
    has its part of the probability, and is not found. Where there are fewer, or none is a number, -inf or NaN.
    n_looked_at, x_RD, ...: where logits are rounded, so many have exact ones in their place; see steps.Exact."""
    logp_RN, ids_RN = (
        torch.empty(len(logits_RV), n, dtype=torch.float64),
        torch.empty(len(logits_RV), n, dtype=torch.int64),
    )
    sizes = *logits_RV.shape, 0 if x_RD is None else x_RD.size(1), n, n_looked_at or n, len(banned)
    tensors = logits_RV, banned, x_RD, table_VD, bias_V, only_U, logp_RN, ids_RN
    run("likeliest", logits_RV.dtype, *tensors, *sizes, get_num_threads())
    return logp_RN, ids_RN


def summed(total: Tensor | None, x: Tensor, *, less: Tensor | None = None) -> Tensor:
    """total + x, or x alone, in fp32, (..., D); and in that case less this, (D,)."""
    adds, made = total is not None, torch.empty_like(x, dtype=torch.float32) if total is None else total
    run("add", x.dtype, made, x, less, x.numel() // x.size(-1), x.size(-1), adds, get_num_threads())
    return made


def even_part(x_ND: Tensor, by_D: Tensor, targets_N: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """In fp32 x by, (N,), and the sum of the rows of x that have a target, (D,); both times a share."""
    made_N, sums_D = torch.empty(len(x_ND)), torch.empty_like(by_D)
    place = torch.empty(loaded().narrow_room(*x_ND.shape))
    tensors = made_N, sums_D, place
    run("even", x_ND.dtype, x_ND.contiguous(), by_D, targets_N, share, *tensors, *x_ND.shape, get_num_threads())
    return made_N, sums_D


def loaded() -> ctypes.CDLL:
    """What is there: only where `code` has found it."""
    loaded = code().loaded
    assert loaded is not None
    return loaded


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        table_VD: Tensor,
        ids_N: Tensor,
        places_PD: Tensor | None,
        positions_N: Tensor,
        scale: float,
        dtype: torch.dtype,
        tied: list[tuple[Tensor, Tensor, float]] | None,
    ) -> Tensor:
        vocabulary, width = table_VD.shape
        assert width % GRAIN == 0
        assert len(ids_N) == len(positions_N)
        assert 0 <= int(ids_N.min()) <= int(ids_N.max()) < vocabulary
        assert places_PD is None or places_PD.size(1) == width
        assert places_PD is None or 0 <= int(positions_N.min()) <= int(positions_N.max()) < len(places_PD)
        made_ND = torch.empty(len(ids_N), width, dtype=dtype)
        sizes = scale, *made_ND.shape, get_num_threads()
        run("embed", dtype, table_VD, ids_N, places_PD, positions_N, made_ND, *sizes)
        ctx.read = ids_N, vocabulary, scale, tied  # type: ignore[attr-defined]
        return made_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ids_N, vocabulary, scale, tied = ctx.read  # type: ignore[attr-defined]
        if tied is not None:
            tied.append((grads[0], ids_N, scale))
            return (None,) * 7
        of_table_VD = torch.empty(vocabulary, grads[0].size(1))
        _learn_rows(of_table_VD, grads[0], ids_N, scale, adds=False)
        return of_table_VD, *[None] * 6


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, table_VD: Tensor, rows: list[tuple[Tensor, Tensor, float]]) -> Tensor:
        ctx.rows = rows  # type: ignore[attr-defined]
        return table_VD.view_as(table_VD)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        of_table_VD = grads[0].contiguous()
        increment_version(of_table_VD)  # the loss may still hold it
        for row in ctx.rows:  # type: ignore[attr-defined]
            _learn_rows(of_table_VD, *row, adds=True)
        ctx.rows.clear()  # type: ignore[attr-defined]
        return of_table_VD, None


def _learn_rows(of_table_VD: Tensor, grad_ND: Tensor, ids_N: Tensor, scale: float, *, adds: bool) -> None:
    sizes = scale, *grad_ND.shape, len(of_table_VD), adds, get_num_threads()
    run("embed_back", grad_ND.dtype, grad_ND.contiguous(), ids_N, of_table_VD, *sizes)


class _Dropped(torch.autograd.Function):
    """Which elements is not remembered, but drawn again on the way back."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, residual: Tensor | None, seed: int, share: int) -> Tensor:
        ctx.drawn = seed, share  # type: ignore[attr-defined]
        return _drop(x, residual, seed, share)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_residual = grads[0] if ctx.needs_input_grad[1] else None  # type: ignore[attr-defined]
        return _drop(grads[0], None, *ctx.drawn), of_residual, None, None  # type: ignore[attr-defined]


def _drop(x: Tensor, residual: Tensor | None, seed: int, share: int) -> Tensor:
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    output, scale = torch.empty_like(x), 2**16 / (2**16 - share)
    run("drop", x.dtype, x, residual, output, x.numel(), seed, share, scale, get_num_threads())
    return output


class _Norm(torch.autograd.Function):
    """x, and its rows normalised; the gradients of both become one."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float, centred: bool
    ) -> tuple[Tensor, Tensor]:
        x, width = x.contiguous(), weight_D.numel()
        rows = x.numel() // width
        output, moments = torch.empty_like(x), torch.empty(rows, 3)
        run("norm", x.dtype, x, weight_D, bias_D, output, moments, rows, width, eps, centred, get_num_threads())
        ctx.save_for_backward(x, weight_D, bias_D, moments)  # type: ignore[arg-type]
        ctx.centred = centred  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        return x.view_as(x), output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D, bias_D, moments = ctx.saved_tensors  # type: ignore[attr-defined]
        beside, grad = (None if each is None else each.contiguous() for each in grads)  # of what nobody reads
        if grad is None:
            return beside, None, None, None, None
        rows, width = moments.size(0), weight_D.numel()
        of_x, of_weight_D, of_bias_D = (torch.empty_like(like) for like in (x, weight_D, weight_D))
        place = torch.empty(loaded().norm_room(rows, width))
        tensors = (x, weight_D, moments, grad, beside, of_x, of_weight_D, of_bias_D, place)
        run("norm_back", x.dtype, *tensors, rows, width, ctx.centred, get_num_threads())  # type: ignore[attr-defined]
        return of_x, of_weight_D, None if bias_D is None else of_bias_D, None, None


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_NHK: Tensor, waves_PX: Tensor, positions_N: Tensor) -> Tensor:
        ctx.places = waves_PX, positions_N  # type: ignore[attr-defined]
        return rotate(x_NHK, x_NHK.new_empty(x_NHK.shape), waves_PX, positions_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad_NHK = grads[0].contiguous()
        return rotate(grad_NHK, torch.empty_like(grad_NHK), *ctx.places, back=True), None, None  # type: ignore[attr-defined]
