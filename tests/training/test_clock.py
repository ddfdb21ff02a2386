"""Whether a run's clock tells the truth: what time was spent on, and how much is left, whatever ends the run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from transformer_cli.config.training import TrainingConfig
from transformer_cli.training.clock import WARM_UP, WARM_UP_S, Clock, Horizon, Left
from transformer_cli.training.durations import duration, spelled
from transformer_cli.training.loop import end_epoch
from transformer_cli.training.progress import Progress
from transformer_cli.training.schedules import Spent

BATCHES = (300, 900, 1000, 1100, 1000, 950, 1050, 500, 1000, 1200)
"""Target tokens of the batches of an epoch."""
VALIDATION_TOKENS = 800


@dataclass
class Machine:
    """One on which everything takes a known time: the first updates several times as long as later ones."""

    seconds_per_token: float = 0.002
    slow_start: float = 6.0
    validation_s: float = 9.0
    checkpoint_s: float = 0.5
    epoch_s: float = 1.0
    now: float = 100.0
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(lambda: self.now)


def run(
    machine: Machine, *, losses: float = 3.0, worse_after: int = 10**9, **training: Any
) -> list[tuple[float, Left]]:
    """What truly was left after each update, and what was said to be. losses: of the first epoch, in the n-th an
    n-th of it. worse_after: the last validation that is the best so far."""
    length = {} if "budget" in training else {"max_steps": 100}
    options = TrainingConfig.model_validate({"validate_every": 20, **length, **training})
    horizon = Horizon(options, len(BATCHES), sum(BATCHES), VALIDATION_TOKENS)
    progress, chance = Progress(), random.Random(1)
    told: list[tuple[float, Left]] = []
    n_validations = 0
    while progress.finished is None:
        machine.now += machine.epoch_s
        machine.clock.lap("epoch")
        for n_tokens in chance.sample(BATCHES, len(BATCHES)):
            slow = machine.slow_start if progress.step < WARM_UP else 1.0
            machine.now += n_tokens * machine.seconds_per_token * slow * chance.uniform(0.8, 1.2)
            progress.step += 1
            progress.batch += 1
            progress.epoch_loss += n_tokens * losses / (progress.epoch + 1)
            progress.epoch_tokens += n_tokens
            progress.target_tokens += n_tokens
            machine.clock.update(n_tokens)
            spent = Spent(
                progress.step,
                epochs=progress.epochs_after(0, len(BATCHES)),
                target_tokens=progress.target_tokens,
                seconds=horizon.ended_here_s(progress, machine.clock),
            )
            if progress.batch == len(BATCHES):
                progress.finished = end_epoch(progress, options)
            if spent.share(options) >= 1:
                progress.finished = progress.finished or "max_steps"
            if (left := horizon.left(progress, machine.clock)) is not None:
                told.append((machine.now, left))
            if progress.finished or progress.step % options.validate_every == 0:
                n_validations += 1
                machine.now += machine.validation_s
                machine.clock.lap("validation")
                progress.scores = {"1": 1.0}
                progress.stale = max(0, n_validations - worse_after)
                if options.patience and progress.stale >= options.patience:
                    progress.finished = progress.finished or "patience"
                machine.now += machine.checkpoint_s
                machine.clock.lap("checkpoint")
            if progress.finished:
                break
    return [(machine.now - at, left) for at, left in told]


@pytest.mark.parametrize("validation_s", [2.0, 20.0])
def test_a_budget_of_minutes_is_what_training_takes(validation_s: float) -> None:
    """The closing validation and its checkpoint included, which nobody knows before the first of them."""
    machine = Machine(validation_s=validation_s)
    told = run(machine, budget={"minutes": 5})
    assert machine.clock.passed_s == pytest.approx(300, abs=3)
    for truth, left in told:
        assert_within(1.02, truth, left.seconds)


def assert_within(factor: float, truth: float, estimate: float) -> None:
    """Or a second beside it, where hardly anything is left."""
    assert truth / factor - 1 <= estimate <= truth * factor + 1, (truth, estimate)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"max_steps": 37},
        {"max_steps": 1000, "max_epochs": 7},
        {"validate_every": 1000},
        {"checkpoint_every": 3},
        {"patience": 4, "max_steps": 60},
        {"budget": {"tokens": 60_000}},
        {"budget": {"epochs": 6.5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("validation_s", [5.0, 9.0, 13.0])
def test_what_is_left_is_within_half_of_the_truth_from_the_first_estimate_on(
    training: dict[str, Any], validation_s: float
) -> None:
    """The first updates are six times as slow; what the first validation takes is guessed, too high or too low."""
    told = run(Machine(validation_s=validation_s), **training)
    assert len(told) >= 30
    for truth, left in told:
        assert left.at_least_s is None
        assert_within(1.5, truth, left.seconds)


@pytest.mark.parametrize(
    ("training", "end"),
    [
        ({"stop_loss": 0.8, "losses": 3.0}, "stop_loss"),
        ({"patience": 2, "worse_after": 1}, "patience"),
        ({"patience": 2, "stop_loss": 0.1}, "max_steps"),
    ],
)
def test_a_run_that_may_end_sooner_ends_between_what_is_said_to_be_left(training: dict[str, Any], end: str) -> None:
    """`base` used to show 56 hours, and ended after ten minutes."""
    told = run(Machine(validation_s=5.0), **training)
    assert len(told) >= 30
    for truth, left in told[:-1]:
        if left.at_least_s is None:
            assert_within(1.5, truth, left.seconds)
        else:
            assert left.at_least_s / 1.5 - 1 <= truth <= 1.5 * left.seconds


def test_the_next_moment_at_which_a_run_may_end_is_named_and_its_time_is_true() -> None:
    """With the validation that would end it there, which takes 9 s; the first epoch's mean is too high."""
    told = run(Machine(), stop_loss=0.8, max_steps=500)
    first, epochs_end, next_epoch = told[0], told[15], told[16]  # the pace is known from the 5th update on
    assert (first[1].at_least, next_epoch[1].at_least) == ("end of epoch 2", "end of epoch 3")
    assert first[1].at_least_s is not None
    assert_within(1.5, first[0] - epochs_end[0] + Machine.validation_s, first[1].at_least_s)


