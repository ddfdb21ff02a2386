"""Learning rates against the paper's formula and torch's own schedulers."""

from __future__ import annotations

import math

import pytest
import torch

from transformer_cli.config.training import TrainingConfig
from transformer_cli.training.schedules import DECAYS, learning_rate


def options(**changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"warmup_steps": 40, "max_steps": 200, "learning_rate": 0.01} | changes)


def test_noam_is_equation_3_of_the_paper() -> None:
    for step in (1, 39, 40, 41, 1000):
        expected = 512**-0.5 * min(step**-0.5, step * 40**-1.5)
        assert learning_rate(step, options(schedule="noam", learning_rate=1.0), d_model=512) == pytest.approx(expected)


def test_inverse_sqrt_is_noam_scaled_to_its_peak() -> None:
    peak = learning_rate(40, options(schedule="noam"), d_model=16)
    for step in range(1, 300):
        noam = learning_rate(step, options(schedule="noam"), d_model=16)
        ours = learning_rate(step, options(schedule="inverse-sqrt"), d_model=16)
        assert ours == pytest.approx(0.01 * noam / peak, rel=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_cosine_and_linear_equal_torchs_after_the_warm_up(schedule: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    reference: torch.optim.lr_scheduler.LRScheduler
    if schedule == "cosine":
        reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)
    else:
        reference = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=160)
    for step in range(40, 201):
        assert learning_rate(step, options(schedule=schedule), d_model=16) == pytest.approx(
            reference.get_last_lr()[0], abs=1e-12
        )
        optimizer.step()
        reference.step()
    assert learning_rate(200, options(schedule=schedule), d_model=16) == 0


@pytest.mark.parametrize("warmup", [0, 1, 40])
@pytest.mark.parametrize("schedule", [*DECAYS, "noam"])
def test_it_rises_linearly_then_never_again(schedule: str, warmup: int) -> None:
    rates = [learning_rate(s, options(schedule=schedule, warmup_steps=warmup), d_model=16) for s in range(1, 201)]
    for step in range(1, warmup):
        assert rates[step - 1] == pytest.approx(rates[warmup - 1] * step / warmup)
    assert all(a >= b for a, b in zip(rates[max(warmup - 1, 0) :], rates[max(warmup, 1) :], strict=False))
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)
    if schedule != "noam":
        assert max(rates) == pytest.approx(0.01, rel=0.02)
