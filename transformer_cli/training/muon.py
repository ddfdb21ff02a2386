"""Muon: matrices inside of the layers move by an orthogonal matrix, all else by AdamW.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the size of a step, by which one
rate fits both, is that of Liu et al. 2025, "Muon is scalable for LLM training", section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_cli.checkpoints.tensors import as_held, whole
from transformer_cli.config.training import TrainingConfig
from transformer_cli.training.optimizers import Groups, adam_options

MOMENTUM = 0.95
SIZE = 0.2
"""Of an element of a step, in a mean of squares: about AdamW's."""
ITERATIONS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315


def muon(groups: Groups, options: TrainingConfig) -> Muon:
    return Muon(groups, **adam_options(groups, options))


class Muon(torch.optim.AdamW):
    """AdamW, but for the groups that are `hidden`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        every = self.param_groups
        for group in every:
            for matrix, rows in zip(group["params"], group["rows"], strict=True) if group["hidden"] else ():
                if matrix.grad is not None:
                    self._turn(matrix, rows, rate=group["lr"], decay=group["weight_decay"])
        try:
            self.param_groups = [group for group in every if not group["hidden"]]
            super().step()
        finally:
            self.param_groups = every

    def _turn(self, matrix: Tensor, rows: Sequence[int] | None, *, rate: float, decay: float) -> None:
        """rows: of each of several matrices, which turn by themselves."""
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        assert matrix.grad is not None
        momentum = state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
        ahead = whole(matrix.grad.lerp(momentum, MOMENTUM))  # Nesterov's
        steps = [SIZE * max(one.shape) ** 0.5 * orthogonal(one) for one in ahead.split(list(rows or [len(ahead)]))]
        matrix.mul_(1 - rate * decay).add_(as_held(torch.cat(steps), matrix), alpha=-rate)


def orthogonal(matrix: Tensor) -> Tensor:
    """U V^T of a matrix U S V^T, up to singular values between 0.7 and 1.2: five steps of Newton and Schulz, on a GPU
    in bf16, as published."""
    a, b, c = COEFFICIENTS
    x = matrix.to(torch.bfloat16) if matrix.device.type == "cuda" else matrix
    is_tall = x.size(0) > x.size(1)
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if is_tall else x).to(matrix.dtype)
