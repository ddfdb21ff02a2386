"""The average of the weights beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS
from torch import nn

from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import load_checkpoint, open_run
from transformer_cli.checkpoints.tensors import portion, weights
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError
from transformer_cli.training import objective
from transformer_cli.training.moving_average import PREFIX, MovingAverage
from transformer_cli.training.run import train


def test_it_is_the_decayed_mean_of_the_weights_after_each_update() -> None:
    model = nn.Linear(3, 2, bias=False)
    average = MovingAverage(model, decay=0.5)
    draw = torch.Generator().manual_seed(1)
    expected = torch.zeros(2, 3)
    for step in range(1, 30):
        weight = torch.randn(2, 3, generator=draw)
        with torch.no_grad():
            model.weight.copy_(weight)
        average.update(step)
        decay = min(0.5, (step - 1) / (step + 8))
        expected = decay * expected + (1 - decay) * weight
    torch.testing.assert_close(average.tensors()[f"{PREFIX}weight"], expected)
    assert not torch.equal(expected, model.weight)


@pytest.mark.parametrize("decay", [0.96, 0.97, 0.999])
def test_where_little_is_taken_of_each_every_fourth_counts_for_four(decay: float) -> None:
    """So the average is that of weights which change after every fourth update alone, and have a value from then on."""
    model = nn.Linear(3, 2, bias=False)
    average = MovingAverage(model, decay=decay)
    draw = torch.Generator().manual_seed(1)
    shares = {n: 1 - min(decay, (n - 1) / (n + 8)) for n in range(1, 601)}
    counted = {n: n if shares[n] > 1 / 32 else 4 * math.ceil(n / 4) for n in shares}
    drawn = {n: torch.randn(2, 3, generator=draw) for n in shares}
    expected, touched = torch.zeros(2, 3, dtype=torch.float64), 0
    for n, share in shares.items():
        with torch.no_grad():
            model.weight.copy_(drawn[n])
        before = average.kept["weight"].clone()
        average.update(n)
        touched += not torch.equal(before, average.kept["weight"])
        expected = (1 - share) * expected + share * drawn[counted[n]].double()
    torch.testing.assert_close(average.kept["weight"], expected.float())
    assert touched == len({*counted.values()})
    assert (touched < 600) is (decay > 0.969)


def test_the_model_has_it_for_the_time_of_a_validation_and_the_better_one_counts() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, decay=0.5)
    before, kept = model.weight.detach().clone(), torch.ones(1, 1)
    average.kept["weight"] = kept.clone()
    seen: list[float] = []

    def validate() -> dict[str, Any]:
        seen.append(model.weight.item())
        return {"loss": 10.0 - len(seen), "bleu": 10.0 - len(seen)}

    results, is_average = average.judged(validate, "loss")
    assert seen == [before.item(), 1.0]
    assert (is_average, results) == (True, {"loss": 8.0, "bleu": 8.0, "of_weights": 9.0, "of_average": 8.0})
    assert average.judged(validate, "bleu")[1] is False
    assert (model.weight.item(), average.kept["weight"].item()) == (before.item(), 1.0)


def test_a_checkpoint_without_it_is_refused() -> None:
    with pytest.raises(ModelError, match="average of the weights does not fit the model at weight"):
        MovingAverage(nn.Linear(1, 1, bias=False), decay=0.5).take({"weight.step": torch.ones(1)}, swapped=False)


def test_a_mean_of_checkpoints_which_remembers_nothing_is_told_as_that() -> None:
    with pytest.raises(ModelError, match="optimizer state is empty") as failure:
        MovingAverage(nn.Linear(1, 1, bias=False), decay=0.5).take({}, swapped=False)
    assert "a mean that `tx average` made has none" in (failure.value.hint or "")


def settings(**training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            **{"device": "cpu", "precision": "fp32", "threads": 1, "tokenizer": {"vocab_size": 100}},
            "data": {"train": {"pairs": PAIRS}, "valid": {"pairs": PAIRS}},
            "model": {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1, "dropout": 0.0},
            "training": {"warmup_steps": 1, "ema": 0.9, "schedule": "constant", "best_by": "loss"}
            | {"validation_bleu": False}
            | training,
        }
    )


def test_of_another_runs_weights_that_are_frozen_it_has_what_they_are() -> None:
    """Not what was drawn before they were read."""
    train(settings(max_steps=2), Path("parent"))
    train(settings(max_steps=2, init_from="parent", freeze=["encoder"]), Path("x"))
    saved = load_checkpoint(find_checkpoint("x"), with_optimizer=True)
    parent = load_checkpoint(find_checkpoint("parent"), with_optimizer=False)
    held = [name for name in saved.model if name.startswith("encoder")]
    assert held
    for name in held:
        assert torch.equal(saved.model[name], parent.model[name]), name
        assert torch.equal(saved.optimizer[f"{PREFIX}{name}"], parent.model[name]), name


def begun(name: str, **training: Any) -> RunConfig:
    """A run that begins with `parent`'s weights: as another run, or because they were imported."""
    if name == "child":
        return settings(init_from="parent", **training)
    config, parent = settings(**training), open_run(find_checkpoint("parent"))
    there = store.save_checkpoint(
        Path(name),
        step=0,
        model=portion(weights(parent.model)),
        optimizer=portion({}),
        state={"step": 0, "finished": "imported"},
        config=config,
        tokenizer=parent.tokenizer.fingerprint,
    )
    assert there == find_checkpoint(name)
    parent.tokenizer.save(Path(name, "tokenizer"))
    return config


@pytest.mark.parametrize("name", ["child", "imported"])
@pytest.mark.parametrize(
    "averages",
    [{"ema": 0.9}, {"ema": 0.9, "optimizer": "muon"}, {"ema": None, "optimizer": "schedule-free"}],
    ids=str,
)
def test_it_begins_with_the_weights_that_training_begins_with(
    averages: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first update was not made it held what was drawn before those were read."""
    train(settings(max_steps=1), Path("parent"))
    config = begun(name, max_steps=1, **averages)
    real = objective.loss_of
    monkeypatch.setattr(objective, "loss_of", lambda *a, **named: real(*a, **named) * math.nan)
    assert train(config, Path(name)).steps == 1
    parent = load_checkpoint(find_checkpoint("parent"), with_optimizer=False).model
    saved = load_checkpoint(find_checkpoint(name), with_optimizer=True)
    assert saved.state["not_made"] == 1
    kept = {tensor: saved.optimizer[f"{PREFIX}{tensor}"] for tensor in parent}
    for held in (saved.model, kept):
        assert [tensor for tensor in parent if not torch.equal(held[tensor], parent[tensor])] == []


@pytest.mark.parametrize(("rate", "is_better"), [(1.0, True), (1e-4, False)])
def test_a_run_keeps_the_better_of_both(rate: float, is_better: bool) -> None:
    """At a rate that is much too high the weights jump about, and their average does not; at a low one it lags."""
    config = settings(max_steps=30, validate_every=30, learning_rate=rate)
    train(config, Path("x"))
    saved = load_checkpoint(find_checkpoint("x"), with_optimizer=True)
    assert saved.state["averaged"] is is_better
    other = {name: saved.optimizer[f"{PREFIX}{name}"] for name in saved.model}
    assert any(not torch.equal(saved.model[name], other[name]) for name in other)
