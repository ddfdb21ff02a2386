"""Where the time of a run goes, and how much of it is left: the one clock of training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from transformer_cli.config.training import TrainingConfig
from transformer_cli.training.durations import duration, spelled
from transformer_cli.training.progress import Progress
from transformer_cli.wording import counted

Kind = Literal["update", "validation", "checkpoint", "epoch"]
"""What time is spent on; `epoch` is what comes before the first update of one."""
WARM_UP, WARM_UP_S = 3, 60.0
"""Updates that are slower than all others: memory is taken, products are chosen. It matters little where they take
long."""
MEMORY = 0.99
"""How much of an update's weight in the pace is left after the next one."""
SLOWEST = 10
"""An update counts for the pace as this many usual ones at most: a process that was stopped for hours is no slower."""
VALIDATION_SHARE, TRANSLATION_SHARE = 0.4, 5.0
"""Seconds that a validation takes per target token, in those of an update: its loss, and its translations. A guess,
until there was one."""
GUESSED_SHARE = 0.1
"""Of a budget of minutes, or of `max_hours`, that such a guess keeps free at most: the first updates are slow, and
would end the run."""


class Clock:
    """Every second counts once, for what it was spent on. now: where the time comes from, in seconds. passed_s: what a
    run that continues took before.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, *, passed_s: float = 0.0) -> None:
        self.now = now
        self.since = now()
        self.begin(passed_s)
        self.latest: dict[Kind, float] = {}
        self.updates = 0
        self.seconds = 0.0
        """Of updates, here and now: a run that continues has more."""
        self.expected: float | None = None
        """The pace, where it was told otherwise than by updates that were counted here."""
        self._recent_s = self._recent_tokens = 0.0

    def begin(self, passed_s: float) -> None:
        """So much has passed by now."""
        self._began = self.now() - passed_s

    @property
    def passed_s(self) -> float:
        """Of the run, by now: updates, validations, all of it."""
        return self.now() - self._began

    def lap(self, kind: Kind) -> float:
        """All time since the lap before was spent on this; returns the seconds."""
        now = self.now()
        seconds, self.since = now - self.since, now
        self.latest[kind] = seconds
        return seconds

    def update(self, target_tokens: int) -> float:
        """An update was made; returns its seconds."""
        pace, seconds = self.pace, self.lap("update")
        self.updates += 1
        self.seconds += seconds
        kept = MEMORY if self.is_warm else 0.0
        usual_s = min(seconds, SLOWEST * pace * target_tokens) if pace else seconds
        self._recent_s = kept * self._recent_s + usual_s
        self._recent_tokens = kept * self._recent_tokens + target_tokens
        return seconds

    @property
    def is_warm(self) -> bool:
        """Whether updates take by now what they will take."""
        return self.updates > WARM_UP + 1 or self.seconds >= WARM_UP_S

    @property
    def pace(self) -> float | None:
        """Seconds per target token by now; None as long as nobody can tell."""
        return self._recent_s / self._recent_tokens if self.is_warm else self.expected


@dataclass(frozen=True)
class Left:
    """Seconds until training ends; where something may end it before its last update, at most so many.

    at_least_s: those to the first moment at which it may end before that, if any; at_least: the name of that moment.
    """

    seconds: float
    at_least_s: float | None = None
    at_least: str = ""

    def after(self, seconds: float) -> Left:
        """What is left so much later."""
        at_least_s = None if self.at_least_s is None else max(0.0, self.at_least_s - seconds)
        return replace(self, seconds=max(0.0, self.seconds - seconds), at_least_s=at_least_s)

    def __str__(self) -> str:
        if self.at_least_s is None:
            return f"about {duration(self.seconds)} left"
        return f"at least {duration(self.at_least_s)} left ({self.at_least})"

    def in_words(self) -> str:
        """For a sentence."""
        if self.at_least_s is None:
            return f"about {spelled(self.seconds)}"
        return (
            f"at least {spelled(self.at_least_s)} ({self.at_least}), {spelled(self.seconds)} if nothing ends it sooner"
        )


@dataclass(frozen=True)
class Horizon:
    """What ends a run, and the work until then.

    updates_per_epoch, tokens_per_epoch: of all processes together, target tokens. validation_tokens: those of the
    validation text. least_loss: no model has less in training.
    """

    options: TrainingConfig
    updates_per_epoch: int
    tokens_per_epoch: int
    validation_tokens: int
    least_loss: float = 0.0
    ahead: int = 0
    """Updates that were made on top of those that as many processes as now, and epochs like this, would have made."""
    is_rough: bool = False
    """Whether other epochs may have more or fewer."""

    def of_epoch(self, progress: Progress, *, n_batches: int, n_tokens: int) -> Horizon:
        """As the epoch tells it that progress is in, of so many batches and target tokens."""
        n_updates = -(-n_batches // self.options.accumulation)
        return replace(self, updates_per_epoch=n_updates, tokens_per_epoch=n_tokens).since(progress)

    def since(self, progress: Progress) -> Horizon:
        """From there on: what other numbers of processes, or other epochs, made before is what it is."""
        made = self.updates_per_epoch * (progress.epoch + 1) - self._updates_of_epoch(progress)
        return replace(self, ahead=progress.step - made)

    @property
    def last_step(self) -> int | None:
        """The last update that may be made; None where a budget ends the run."""
        last, epochs = self.options.last_step, self.options.max_epochs
        return last and (last if epochs is None else min(last, self.updates_per_epoch * epochs + self.ahead))

    @property
    def expected_steps(self) -> int | None:
        """About as many updates as a whole run has; None where that depends on how fast it is."""
        budget = self.options.budget
        if budget is not None and budget.minutes is not None:
            return None
        return max(1, self._updates_left(Progress()) + (self.ahead if self.last_step is None else 0))

    @property
    def expected_epochs(self) -> float | None:
        """About as many epochs, likewise."""
        n_updates = self.expected_steps
        return None if n_updates is None else (n_updates - self.ahead) / self.updates_per_epoch

    @property
    def of_all(self) -> str:
        """What follows the number of an update."""
        return "" if self.last_step is None else f" of {self.last_step:,}"

    def left(self, progress: Progress, clock: Clock, *, settled: bool = False) -> Left | None:
        """None as long as the pace is not known. settled: nothing of the latest update is still to come, such as its
        validation."""
        budget = self.options.budget
        if budget is not None and budget.minutes is not None and progress.finished is None:
            return Left(max(0.0, 60 * budget.minutes - clock.passed_s))
        if clock.pace is None:
            return None
        if progress.finished is not None:
            return Left(self._seconds(progress, clock, 0))
        updates_left = self._updates_left(progress)
        at_most_s = self._seconds(progress, clock, updates_left, settled)
        moments = [(n, name) for n, name in self._early(progress, settled) if n < updates_left]
        if not moments:
            return Left(at_most_s)
        n_updates, name = min(moments)
        return Left(at_most_s, self._seconds(progress, clock, n_updates, settled), name)

    def ended_here_s(self, progress: Progress, clock: Clock) -> float:
        """What the run would have taken if the update at hand were its last."""
        return clock.passed_s + (0.0 if clock.pace is None else self._seconds(progress, clock, 0))

    def next_s(self, clock: Clock) -> float:
        """One of each kind of work, as it took last; of a validation, which this process has not made before its first
        one, a guess where there are only so many hours: whoever gave them may not wait for its end."""
        hours, known_s = self.options.max_hours, sum(clock.latest.values())
        if hours is None or clock.pace is None or "validation" in clock.latest:
            return known_s
        return known_s + self._validation_s(clock, 3600 * hours)

    def ends(self) -> str:
        """What ends the run, as a sentence says it; without what could come only after the last update."""
        options, sooner = self.options, []
        if self.last_step is None or options.last_step is None:
            return f"when its budget is spent ({options.budget})"
        by_epochs = self.last_step < options.last_step
        if self._stop_loss is not None and self.updates_per_epoch < self.last_step:
            sooner.append(f"an epoch with a mean loss below {self._stop_loss:g} (stop_loss)")
        if options.patience is not None and (options.patience + 1) * options.validate_every < self.last_step:
            sooner.append(f"{counted(options.patience, 'validations')} in a row without a new best (patience)")
        limit = f"max_epochs {options.max_epochs:,}" if by_epochs else "max_steps"
        at = "at about" if by_epochs and self.is_rough else "at"
        return f"{at} step {self.last_step:,} ({limit})" + (f", or after {' or '.join(sooner)}" if sooner else "")

    def _early(self, progress: Progress, settled: bool) -> list[tuple[int, str]]:
        """Updates until something else than the number of updates may end training, and the names of these moments."""
        options, moments = self.options, []
        if self._stop_loss is not None:
            here, epoch = self._updates_of_epoch(progress), progress.epoch + 1
            tokens_here = max(self.tokens_per_epoch - progress.epoch_tokens, 0)
            least = progress.epoch_loss + tokens_here * self.least_loss
            if least >= self._stop_loss * (progress.epoch_tokens + tokens_here):  # whatever is learned until its end
                here, epoch = here + self.updates_per_epoch, epoch + 1
            moments.append((here, f"end of epoch {epoch:,}"))
        if options.patience is not None:
            needed = options.patience - progress.stale + (not progress.scores)  # the first one is the best so far
            validated = max(progress.step - (not settled), 0) // options.validate_every
            step = (validated + needed) * options.validate_every
            moments.append((max(0, step - progress.step), f"step {step:,}"))
        return moments

    def _updates_left(self, progress: Progress) -> int:
        """Until the last one, as far as that can be told; of a budget of minutes it cannot."""
        if self.last_step is not None:
            return max(0, self.last_step - progress.step)
        budget = self.options.budget
        assert budget is not None
        if budget.tokens is not None:
            left = (budget.tokens - progress.target_tokens) * self.updates_per_epoch / self.tokens_per_epoch
        else:
            assert budget.epochs is not None
            used = self.updates_per_epoch - self._updates_of_epoch(progress)
            left = (budget.epochs - progress.epoch) * self.updates_per_epoch - used
        return max(0, math.ceil(round(left, 6)))  # 1.11 * 100 is above 111

    @property
    def _stop_loss(self) -> float | None:
        """The mean loss that ends training, where one can."""
        wanted = self.options.stop_loss
        return None if wanted is None or wanted <= self.least_loss else wanted

    def _updates_of_epoch(self, progress: Progress) -> int:
        """Those that are left of the present one."""
        used = math.ceil((progress.used_before + progress.batch) / self.options.accumulation)
        return max(1, self.updates_per_epoch - used)

    def _validation_s(self, clock: Clock, all_s: float) -> float:
        """Seconds that one takes: as the last one did, or a guess. all_s: the time that there is."""
        assert clock.pace is not None
        share = VALIDATION_SHARE + TRANSLATION_SHARE * self.options.validation_bleu
        guess_s = min(share * self.validation_tokens * clock.pace, GUESSED_SHARE * all_s)
        return clock.latest.get("validation", guess_s)

    def _seconds(self, progress: Progress, clock: Clock, n_updates: int, settled: bool = False) -> float:
        """So many updates from here, with the validations and checkpoints on the way and the one at the end; that of
        the update just made is still to come, too, unless all of it is settled."""
        assert clock.pace is not None
        options, first, last = self.options, progress.step, progress.step + n_updates
        here = self._updates_of_epoch(progress)
        tokens_here = max(self.tokens_per_epoch - progress.epoch_tokens, 0)
        mean = self.tokens_per_epoch / self.updates_per_epoch
        tokens = tokens_here * n_updates / here if n_updates <= here else tokens_here + mean * (n_updates - here)

        def moments(every: int) -> int:
            return last // every - max(first - (not settled), 0) // every

        every, others = options.validate_every, options.checkpoint_every or options.validate_every
        n_validations = moments(every) + (last % every > 0)
        n_checkpoints = n_validations + moments(others) - moments(math.lcm(every, others))
        n_checkpoints -= last % every > 0 and last % others == 0  # the last one of both
        n_epochs = max(0, -(-(n_updates - here) // self.updates_per_epoch))
        budget = options.budget
        all_s = math.inf if budget is None or budget.minutes is None else 60 * budget.minutes
        return (
            tokens * clock.pace
            + n_validations * self._validation_s(clock, all_s)
            + n_checkpoints * clock.latest.get("checkpoint", 0.0)
            + n_epochs * clock.latest.get("epoch", 0.0)
        )
