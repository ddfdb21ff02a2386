"""The learning rate as a function of the step; nothing to restore when a run continues."""

from __future__ import annotations

import math
from collections.abc import Callable

from transformer_cli.config.training import TrainingConfig


def learning_rate(step: int, options: TrainingConfig, *, d_model: int) -> float:
    """The rate of update number `step`, counted from 1.

    It rises linearly over the warm-up, then follows the schedule. noam: Vaswani et al. 2017, eq. 3, times
    `learning_rate`; inverse-sqrt is the same curve, scaled to peak at `learning_rate`.
    """
    if options.schedule == "noam":
        warmup = max(options.warmup_steps, 1)
        return options.learning_rate * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    if step <= options.warmup_steps:
        return options.learning_rate * step / options.warmup_steps
    return options.learning_rate * DECAYS[options.schedule](step, options)


def _progress(step: int, options: TrainingConfig) -> float:
    """From 0 at the end of the warm-up to 1 at max_steps."""
    return min(1.0, (step - options.warmup_steps) / max(1, options.max_steps - options.warmup_steps))


DECAYS: dict[str, Callable[[int, TrainingConfig], float]] = {
    "inverse-sqrt": lambda step, options: math.sqrt(max(options.warmup_steps, 1) / step),
    "cosine": lambda step, options: 0.5 * (1 + math.cos(math.pi * _progress(step, options))),
    "linear": lambda step, options: 1 - _progress(step, options),
    "constant": lambda step, options: 1.0,
}
"""The share of the peak that is left at a step after the warm-up."""
