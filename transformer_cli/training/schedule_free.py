"""AdamW without a schedule: gradients are taken beside an average of all weights so far, which is what is evaluated.

z moves, x is its average, y between them is what learns. Source: Defazio et al. 2024, "The Road Less Scheduled",
algorithm 1, with its names; the bias of the second moment is taken out as in Adam, which the authors do since, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_cli.config.training import TrainingConfig
from transformer_cli.training.optimizers import Groups, Uncompiled


def schedule_free(groups: Groups, options: TrainingConfig) -> ScheduleFree:
    return ScheduleFree(groups, options)


class ScheduleFree(Uncompiled):
    """While it trains, parameters are y; z and the second moment are its state, and x is apart: the average."""

    def __init__(self, groups: Groups, options: TrainingConfig) -> None:
        self.beta1, self.beta2 = options.betas
        self.eps = options.eps
        super().__init__(groups, {"lr": 0.0})
        self.averages: dict[Tensor, Tensor] = {y: y.detach().clone() for group in groups for y in group["params"]}
        """x of each parameter."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            learned = [y for y in group["params"] if y.grad is not None]
            for y in learned:
                if not self.state[y]:
                    self.state[y] |= {"z": y.detach().clone(), "exp_avg_sq": torch.zeros_like(y)}
                    self.state[y] |= {name: torch.zeros(()) for name in ("step", "weights")}
            if learned:
                self._move(learned, rate=group["lr"], decay=group["weight_decay"])

    def _move(self, learned: list[Tensor], *, rate: float, decay: float) -> None:
        one = self.state[learned[0]]  # of all alike, and on the CPU, which waits for no device then
        t, weights = float(one["step"]) + 1, float(one["weights"]) + rate**2
        c = rate**2 / weights if weights else 0.0
        for y in learned:
            x, state = self.averages[y], self.state[y]
            z, v = state["z"], state["exp_avg_sq"]
            state["step"].fill_(t)
            state["weights"].fill_(weights)
            v.mul_(self.beta2).addcmul_(y.grad, y.grad, value=1 - self.beta2)
            deviation = (v / (1 - self.beta2**t)).sqrt_().add_(self.eps)
            z.addcdiv_(y.grad, deviation, value=-rate).sub_(y, alpha=rate * decay)
            x.lerp_(z, c)
            y.copy_(z).lerp_(x, self.beta1)
