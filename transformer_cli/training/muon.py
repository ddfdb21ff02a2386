"""Muon: matrices inside of the layers move by an orthogonal matrix, all else by AdamW.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the size of a step, by which one
rate fits both, is that of Liu et al. 2025, "Muon is scalable for LLM training", section 2.2.

N matrices, R rows, C columns
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transformer_cli.checkpoints.tensors import as_held, whole
from transformer_cli.config.training import TrainingConfig
from transformer_cli.model.products import has_bf16_products
from transformer_cli.training.optimizers import AdamW, DecoupledOnePass, Groups, fastest

MOMENTUM = 0.95
SIZE = 0.2
"""Of an element of a step, in a mean of squares: about AdamW's."""
ITERATIONS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315
AT_ONCE = 4 * 1024 * 1024
"""Numbers of matrices that are orthogonalised together, about: of larger ones each keeps all threads busy by itself."""


def muon(groups: Groups, options: TrainingConfig) -> torch.optim.Optimizer:
    return fastest(OnePassMuon, Muon, groups, options)


class _Turning(torch.optim.Optimizer):
    """What moves the matrices of the groups that are `hidden`."""

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        return parameter.grad

    def _weight(self, parameter: Tensor) -> Tensor:
        """What is moved for it."""
        return parameter

    def _turn(self) -> None:
        for group in self.param_groups:
            if group["hidden"]:
                self._update(group)

    def _update(self, group: dict[str, Any]) -> None:
        """Move the matrices of a group; where several lie in one parameter, such as W^Q, W^K and W^V, each by
        itself."""
        waiting: list[tuple[Tensor, Sequence[Tensor]]] = []
        how, n = {"rate": group["lr"], "decay": group["weight_decay"], "dtype": group["dtype"]}, 0
        for parameter, rows in zip(group["params"], group["rows"], strict=True):
            if (grad := self._gradient(parameter)) is not None:
                ahead = self._ahead(parameter, grad)
                waiting.append((self._weight(parameter), ahead.split(list(rows or [len(ahead)]))))
                n += ahead.numel()
            if n >= AT_ONCE:
                _move(waiting, **how)
                waiting, n = [], 0
        _move(waiting, **how)

    def _ahead(self, parameter: Tensor, grad: Tensor) -> Tensor:
        """The gradient with Nesterov's momentum."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].lerp_(grad, 1 - MOMENTUM)
        return whole(grad.lerp(momentum, MOMENTUM))


class Muon(_Turning, AdamW):
    """AdamW, but for the groups that are `hidden`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._turn()
        every = self.param_groups
        try:
            self.param_groups = [group for group in every if not group["hidden"]]
            super().step()
        finally:
            self.param_groups = every


class OnePassMuon(_Turning, DecoupledOnePass):
    """The same, where AdamW is one pass by compiled code, in which averages and copies follow what was turned, too."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._turn()
        super().step()

    def _begin(self) -> None:
        super()._begin()
        self._others = {one for group in self.param_groups if group["hidden"] for one in group["params"]}

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        """As it is to be, and gone: the pass finds none."""
        copied = self._copies_of.get(parameter)
        grad, parameter.grad = parameter.grad, None
        if grad is None and copied is not None and copied.grad is not None:
            grad, copied.grad = copied.grad.to(parameter.dtype), None
        return None if grad is None else grad.mul_(self.scale)

    def _weight(self, parameter: Tensor) -> Tensor:
        return parameter.data  # its version tells what others changed, after whom copies are made anew


def _move(
    parameters: Sequence[tuple[Tensor, Sequence[Tensor]]], *, rate: float, decay: float, dtype: torch.dtype | None
) -> None:
    """Update parameters, each given with its matrices as momentum has them."""
    directions = iter(orthogonal([one for _, matrices in parameters for one in matrices], dtype))
    for parameter, matrices in parameters:
        step = torch.cat([SIZE * max(one.shape) ** 0.5 * next(directions) for one in matrices])
        parameter.mul_(1 - rate * decay).add_(as_held(step, parameter), alpha=-rate)


def orthogonal(matrices: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """U V^T of each matrix U S V^T, nearly, by five steps of Newton and Schulz: singular values become 0.68 to 1.21;
    only those below 0.3 % of the matrix's norm stay smaller. Those of one shape, lying or standing, together. In bf16,
    as published, on a GPU, and on a processor that has such products where the model computes in that (dtype)."""
    found = [*matrices]
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, matrix in enumerate(matrices):
        alike[min(matrix.shape), max(matrix.shape)].append(place)
    for places in alike.values():
        directions = _orthogonal(torch.stack([_lying(matrices[place]) for place in places]), dtype)
        for place, x in zip(places, directions, strict=True):
            found[place] = (x if _lies(matrices[place]) else x.T).to(matrices[place].dtype)
    return found


def _orthogonal(x_NRC: Tensor, dtype: torch.dtype | None) -> Tensor:
    """N matrices, no taller than wide."""
    a, b, c = COEFFICIENTS
    is_rounded = x_NRC.is_cuda or has_bf16_products(x_NRC.new_empty(0, dtype=dtype))
    x = x_NRC.to(torch.bfloat16) if is_rounded else x_NRC
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _lies(matrix: Tensor) -> bool:
    return matrix.size(0) <= matrix.size(1)


def _lying(matrix: Tensor) -> Tensor:
    return matrix if _lies(matrix) else matrix.T
