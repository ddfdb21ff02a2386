"""One update, many batches; what padding, accumulation and weight decay may and may not change."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from compiling import needs_compiler
from steps import train_step

from transformer_cli.config.model import ModelConfig
from transformer_cli.config.training import Budget, TrainingConfig
from transformer_cli.data.loader import Batch, collate
from transformer_cli.errors import ModelError, ResourceError
from transformer_cli.model.build import build_model
from transformer_cli.training import objective, update
from transformer_cli.training.loop import end_epoch, fit, tell_first_loss, windows
from transformer_cli.training.optimizers import OnePass, build_optimizer, load_state_tensors, state_tensors
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress, is_over, spent_in_words
from transformer_cli.training.sharding import shard
from transformer_cli.training.update import Learner, Update, seed_dropout, try_out


def learner(*, double: bool = False, model: dict[str, Any] | None = None, **options: Any) -> Learner:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1, "dropout": 0.0} | (model or {})
    module = build_model(ModelConfig(**shape), source_vocab=30, target_vocab=30)
    module = module.double() if double else module
    training = TrainingConfig.model_validate({"warmup_steps": 10, "label_smoothing": 0.1} | options)
    sharding = shard(module, training, World())
    return Learner(sharding, build_optimizer(module, training), training, seed=5, world=World())


def pairs(n: int, *, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    chance = np.random.default_rng(seed)
    return [tuple(chance.integers(4, 30, size=chance.integers(1, 9)) for _ in range(2)) for _ in range(n)]  # type: ignore[misc]


def batch(some: Sequence[tuple[np.ndarray, np.ndarray]]) -> Batch:
    return collate([source for source, _ in some], [target for _, target in some])


def parameters(of: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in of.model.parameters()])


def test_accumulated_unequal_batches_equal_one_big_batch() -> None:
    text = pairs(12)
    whole, parts = learner(double=True), learner(double=True, accumulation=3)
    for step in (1, 2, 3):
        one = train_step(whole, [batch(text)], step=step)
        three = train_step(parts, [batch(text[:1]), batch(text[1:4]), batch(text[4:])], step=step)
        assert three.loss == pytest.approx(one.loss, rel=1e-12)
        assert three.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-10)
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=1e-9, atol=1e-11)


def test_the_last_window_of_an_epoch_may_be_shorter() -> None:
    batches = [batch(pairs(1, seed=n)) for n in range(7)]
    assert [len(window) for window in windows(iter(batches), 3)] == [3, 3, 1]


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_the_vector_of_padding_stays_zero(tied: str) -> None:
    subject = learner(model={"tied": tied}, weight_decay=0.1, optimizer="adamw")
    for step in range(1, 4):
        train_step(subject, [batch(pairs(8))], step=step)
    assert not subject.model.source_embedding.table.weight[0].any()
    assert not subject.model.target_embedding.table.weight[0].any()


def test_dropout_depends_on_seed_step_and_batch_alone() -> None:
    first, second, other = (learner(model={"dropout": 0.3}) for _ in range(3))
    torch.manual_seed(1)
    one = train_step(first, [batch(pairs(8))], step=7)
    torch.manual_seed(2)
    two = train_step(second, [batch(pairs(8))], step=7)
    three = train_step(other, [batch(pairs(8))], step=8)
    assert one.loss == two.loss
    assert torch.equal(parameters(first), parameters(second))
    assert three.loss != one.loss


@pytest.mark.parametrize("device", ["cuda", "mps", None])
def test_every_device_that_is_used_is_seeded_for_dropout(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: PyTorch would note down for each of them where it was called from."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: device == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: device == "mps")
    of_all, real = [], torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: of_all.append(seed) or real(seed))
    seed_dropout(1, 2, 3, 4)
    seed, found = torch.initial_seed(), torch.rand(3)
    assert of_all == ([seed] if device else [])
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(seed)))


def test_neither_two_batches_of_an_update_nor_two_processes_share_their_dropout() -> None:
    same = batch(pairs(8))
    alone, again, beside = (learner(model={"dropout": 0.3}) for _ in range(3))
    beside = replace(beside, world=World(rank=1))
    losses = [train_step(alone, [same], step=7), train_step(again, [same, same], step=7)]
    losses.append(train_step(beside, [same], step=7))
    assert len({update.loss for update in losses}) == 3


def test_numbers_that_are_not_finite_make_no_update_and_are_named() -> None:
    subject = learner()
    with torch.no_grad():
        subject.model.decoder.layers[0].feed_forward.down.weight[0, 0] = float("nan")
    before = parameters(subject)
    update = train_step(subject, [replace(batch(pairs(4)), indices=(7, 9, 2, 4))], step=3)
    assert update.fault == "decoder.layers.0.feed_forward.down.weight"
    assert update.suspects == (7, 9, 2, 4)
    assert torch.equal(before.nan_to_num(), parameters(subject).nan_to_num())


def test_an_update_equals_torchs_adam_on_the_same_gradient() -> None:
    ours, theirs = learner(double=True, clip_norm=0.5, schedule="constant", warmup_steps=0), learner(double=True)
    reference = torch.optim.Adam(theirs.model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    for step in (1, 2, 3):
        some = batch(pairs(6, seed=step))
        train_step(ours, [some], step=step)
        hidden = theirs.model(some.source_BS, some.source_lengths_B, some.target_in_BT)
        loss = torch.nn.functional.cross_entropy(
            theirs.model.project(hidden).flatten(0, 1),
            some.target_out_BT.flatten(),
            ignore_index=0,
            label_smoothing=0.1,
        )
        reference.zero_grad()
        loss.backward()
        gradient = theirs.model.target_embedding.table.weight.grad
        assert gradient is not None
        gradient[0] = 0
        torch.nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.5)
        reference.step()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=1e-9, atol=1e-11)


def test_weight_decay_leaves_biases_norms_and_embeddings_alone() -> None:
    subject = learner(optimizer="adamw", weight_decay=0.5)
    decayed = {id(p) for group in subject.optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in subject.model.named_parameters() if id(p) in decayed}
    assert names == {
        name
        for name, p in subject.model.named_parameters()
        if p.dim() == 2 and "embedding" not in name and "norm" not in name
    }


def test_the_optimizers_state_goes_out_and_in_unchanged() -> None:
    one, two = learner(), learner()
    train_step(one, [batch(pairs(8))], step=1)
    two.model.load_state_dict(one.model.state_dict())
    load_state_tensors(
        two.optimizer, two.model, {k: v.clone() for k, v in state_tensors(one.optimizer, one.model).items()}
    )
    for subject in (one, two):
        train_step(subject, [batch(pairs(8, seed=3))], step=2)
    assert torch.equal(parameters(one), parameters(two))


def test_an_optimizer_with_a_memory_does_not_begin_anew_in_silence() -> None:
    """Adam did, where the file of its moments was whole but empty."""
    subject = learner()
    with pytest.raises(ModelError, match="optimizer state is empty"):
        load_state_tensors(subject.optimizer, subject.model, {})
    load_state_tensors(torch.optim.SGD(subject.model.parameters(), lr=0.1), subject.model, {})


ON_GPU = torch.OutOfMemoryError("CUDA out of memory")
ON_CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tri"
)


def memory_for(n: int, monkeypatch: pytest.MonkeyPatch, *, place: str = "there", failure: Exception = ON_GPU) -> None:
    """As with room for so many sentences at a time: more are too many on the way there, or back."""
    real = objective.loss_of

    def fail(*_: object) -> None:
        raise failure

    def loss_of(model: Any, some: Batch, **named: Any) -> torch.Tensor:
        loss = real(model, some, **named)
        if len(some.source_lengths_B) > n:
            if place == "there":
                fail()
            weight = model.encoder.layers[0].feed_forward.down.weight  # behind the gradients of the decoder
            handle = weight.register_hook(lambda _: (handle.remove(), fail()))
        return loss

    monkeypatch.setattr(objective, "loss_of", loss_of)


def gradients_of(subject: Learner) -> list[torch.Tensor]:
    """Those of its next update, once it is made."""
    found: list[torch.Tensor] = []
    of_all = subject.model.parameters
    subject.optimizer.register_step_pre_hook(lambda *_: found.extend(p.grad.clone() for p in of_all()))
    return found


@pytest.mark.parametrize("failure", [ON_GPU, ON_CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("place", ["there", "back"])
@pytest.mark.parametrize(("double", "near"), [(True, 1e-12), (False, 1e-6)], ids=["fp64", "fp32"])
def test_what_memory_is_too_little_for_is_learned_in_parts_with_the_same_gradients(
    double: bool, near: float, place: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = [batch(pairs(2)), batch(pairs(8, seed=1)), batch(pairs(1, seed=2))]
    whole, short = (learner(double=double, accumulation=3) for _ in range(2))
    told: list[str] = []
    short.portions.tell = told.append
    expected, found = gradients_of(whole), gradients_of(short)
    one = train_step(whole, window, step=1)
    memory_for(2, monkeypatch, place=place, failure=failure)
    other = train_step(short, window, step=1)
    torch.testing.assert_close(found, expected, rtol=near, atol=near)
    assert other.loss == pytest.approx(one.loss, rel=near)
    assert (other.target_tokens, other.source_tokens) == (one.target_tokens, one.source_tokens)
    train_step(short, window, step=2)
    assert len(told) == 2
    assert "in 4 parts from now on" in told[1]


def test_a_sentence_that_memory_is_too_little_for_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = learner()
    before = parameters(subject)
    memory_for(0, monkeypatch)
    with pytest.raises(ResourceError, match=r"not enough memory to learn from \d+ \+ \d+ pieces") as caught:
        train_step(subject, [batch(pairs(5))], step=1)
    assert "training.recompute" in (caught.value.hint or "")
    assert torch.equal(parameters(subject), before)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_batch_is_tried_out_without_a_trace_but_for_its_parts(
    accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tried, short = (learner(model={"dropout": 0.3}, accumulation=accumulation) for _ in range(3))
    large = batch(pairs(8, seed=4))
    for step in (1, 2):  # without moments, and with them
        try_out(tried, [large, large])
        assert all(p.grad is None for p in tried.model.parameters())
        losses = [train_step(one, [batch(pairs(6, seed=step))], step=step).loss for one in (plain, tried)]
        assert losses[0] == losses[1]
    assert torch.equal(parameters(plain), parameters(tried))
    memory_for(4, monkeypatch)
    try_out(short, [large])
    assert (tried.portions.n, short.portions.n) == (1, 2)


@needs_compiler
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_batch_that_is_tried_has_gradients_as_an_update_has_them(
    accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 those of a whole batch are kept so, and not twice as large, which may be more than all else takes."""
    torch.manual_seed(0)
    training = TrainingConfig(accumulation=accumulation)
    shape = ModelConfig(d_model=16, n_heads=1, d_ff=32, n_layers=1)
    module = build_model(shape, source_vocab=30, target_vocab=30).compute_in(torch.bfloat16, training=True)
    module.use_compiled()
    sharding = shard(module, training, World())
    subject = Learner(sharding, build_optimizer(module, training), training, seed=5, world=World())
    assert type(subject.optimizer) is OnePass
    held, real = [], update._learn

    def learned(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        held.append([x if x is None or x.grad is None else x.grad.dtype for x in subject.optimizer._learners])
        return found

    monkeypatch.setattr(update, "_learn", learned)
    some = [batch(pairs(2))] * accumulation
    try_out(subject, some[:1])
    train_step(subject, some, step=1)
    tried, made = held
    assert tried == made
    assert (torch.bfloat16 in made) is (accumulation == 1)


def test_while_a_batch_is_tried_there_is_room_taken_for_the_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that fits without them, and not with them, would end training in its second update."""
    subject, held = learner(), []
    real = update._learn

    def counting(*arguments: Any, **named: Any) -> Any:
        gc.collect()
        held.append(sum(one.nbytes for one in gc.get_objects() if type(one) is torch.Tensor))
        return real(*arguments, **named)

    monkeypatch.setattr(update, "_learn", counting)
    for _ in (1, 2):  # the first makes tables, too
        try_out(subject, [batch(pairs(2))])
    for step in (1, 2):
        train_step(subject, [batch(pairs(2))], step=step)
    _, tried, first, second = held
    n_bytes = sum(parameter.nbytes for parameter in subject.model.parameters())
    assert tried - first == 2 * n_bytes
    assert second - first >= 2 * n_bytes


def epochs(n_batches: int) -> Any:
    def epoch_of(epoch: int, first: int) -> tuple[int, Iterator[Batch]]:
        return n_batches, iter([batch(pairs(2, seed=100 * epoch + n)) for n in range(first, n_batches)])

    return epoch_of


@pytest.mark.parametrize(
    ("options", "steps", "reason"),
    [
        ({"max_steps": 5}, 5, "max_steps 5 reached"),
        ({"max_epochs": 2}, 4, "max_epochs 2 reached"),
        ({"max_steps": 4, "max_epochs": 2}, 4, "max_epochs 2 reached"),
        ({"stop_loss": 1000.0}, 2, "mean loss"),
    ],
)
def test_training_ends_where_the_options_say(options: dict[str, Any], steps: int, reason: str) -> None:
    progress = Progress()
    fit(learner(accumulation=2, **options), progress, epochs(3), lambda update: False)
    assert progress.step == steps
    assert reason in (progress.finished or "")


def test_the_loss_of_the_first_batch_is_told_once_and_before_its_gradients_are_computed() -> None:
    subject, told, losses = learner(max_steps=3), [], []

    def tell(loss: float) -> None:
        told.append((loss, all(parameter.grad is None for parameter in subject.model.parameters())))

    tell_first_loss(subject, tell)
    fit(subject, Progress(), epochs(5), lambda update: bool(losses.append(update.loss)))
    assert len(losses) == 3
    assert told == [(losses[0], True)]


def test_stopping_after_each_update_and_going_on_sees_every_batch_once() -> None:
    straight: list[float] = []
    fit(learner(max_steps=9, accumulation=2), Progress(), epochs(5), lambda update: bool(straight.append(update.loss)))
    stopped: list[float] = []

    def stop(update: Update) -> bool:
        stopped.append(update.loss)
        return True

    subject, progress = learner(max_steps=9, accumulation=2), Progress()
    while progress.finished is None:
        fit(subject, progress, epochs(5), stop)
    assert stopped == straight


def test_a_finished_run_goes_on_only_where_the_new_options_allow_more() -> None:
    progress = Progress(step=10, epoch=2, stale=3, finished="max_steps 10 reached")
    assert is_over(progress, TrainingConfig(max_steps=10))
    assert not is_over(progress, TrainingConfig(max_steps=11))
    assert is_over(progress, TrainingConfig(max_steps=5))
    for ended in ("max_steps 10 reached", "budget spent (epochs: 2)"):
        progress = Progress(step=10, epoch=2, stale=3, target_tokens=100, passed_s=90, finished=ended)
        for less in ({"epochs": 1}, {"epochs": 2}, {"tokens": 99}, {"minutes": 1.4}):
            assert is_over(progress, TrainingConfig(budget=Budget.model_validate(less)))
        for more in ({"epochs": 3}, {"tokens": 101}, {"minutes": 1.6}):
            assert not is_over(progress, TrainingConfig(budget=Budget.model_validate(more)))
        assert is_over(progress, TrainingConfig(max_steps=5))
        assert not is_over(progress, TrainingConfig(max_steps=11))
    for kind, spent, least in (("epochs", 2.5, 2.2), ("minutes", 1.505, 1.504), ("epochs", 2500.5, 2500.25)):
        progress.finished = spent_in_words(Budget.model_validate({kind: spent}))  # within an epoch, and a moment sooner
        for less in (least, spent, spent + 1e-12):
            assert is_over(progress, TrainingConfig(budget=Budget.model_validate({kind: less})))
        assert not is_over(progress, TrainingConfig(budget=Budget.model_validate({kind: spent + 0.001})))
    progress.finished = "patience: no better validation in 3"
    assert is_over(progress, TrainingConfig(patience=3))
    assert not is_over(progress, TrainingConfig(patience=4))
    progress.finished = "max_epochs 2 reached"
    assert is_over(progress, TrainingConfig(max_epochs=2))
    assert not is_over(progress, TrainingConfig())
    progress.finished = "max_steps 10 reached"
    assert is_over(progress, TrainingConfig(max_steps=99, max_epochs=2))
    assert not is_over(progress, TrainingConfig(max_steps=99, max_epochs=3))


def test_a_run_that_ended_by_its_loss_goes_on_to_a_lower_one() -> None:
    """It said that it had finished, and that more updates would let it go on, which they did not."""
    progress = Progress(epoch_loss=40.0, epoch_tokens=10)
    reason = end_epoch(progress, TrainingConfig(stop_loss=5.0))
    assert reason == "mean loss 4 of epoch 1 is below stop_loss 5"
    progress.step, progress.finished = 10, reason
    assert is_over(progress, TrainingConfig(stop_loss=5.0, max_steps=99))
    assert is_over(progress, TrainingConfig(stop_loss=4.5, max_steps=99))
    assert not is_over(progress, TrainingConfig(stop_loss=3.9, max_steps=99))
    assert not is_over(progress, TrainingConfig(max_steps=99))
    progress.mean_loss = None  # nobody kept it
    assert is_over(progress, TrainingConfig(stop_loss=3.9))
    assert not is_over(progress, TrainingConfig())


def test_r_drop_is_the_mean_of_two_losses_and_their_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liang et al. 2021, halved: what is predicted by both, by torch's own functions."""
    subject = learner(double=True, model={"dropout": 0.3}, r_drop=5.0)
    some, read = batch(pairs(6)), list[torch.Tensor]()
    packed = subject.model.packed

    def keep(*inputs: Any, **options: Any) -> torch.Tensor:
        read.append(packed(*inputs, **options))
        return read[-1]

    monkeypatch.setattr(subject.model, "packed", keep)
    project, n = learner(double=True).model.project, some.n_target_tokens
    update = train_step(subject, [some], step=1)
    [hidden] = read
    both = [project(hidden[:n]).log_softmax(-1), project(hidden[n : 2 * n]).log_softmax(-1)]
    assert not torch.equal(*both)
    targets = torch.cat([row[:n] for row, n in zip(some.target_out_BT, some.target_lengths_B, strict=True)])
    losses = [torch.nn.functional.cross_entropy(one, targets, label_smoothing=0.1) for one in both]
    apart = [
        torch.nn.functional.kl_div(one, other, log_target=True, reduction="sum") / n
        for one, other in (both, both[::-1])
    ]
    assert update.target_tokens == n
    assert update.loss == pytest.approx((sum(losses).item() + 5 * sum(apart).item() / 2) / 2)  # type: ignore[union-attr]


def test_r_drop_without_chance_is_the_loss_itself() -> None:
    ours, plain = learner(double=True, r_drop=5.0), learner(double=True)
    for step in (1, 2):
        losses = [train_step(one, [batch(pairs(6))], step=step).loss for one in (ours, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    torch.testing.assert_close(parameters(ours), parameters(plain), rtol=1e-8, atol=1e-10)
