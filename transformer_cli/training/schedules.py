"""The learning rate as a function of the step; nothing to restore when a run continues.

A schedule is a function from a step after the warm-up to the share of the peak that is left.
"""

from __future__ import annotations

import math

from transformer_cli.config.training import SCHEDULES, TrainingConfig

DECAY = 0.2
"""The share of all updates in which `warmup-stable-decay` falls."""


def learning_rate(step: int, options: TrainingConfig, *, d_model: int) -> float:
    """The rate of update number `step`, counted from 1.

    It rises linearly over the warm-up, then follows the schedule and never rises again.
    """
    height = _height(options, d_model=d_model)
    if step <= options.warmup_steps:
        return height * step / options.warmup_steps
    return height * SCHEDULES.load(options.schedule)(step, options)


def peak(options: TrainingConfig, *, d_model: int, total_steps: int) -> tuple[int, float]:
    """The update with the highest rate in a run of so many, and that rate."""
    step = min(max(options.warmup_steps, 1), total_steps)
    return step, learning_rate(step, options, d_model=d_model)


def _height(options: TrainingConfig, *, d_model: int) -> float:
    """The rate at the end of the warm-up. noam's follows from Vaswani et al. 2017, eq. 3."""
    if options.schedule == "noam":
        return float((d_model * max(options.warmup_steps, 1)) ** -0.5)
    assert options.learning_rate is not None
    return options.learning_rate


def _progress(step: int, options: TrainingConfig) -> float:
    """From 0 at the end of the warm-up to 1 at max_steps."""
    return min(1.0, (step - options.warmup_steps) / max(1, options.max_steps - options.warmup_steps))


def inverse_sqrt(step: int, options: TrainingConfig) -> float:
    return math.sqrt(max(options.warmup_steps, 1) / step)


def cosine(step: int, options: TrainingConfig) -> float:
    return 0.5 * (1 + math.cos(math.pi * _progress(step, options)))


def linear(step: int, options: TrainingConfig) -> float:
    return 1 - _progress(step, options)


def constant(step: int, options: TrainingConfig) -> float:
    return 1.0


def warmup_stable_decay(step: int, options: TrainingConfig) -> float:
    falling = max(1.0, DECAY * options.max_steps)
    return min(1.0, max(0.0, (options.max_steps - step) / falling))
