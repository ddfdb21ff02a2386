"""What a model that learns computes by the C++ in cpp/, where that can be compiled for this processor.

D features that are normalised
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, get_num_threads
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.compiler import Library, library

GRAIN = 16
"""Numbers that a register has, at most: rows and heads are of a multiple of them."""
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}

ARGUMENTS = {
    "forward": "s x x x X X f",
    "backward": "s x x x X X f x x x",
    "drop": "X X X n seed share real threads",
    "norm": "X X X X f n n real threads",
    "norm_back": "X X f X X X X X f n n threads",
}
"""s is a struct, X a tensor in the precision of the function, x one with gaps, which the struct tells, f one in fp32; a
tensor may be None."""
_KINDS = {name: kinds.split() for name, kinds in ARGUMENTS.items()}
C_TYPES = {
    **dict.fromkeys(("X", "x", "f", "s"), ctypes.c_void_p),
    "n": ctypes.c_int64,
    "seed": ctypes.c_uint64,
    "share": ctypes.c_uint32,
    "real": ctypes.c_float,
    "threads": ctypes.c_int,
}


@cache
def code() -> Library:
    """What there is of it here."""
    found = library(Path(__file__).with_name("cpp"))
    if (loaded := found.loaded) is not None:
        for name, kinds in _KINDS.items():
            for precision in NAMES.values():
                getattr(loaded, f"{name}_{precision}").argtypes = [C_TYPES[kind] for kind in kinds]
        for function in (loaded.attention_room, loaded.norm_room):
            function.argtypes, function.restype = [ctypes.c_int64] * 2, ctypes.c_int64
    return found


def run(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    """A function of the code, in its form for a precision; of tensors it gets where they lie, and nothing else tells it
    what they are."""
    for kind, x in zip(_KINDS[name], arguments, strict=True):
        if isinstance(x, Tensor):
            assert x.is_cpu, (name, kind, x.device)
            assert x.dtype == (torch.float32 if kind == "f" else dtype), (name, kind, x.dtype)
            assert kind == "x" or x.is_contiguous(), (name, kind, x.stride())
    places = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
    getattr(_loaded(), f"{name}_{NAMES[dtype]}")(*places)


def attention_room(longest: int, d_head: int) -> int:
    """How many numbers in fp32 a thread of attention works in. longest: keys of a sentence."""
    return _loaded().attention_room(longest, d_head)


def dropped(x: Tensor, residual: Tensor | None, *, share: int) -> Tensor:
    """x without a share of its elements, in 2^-16, at random, and the others scaled; and a residual added."""
    seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None)
    return _Dropped.apply(x, residual, int(seed) % 2**64, share)


def normed(x: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """x, (..., D), and its layer norm. What learns from both is added up without a pass of its own."""
    return _Norm.apply(x, weight_D.to(x.dtype), None if bias_D is None else bias_D.to(x.dtype), eps)


def _loaded() -> ctypes.CDLL:
    loaded = code().loaded
    assert loaded is not None
    return loaded


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
        ctx: FunctionCtx, x: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, width = x.contiguous(), weight_D.numel()
        rows = x.numel() // width
        output, moments = torch.empty_like(x), torch.empty(rows, 2)
        run("norm", x.dtype, x, weight_D, bias_D, output, moments, rows, width, eps, get_num_threads())
        ctx.save_for_backward(x, weight_D, bias_D, moments)  # type: ignore[arg-type]
        ctx.set_materialize_grads(False)
        return x.view_as(x), output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D, bias_D, moments = ctx.saved_tensors  # type: ignore[attr-defined]
        beside, grad = (None if each is None else each.contiguous() for each in grads)  # of what nobody reads
        if grad is None:
            return beside, None, None, None
        rows, width = moments.size(0), weight_D.numel()
        of_x, of_weight_D, of_bias_D = (torch.empty_like(like) for like in (x, weight_D, weight_D))
        place = torch.empty(_loaded().norm_room(rows, width))
        tensors = (x, weight_D, moments, grad, beside, of_x, of_weight_D, of_bias_D, place)
        run("norm_back", x.dtype, *tensors, rows, width, get_num_threads())
        return of_x, of_weight_D, None if bias_D is None else of_bias_D, None
