"""An update that is read while the device computes the next one's gradients is the same update, or none.

A GPU makes updates so. Here the CPU does, by the same operations, where PyTorch's fused optimisers are told the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from far import FAR, Far
from ranks import codes, start
from steps import train_step
from test_optimizers import a_model, draw_gradients, options
from test_scaling import batch, learner, parameters
from test_sharding import SEED, SHAPES, STEPS, batches, exploding, model
from torch import Tensor

from transformer_cli.checkpoints.tensors import weights
from transformer_cli.config.training import OPTIMIZERS, Budget, TrainingConfig
from transformer_cli.data.loader import Batch
from transformer_cli.training import loop, objective, scaling, update
from transformer_cli.training.loop import fit
from transformer_cli.training.objective import loss_of
from transformer_cli.training.optimizers import AdamW, build_optimizer, can_leave_out, state_tensors, step_unless
from transformer_cli.training.parallel import joined
from transformer_cli.training.progress import Progress
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.sharding import shard
from transformer_cli.training.update import Learner, Update, on_its_way

pytestmark = pytest.mark.usefixtures("own_threads")
NORMS = (None, 0.05)
FAST: dict[str, Any] = {"learning_rate": 0.01, "schedule": "constant", "warmup_steps": 0}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda is_late: monkeypatch.setattr(Learner, "is_late", is_late)


def everything(of: Learner) -> dict[str, Tensor]:
    """What an update may change."""
    kept = weights(of.model) | state_tensors(of.optimizer, of.model) | of.average.tensors()
    return {name: tensor.detach().clone() for name, tensor in kept.items()}


@pytest.mark.parametrize("clip_norm", NORMS, ids=["whole", "clipped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_it_is_the_same_update(dtype: torch.dtype, clip_norm: float | None, late: Callable[[bool], None]) -> None:
    """To the bit, where nothing is multiplied."""
    found: list[tuple[list[Update], dict[str, Tensor]]] = []
    for is_late in (False, True):
        late(is_late)
        # eps: where a gradient is nothing but rounding, as that of a bias of keys, so is Adam's direction
        subject = learner(dtype, clip_norm=clip_norm, eps=1e-4, **FAST)
        scale = LossScale() if dtype == torch.float16 else None
        said = [train_step(subject, [batch(seed=n), batch(3)], step=n, scale=scale) for n in (1, 2, 3)]
        found.append((said, everything(subject)))
    (early, one), (later, other) = found
    multiplied = clip_norm is not None or dtype == torch.float16
    near = {"rtol": 1e-5, "atol": 1e-7} if multiplied else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(other, one, **near)
    for before, after in zip(early, later, strict=True):
        assert after == replace(before, loss=after.loss, gradient_norm=after.gradient_norm)
        assert (after.loss, after.gradient_norm) == pytest.approx((before.loss, before.gradient_norm), rel=1e-5)


def spoilt(of: Learner, what: str, patch: pytest.MonkeyPatch) -> None:
    """A weight that is no number; a gradient or a loss that is none, though the other is."""
    if what == "loss":
        patch.setattr(objective, "loss_of", lambda *given, **named: loss_of(*given, **named) + math.inf)
    elif what == "weight":
        with torch.no_grad():
            of.model.encoder.layers[0].feed_forward.up.weight[0, 0] = math.inf
    else:
        of.model.target_embedding.table.weight.register_hook(lambda gradient: gradient * math.inf)


@pytest.mark.parametrize("what", ["weight", "gradient", "loss"])
@pytest.mark.parametrize("scale", [None, LossScale(1.0), LossScale(8.0)], ids=["fp32", "fp16", "fp16-scaled"])
def test_numbers_that_are_not_finite_change_nothing_and_are_told_as_ever(
    scale: LossScale | None, what: str, late: Callable[[bool], None]
) -> None:
    found = []
    for is_late in (False, True):
        late(is_late)
        subject = learner(torch.float16 if scale else torch.float32)
        own = replace(scale) if scale else None
        train_step(subject, [batch(seed=1)], step=1, scale=own)
        before = everything(subject)
        with pytest.MonkeyPatch.context() as patch:
            spoilt(subject, what, patch)
            if what == "weight":
                before |= everything(subject)
            some = [replace(batch(seed=n), indices=tuple(range(8 * n, 8 * n + 8))) for n in (2, 3)]
            update = train_step(subject, some, step=2, scale=own)
        assert update.overflowed or (update.fault and set(update.suspects) == {*range(16, 32)})
        torch.testing.assert_close(everything(subject), before, rtol=0, atol=0, equal_nan=True)
        assert all(parameter.grad is None for parameter in subject.model.parameters())
        found.append((update.fault, update.overflowed, update.suspects, update.spent.target_tokens, own))
    assert found[0] == found[1]


def test_a_first_update_that_overflows_leaves_weights_and_average_as_they_were(late: Callable[[bool], None]) -> None:
    late(True)
    subject, scale = learner(), LossScale(2.0**40)
    before = parameters(subject)
    assert train_step(subject, [batch()], step=1, scale=scale).overflowed == 2.0**40
    assert torch.equal(parameters(subject), before)
    assert not any(tensor.any() for tensor in state_tensors(subject.optimizer, subject.model).values())
    assert scale == LossScale(2.0**39)


def test_what_derives_from_an_optimizer_that_does_or_keeps_what_memory_held_does_not_say_so() -> None:
    """A recipe that turns gradients before AdamW's kernel does the rest got them unclipped, and those of no use."""
    weight = [torch.nn.Parameter(torch.ones(2))]
    derived = type("Turning", (AdamW,), {})
    assert can_leave_out(AdamW(weight, fused=True))
    others = derived(weight, fused=True), AdamW(weight), torch.optim.SGD(weight, momentum=0.9, fused=True)
    assert not any(map(can_leave_out, others))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.own))
