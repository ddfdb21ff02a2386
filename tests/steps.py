"""An update that is read at once."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_cli.data.loader import Batch
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.schedules import Spent
from transformer_cli.training.update import Learner, Update, begin, give


def train_step(
    learner: Learner,
    window: Sequence[Batch],
    *,
    step: int,
    spent: Spent | None = None,
    warmed: Spent | None = None,
    scale: LossScale | None = None,
) -> Update:
    """One update from one or more batches, as if they were one, read at once."""
    gradients = begin(learner, window, step=step, scale=scale)
    return give(learner, gradients, spent=spent, warmed=warmed, scale=scale)()
