"""What a checkpoint says of its training can be true, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transformer_cli.checkpoints.store import Checkpoint
from transformer_cli.config.model import ModelConfig
from transformer_cli.errors import ModelError
from transformer_cli.training.progress import Progress, progress_of

POSSIBLE = Progress(
    step=12, epoch=1, batch=2, epoch_loss=9.5, epoch_tokens=40, elapsed_s=3, scores={"5": -2.5, "10": 3}, processes=2
).as_dict()


def read(state: Any) -> Progress:
    checkpoint = Checkpoint(Path("step-00000012"), 12, {}, None, state, ModelConfig(), None, "")
    return progress_of(checkpoint)


def test_what_was_saved_is_what_is_read() -> None:
    assert read(POSSIBLE).as_dict() == POSSIBLE
    assert read({name: value for name, value in POSSIBLE.items() if name != "processes"}).processes is None


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
        ({"mood": "good"}, "mood 'good'"),
    ],
)
def test_a_state_that_cannot_be_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """They were a TypeError, or trained without end and without a batch."""
    with pytest.raises(ModelError, match=rf"state\.json says what cannot be of a run: .*{named}"):
        read(POSSIBLE | changes)


@pytest.mark.parametrize("state", [None, [], "x", 3, {}])
def test_what_is_no_state_at_all_is_refused(state: Any) -> None:
    with pytest.raises(ModelError, match=r"state\.json says what cannot be"):
        read(state)
