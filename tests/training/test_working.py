"""What learns in bf16 for weights that stay in fp32."""

from __future__ import annotations

import pytest
import torch
from compiling import WRITTEN_OUT_OR_COMPILED, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import train_step

from transformer_cli.config.model import ModelConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch, collate
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.objective import loss_of
from transformer_cli.training.optimizers import build_optimizer
from transformer_cli.training.parallel import World
from transformer_cli.training.sharding import shard
from transformer_cli.training.update import Learner, begin
from transformer_cli.training.working import WorkingCopy


def model(dtype: torch.dtype) -> Transformer:
    torch.manual_seed(1)
    made = build_model(
        ModelConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, dropout=0.0), source_vocab=30, target_vocab=30
    )
    return made.compute_in(dtype, training=True).train()


def batch(seed: int) -> Batch:
    torch.manual_seed(seed)
    rows = [torch.randint(4, 30, (length,)).numpy() for length in (3, 5, 5, 8)]
    return collate(rows, rows[::-1])


def gradient_of(working: WorkingCopy[Transformer], own: Transformer, *batches: Batch) -> torch.Tensor:
    own.zero_grad()
    for one in batches:
        loss_of(working.model.train(), one, smoothing=0.1).backward()
    gradients = [p.grad for p in own.parameters()]
    assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def test_in_fp32_the_model_itself_learns() -> None:
    own = model(torch.float32)
    assert WorkingCopy(own).model is own


def test_layers_are_copied_in_bf16_and_embeddings_are_shared() -> None:
    own = model(torch.bfloat16)
    working = WorkingCopy(own).model
    assert working.target_embedding.table.weight is own.target_embedding.table.weight
    assert {p.dtype for p in working.decoder.layers.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in own.parameters()} == {torch.float32}


def test_gradients_are_those_of_casting_at_each_use_and_add_up_in_fp32() -> None:
    own, casting = model(torch.bfloat16), model(torch.bfloat16)
    working = WorkingCopy(own)
    for one in (batch(1), batch(2)):
        casting.zero_grad()
        loss_of(casting, one, smoothing=0.1).backward()
        expected = torch.cat([p.grad.flatten() for p in casting.parameters() if p.grad is not None])
        assert torch.equal(gradient_of(working, own, one), expected)
    first, second = (gradient_of(working, own, batch(number)) for number in (1, 2))
    both = gradient_of(working, own, batch(1), batch(2))
    assert torch.equal(both, first + second)  # in fp32: of bf16, 8 bits would be left
    assert not torch.equal(both, both.bfloat16().float())


def test_refreshed_copies_are_the_weights_as_they_are_now() -> None:
    own = model(torch.bfloat16)
    working = WorkingCopy(own)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter += 0.5
    working.refresh()
    for ours, copied in zip(own.parameters(), working.model.parameters(), strict=True):
        assert torch.equal(copied.float(), ours.to(copied.dtype).float())


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
def test_each_update_reads_with_the_weights_that_the_one_before_left(compiled: bool) -> None:
    """Or with those that somebody has put in their place."""
    own = model(torch.bfloat16)
    if compiled:
        own.use_compiled()
    options = TrainingConfig(learning_rate=0.05, warmup_steps=0, schedule="constant")
    learner = Learner(shard(own, options, World()), build_optimizer(own, options), options, seed=1, world=World())
    for step in (1, 2, 3):
        with torch.no_grad():
            expected = loss_of(WorkingCopy(own).model, batch(1), smoothing=options.label_smoothing).item()
        update = train_step(learner, [batch(1)], step=step)
        assert update.loss * update.target_tokens == pytest.approx(expected, rel=1e-6)
        if step == 2:
            with torch.no_grad():
                for parameter in own.parameters():
                    parameter.mul_(1.5)