def test_patience_can_end_a_run_only_after_so_many_validations() -> None:
    horizon = Horizon(TrainingConfig(max_steps=1000, validate_every=50, patience=3), 10, 10_000, 100)
    clock = warm(Clock(lambda: 0.0))
    assert horizon.left(Progress(step=20), clock) == Left(0.0, 0.0, "step 200")
    assert horizon.left(Progress(), clock) == Left(0.0, 0.0, "step 200")
    stopped = Progress(step=50, scores={"50": 1.0})
    assert horizon.left(stopped, clock).at_least == "step 150"  # type: ignore[union-attr]
    assert horizon.left(stopped, clock, settled=True).at_least == "step 200"  # type: ignore[union-attr]
    assert horizon.left(Progress(step=120, stale=1, scores={"100": 1.0}), clock).at_least == "step 200"  # type: ignore[union-attr]
    assert horizon.left(Progress(step=900, scores={"100": 1.0}), clock).at_least_s is None  # type: ignore[union-attr]


def test_no_time_is_left_below_none() -> None:
    """Where epochs are cut anew, one may have more batches than the first had."""
    horizon, now = Horizon(TrainingConfig(max_epochs=8), 10, 10_000, 100), iter(range(1000))
    clock = warm(Clock(lambda: float(next(now))))
    assert clock.pace == 1
    left = horizon.left(Progress(step=83, epoch=7, batch=9), clock)
    assert left is not None
    assert left.seconds >= 0


def warm(clock: Clock) -> Clock:
    for _ in range(WARM_UP + 2):
        clock.update(1)
    return clock


def test_a_slow_run_knows_its_pace_before_its_first_few_updates_are_made() -> None:
    """An update of a large model on a laptop takes a minute, and whoever asks how long all take waits for each."""
    now = [0.0]
    clock = Clock(lambda: now[0])
    now[0] += 0.9 * WARM_UP_S
    clock.update(1000)
    assert clock.pace is None
    now[0] += 0.9 * WARM_UP_S
    clock.update(1000)
    assert clock.pace == pytest.approx(0.9 * WARM_UP_S / 1000)


