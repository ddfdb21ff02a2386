"""Section 5.4: label-smoothed cross-entropy over hidden states, without ever holding all logits.

N target positions, D d_model, V vocabulary, R rows of one piece of the work
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, get_num_threads
from torch.autograd.function import FunctionCtx, once_differentiable

from transformer_cli.model.compiled import compared, even_part, loaded, run, smoothed, summed
from transformer_cli.model.compiled_products import is_ours
from transformer_cli.model.matmul import input_gradient, linear, weight_gradient
from transformer_cli.tokenizer import PAD

PIECE_ELEMENTS = 8 * 1024 * 1024
"""Logits in memory at a time; as many as the output projection has numbers, whose gradient is held anyway, if it has
more."""
PIECE_ELEMENTS_ON_A_GPU = 128 * 1024 * 1024
"""The same there, where each piece is some thirty kernels to start, and nothing has to stay in a cache."""
SUMMED = 4096
"""In fp16: how many rows' gradients, of two predictions that are compared, are summed as they are; of fewer they are
scaled up, of more down."""
EXACT_FROM = 40.0
"""log(1 + exp(x)) is x from there on, in fp64, too."""
COMPARED = 4
"""Of two predictions in fp32, and what lies between them, so many times fewer rows at a time."""
MOST_SUMMED, MOST_ROWS = 2048, 256
"""In fp16, which ends at 65,504: what the exponentials of a row may come to, and over how many rows gradients are
summed; where there are more, what is summed is scaled down."""


def cross_entropy(
    hidden: Tensor,
    weight_VD: Tensor,
    targets: Tensor,
    *,
    bias_V: Tensor | None = None,
    smoothing: float = 0.0,
    is_table: bool = False,
    apart: float = 0.0,
    compiled: bool = False,
) -> Tensor:
    """Summed loss of the real targets; padding counts for nothing.

    hidden: (..., D). weight_VD, bias_V: the output projection. targets: (...), ids, PAD where there is none.
    Each target's distribution gives 1 - smoothing to the target and spreads the rest evenly over all V ids, the target
    included, as torch.nn.functional.cross_entropy does. is_table: the projection is the embedding, too, whose vector of
    padding stays zero: it learns nothing here. apart: how many times their `disagreement` is added, of two readings of
    the same targets, one behind the other, without padding. compiled: by cpp/ of the model, on a CPU in fp32 or bf16.
    Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    if not torch.is_grad_enabled():  # which the function below would not know
        hidden, weight_VD = hidden.detach(), weight_VD.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    hidden_ND, targets_N = hidden.flatten(0, -2), targets.flatten()
    loss: Tensor = _LinearCrossEntropy.apply(
        hidden_ND, weight_VD, bias_V, targets_N, smoothing, is_table, apart if compiled else 0.0, compiled
    )
    if apart and not compiled:
        one_ND, other_ND = hidden_ND.chunk(2)
        loss = loss + apart * disagreement(one_ND, other_ND, weight_VD, bias_V=bias_V, is_table=is_table)
    return loss


def disagreement(
    one_ND: Tensor, other_ND: Tensor, weight_VD: Tensor, *, bias_V: Tensor | None = None, is_table: bool = False
) -> Tensor:
    """KL(p || q) + KL(q || p), summed over rows, p and q the predictions from either's hidden states.

    is_table: see `cross_entropy`.
    """
    if not torch.is_grad_enabled():
        one_ND, other_ND, weight_VD = one_ND.detach(), other_ND.detach(), weight_VD.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    apart: Tensor = _Disagreement.apply(one_ND, other_ND, weight_VD, bias_V, is_table)
    return apart