@needs_compiler
def test_an_optimizer_that_takes_gradients_in_bf16_still_adds_those_of_several_batches_in_fp32() -> None:
    own = model(torch.bfloat16)
    own.use_compiled()
    options = TrainingConfig(learning_rate=0.05, warmup_steps=0, schedule="constant", accumulation=2)
    learner = Learner(shard(own, options, World()), build_optimizer(own, options), options, seed=1, world=World())
    working = learner.sharding.working  # type: ignore[attr-defined]
    weight, copied = (
        own.encoder.layers[0].feed_forward.up.weight,
        working.model.encoder.layers[0].feed_forward.up.weight,
    )

    def found(*numbers: int) -> torch.Tensor:
        learner.optimizer.zero_grad()
        learner.sharding.begin()
        for number in numbers:
            learner.sharding.learn(batch(number), n_targets=1.0, is_last=number == numbers[-1])
        (gradient,) = (grad for grad in (weight.grad, copied.grad) if grad is not None)
        return gradient

    first, second = found(1), found(2)
    assert first.dtype == second.dtype == torch.bfloat16
    both = found(1, 2)
    assert both.dtype == torch.float32
    assert torch.equal(both, first.float() + second.float())
    assert not torch.equal(both, both.bfloat16().float())
    learner.sharding.gather()
    assert copied.grad is None


@needs_compiler
@settings(max_examples=30)
@given(st.data())
def test_an_update_by_compiled_code_is_that_of_what_is_written_out(data: st.DataObject) -> None:
    """Its loss, the length of its gradient, and each of its gradients, whoever shares a table, whichever embeddings are
    compiled, whatever does not learn, of one batch or of several."""
    draw = data.draw
    tied, r_drop = draw(st.sampled_from(["all", "embeddings", "decoder", "none"])), draw(st.sampled_from([None, 2.0]))
    shape = {"d_model": 16, "n_heads": 1, "d_ff": 32, "n_layers": 1, "dropout": 0.0, "activation": "gelu"}
    kinds = [draw(st.sampled_from(["sinusoidal", "learned", "rotary", "none"])) for _ in range(2)]
    positions = {"positions": dict(zip(("encoder", "decoder"), kinds, strict=True)), "max_positions": 20}
    config = ModelConfig.model_validate(shape | positions | {"tied": tied, "output_bias": draw(st.booleans())})
    options = TrainingConfig(
        optimizer=draw(st.sampled_from(["adam", "adamw"])),
        clip_norm=draw(st.sampled_from([None, 0.01])),
        schedule="constant",
        warmup_steps=0,
        r_drop=r_drop,
    )
    fixed = draw(st.sampled_from(["", "target_embedding", "encoder", "decoder.layers.0.feed_forward"]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    windows, found = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=2, max_size=3)), []
    begun_from: dict[tuple[int, str], torch.Tensor] = {}
    for compiled in (False, True):
        torch.manual_seed(1)
        own = build_model(config, source_vocab=30, target_vocab=30).compute_in(dtype, training=True).train()
        for name, parameter in own.named_parameters():
            parameter.requires_grad_(not (fixed and name.startswith(fixed)))
        if compiled:
            own.use_compiled()
        sharding = shard(own, options, World())
        learner = Learner(sharding, build_optimizer(own, options), options, seed=1, world=World())
        numbers = []
        for step, window in enumerate(windows, start=1):
            batches = [batch(number) for number in window]
            begin(learner, batches, step=step)
            sharding.gather()
            factor = sharding.factor(sum(one.n_target_tokens for one in batches))
            numbers += [parameter.grad.clone() * factor for parameter in own.parameters() if parameter.grad is not None]
            update = train_step(learner, batches, step=step)
            numbers += [torch.tensor(update.loss), torch.tensor(update.gradient_norm)]
            with torch.no_grad():  # Adam makes much of what is next to nothing: both go on from the same weights
                for name, parameter in own.named_parameters():
                    parameter.copy_(parameter.mul(8).round().div(8))
                    first = begun_from.setdefault((step, name), parameter.clone())
                    assert (parameter - first).abs().max() <= 1 / 8
                    parameter.copy_(first)
        found.append(numbers)
    for written_out, compiled_ in zip(*found, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(compiled_, written_out, rtol=1e-3, atol=1e-5)
        else:
            assert (compiled_ - written_out).norm() <= 0.1 * written_out.norm() + 1e-3