def test_an_epoch_whose_mean_is_too_high_already_ends_nothing_whatever_it_still_learns() -> None:
    """No loss is below that of the smoothed targets themselves; `base` was said to end after an epoch of ten."""
    options = TrainingConfig(max_steps=10_000, stop_loss=1.38)
    clock, horizon = warm(Clock(lambda: 0.0)), Horizon(options, 100, 100_000, 100, least_loss=1.25)
    step = Progress(step=1, batch=1, epoch_loss=9.0 * 1000, epoch_tokens=1000)
    assert horizon.left(step, clock).at_least == "end of epoch 1"  # type: ignore[union-attr]
    step = Progress(step=2, batch=2, epoch_loss=9.0 * 2000, epoch_tokens=2000)
    assert (9.0 * 2 + 1.25 * 98) / 100 > 1.38
    assert horizon.left(step, clock).at_least == "end of epoch 2"  # type: ignore[union-attr]
    unreachable = Horizon(options.model_copy(update={"stop_loss": 1.2}), 100, 100_000, 100, least_loss=1.25)
    assert unreachable.left(step, clock) == Left(0.0)
    assert unreachable.ends() == "at step 10,000 (max_steps)"


def test_time_goes_on_while_nothing_is_said() -> None:
    """The panel stood still in validation."""
    left = Left(100.0, 30.0, "step 9")
    assert left.after(20.0) == Left(80.0, 10.0, "step 9")
    assert left.after(200.0) == Left(0.0, 0.0, "step 9")
    assert Left(100.0).after(20.0) == Left(80.0)


def test_one_clock_has_all_that_passed_of_a_run_that_was_stopped_too() -> None:
    machine = Machine()
    machine.clock = Clock(lambda: machine.now, passed_s=50.0)
    for kind in ("epoch", "validation", "checkpoint"):
        machine.now += 1.0
        machine.clock.lap(kind)  # type: ignore[arg-type]
    machine.now += 4.0
    machine.clock.update(1000)
    machine.now += 2.0
    assert machine.clock.passed_s == 59.0


def test_nothing_is_said_before_the_pace_is_known() -> None:
    machine = Machine()
    horizon = Horizon(TrainingConfig(), 10, 10_000, 100)
    for _ in range(WARM_UP + 1):
        machine.now += 5
        machine.clock.update(1000)
        assert horizon.left(Progress(step=1), machine.clock) is None


def test_every_second_counts_once_for_what_it_was_spent_on() -> None:
    machine = Machine()
    for seconds, kind in [(2.0, "validation"), (0.5, "checkpoint"), (1.5, "epoch")]:
        machine.now += seconds
        assert machine.clock.lap(kind) == seconds  # type: ignore[arg-type]
    machine.now += 3.0
    assert machine.clock.update(1000) == 3.0
    assert machine.clock.seconds == 3.0


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"max_steps": 1200}, "at step 1,200 (max_steps)"),
        ({"max_epochs": 3}, "at step 30 (max_epochs 3)"),
        ({"budget": {"tokens": 50_000}}, "when its budget is spent (tokens: 50,000)"),
        ({"max_steps": 10, "stop_loss": 1.38, "patience": 10, "validate_every": 1}, "at step 10 (max_steps)"),
        (
            {"max_steps": 90, "stop_loss": 1.38, "patience": 10, "validate_every": 8},
            "at step 90 (max_steps), or after an epoch with a mean loss below 1.38 (stop_loss) "
            "or 10 validations in a row without a new best (patience)",
        ),
    ],
)
def test_what_ends_a_run_is_said(training: dict[str, Any], sentence: str) -> None:
    assert Horizon(TrainingConfig.model_validate(training), 10, 1000, 100).ends() == sentence


