"""Section 5.3: the learning rate, a function of how far training is and, where limits have a say in that, of where its
warm-up ended: nothing else is restored when a run continues.

A schedule is a function from a moment after the warm-up to the share of the peak that is left.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

from transformer_cli.config.section import NonNegativeFloat
from transformer_cli.config.training import SCHEDULES, TrainingConfig
from transformer_cli.wording import counted

DECAY = 0.2
"""The share of all training in which `warmup-stable-decay` falls."""
STILL_HIGH = 0.2
"""Of the peak: what a rate that falls to zero is said to end at."""


@dataclass(frozen=True)
class Spent:
    """What training has taken by the end of an update, of all that may limit it.

    target_tokens: of all processes. seconds: with those that ending here would still take.
    """

    step: NonNegativeFloat = 0.0
    epochs: NonNegativeFloat = 0.0
    target_tokens: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat = 0.0

    def against(self, options: TrainingConfig) -> tuple[float, float]:
        """What is spent of that which ends training, and how much of it there is."""
        budget = options.budget
        if budget is None:
            assert options.last_step is not None
            return self.step, options.last_step
        if budget.minutes is not None:
            return self.seconds, 60 * budget.minutes
        if budget.tokens is not None:
            return self.target_tokens, budget.tokens
        assert budget.epochs is not None
        return self.epochs, budget.epochs

    def share(self, options: TrainingConfig) -> float:
        """How much of training is behind that update; 1 or more at its end."""
        spent, limit = self.against(options)
        return spent / limit

    def warmed(self, options: TrainingConfig) -> Spent | None:
        """Where the warm-up ended, if it has, as if all until now had been spent evenly."""
        risen = self.risen(options)
        if risen < 1:
            return None
        end = Spent(*(value / risen for value in astuple(self)))
        return end if options.warmup_share is not None else replace(end, step=float(options.warmup_updates))

    def risen(self, options: TrainingConfig) -> float:
        """How many times the warm-up has passed."""
        if options.warmup_share is not None:
            return self.share(options) / options.warmup_share
        return self.step / options.warmup_updates if options.warmup_updates else math.inf


@dataclass(frozen=True)
class Moment:
    """Where an update after the warm-up lies.

    step: its number, from 1. risen: how many times the updates of the warm-up have passed, above 1; updates where there
    is none. done: the share of training that is behind it, and since_peak: that of training after the warm-up; both are
    1 at the end.
    """

    step: int
    risen: float
    done: float
    since_peak: float


def learning_rate(spent: Spent, options: TrainingConfig, *, d_model: int, warmed: Spent | None = None) -> float:
    """The rate of the update that ends there. warmed: where the warm-up ended, in a run that knows it; options that
    became others do not bring it back.

    It rises linearly over the warm-up, then follows the schedule from there to the end, and never rises again.
    """
    height, risen = _height(options, d_model=d_model), spent.risen(options)
    if warmed is None and risen <= 1:
        return height * risen
    warmed = warmed or spent.warmed(options)
    assert warmed is not None
    return height * SCHEDULES.load(options.schedule)(_moment(spent, options, warmed), options)


def peak(
    options: TrainingConfig, *, d_model: int, total_steps: int | None, warmed: Spent | None = None
) -> tuple[int | None, float]:
    """The update with the highest rate in a run of so many, and that rate; None for the update where the warm-up is a
    share of a budget. total_steps: None where nobody can tell, as of minutes. warmed: where the warm-up ended.
    """
    if warmed is not None:
        return max(round(warmed.step), 1), _height(options, d_model=d_model)
    if total_steps is None or options.warmup_share:
        return (None if options.warmup_share else max(options.warmup_updates, 1)), _height(options, d_model=d_model)
    step = min(max(options.warmup_updates, 1), total_steps)
    if options.budget is not None:  # spent evenly, it has the rates of as many updates
        options = options.model_copy(update={"budget": None, "max_steps": total_steps})
    return step, learning_rate(Spent(step), options, d_model=d_model)


def peak_in_words(step: int | None, rate: float) -> str:
    return f"{rate:.3g} at its peak, " + ("at the end of the warm-up" if step is None else f"at step {step:,}")


def cut_short(options: TrainingConfig, last: int | None) -> str:
    """What to say where training ends, after so many updates, before its warm-up does, or long before a schedule that
    falls to zero."""
    if last is None:
        return ""
    end = options.last_step
    by_epochs = end is not None and last < end
    as_budget = f"training.budget={{epochs: {options.max_epochs}}} in place of training.max_epochs"
    as_budget += " and training.max_steps" if options.max_steps is not None else ""
    updates = counted(last, "updates")
    if options.warmup_updates > last:
        remedy = f"with {as_budget} and training.warmup_steps=20%" if by_epochs else "with training.warmup_steps=20%"
        of = "" if isinstance(options.warmup_steps, int) else f", {options.warmup_steps} of training.max_steps"
        return (
            f"the learning rate still rises when training ends, after {updates}: training.warmup_steps is "
            f"{options.warmup_updates:,}{of}; {remedy} it would rise for a fifth of them"
        )
    if not by_epochs:
        return ""
    assert end is not None
    height = _height(options, d_model=1)
    there, zero = (learning_rate(Spent(step), options, d_model=1) for step in (last, end))
    if zero > 0 or there <= STILL_HIGH * height:
        return ""
    return (
        f"the learning rate is still at {there / height:.0%} of its peak when training ends, after {updates}: "
        f"{options.schedule} falls until training.max_steps, {end:,}; with {as_budget} it would end at zero"
    )


def _height(options: TrainingConfig, *, d_model: int) -> float:
    """The rate at the end of the warm-up.

    noam is Vaswani et al. 2017, eq. 3: d_model^-0.5 min(step^-0.5, step warmup^-1.5). At step = warmup both are
    (d_model warmup)^-0.5; from there on it falls with sqrt(warmup / step), as inverse_sqrt does.
    """
    if options.schedule == "noam":
        return float((d_model * max(options.warmup_updates, 1)) ** -0.5)
    assert options.learning_rate is not None
    return options.learning_rate


def _moment(spent: Spent, options: TrainingConfig, warmed: Spent) -> Moment:
    now, end = spent.against(options)
    start, _ = warmed.against(options)
    since_peak = min(1.0, max(0.0, now - start) / (end - start)) if end > start else 1.0
    return Moment(round(spent.step), spent.step / max(warmed.step, 1), min(1.0, now / end), since_peak)


def inverse_sqrt(moment: Moment, options: TrainingConfig) -> float:
    return math.sqrt(1 / moment.risen)


def cosine(moment: Moment, options: TrainingConfig) -> float:
    return 0.5 * (1 + math.cos(math.pi * moment.since_peak))


def linear(moment: Moment, options: TrainingConfig) -> float:
    return 1 - moment.since_peak


def constant(moment: Moment, options: TrainingConfig) -> float:
    return 1.0


def warmup_stable_decay(moment: Moment, options: TrainingConfig) -> float:
    # Where less than that share is left after the peak, over all of it.
    return min(1.0, max((1 - moment.done) / DECAY, 1 - moment.since_peak))
