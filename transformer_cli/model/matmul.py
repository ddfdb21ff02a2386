"""Products of a linear layer, there and back, by what is fastest here of what PyTorch brings: MKL or oneDNN.

R rows, I inputs, O outputs
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_cli.processor import capabilities, computes_bf16, gains_in_fp32

TURNED = 4
"""How many times as wide as one side of a product the other has to be for that to be turned which is narrow."""


@cache
def by_onednn(dtype: torch.dtype) -> bool:
    """Whether it is asked by name: in bf16 it adds the bias while it multiplies, in fp32 PyTorch would ask MKL, which
    is left only where a processor is known not to be Intel's. PyTorch promises nothing about this operation."""
    in_fp32 = dtype == torch.float32 and gains_in_fp32() and "cpu_name" in capabilities()
    is_fast = computes_bf16() if dtype == torch.bfloat16 else in_fp32
    return is_fast and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, *, rectified: bool = False) -> Tensor:
    """x W^T + b, (R, O), or max(0, that), for which oneDNN takes 0 of what is no number; R may be several dimensions.
    None of these is for autograd."""
    if x_RI.is_cpu and by_onednn(x_RI.dtype):
        made: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_RI, weight_OI, bias_O, "relu" if rectified else "none", [], ""
        )
        return made
    made = F.linear(x_RI, weight_OI, bias_O)
    return made.relu_() if rectified else made


def input_gradient(grad_RO: Tensor, weight_OI: Tensor) -> Tensor:
    """grad W, (R, I)."""
    return linear(grad_RO, weight_OI.t())


def weight_gradient(grad_RO: Tensor, x_RI: Tensor) -> Tensor:
    """grad^T x, (O, I)."""
    if not (x_RI.is_cpu and x_RI.dtype == torch.float32 and by_onednn(x_RI.dtype)):
        return grad_RO.t() @ x_RI
    (_, outputs), (_, inputs) = grad_RO.shape, x_RI.shape
    if outputs >= TURNED * inputs:
        return linear(x_RI.t().contiguous(), grad_RO.t()).t().contiguous()
    return linear(grad_RO.t().contiguous() if inputs >= TURNED * outputs else grad_RO.t(), x_RI.t())
