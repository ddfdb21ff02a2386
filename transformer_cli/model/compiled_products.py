"""Linear layers there and back: products in bf16 by cpp/products.cpp, where that is as fast as oneDNN, else oneDNN's or
PyTorch's; and by cpp/linear.cpp what else a gradient needs.

R rows, N packed tokens, I inputs and O outputs of a linear layer, C columns
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, get_num_threads
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.model import matmul
from transformer_cli.model.compiled import is_soon_in_bf16, loaded, run
from transformer_cli.model.matmul import TURNED

MOST = 4112
"""Rows of our products, those of 4,096 tokens and padding: more would not stay in a core's cache."""


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, *, rectified: bool) -> Tensor:
    """x W^T + b, (..., O), or max(0, that)."""
    made: Tensor = _Linear.apply(x, weight_OI, bias_O, rectified)
    return made


@cache
def by_pairs(dtype: torch.dtype) -> bool:
    """Whether products of these numbers, there and back, are ours, where rows are not too many."""
    return dtype == torch.bfloat16 and is_soon_in_bf16()


def is_ours(dtype: torch.dtype, rows: int) -> bool:
    """Whether those of so many rows are."""
    return rows <= MOST and by_pairs(dtype)


def multiplied(
    a_RI: Tensor,
    b: Tensor,
    bias_O: Tensor | None = None,
    *,
    by_rows: bool = False,
    rectified: bool = False,
) -> Tensor:
    """a b + bias, (R, O), in bf16, or max(0, that). b: (I, O) or, by_rows, (O, I)."""
    n_inputs, n_outputs = b.shape[::-1] if by_rows else b.shape
    assert n_inputs == a_RI.size(1)
    assert bias_O is None or len(bias_O) == n_outputs
    made_RO, threads = a_RI.new_empty(len(a_RI), n_outputs), get_num_threads()
    room = torch.empty(threads * loaded().product_room(*a_RI.shape))
    sizes = *a_RI.shape, n_outputs, by_rows, rectified, threads
    run("multiply", a_RI.dtype, a_RI.contiguous(), b.contiguous(), bias_O, None, None, made_RO, room, *sizes)
    return made_RO


class _Linear(torch.autograd.Function):
    """In the pass that sums the gradient of the bias, that of outputs is rectified, too."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, rectified: bool) -> Tensor:
        x_NI = x.reshape(-1, x.size(-1))
        if is_ours(x.dtype, len(x_NI)):
            made_NO = multiplied(x_NI, weight_OI, bias_O, by_rows=True, rectified=rectified)
            # Not a view without need: PyTorch's FSDP warns of what changes one in place.
            made = made_NO if x.dim() == 2 else made_NO.view(*x.shape[:-1], len(weight_OI))
        else:
            made = matmul.linear(x, weight_OI, bias_O, rectified=rectified)
        ctx.save_for_backward(x, weight_OI, bias_O, made if rectified else None)  # type: ignore[arg-type]
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_OI, bias_O, made = ctx.saved_tensors  # type: ignore[attr-defined]
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad  # type: ignore[attr-defined]
        width, inputs = weight_OI.shape
        grad_NO, x_NI = grads[0].reshape(-1, width).contiguous(), x.reshape(-1, inputs)
        rows = len(grad_NO)
        of_bias_O, place = grad_NO.new_empty(width), torch.empty(loaded().linear_room(rows, width))
        ours = is_ours(x.dtype, rows)
        turned_ON = grad_NO.new_empty(width, rows) if needs_weight and ours and width <= inputs else None
        # A gradient of max(0, x) is nobody else's: the next layer has made it.
        tensors = grad_NO, made, bias_O, of_bias_O, place, turned_ON
        run("linear_back", x.dtype, *tensors, rows, width, get_num_threads())
        of_x = of_weight = None
        if needs_x:
            product = multiplied if ours else matmul.input_gradient
            of_x = product(grad_NO, weight_OI).view(x.shape)
        if turned_ON is not None:
            of_weight = multiplied(turned_ON, x_NI)
        elif needs_weight:
            of_weight = turned(multiplied(turned(x_NI), grad_NO)) if ours else _weight_gradient(grad_NO, x_NI)
        return of_x, of_weight, of_bias_O if needs_bias else None, None


def _weight_gradient(grad_NO: Tensor, x_NI: Tensor) -> Tensor:
    """grad^T x, (O, I). In bf16 a product reads rows far faster than columns: where one side is narrow enough for that
    to pay, it is turned first."""
    (_, width), (_, inputs) = grad_NO.shape, x_NI.shape
    if x_NI.dtype == torch.bfloat16 and inputs >= TURNED * width:
        return turned(grad_NO) @ x_NI
    if x_NI.dtype == torch.bfloat16 and width >= TURNED * inputs:
        return turned(turned(x_NI) @ grad_NO)
    return matmul.weight_gradient(grad_NO, x_NI)


def turned(x_RC: Tensor) -> Tensor:
    """In bf16, (C, R)."""
    turned_CR = x_RC.new_empty(x_RC.size(1), x_RC.size(0))
    run("turn", x_RC.dtype, x_RC.contiguous(), None, turned_CR, *x_RC.shape, get_num_threads())
    return turned_CR