def least(*, n_vocab: int, smoothing: float) -> float:
    """The mean loss that no model is below: the entropy of a target's distribution."""
    even = smoothing / n_vocab
    return -sum(n * p * math.log(p) for n, p in [(1, 1 - smoothing + even), (n_vocab - 1, even)] if p > 0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class _LinearCrossEntropy(torch.autograd.Function):
    """Projection, softmax and loss of a few rows at a time, and their gradients while the logits are at hand.

    The loss is log(sum(exp(logits))) - sum(q logits), where q is the smoothed target. With e = exp(logits - off), for
    any number off of a row, and s = sum(e), its gradient with respect to the logits is e / s - q. The division is left
    to the narrow side of the products, and the even part of q, the same for all ids, is a rank-one term: so the wide
    matrix is written once, exponentiated once, summed once, and read by two products.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        smoothing: float,
        is_table: bool,
        apart: float,
        compiled: bool,
    ) -> Tensor:
        """apart: see `cross_entropy`; where it is compiled."""
        ctx.dtype = hidden_ND.dtype  # type: ignore[attr-defined]
        n_vocab, d_model = weight_VD.shape
        needs_gradient = any(ctx.needs_input_grad[:3])  # type: ignore[attr-defined]
        wide = _wide(hidden_ND.dtype)
        is_on_cpu = hidden_ND.device.type == "cpu"
        n_rows = max(d_model, (PIECE_ELEMENTS if is_on_cpu else PIECE_ELEMENTS_ON_A_GPU) // n_vocab)
        readings = 2 if apart else 1
        n_rows, n_each = max(1, n_rows // readings), len(hidden_ND) // readings
        if compiled and len(hidden_ND) and is_ours(hidden_ND.dtype, min(n_rows, n_each)):
            tensors = hidden_ND, weight_VD, bias_V, targets_N
            return _by_one_call(ctx, *tensors, smoothing, is_table, apart, min(n_rows, n_each))
        weight, weight_sum_D = weight_VD.to(hidden_ND.dtype), weight_VD.sum(0).to(wide)
        bias = None if bias_V is None else bias_V.to(hidden_ND.dtype)
        even = smoothing / n_vocab
        less_D = even * weight_sum_D
        total = torch.zeros((), dtype=wide, device=hidden_ND.device)
        narrow = hidden_ND.dtype == torch.float16
        # What the loss is scaled by may be more than fp16 holds.
        grad_hidden_ND = torch.empty_like(hidden_ND, dtype=wide if narrow else None) if needs_gradient else None
        grad_weight_VD: Tensor | None = None
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=wide)

        even_N: Tensor | None = None
        even_D: Tensor | None
        if compiled:
            even_N, even_D = even_part(hidden_ND, weight_sum_D, targets_N, even)
        else:
            even_D = even * (hidden_ND * (targets_N[:, None] != PAD)).sum(0, dtype=wide)
        shift = max(0.0, math.log(n_vocab / MOST_SUMMED)) if narrow else None if is_on_cpu else 0.0
        down = max(1.0, min(n_rows, hidden_ND.size(0)) / MOST_ROWS) if narrow else 1.0

        def rows_of(x_N: Tensor, piece: slice) -> Tensor:
            """A piece of each reading, one behind the other."""
            return x_N[piece] if readings == 1 else torch.cat([x_N[piece] for x_N in x_N.chunk(readings)])

        for start in range(0, n_each, n_rows):
            piece = slice(start, start + n_rows)
            hidden_RD, targets_R1 = rows_of(hidden_ND, piece), rows_of(targets_N, piece)[:, None]
            hidden_wide_RD = hidden_RD.to(wide)
            even_R = even * (hidden_wide_RD @ weight_sum_D) if even_N is None else rows_of(even_N, piece)
            even_R1 = even_R[:, None]
            if bias_V is not None:
                even_R1 += even * bias_V.sum().to(wide)
            e_RV = None  # the last piece's are gone before there are others
            if compiled:
                e_RV = linear(hidden_RD, weight, bias)
                loss_R1, share_R1 = (
                    compared(e_RV, targets_R1, even_R1, smoothing, apart)
                    if apart
                    else smoothed(e_RV, targets_R1, even_R1, smoothing)
                )
            else:
                logits = partial(linear, hidden_RD, weight, bias)
                e_RV, loss_R1, share_R1 = _smoothed(logits, targets_R1, even_R1, smoothing, shift)
            total += loss_R1.sum()
            if grad_hidden_ND is None:
                continue
            real_R1 = (targets_R1 != PAD).to(wide)
            made_RD = input_gradient(e_RV, weight) * share_R1 - real_R1 * less_D
            for reading_ND, of_it_RD in zip(grad_hidden_ND.chunk(readings), made_RD.chunk(readings), strict=True):
                reading_ND[piece] = of_it_RD
            if down != 1:
                share_R1 = share_R1 / down
            if ctx.needs_input_grad[1]:  # type: ignore[attr-defined]
                once_D, even_D = (even_D, None) if compiled else (None, even_D)
                learned_VD = weight_gradient(e_RV, (hidden_wide_RD * share_R1).to(e_RV.dtype))
                if compiled:
                    grad_weight_VD = summed(grad_weight_VD, learned_VD, less=once_D)
                elif grad_weight_VD is None:
                    grad_weight_VD = learned_VD.to(wide) if down == 1 else learned_VD.to(wide).mul_(down)
                else:
                    grad_weight_VD.add_(learned_VD, alpha=down)
            if grad_bias_V is not None:
                found_V1 = (e_RV.T @ share_R1.to(e_RV.dtype)).to(wide)
                grad_bias_V += found_V1[:, 0] * down - even * (targets_R1 != PAD).sum(dtype=wide)

        if grad_weight_VD is not None:
            if even_D is not None:
                grad_weight_VD -= even_D
            if is_table:
                grad_weight_VD[PAD] = 0
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        if needs_gradient:
            ctx.save_for_backward(grad_hidden_ND, grad_weight_VD, grad_bias_V)  # type: ignore[arg-type]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_ND, grad_weight_VD, grad_bias_V = ctx.saved_tensors  # type: ignore[attr-defined]
        _multiply(grads[0], grad_hidden_ND, grad_weight_VD, grad_bias_V)
        return grad_hidden_ND.to(ctx.dtype), grad_weight_VD, grad_bias_V, *[None] * 5  # type: ignore[attr-defined]


def _by_one_call(
    ctx: Any,
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    smoothing: float,
    is_table: bool,
    apart: float,
    n_rows: int,
) -> Tensor:
    """The same of numbers in bf16, by cpp/cross_entropy.cpp: between calls Python takes as long as some of them.

    n_rows: of logits at a time, for each reading.
    """
    (n_vocab, d_model), hidden_ND = weight_VD.shape, hidden_ND.contiguous()
    assert hidden_ND.size(1) == d_model
    assert targets_N.shape == hidden_ND.shape[:1]
    assert bias_V is None or len(bias_V) == n_vocab
    if weight_VD.dtype == torch.float32:
        table_VD = weight_VD.contiguous()
        weight, weight_sum_D = torch.empty_like(table_VD, dtype=hidden_ND.dtype), torch.empty(d_model)
    else:
        table_VD, weight, weight_sum_D = None, weight_VD.to(hidden_ND.dtype).contiguous(), weight_VD.sum(0).float()
    bias = of_bias = None
    if bias_V is not None:
        bias, of_bias = bias_V.to(hidden_ND.dtype), smoothing / n_vocab * bias_V.sum().float()
    needed = ctx.needs_input_grad[:3]
    grad_hidden_ND = torch.empty_like(hidden_ND) if any(needed) else None
    grad_weight_VD = torch.empty(n_vocab, d_model) if needed[1] else None
    grad_bias_V = torch.empty(n_vocab) if needed[2] else None
    sizes = (*hidden_ND.shape, n_vocab, n_rows, 2 if apart else 1)
    total, threads = torch.empty(()), get_num_threads()
    room = torch.empty(loaded().cross_entropy_room(*sizes, threads))
    read = hidden_ND, table_VD, weight, weight_sum_D, bias, of_bias, targets_N
    made = grad_hidden_ND, grad_weight_VD, grad_bias_V, total
    run("cross_entropy", hidden_ND.dtype, *read, *made, room, smoothing, apart, *sizes, is_table, threads)
    if grad_weight_VD is not None:
        grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
    ctx.save_for_backward(grad_hidden_ND, grad_weight_VD, grad_bias_V)
    return total


def _multiply(by: Tensor, *gradients: Tensor | None) -> None:
    """In place; by 1 not at all, where that is known without waiting for a device."""
    for gradient in gradients if not by.is_cpu or by != 1 else ():
        if gradient is not None:
            gradient.mul_(by.to(gradient.dtype))


def _smoothed(
    logits: Callable[[], Tensor], targets_R1: Tensor, even_R1: Tensor, smoothing: float, shift: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """s times (softmax - the target's own part), losses, and what to multiply the first with, 1 / s; 0 of padding.

    even_R1: taken off the losses. shift: see `_exponentials`.
    """
    e_RV, others_R1, target_R1, off_R1 = _exponentials(logits, targets_R1, shift)
    own_R1, real_R1 = target_R1.exp(), (targets_R1 != PAD).to(target_R1.dtype)
    loss_R1 = F.softplus(others_R1.log() - target_R1, threshold=EXACT_FROM) + smoothing * (target_R1 + off_R1)
    share_R1 = real_R1 / (own_R1 + others_R1)
    own_R1 = smoothing * own_R1 - (1 - smoothing) * others_R1
    e_RV[_places(targets_R1)] = own_R1[:, 0].to(e_RV.dtype)
    return e_RV, (loss_R1 - even_R1) * real_R1, share_R1


def _exponentials(
    logits: Callable[[], Tensor], targets_R1: Tensor, shift: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """exp(logits - off), but 0 for the target, which the model may be so sure of that in bf16 it would hide the others;
    their sums, the targets' own logits less off, and off.

    off is the largest of a row's logits, and this shift more. shift: None to take nothing off where exponentials are
    as far from the ends of fp32 and bf16 (1e-38 and 1e38) as they usually are: that is two passes over memory less, but
    to know it one would have to wait for a GPU.
    """
    scores_RV = logits()
    wide = _wide(scores_RV.dtype)
    target_R1 = scores_RV.gather(1, targets_R1).to(wide)
    if shift is None:
        off_R1 = torch.zeros_like(target_R1)
        e_RV, others_R1 = _without_targets(scores_RV.exp_(), targets_R1)
        sum_R1 = target_R1.exp() + others_R1
        is_usual_R1 = (sum_R1 > 1e-20) & (sum_R1 < 1e20)
        if is_usual_R1.all():
            return e_RV, others_R1, target_R1, off_R1
        del e_RV, scores_RV  # or there would be twice as many logits as are counted
        scores_RV = logits()
        off_R1 = scores_RV.amax(-1, keepdim=True).masked_fill_(is_usual_R1, 0)
    else:
        off_R1 = scores_RV.amax(-1, keepdim=True) + shift
    e_RV, others_R1 = _without_targets(scores_RV.sub_(off_R1).exp_(), targets_R1)
    return e_RV, others_R1, target_R1 - off_R1, off_R1


def _without_targets(e_RV: Tensor, targets_R1: Tensor) -> tuple[Tensor, Tensor]:
    """They are set to 0, and the others summed."""
    e_RV[_places(targets_R1)] = 0
    # A CPU sums in fp32 in any case, but for a result in fp32 it would make a copy of all.
    wide = _wide(e_RV.dtype)
    return e_RV, e_RV.sum(-1, keepdim=True, dtype=None if e_RV.device.type == "cpu" else wide).to(wide)


def _places(targets_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Of the targets, to set what is there: `scatter_` copies all of a matrix twice."""
    return torch.arange(len(targets_R1), device=targets_R1.device), targets_R1[:, 0]


class _Disagreement(torch.autograd.Function):
    """Both predictions of a few rows at a time, and their gradients while they are at hand."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, one_ND: Tensor, other_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, is_table: bool
    ) -> Tensor:
        ctx.dtype = one_ND.dtype  # type: ignore[attr-defined]
        wide = _wide(one_ND.dtype)
        weight = weight_VD.to(one_ND.dtype)
        bias = None if bias_V is None else bias_V.to(one_ND.dtype)
        held = wide if one_ND.dtype == torch.float16 else None  # see _LinearCrossEntropy
        grad_one_ND, grad_other_ND = (torch.empty_like(hidden_ND, dtype=held) for hidden_ND in (one_ND, other_ND))
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide) if ctx.needs_input_grad[2] else None  # type: ignore[attr-defined]
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=wide)
        total = torch.zeros((), dtype=wide, device=one_ND.device)
        n_rows = max(1, PIECE_ELEMENTS // COMPARED // len(weight_VD))
        # The fewer rows are summed, the more small ones fp16 can hold without a sum that it cannot.
        up = 2.0 ** round(math.log2(SUMMED / max(1, min(n_rows, one_ND.size(0))))) if held else 1.0
        for start in range(0, one_ND.size(0), n_rows):
            piece = slice(start, start + n_rows)
            hidden_RD = torch.cat((one_ND[piece], other_ND[piece]))
            apart, grad_RV = _compared(linear(hidden_RD, weight, bias).log_softmax(-1, dtype=wide))
            total += apart
            if not any(ctx.needs_input_grad):  # type: ignore[attr-defined]
                continue
            grad_RV = grad_RV.mul_(up).to(one_ND.dtype)
            grad_one_ND[piece], grad_other_ND[piece] = input_gradient(grad_RV, weight).chunk(2)
            if grad_weight_VD is not None:
                grad_weight_VD.add_(weight_gradient(grad_RV, hidden_RD), alpha=1 / up)
            if grad_bias_V is not None:
                grad_bias_V.add_(grad_RV.sum(0, dtype=wide), alpha=1 / up)
        if grad_weight_VD is not None:
            if is_table:
                grad_weight_VD[PAD] = 0
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        if up != 1:
            grad_one_ND /= up
            grad_other_ND /= up
        ctx.save_for_backward(grad_one_ND, grad_other_ND, grad_weight_VD, grad_bias_V)  # type: ignore[arg-type]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_one_ND, grad_other_ND, grad_weight_VD, grad_bias_V = ctx.saved_tensors  # type: ignore[attr-defined]
        _multiply(grads[0], grad_one_ND, grad_other_ND, grad_weight_VD, grad_bias_V)
        of_hidden = (x.to(ctx.dtype) for x in (grad_one_ND, grad_other_ND))  # type: ignore[attr-defined]
        return *of_hidden, grad_weight_VD, grad_bias_V, None


def _compared(log_RV: Tensor) -> tuple[Tensor, Tensor]:
    """What `disagreement` is of predictions p, one below the other, and as many q; and its gradient with respect to
    their logits, which with d = log p - log q is p (d - KL(p || q)) + p - q for those of p. Changes what it is given.
    """
    log_p, log_q = log_RV.chunk(2)
    d_RV = log_p - log_q
    p, q = log_RV.exp_().chunk(2)
    p_from_q_R1, q_from_p_R1 = (p * d_RV).sum(-1, keepdim=True), -(q * d_RV).sum(-1, keepdim=True)
    apart_RV = p - q
    of_p_RV, of_q_RV = p * (d_RV - p_from_q_R1) + apart_RV, -q * (d_RV + q_from_p_R1) - apart_RV
    return p_from_q_R1.sum() + q_from_p_R1.sum(), torch.cat((of_p_RV, of_q_RV))
