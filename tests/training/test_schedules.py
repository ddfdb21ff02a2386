"""Learning rates against the paper's formula and torch's own schedulers."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import batch, learner, pairs

from transformer_cli.checkpoints.store import Checkpoint
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.source import load_config
from transformer_cli.config.training import SCHEDULES, TrainingConfig
from transformer_cli.data.loader import Batch
from transformer_cli.training.loop import fit
from transformer_cli.training.progress import Progress, progress_of
from transformer_cli.training.schedules import Spent, cut_short, learning_rate, peak
from transformer_cli.training.update import Update


def options(**changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"warmup_steps": 40, "max_steps": 200, "learning_rate": 0.01} | changes)


def test_noam_is_equation_3_of_the_paper() -> None:
    for step in (1, 39, 40, 41, 1000):
        expected = 512**-0.5 * min(step**-0.5, step * 40**-1.5)
        assert learning_rate(Spent(step), options(schedule="noam"), d_model=512) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("preset", "d_model"), [("transformer-base", 512), ("transformer-big", 1024)])
def test_the_presets_of_the_paper_have_its_rate(preset: str, d_model: int) -> None:
    config = load_config(preset)
    for step in (1, 3999, 4000, 4001, 100_000):
        expected = d_model**-0.5 * min(step**-0.5, step * 4000**-1.5)
        rate = learning_rate(Spent(step), config.training, d_model=config.model.d_model)
        assert rate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_cosine_and_linear_equal_torchs_after_the_warm_up(schedule: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    reference: torch.optim.lr_scheduler.LRScheduler
    if schedule == "cosine":
        reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)
    else:
        reference = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=160)
    for step in range(40, 201):
        assert learning_rate(Spent(step), options(schedule=schedule), d_model=16) == pytest.approx(
            reference.get_last_lr()[0], abs=1e-12
        )
        optimizer.step()
        reference.step()
    assert learning_rate(Spent(200), options(schedule=schedule), d_model=16) == 0


def test_a_stable_rate_falls_in_the_last_fifth_alone_and_ends_at_zero() -> None:
    stable = options(schedule="warmup-stable-decay")
    rates = {step: learning_rate(Spent(step), stable, d_model=16) for step in range(1, 301)}
    assert [rates[step] for step in range(40, 161)] == pytest.approx([0.01] * 121, rel=1e-12)
    assert [rates[step] for step in (170, 180, 199)] == pytest.approx([0.0075, 0.005, 0.00025])
    assert {rates[step] for step in range(200, 301)} == {0.0}


def test_a_stable_rate_falls_all_the_way_where_less_than_a_fifth_is_left_after_the_warm_up() -> None:
    stable = TrainingConfig.model_validate(
        {"schedule": "warmup-stable-decay", "learning_rate": 0.01, "warmup_steps": 90, "max_steps": 100}
    )
    rates = [learning_rate(Spent(step), stable, d_model=16) for step in range(90, 101)]
    assert rates == pytest.approx([0.01 * (100 - step) / 10 for step in range(90, 101)])


@pytest.mark.parametrize("warmup", [0, 1, 40])
@pytest.mark.parametrize("schedule", SCHEDULES.own)
def test_it_rises_linearly_then_never_again(schedule: str, warmup: int) -> None:
    rates = [
        learning_rate(Spent(s), options(schedule=schedule, warmup_steps=warmup), d_model=16) for s in range(1, 201)
    ]
    for step in range(1, warmup):
        assert rates[step - 1] == pytest.approx(rates[warmup - 1] * step / warmup)
    assert all(a >= b for a, b in zip(rates[max(warmup - 1, 0) :], rates[max(warmup, 1) :], strict=False))
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)


@pytest.mark.parametrize("total_steps", [1, 39, 40, 200])
@pytest.mark.parametrize("warmup", [0, 1, 40])
@pytest.mark.parametrize("schedule", SCHEDULES.own)
def test_the_peak_is_the_highest_rate_of_the_run(schedule: str, warmup: int, total_steps: int) -> None:
    chosen = options(schedule=schedule, warmup_steps=warmup)
    rates = {step: learning_rate(Spent(step), chosen, d_model=16) for step in range(1, total_steps + 1)}
    step, rate = peak(chosen, d_model=16, total_steps=total_steps)
    assert rate == rates[step] == max(rates.values())
    if schedule != "noam" and 0 < warmup <= total_steps:
        assert rate == 0.01


@pytest.mark.parametrize("warmup", [40, "20%"])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup-stable-decay", "inverse-sqrt", "constant"])
@pytest.mark.parametrize("budget", ["minutes", "tokens", "epochs"])
def test_a_budget_that_is_spent_evenly_has_the_rates_of_as_many_updates(
    budget: str, schedule: str, warmup: int | str
) -> None:
    chosen = options(schedule=schedule, warmup_steps=warmup, max_steps=None, budget={budget: 10})
    for step in range(1, 201):
        spent = Spent(step, epochs=step / 20, target_tokens=step / 20, seconds=60 * step / 20)
        expected = learning_rate(Spent(step), options(schedule=schedule), d_model=16)
        assert learning_rate(spent, chosen, d_model=16) == pytest.approx(expected, rel=1e-12, abs=1e-15)
        assert spent.share(chosen) == pytest.approx(step / 200)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup-stable-decay"])
def test_a_rate_is_zero_where_more_is_spent_than_there_was(schedule: str) -> None:
    chosen = options(schedule=schedule, max_steps=None, budget={"minutes": 1})
    assert learning_rate(Spent(50, seconds=61.0), chosen, d_model=16) == 0


def test_a_warm_up_may_be_a_share_of_all_updates() -> None:
    for step in range(1, 201):
        share = learning_rate(Spent(step), options(schedule="cosine", warmup_steps="20.5%"), d_model=16)
        assert share == learning_rate(Spent(step), options(schedule="cosine", warmup_steps=41), d_model=16)
    assert peak(options(warmup_steps="20%"), d_model=16, total_steps=200) == (40, 0.01)
    unknown = options(warmup_steps="20%", max_steps=None, budget={"minutes": 1})
    assert peak(unknown, d_model=16, total_steps=None) == (None, 0.01)
    none = options(warmup_steps="0%", max_steps=None, budget={"minutes": 1})
    assert learning_rate(Spent(3, seconds=15.0), none, d_model=16) == pytest.approx(0.01 * 3**-0.5)


class Run:
    """A run of few batches that takes a checkpoint's way into its next part; a second passes with each target token.

    Nothing is computed of a batch, on which no rate depends.
    """

    def __init__(self, **options: Any) -> None:
        self.options, self.progress, self.seconds = options, Progress(), 0.0
        self.batches = [batch(pairs(1 + n % 3, seed=n)) for n in range(7)]
        self.learner = learner()
        self.learner.sharding.learn = lambda batch, **named: torch.zeros(())  # type: ignore[method-assign]

    def part(self, *, updates: int = 10**6, **limits: Any) -> list[float]:
        """The rates of so many updates, or of those until it ends, under these limits."""
        limits = {"max_steps": None, "budget": None} | limits
        options = TrainingConfig.model_validate(self.options | limits | {"learning_rate": 0.01})
        state = self.progress.as_dict() | {"finished": None, "passed_s": self.seconds}
        saved = Checkpoint(Path("x"), self.progress.step, {}, None, state, ModelConfig(), None, "")
        self.progress = progress_of(saved, options)
        rates: list[float] = []

        def after(update: Update) -> bool:
            rates.append(update.learning_rate)
            return len(rates) == updates

        def epoch_of(epoch: int, first: int) -> tuple[int, Iterator[Batch]]:
            return len(self.batches), self._passing(self.batches[first:])

        fit(replace(self.learner, options=options, seconds=lambda: self.seconds), self.progress, epoch_of, after)
        return rates

    def _passing(self, batches: list[Batch]) -> Iterator[Batch]:
        for one in batches:
            self.seconds += one.n_target_tokens
            yield one


def falls(rates: list[float]) -> bool:
    return all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize("warmup", [5, "20%"])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup-stable-decay", "inverse-sqrt", "constant"])
@pytest.mark.parametrize("seed", range(3))
def test_a_warm_up_that_is_over_never_comes_back(seed: int, schedule: str, warmup: int | str) -> None:
    """Whatever becomes the limit of a run that goes on; its rate falls to the end that there is then."""
    chance = random.Random(f"{seed} {schedule} {warmup}")
    run = Run(schedule=schedule, warmup_steps=warmup)
    rates = run.part(max_steps=20, updates=12)
    assert max(rates) == pytest.approx(0.01, rel=0.2)
    since = rates[-1:]
    for _ in range(5):
        more, updates = chance.uniform(1.2, 8), chance.randint(2, 9)
        limits: list[dict[str, Any]] = [
            {"max_steps": math.ceil(run.progress.step * more)},
            {"budget": {"epochs": (run.progress.epoch + 1) * more}},
            {"budget": {"tokens": math.ceil(run.progress.target_tokens * more)}},
            {"budget": {"minutes": run.seconds * more / 60}},
        ]
        limit = chance.choice(limits)
        rates = run.part(**limit, updates=updates)
        assert falls(rates)
        since += rates
        if run.progress.finished:
            break
    if schedule in ("inverse-sqrt", "constant"):
        assert falls(since)
    rates = run.part(max_steps=run.progress.step + 9)
    assert falls(rates)
    assert (rates[-1] == 0) == (schedule not in ("inverse-sqrt", "constant"))


@pytest.mark.parametrize(
    ("warmup", "first", "then", "per_update"),
    [
        (4, {"max_steps": 4}, {"budget": {"epochs": 4}}, 1 / 24),
        (7, {"budget": {"epochs": 2}}, {"budget": {"epochs": 8}}, 1 / 49),
        ("50%", {"budget": {"epochs": 2}}, {"budget": {"epochs": 8}}, 1 / 49),
        ("50%", {"max_steps": 14}, {"max_steps": 56}, 1 / 49),
        ("50%", {"budget": {"epochs": 2}}, {"max_steps": 56}, 1 / 49),
    ],
)
def test_another_limit_is_what_the_rate_falls_to_from_the_end_of_the_warm_up(
    warmup: int | str, first: dict[str, Any], then: dict[str, Any], per_update: float
) -> None:
    """It stayed at the peak to the last, or rose for as long again."""
    run = Run(schedule="linear", warmup_steps=warmup)
    before = run.part(**first)
    end = before.index(max(before))
    assert before[end] == pytest.approx(0.01)
    after = run.part(**then)
    behind = range(len(before) - end, len(before) - end + len(after))
    assert after == pytest.approx([0.01 * (1 - n * per_update) for n in behind], abs=1e-12)
    assert after[-1] == pytest.approx(0, abs=1e-12)


def test_the_peak_of_a_run_that_goes_on_is_where_its_warm_up_ended() -> None:
    chosen = options(schedule="linear", warmup_steps="20%", max_steps=20000)
    assert peak(chosen, d_model=16, total_steps=20000, warmed=Spent(112)) == (112, 0.01)


def test_where_the_warm_up_ended_is_kept_where_limits_have_a_say_in_it_alone() -> None:
    known = Run(schedule="linear", warmup_steps=4)
    known.part(max_steps=9)
    assert known.progress.warmed is None
    share = Run(schedule="linear", warmup_steps="50%")
    share.part(max_steps=8)
    assert share.progress.warmed is not None
    assert share.progress.warmed.step == 4


@pytest.mark.parametrize(
    ("warmup", "last", "is_said"),
    [(400, 150, True), (400, 400, False), (400, 4000, False), ("20%", 150, False), (0, 1, False), (400, None, False)],
)
def test_a_run_that_ends_before_its_warm_up_is_told_so(warmup: int | str, last: int | None, is_said: bool) -> None:
    """Its rate rose to the end, while the README said that it falls to zero."""
    limit: dict[str, Any] = {"budget": {"minutes": 5}, "max_steps": None} if last is None else {"max_steps": last}
    options = TrainingConfig.model_validate({"schedule": "linear", "warmup_steps": warmup} | limit)
    found = cut_short(options, options.last_step)
    assert bool(found) == is_said
    if found:
        rates = [learning_rate(Spent(step), options, d_model=8) for step in range(1, 151)]
        assert rates == sorted(rates)
        assert "training.warmup_steps is 400" in found


@pytest.mark.parametrize("schedule", ["linear", "cosine", "warmup-stable-decay"])
@pytest.mark.parametrize("warmup", [0, 10, "20%"])
def test_a_schedule_that_counts_to_another_end_than_epochs_make_is_told_so(schedule: str, warmup: int | str) -> None:
    """It counts to max_steps, which nobody named: the rate stayed near its peak, or rose to the end."""
    given = {"schedule": schedule, "warmup_steps": warmup, "max_epochs": 2}
    options = TrainingConfig.model_validate(given)
    found = cut_short(options, 87)
    assert "training.budget={epochs: 2} in place of training.max_epochs" in found
    if warmup == "20%":
        assert "training.warmup_steps is 20,000, 20% of training.max_steps" in found
    else:
        assert "still at 100% of its peak" in found
    as_budget = {k: v for k, v in given.items() if k != "max_epochs"} | {"budget": {"epochs": 2}}
    remedied = TrainingConfig.model_validate(as_budget)
    assert learning_rate(Spent(87, epochs=2.0), remedied, d_model=8) == 0
    with_steps = cut_short(TrainingConfig.model_validate(given | {"max_steps": 1000}), 87)
    assert "in place of training.max_epochs and training.max_steps" in with_steps
    reaching = TrainingConfig.model_validate(given | {"max_steps": 90})
    assert cut_short(reaching, 89) == ""


@pytest.mark.parametrize("schedule", ["constant", "inverse-sqrt", "noam"])
def test_a_schedule_without_an_end_is_not_cut_short(schedule: str) -> None:
    rate = {"learning_rate": None} if schedule == "noam" else {}
    given = {"schedule": schedule, "warmup_steps": 10, "max_epochs": 2} | rate
    assert cut_short(TrainingConfig.model_validate(given), 87) == ""
