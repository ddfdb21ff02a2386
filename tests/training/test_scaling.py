"""Training in fp16: gradients that overflow cost an update, never the run, and nothing of it is left to chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import train_step
from tiny_run import tiny
from torch import Tensor

from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch, collate
from transformer_cli.errors import DivergedError
from transformer_cli.model.build import build_model
from transformer_cli.training import objective, run, scaling
from transformer_cli.training.listening import Listener
from transformer_cli.training.loop import fit
from transformer_cli.training.moving_average import MovingAverage
from transformer_cli.training.optimizers import build_optimizer
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.run import train
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.sharding import shard
from transformer_cli.training.update import Learner, Update

pytestmark = pytest.mark.usefixtures("own_threads")


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is tried before the first update, so that those of updates are counted."""
    monkeypatch.setattr(run, "try_out", lambda learner, batches: None)


def learner(dtype: torch.dtype = torch.float16, **options: Any) -> Learner:
    torch.manual_seed(0)
    shape = ModelConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, dropout=0.0)
    model = build_model(shape, source_vocab=30, target_vocab=30).compute_in(dtype, training=True)
    training = TrainingConfig.model_validate({"warmup_steps": 10, "budget_tokens": 64} | options)
    sharding, optimizer = shard(model, training, World()), build_optimizer(model, training)
    return Learner(sharding, optimizer, training, seed=5, world=World(), average=MovingAverage(model, 0.9))


def batch(n: int = 8, *, seed: int = 0) -> Batch:
    chance = np.random.default_rng(seed)
    sides = [[chance.integers(4, 30, size=chance.integers(1, 9)) for _ in range(n)] for _ in range(2)]
    return collate(*sides)


def parameters(of: Learner) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in of.model.parameters()])


class Gradients(torch.optim.SGD):
    """Changes nothing, and keeps the gradients that it is given."""

    def step(self, closure: Any = None) -> None:
        self.given = torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]])


def gradients(dtype: torch.dtype, *batches: Batch, scale: LossScale | None = None, **options: Any) -> Tensor:
    """What an optimizer gets."""
    subject = learner(dtype, **options)
    optimizer = Gradients(subject.model.parameters(), lr=0.0)
    train_step(Learner(subject.sharding, optimizer, subject.options, 5, World()), batches, step=1, scale=scale)
    return optimizer.given


@pytest.mark.parametrize("seed", range(5))
def test_the_scale_is_that_of_torchs_scaler_after_every_update(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "PATIENCE", 3)
    ours, theirs = LossScale(), torch.amp.GradScaler("cpu", growth_interval=3)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer, chance = torch.optim.SGD([parameter], lr=1.0), np.random.default_rng(seed)
    for is_finite in chance.random(60) < 0.75:
        theirs.scale(parameter.sum())
        parameter.grad = torch.full((1,), 1.0 if is_finite else float(chance.choice([math.nan, math.inf])))
        theirs.step(optimizer)
        theirs.update()
        if is_finite:
            ours.keep()
        else:
            assert ours.shrink()
        assert (ours.factor, ours.kept) == (theirs.get_scale(), theirs._growth_tracker.item())
    assert LossScale().factor == torch.amp.GradScaler("cpu").get_scale()


def test_its_patience_is_that_of_torchs_scaler() -> None:
    assert torch.amp.GradScaler("cpu").get_growth_interval() == scaling.PATIENCE
    largest = LossScale(factor=scaling.LARGEST, kept=scaling.PATIENCE - 1)
    largest.keep()
    assert torch.tensor(largest.factor, dtype=torch.float32).isfinite()


@pytest.mark.parametrize("clip_norm", [None, 0.05], ids=["whole", "clipped"])
@pytest.mark.parametrize("factor", [1.0, 2.0**6, 2.0**13])
def test_gradients_are_those_of_fp32_whatever_the_scale(factor: float, clip_norm: float | None) -> None:
    exact = gradients(torch.float32, batch(), clip_norm=clip_norm)
    ours = gradients(torch.float16, batch(), clip_norm=clip_norm, scale=LossScale(factor))
    assert (ours - exact).norm() < 5e-3 * exact.norm()


def test_what_fp16_has_no_numbers_for_is_kept_by_the_scale() -> None:
    """Of a batch like ten thousand others, in one update, every gradient is small."""
    off = {"clip_norm": None}
    exact = gradients(torch.float32, batch(), **off)
    errors = []
    for factor in (2.0**-14, 2.0**10):  # the first as if the batch were one of so many
        scaled = gradients(torch.float16, batch(), scale=LossScale(factor), **off)
        errors.append(((scaled - exact).norm() / exact.norm()).item())
    assert errors[1] < 5e-3 < errors[0] / 4


def test_accumulated_batches_are_one_big_batch() -> None:
    scale = LossScale(2.0**10)
    chance = np.random.default_rng(0)
    rows = [chance.integers(4, 30, size=chance.integers(1, 9)) for _ in range(12)]
    targets = rows[::-1]
    whole, *parts = (collate(rows[own], targets[own]) for own in (slice(12), slice(2), slice(2, 12)))
    together = gradients(torch.float16, whole, scale=scale)
    apart = gradients(torch.float16, *parts, scale=scale, accumulation=2)
    assert (apart - together).norm() < 5e-3 * together.norm()


def test_gradients_that_overflow_change_nothing_but_the_scale() -> None:
    subject, scale = learner(), LossScale(2.0**40)
    before = parameters(subject)
    update = train_step(subject, [batch()], step=1, scale=scale)
    assert (update.overflowed, update.fault) == (2.0**40, None)
    assert math.isfinite(update.loss)
    assert scale == LossScale(2.0**39)
    assert torch.equal(parameters(subject), before)
    assert not subject.optimizer.state
    assert torch.equal(torch.cat([kept.flatten() for kept in subject.average.tensors().values()]), before)
    assert all(p.grad is None for p in subject.model.parameters())