@pytest.mark.parametrize(
    ("updates_per_epoch", "progress", "last"),
    [
        (100, {"step": 900, "epoch": 9, "processes": 1}, 1000),
        (100, {"step": 940, "epoch": 9, "batch": 40, "processes": 1}, 1000),
        (50, {"step": 900, "epoch": 9, "processes": 2}, 950),
        (50, {"step": 940, "epoch": 9, "shares": [(1, 40)], "processes": 2}, 970),
        (50, {"step": 945, "epoch": 9, "shares": [(1, 40)], "batch": 5, "processes": 2}, 970),
        (100, {"step": 225, "epoch": 9, "processes": 1}, 325),
    ],
    ids=str,
)
def test_epochs_that_others_made_had_other_updates(updates_per_epoch: int, progress: dict[str, Any], last: int) -> None:
    """A run that went on with two processes in place of one was at step 900 of 500, with less than nothing left."""
    options, at = TrainingConfig(max_epochs=10, validate_every=10**6), Progress(**progress)
    at.epoch_tokens = 100_000 - (last - at.step) * 100_000 // updates_per_epoch
    horizon = Horizon(options, updates_per_epoch, 100_000, 100).since(at)
    assert horizon.of_all == f" of {last:,}"
    (clock := Clock(lambda: 0.0)).expected = 0.001
    left = horizon.left(at, clock)
    assert left is not None
    assert left.seconds == pytest.approx((last - at.step) / updates_per_epoch * 100, abs=1)
    budgets = [{"max_steps": None, "budget": one} for one in ({"epochs": 10}, {"tokens": 1_000_000})]
    for limits in ({"max_epochs": 10}, {"max_steps": last}, *budgets):
        options = TrainingConfig.model_validate(limits)
        expected = Horizon(options, updates_per_epoch, 100_000, 100).since(at)
        assert (expected.expected_steps, expected.expected_epochs) == (last, 10)


def test_a_checkpoint_that_is_due_twice_is_written_once() -> None:
    chance = random.Random(1)
    for _ in range(300):
        first, n, validate, checkpoint = (chance.randint(1, most) for most in (60, 60, 20, 20))
        last = first + n
        options = TrainingConfig(max_steps=last, validate_every=validate, checkpoint_every=checkpoint)
        clock = Clock(lambda: 0.0)
        clock.expected, clock.latest = 1e-9, {"validation": 0.0, "checkpoint": 1.0}
        left = Horizon(options, 1000, 1000, 100).left(Progress(step=first, batch=first), clock)
        due = {*range(first, last + 1)} & {*range(0, 200, validate), *range(0, 200, checkpoint), last}
        assert left is not None
        assert left.seconds == pytest.approx(len(due), abs=0.01)


def test_a_part_of_an_epoch_is_as_many_updates_as_it_says() -> None:
    """1.11 * 100 is above 111 in a computer's numbers, so that one more was expected."""
    for updates in range(1, 800):
        options = TrainingConfig.model_validate({"budget": {"epochs": updates / 100}})
        assert Horizon(options, 100, 100_000, 100).expected_steps == updates


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (7, "0:07", "7 s"),
        (150, "2:30", "3 min"),
        (307, "5:07", "5 min"),
        (11_999, "3:19:59", "3 h 20 min"),
        (201_600, "56:00:00", "56 h"),
    ],
)
def test_seconds_in_words(seconds: float, short: str, long: str) -> None:
    assert (duration(seconds), spelled(seconds)) == (short, long)


def test_a_process_that_was_stopped_for_hours_has_the_pace_it_had_and_a_slower_machine_shows() -> None:
    machine = Machine()

    def updates(n: int, seconds: float) -> float:
        for _ in range(n):
            machine.now += seconds
            machine.clock.update(1000)
        assert machine.clock.pace is not None
        return 1000 * machine.clock.pace

    assert updates(100, 2.0) == pytest.approx(2.0)
    assert updates(1, 3 * 3600.0) < 1.15 * 2.0
    assert updates(300, 2.0) == pytest.approx(2.0, rel=0.01)
    assert updates(500, 60.0) == pytest.approx(60.0, rel=0.05)


def test_slow_first_updates_of_a_run_that_continues_do_not_end_its_minutes() -> None:
    options = TrainingConfig.model_validate({"max_steps": None, "budget": {"minutes": 1}, "validate_every": 400})
    horizon = Horizon(options, 200, 200_000, 14_000)
    now = 0.0
    clock = Clock(lambda: now, passed_s=30.0)
    progress, spent = Progress(step=170, target_tokens=170_000), []
    while not spent or spent[-1] < 60.0:
        now += 0.1 if clock.updates > 6 else 0.5
        clock.update(1000)
        progress.step += 1
        progress.target_tokens += 1000
        spent.append(horizon.ended_here_s(progress, clock))
    assert 53.0 < clock.passed_s <= 60.0