def test_an_optimizer_that_says_so_leaves_out_an_update(name: str) -> None:
    ours, theirs = a_model(), a_model()
    one, other = (build_optimizer(model, options(optimizer=name)) for model in (ours, theirs))
    assert can_leave_out(one) is (name in ("adam", "adamw"))
    if not can_leave_out(one):
        return
    bad, good = torch.tensor(True), torch.tensor(False)
    for step in (1, 2, 3):
        for group in (*one.param_groups, *other.param_groups):
            group["lr"] = 0.01
        draw_gradients(ours, step)
        step_unless(one, good, divide_by=torch.tensor(4.0))
        before = {name: tensor.clone() for name, tensor in (weights(ours) | state_tensors(one, ours)).items()}
        draw_gradients(ours, 99)
        next(ours.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
        step_unless(one, bad, divide_by=torch.tensor(math.nan))
        assert not {"found_inf", "grad_scale"} & vars(one).keys()
        torch.testing.assert_close(weights(ours) | state_tensors(one, ours), before, rtol=0, atol=0)
        draw_gradients(theirs, step)
        for parameter in theirs.parameters():
            if parameter.grad is not None:
                parameter.grad /= 4
        other.step()
        torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=0)


RUNS: dict[str, dict[str, Any]] = {
    "steps": {"max_steps": 13},
    "tokens": {"budget": Budget(tokens=400), "warmup_steps": "30%", "schedule": "linear"},
    "epochs": {"max_epochs": 3, "accumulation": 2, "ema": 0.9},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("stops", [(), (4, 5, 9)], ids=["whole", "stopped"])
def test_a_run_of_late_updates_is_a_run(
    run: str, dtype: torch.dtype, stops: Sequence[int], late: Callable[[bool], None], monkeypatch: Any
) -> None:
    """To the bit, after every update, with losses that are not finite and a scale of fp16's that changes."""
    monkeypatch.setattr(scaling, "PATIENCE", 3)
    monkeypatch.setattr(objective, "loss_of", sometimes_bad)
    options = FAST | {"clip_norm": None} | RUNS[run]
    late(False)
    early = followed(learner(dtype, **options), stops)
    late(True)
    found = followed(learner(dtype, **options), stops)
    if dtype == torch.float16:
        assert sum(update.overflowed is not None for update in early.said) >= 2
    else:
        assert any(one.fault and other.is_made for one, other in itertools.pairwise(early.said[:6]))
    assert str(found.said) == str(early.said)  # what is no number equals none
    assert found.progress == early.progress
    assert found.saved.keys() == early.saved.keys()
    torch.testing.assert_close(found.saved, early.saved, rtol=0, atol=0)


@dataclass
class Followed:
    """A run to its end, asked to stop with some of its updates and gone on with."""

    said: list[Update]
    saved: dict[int, dict[str, Tensor]]
    progress: Progress


def followed(of: Learner, stops: Sequence[int]) -> Followed:
    found, n_given = Followed([], {}, Progress(loss_scale=LossScale(2.0**20))), itertools.count(1)

    def after(update: Update) -> bool:
        # The one is a sum by Python, the other by torch.
        found.said.append(replace(update, loss=round(update.loss, 4), gradient_norm=round(update.gradient_norm, 4)))
        stop = any(update.asked)
        # Where no update was made yet, the one has nothing of Adam's, the other zeros.
        found.saved[found.progress.step] = {name: tensor for name, tensor in everything(of).items() if tensor.any()}
        return stop

    def asked() -> list[float]:
        return [float(next(n_given) in stops)]

    while found.progress.finished is None:
        fit(replace(of, asked=asked), found.progress, epochs, after)
    found.progress.epoch_loss = round(found.progress.epoch_loss, 2)
    if found.progress.mean_loss is not None:
        found.progress.mean_loss = round(found.progress.mean_loss, 4)
    return found


def epochs(epoch: int, first: int) -> tuple[int, Iterator[Batch]]:
    return 6, iter([batch(4, seed=6 * epoch + n) for n in range(first, 6)])


def sometimes_bad(model: Any, batch: Batch, **named: Any) -> Tensor:
    """As the batch is, however often it is learned from."""
    return loss_of(model, batch, **named) * (math.inf if batch.n_source_tokens % 5 == 0 else 1)


def test_an_update_is_read_once_the_next_has_its_gradients_but_the_last_of_an_epoch(
    late: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    late(True)
    order: list[str] = []

    def watched(of: Any, name: str) -> None:
        does = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *given, **named: order.append(name) or does(*given, **named))

    def sent(numbers: Tensor) -> Callable[[], list[float]]:
        read = on_its_way(numbers)
        return lambda: order.append("read") or read()  # type: ignore[func-returns-value]

    watched(loop, "begin")
    watched(loop, "give")
    monkeypatch.setattr(update, "on_its_way", sent)
    fit(learner(max_epochs=2), Progress(), epochs, lambda update: bool(order.append("told")))
    epoch = ["begin", "give", *(["begin", "read", "told", "give"] * 5), "read", "told"]
    assert order == 2 * epoch


def test_nobody_waits_before_the_device_has_the_update(late: Callable[[bool], None], monkeypatch: Any) -> None:
    """And but once, for nothing that was asked after it."""
    late(True)
    order: list[str] = []

    def watched(numbers: Tensor) -> Callable[[], list[float]]:
        order.append("sent")
        read = on_its_way(numbers)
        return lambda: order.append("read") or read()  # type: ignore[func-returns-value]

    monkeypatch.setattr(update, "on_its_way", watched)
    with Far() as far:
        trained = Learner(**(vars(learner()) | {"sharding": there(far)}))
        trained = replace(trained, optimizer=torch.optim.Adam(trained.model.parameters(), lr=0.0, foreach=False))
        monkeypatch.setattr(trained.optimizer, "step", lambda: order.append("update"))
        train_step(trained, [batch(), batch()], step=1)
    assert (order, far.waits) == (["sent", "update", "read"], 1)


def there(far: Far) -> Any:
    made = learner(torch.float32).model.to(FAR)
    made.use_attention(fused=True)
    return shard(made, TrainingConfig(clip_norm=1.0), learner().world)


def test_what_a_gpu_sends_is_read_once_all_that_was_asked_before_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    event = SimpleNamespace(synchronize=lambda: asked.append("wait"))
    stream = SimpleNamespace(record_event=lambda: asked.append("mark") or event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or stream)

    class Numbers:
        device, is_cuda = torch.device("cuda:1"), True

        def to(self, *arguments: Any, **named: Any) -> Tensor:
            asked.append((*arguments, named))
            return torch.tensor([1.0, 2.0])

    read = on_its_way(Numbers())  # type: ignore[arg-type]
    assert asked == [("cpu", {"non_blocking": True}), torch.device("cuda:1"), "mark"]
    assert read() == [1.0, 2.0]
    assert asked[3:] == ["wait"]


def exploding_where_marked(model: Any, batch: Batch, **named: Any) -> Tensor:
    return (exploding if 99 in batch.indices else loss_of)(model, batch, **named)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_several_processes_make_the_same_updates_and_leave_out_the_same(parallel: str, tmp_path: Path) -> None:
    def check(rank: int) -> None:
        found = []
        torch.set_num_threads(1)
        with joined("cpu") as world:
            for is_late in (False, True):
                Learner.is_late = is_late  # type: ignore[method-assign, assignment]
                ours = model(SHAPES[0], torch.float32)
                settings = TrainingConfig.model_validate(
                    {"parallel": parallel, "clip_norm": 0.1, "eps": 1e-4, "max_epochs": 1} | FAST
                )
                sharding = shard(ours, settings, world)
                of = Learner(sharding, build_optimizer(ours, settings), settings, SEED, world)
                assert can_leave_out(of.optimizer)
                said: list[Update] = []
                own = [one for step in (*STEPS, 4, 5) for one in batches(2, 1, min(step, 3))[rank]]
                own[3] = replace(own[3], indices=(99,) * len(own[3].source_lengths_B))
                with pytest.MonkeyPatch.context() as patch:
                    if rank == 1:
                        patch.setattr(objective, "loss_of", exploding_where_marked)
                    progress = Progress(loss_scale=LossScale())
                    patch.setattr(progress, "scale", lambda *, in_fp16: None)
                    fit(of, progress, lambda epoch, first, own=own: (5, iter(own)), lambda one, to=said: to.append(one))  # type: ignore[misc]
                found.append((said, weights(sharding.whole())))
        (early, one), (later, other) = found
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
        assert [update.overflowed for update in later] == [None, None, None, 2.0**16, None]
        for before, after in zip(early, later, strict=True):
            assert (after.target_tokens, after.is_made) == (before.target_tokens, before.is_made)
            if after.is_made:
                assert (after.loss, after.gradient_norm) == pytest.approx((before.loss, before.gradient_norm), rel=1e-5)

    assert codes(start(2, check, tmp_path), limit_s=120) == [0, 0], "".join(
        (tmp_path / str(rank)).read_text() for rank in range(2)
    )
