"""Where the time of a run goes, and how much of it is left: the one clock of training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from transformer_cli.config.training import TrainingConfig
from transformer_cli.training.progress import Progress

Kind = Literal["update", "validation", "checkpoint", "epoch"]
"""What time is spent on; `epoch` is what comes before the first update of one."""
WARM_UP = 3
"""Updates that are slower than all others: memory is taken, products are chosen."""
MEMORY = 0.99
"""How much of an update's weight in the pace is left after the next one."""
VALIDATION_SHARE, TRANSLATION_SHARE = 0.4, 5.0
"""Seconds that a validation takes per target token, in those of an update: its loss, and its translations. A guess,
until there was one."""


class Clock:
    """Every second counts once, for what it was spent on. now: where the time comes from, in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.since = now()
        self.latest: dict[Kind, float] = {}
        self.updates = 0
        self.seconds = 0.0
        """Of updates, here and now: a run that continues has more."""
        self._recent_s = self._recent_tokens = 0.0

    def lap(self, kind: Kind) -> float:
        """What passed since the lap before, in seconds, was this."""
        now = self.now()
        seconds, self.since = now - self.since, now
        self.latest[kind] = seconds
        return seconds

    def update(self, target_tokens: int) -> float:
        """An update was made; returns its seconds."""
        seconds = self.lap("update")
        self.updates += 1
        self.seconds += seconds
        kept = MEMORY if self.updates > WARM_UP + 1 else 0.0
        self._recent_s = kept * self._recent_s + seconds
        self._recent_tokens = kept * self._recent_tokens + target_tokens
        return seconds

    @property
    def pace(self) -> float | None:
        """Seconds per target token by now; None as long as nobody can tell."""
        return self._recent_s / self._recent_tokens if self.updates > WARM_UP + 1 else None


@dataclass(frozen=True)
class Left:
    """Seconds until training ends: those to its last possible update, and to the first moment at which it may end
    before that, if any; with their names."""

    latest_s: float
    latest: str
    earliest_s: float | None = None
    earliest: str = ""

    def __str__(self) -> str:
        if self.earliest_s is None:
            return f"about {duration(self.latest_s)} to {self.latest}"
        return f"{duration(self.earliest_s)} ({self.earliest}) to {duration(self.latest_s)} left"

    def in_words(self) -> str:
        """For a sentence."""
        if self.earliest_s is None:
            return f"about {spelled(self.latest_s)}"
        return f"between {spelled(self.earliest_s)} and {spelled(self.latest_s)}"


@dataclass(frozen=True)
class Horizon:
    """What ends a run, and the work until then.

    updates_per_epoch, tokens_per_epoch: of all processes together, target tokens. validation_tokens: those of the
    validation text.
    """

    options: TrainingConfig
    updates_per_epoch: int
    tokens_per_epoch: int
    validation_tokens: int

    @property
    def last_step(self) -> int:
        """The last update that may be made."""
        options = self.options
        return min(options.max_steps, self.updates_per_epoch * (options.max_epochs or options.max_steps))

    def left(self, progress: Progress, clock: Clock) -> Left | None:
        """None as long as the pace is not known."""
        if clock.pace is None:
            return None
        if progress.finished is not None:
            return Left(self._seconds(progress, clock, 0), f"step {progress.step:,}")
        latest_s = self._seconds(progress, clock, self.last_step - progress.step)
        latest = f"step {self.last_step:,}"
        moments = [(n, name) for n, name in self._early(progress) if n < self.last_step - progress.step]
        if not moments:
            return Left(latest_s, latest)
        n_updates, name = min(moments)
        return Left(latest_s, latest, self._seconds(progress, clock, n_updates), name)

    def ends(self) -> str:
        """What ends the run, as a sentence says it; without what could come only after the last update."""
        options, sooner = self.options, []
        by_epochs = self.last_step < options.max_steps
        if options.stop_loss is not None and self.updates_per_epoch < self.last_step:
            sooner.append(f"an epoch with a mean loss below {options.stop_loss:g} (stop_loss)")
        if options.patience is not None and (options.patience + 1) * options.validate_every < self.last_step:
            sooner.append(f"{options.patience:,} validations in a row without a new best (patience)")
        limit = f"max_epochs {options.max_epochs:,}" if by_epochs else "max_steps"
        return f"at step {self.last_step:,} ({limit})" + (f", or after {' or '.join(sooner)}" if sooner else "")

    def _early(self, progress: Progress) -> list[tuple[int, str]]:
        """Updates until something else than the number of updates may end training, and the names of these moments."""
        options, moments = self.options, []
        if options.stop_loss is not None:
            moments.append((self._updates_of_epoch(progress), f"end of epoch {progress.epoch + 1:,}"))
        if options.patience is not None:
            needed = options.patience - progress.stale + (not progress.scores)  # the first one is the best so far
            step = ((progress.step - 1) // options.validate_every + needed) * options.validate_every
            moments.append((max(0, step - progress.step), f"step {step:,}"))
        return moments

    def _updates_of_epoch(self, progress: Progress) -> int:
        """Those that are left of the present one."""
        return max(1, self.updates_per_epoch - -(-progress.batch // self.options.accumulation))

    def _seconds(self, progress: Progress, clock: Clock, n_updates: int) -> float:
        """So many updates from here, with the validations and checkpoints on the way and the one at the end; that of
        the update just made is still to come, too."""
        assert clock.pace is not None
        options, first, last = self.options, progress.step, progress.step + n_updates
        here = self._updates_of_epoch(progress)
        tokens_here = max(self.tokens_per_epoch - progress.epoch_tokens, 0)
        mean = self.tokens_per_epoch / self.updates_per_epoch
        tokens = tokens_here * n_updates / here if n_updates <= here else tokens_here + mean * (n_updates - here)

        def moments(every: int) -> int:
            return last // every - (first - 1) // every

        n_validations = moments(options.validate_every) + (last % options.validate_every > 0)
        n_checkpoints = n_validations + (moments(options.checkpoint_every) if options.checkpoint_every else 0)
        n_epochs = max(0, -(-(n_updates - here) // self.updates_per_epoch))
        share = VALIDATION_SHARE + TRANSLATION_SHARE * options.validation_bleu
        validation_s = clock.latest.get("validation", share * self.validation_tokens * clock.pace)
        return (
            tokens * clock.pace
            + n_validations * validation_s
            + n_checkpoints * clock.latest.get("checkpoint", 0.0)
            + n_epochs * clock.latest.get("epoch", 0.0)
        )


def duration(seconds: float) -> str:
    """1:05:07, or 5:07 under an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def spelled(seconds: float) -> str:
    """50 s, 12 min, 3 h 20 min or 56 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 10 else f"{round(minutes / 60):,} h"
