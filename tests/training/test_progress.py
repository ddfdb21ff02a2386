"""What a checkpoint says of its training can be true, or it is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_cli.checkpoints.store import Checkpoint
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.errors import DivergedError, ModelError, UsageError
from transformer_cli.training.progress import Progress, progress_of
from transformer_cli.training.schedules import Spent

POSSIBLE = Progress(
    step=12, epoch=1, batch=2, epoch_loss=9.5, epoch_tokens=40, elapsed_s=3, scores={"5": -2.5, "10": 3}, processes=2
).as_dict()


def read(state: Any, **options: Any) -> Progress:
    checkpoint = Checkpoint(Path("step-00000012"), 12, {}, None, state, ModelConfig(), None, "")
    return progress_of(checkpoint, TrainingConfig.model_validate(options))


def test_what_was_saved_is_what_is_read() -> None:
    warmed = Progress(step=12, warmed=Spent(4, epochs=0.5, target_tokens=40, seconds=2.5)).as_dict()
    assert read(warmed).as_dict() == warmed
    assert read(POSSIBLE).as_dict() == POSSIBLE
    assert read({name: value for name, value in POSSIBLE.items() if name != "processes"}).processes is None


def test_a_part_of_an_epoch_is_the_nearest_number_there_is() -> None:
    """1 + 9 / 25 is less than 1.36, so that a budget of 1.36 epochs took one update more."""
    for n_batches in range(1, 60):
        for used in range(1, 8 * n_batches):
            epoch, batch = divmod(used, n_batches)
            assert Progress(epoch=epoch, batch=batch).epochs_after(0, n_batches) == float(Fraction(used, n_batches))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"step": "12"}, "step '12'"),
        ({"step": 11}, "step 11 in the checkpoint of step 12"),
        ({"step": 12.0}, "step 12.0"),
        ({"epoch": -1}, "epoch -1"),
        ({"epoch": 13}, "epoch 13 after 12 updates"),
        ({"epoch": True}, "epoch True"),
        ({"batch": None}, "batch None"),
        ({"batch": -7}, "batch -7"),
        ({"batch": 0}, "40 tokens in 0 batches"),
        ({"epoch_tokens": 0}, "0 tokens in 2 batches"),
        ({"epoch_loss": float("nan")}, "epoch_loss None"),
        ({"log_loss": "much"}, "log_loss 'much'"),
        ({"elapsed_s": -1.0}, "elapsed_s -1.0"),
        ({"stale": 10**400}, "stale 1000"),
        ({"scores": []}, r"scores \[\]"),
        ({"scores": {"best": 1.0}}, "scores.best"),
        ({"scores": {"-5": 1.0}}, "scores.-5"),
        ({"scores": {"5": "high"}}, "scores.5 'high'"),
        ({"scores": {"5": float("inf")}}, "scores.5 None"),
        ({"scores": {"13": 1.0}}, "a score of step 13"),
        ({"finished": 3}, "finished 3"),
        ({"processes": 0}, "processes 0"),
        ({"unsure_below": 0.5}, "unsure_below 0.5"),
        ({"warmed": {"step": 13}}, "a warm-up of 13 updates after 12"),
        ({"warmed": {"step": 3, "seconds": -1}}, "warmed.*-1"),
        ({"mood": "good"}, "mood 'good'"),
    ],
)
def test_a_state_that_cannot_be_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """They were a TypeError, or trained without end and without a batch."""
    with pytest.raises(ModelError, match=rf"state\.json has values that no run can have: .*{named}"):
        read(POSSIBLE | changes)


@pytest.mark.parametrize("before", [{}, {"warmed": 0.0}, {"warmed": 0.25}])
def test_a_checkpoint_that_does_not_say_where_the_warm_up_ended_is_read(before: dict[str, float]) -> None:
    assert read({name: value for name, value in POSSIBLE.items() if name != "warmed"} | before).warmed is None


def test_tokens_that_nobody_counted_are_no_part_of_a_budget() -> None:
    """They were taken for none, and training went on for as long as if it had just begun."""
    state = {name: value for name, value in POSSIBLE.items() if name != "target_tokens"}
    with pytest.raises(UsageError, match=r"nobody knows how much of training\.budget\.tokens is spent"):
        read(state, budget={"tokens": 1000})
    for known in (state | {"target_tokens": 40}, state | {"not_made": 12}):
        assert read(known, budget={"tokens": 1000}).step == 12
    assert read(state, budget={"epochs": 10}).step == 12


@pytest.mark.parametrize("state", [None, [], "x", 3, {}])
def test_what_is_no_state_at_all_is_refused(state: Any) -> None:
    with pytest.raises(ModelError, match=r"state\.json has values that no run can have"):
        read(state)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_validation_is_the_first_of_the_highest_score_and_of_those_the_lowest_loss(seed: int) -> None:
    chance = np.random.default_rng(seed)
    progress, seen = Progress(), []
    for step in range(1, 15):
        progress.step = step
        score, loss = float(chance.integers(3)), float(chance.integers(1, 4))
        before, stale = seen[:], progress.stale
        seen.append((-score, loss, step))
        is_best = progress.judge(score, loss)
        assert is_best == (seen[-1] < min(before, default=(math.inf,)))
        assert progress.stale == (0 if is_best else stale + 1)
        assert progress.ranked == [str(one[-1]) for one in sorted(seen)]
        if step % 5 == 0:
            progress.forget(*progress.ranked[2:])
            seen = sorted(seen)[:2]
            assert progress.scores.keys() == progress.losses.keys()


def test_a_model_without_a_right_word_so_far_does_not_end_a_run_while_its_loss_falls() -> None:
    """Each validation with 0.00 BLEU counted for the patience, and the first stayed the best."""
    progress = Progress()
    for progress.step in range(1, 6):
        assert progress.judge(0.0, 9.0 - progress.step)
    assert (progress.stale, progress.ranked[0]) == (0, "5")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_validation_that_is_no_number_is_the_worst_and_a_run_goes_on_after_it(bad: float) -> None:
    """Its checkpoint said null, which no run continued from."""
    progress = Progress(step=11, epoch=1, processes=1, batch=1, epoch_tokens=3)
    assert progress.judge(-1.0, 1.0)
    progress.step = 12
    assert not progress.judge(bad, bad)
    assert read(progress.as_dict()).ranked == ["11", "12"]


def test_a_checkpoint_of_before_losses_were_kept_is_read() -> None:
    found = read({name: value for name, value in POSSIBLE.items() if name != "losses"})
    found.step = 13
    assert found.judge(3.0, 2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_ends_in_numbers_that_are_not_finite_has_diverged(bad: float) -> None:
    """Before its end an update may still mend it."""
    progress, options = Progress(step=6), TrainingConfig(best_by="loss")
    assert progress.validated({"loss": bad}, options)
    progress.finished = "max_steps 6 reached"
    with pytest.raises(DivergedError):
        progress.validated({"loss": bad}, options)
    assert progress.validated({"loss": 1.0}, options)