def test_a_scale_that_is_too_large_is_found_and_the_model_learns() -> None:
    subject, scale, losses = learner(learning_rate=0.01, schedule="constant"), LossScale(2.0**30), []
    for step in range(1, 101):
        update = train_step(subject, [batch()], step=step, scale=scale)
        losses.append(update.loss)
    assert 2.0**8 < scale.factor < 2.0**30
    assert losses[-1] < losses[0] / 2
    assert parameters(subject).dtype == torch.float32


def explode(gradient: Tensor) -> Tensor:
    return gradient * math.inf


def test_gradients_that_are_not_finite_unscaled_are_a_fault() -> None:
    subject, scale = learner(), LossScale(1.0)
    subject.model.target_embedding.table.weight.register_hook(explode)
    update = train_step(subject, [batch()], step=1, scale=scale)
    assert (update.fault, update.overflowed) == ("the gradient of target_embedding.table.weight", None)
    assert scale.factor == 1.0


def test_a_loss_that_is_not_finite_is_a_fault_whatever_the_scale() -> None:
    subject, scale = learner(), LossScale(8.0)
    with torch.no_grad():
        subject.model.encoder.layers[0].feed_forward.up.weight[0, 0] = math.inf
    update = train_step(subject, [batch()], step=1, scale=scale)
    assert update.fault == "encoder.layers.0.feed_forward.up.weight"
    assert scale == LossScale(8.0)


def settings(**training: Any) -> RunConfig:
    options = {"budget_tokens": 64, "max_steps": 12, "validate_every": 4, "log_every": 1}
    return tiny(precision="fp16", **options | training)


def overflow_in(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let the gradients of these batches, counted from 1, be infinite."""
    real: Callable[..., Tensor] = objective.loss_of
    calls: list[None] = []

    def loss_of(*arguments: Any, **named: Any) -> Tensor:
        loss = real(*arguments, **named)
        if loss.requires_grad:
            calls.append(None)
            if len(calls) in numbers:
                loss.register_hook(explode)
        return loss

    monkeypatch.setattr(objective, "loss_of", loss_of)


def test_a_run_that_was_stopped_has_the_scale_and_the_bits_of_one_that_was_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "PATIENCE", 5)
    overflow_in(monkeypatch, 3, 12 + 3)
    train(settings(ema=0.9), Path("straight"))
    for end in (2, 4, 12):
        train(settings(ema=0.9, max_steps=end), Path("stopped"))
    straight, stopped = (
        load_checkpoint(list_checkpoints(run)[-1], with_optimizer=True) for run in ("straight", "stopped")
    )
    assert straight.state["loss_scale"] == stopped.state["loss_scale"] == {"factor": 2.0**16, "kept": 4}
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (straight.path / file).read_bytes() == (stopped.path / file).read_bytes()


def test_a_run_whose_first_update_overflowed_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no moments yet, which else would mean that they were lost."""
    overflow_in(monkeypatch, 1)
    train(settings(max_steps=1), Path("run"))
    assert not load_checkpoint(list_checkpoints("run")[-1], with_optimizer=True).optimizer
    assert train(settings(max_steps=3), Path("run")).steps == 3


def test_overflows_are_told_and_do_not_count_as_updates_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    overflow_in(monkeypatch, 2, 3, 4)
    said: list[str] = []
    outcome = train(settings(max_skipped=0), Path("run"), listener=Listener(say=said.append))
    assert outcome.steps == 12
    told = [line for line in said if "overflow" in line]
    assert [line.split(":")[0] for line in told] == ["update 2", "update 3", "update 4"]
    assert "a loss scale of 65,536" in told[0]
    assert "a loss scale of 16,384" in told[2]


def test_an_overflow_neither_counts_nor_forgives(monkeypatch: pytest.MonkeyPatch) -> None:
    overflow_in(monkeypatch, 3)
    real, calls = objective.loss_of, itertools.count(1)

    def loss_of(*arguments: Any, **named: Any) -> Tensor:
        loss = real(*arguments, **named)
        return loss * math.nan if next(calls) in (2, 4) else loss

    monkeypatch.setattr(objective, "loss_of", loss_of)
    with pytest.raises(DivergedError, match=r"update 4: .* \(2 in a row"):
        train(settings(max_skipped=1), Path("run"))


def test_a_scale_of_one_ends_training_as_other_precisions_do(monkeypatch: pytest.MonkeyPatch) -> None:
    overflow_in(monkeypatch, *range(2, 99))
    with pytest.raises(DivergedError, match=r"update 19: .* \(2 in a row"):  # sixteen times halved, then counted
        train(settings(max_skipped=1, max_steps=90, validate_every=90), Path("run"))


def test_a_run_of_another_precision_has_no_scale() -> None:
    config = settings(max_steps=2, validate_every=2).model_copy(update={"precision": "fp32"})
    train(config, Path("run"))
    assert load_checkpoint(list_checkpoints("run")[-1], with_optimizer=False).state["loss_scale"] is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_of_updates_that_were_not_made_are_none_of_a_budget(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that overflowed were spent, and those of a fault until the next update."""
    overflow_in(monkeypatch, 2, 3)
    subject, progress, spent = learner(dtype, max_steps=None, budget={"tokens": 10**6}), Progress(), list[float]()

    def after(update: Update) -> bool:
        spent.append(update.spent.target_tokens)
        assert spent[-1] == progress.target_tokens
        return len(spent) == 4

    fit(subject, progress, lambda epoch, first: (9, iter([batch()] * 9)), after)
    n = batch().n_target_tokens
    assert spent == [n, n, n, 2 * n]
    assert progress.not_made == 2
