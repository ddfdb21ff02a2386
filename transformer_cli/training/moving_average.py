"""An exponential moving average of the weights, kept beside them (Polyak & Juditsky 1992, decayed)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.checkpoints.tensors import as_held, learned, weights
from transformer_cli.errors import ModelError
from transformer_cli.training.optimizers import OnePass, nothing_kept

PREFIX = "average:"
"""Of the tensors that a checkpoint keeps beside the optimizer's: whichever of both the model's file does not hold."""
AT_ONCE, LITTLE = 4, 1 / 32
"""Updates of which only the last one's weights are taken, as much as of all: where it is so little of each. To read
and write the average takes a quarter of Adam's pass over memory."""


class NoAverage:
    """The weights alone."""

    def begin(self) -> None:
        """The model has the weights that training begins with."""

    def prepare(self, step: int) -> None:
        """An update of the weights is about to be made, which on a GPU alone nobody knows before."""

    def update(self, step: int) -> None:
        """It was made."""

    @contextmanager
    def swapped(self, *, when: bool = True) -> Iterator[None]:
        """While the block lasts, the model has the average for weights."""
        yield

    def judged(self, validate: Callable[[], dict[str, Any]], by: str) -> tuple[dict[str, Any], bool]:
        """What the better one's validation comes to, and whether that is the average. by: `bleu` or `loss`."""
        return validate(), False

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has to keep."""
        return {}

    def take(self, tensors: Mapping[str, Tensor], *, swapped: bool) -> dict[str, Tensor]:
        """Put back what a checkpoint kept, and return the others. swapped: it was saved with the average for weights,
        which the model has by now.
        """
        return dict(tensors)


class MovingAverage(NoAverage):
    """decay: how much of it is left after an update; in the beginning less, so that it soon forgets where it began."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.kept: dict[str, Tensor] = {name: tensor.clone() for name, tensor in weights(model).items()}
        self._learned = [*learned(model).values()]

    def begin(self) -> None:
        tensors = weights(self.model)
        for name, kept in self.kept.items():
            kept.copy_(tensors[name])

    def share(self, step: int) -> float:
        """What it takes of the weights after an update: 0 of most where that is little. A fourth that is not made, as
        numbers were not finite, takes nothing, and those before it do not count: it is little, weights may be bad."""
        # At step 1 nothing is left of what the weights were before training, unless that update was not made.
        own, *before = (1 - min(self.decay, (n - 1) / (n + 8)) for n in range(step, max(0, step - AT_ONCE), -1))
        if own > LITTLE:
            return own
        return 0.0 if step % AT_ONCE else 1 - math.prod(1 - one for one in (own, *before) if one <= LITTLE)

    def update(self, step: int) -> None:
        if share := self.share(step):
            with torch.no_grad():
                torch._foreach_lerp_([*self.kept.values()], self._learned, share)

    @contextmanager
    def swapped(self, *, when: bool = True) -> Iterator[None]:
        self._swap(when)
        try:
            yield
        finally:
            self._swap(when)

    def judged(self, validate: Callable[[], dict[str, Any]], by: str) -> tuple[dict[str, Any], bool]:
        alone = validate()
        with self.swapped():
            averaged = validate()
        is_better = averaged["loss"] < alone["loss"]
        if by == "bleu" and averaged["bleu"] != alone["bleu"]:
            is_better = averaged["bleu"] > alone["bleu"]
        better = averaged if is_better else alone
        return {**better, "of_weights": alone[by], "of_average": averaged[by]}, is_better

    def tensors(self) -> dict[str, Tensor]:
        return {f"{PREFIX}{name}": tensor for name, tensor in self.kept.items()}

    def take(self, tensors: Mapping[str, Tensor], *, swapped: bool) -> dict[str, Tensor]:
        if not tensors:
            raise nothing_kept()
        for name, kept in self.kept.items():
            found = tensors.get(f"{PREFIX}{name}")
            if found is None or found.shape != kept.shape:
                raise ModelError(f"the checkpoint's average of the weights does not fit the model at {name}")
            kept.copy_(as_held(found, kept))
        self._swap(swapped)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}

    def _swap(self, when: bool) -> None:
        tensors = weights(self.model)
        for name, kept in self.kept.items() if when else ():
            before = tensors[name].clone()
            tensors[name].copy_(kept)
            kept.copy_(before)


class FollowingAverage(MovingAverage):
    """The same, moved by the optimizer in the pass that changes the weights."""

    def __init__(self, model: nn.Module, decay: float, optimizer: OnePass) -> None:
        super().__init__(model, decay)
        self.optimizer = optimizer
        trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        both = [*zip(self._learned, self.kept.values(), strict=True)]
        # What is not trained stays what it was when training began.
        optimizer.follow(averages={own: kept for own, kept in both if own in trained})

    def prepare(self, step: int) -> None:
        self.optimizer.share = self.share(step)

    def update(self, step: int) -> None:
        """The optimizer has done that."""


class OwnAverage(MovingAverage):
    """What an optimizer averages itself, by parameter: always validated and saved in place of the weights."""

    def __init__(self, model: nn.Module, averages: Mapping[Tensor, Tensor]) -> None:
        self.model = model
        self.kept = {name: averages[p] for name, p in model.named_parameters() if p in averages}

    def update(self, step: int) -> None:
        """The optimizer has done that."""

    @contextmanager
    def swapped(self, *, when: bool = True) -> Iterator[None]:
        with super().swapped():
            yield

    def judged(self, validate: Callable[[], dict[str, Any]], by: str) -> tuple[dict[str, Any], bool]:
        with self.swapped():
            return validate(), True

    def take(self, tensors: Mapping[str, Tensor], *, swapped: bool) -> dict[str, Tensor]:
        return super().take(tensors, swapped=True)


def average_of(model: nn.Module, optimizer: torch.optim.Optimizer, decay: float | None) -> NoAverage:
    """That of the optimizer (`averages`), or one of this decay, or none."""
    averages: Mapping[Tensor, Tensor] | None = getattr(optimizer, "averages", None)
    if averages is not None:
        return OwnAverage(model, averages)
    if decay is None:
        return NoAverage()
    return FollowingAverage(model, decay, optimizer) if isinstance(optimizer, OnePass) else MovingAverage(model, decay)
