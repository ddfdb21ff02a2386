"""What several processes learn in a step is what one learns from all their sentences, whoever holds which weights."""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from compiling import needs_compiler
from encoded import encode
from ranks import codes, start
from steps import train_step
from tiny_run import tiny
from torch import Tensor, nn

from transformer_cli.checkpoints.find import find_checkpoint, list_checkpoints
from transformer_cli.checkpoints.record import read_record
from transformer_cli.checkpoints.store import Checkpoint, OpenedRun, load_checkpoint
from transformer_cli.checkpoints.tensors import as_held, held_here, weights, whole
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data import loader
from transformer_cli.data.batching import plan_of_rest
from transformer_cli.data.corpus import Corpus, load_training, load_validation
from transformer_cli.data.loader import Batch, collate
from transformer_cli.data.sampled import Draw, SampledCorpus
from transformer_cli.files import json_text, write_json
from transformer_cli.machine import decide
from transformer_cli.model import compiled_products, transformer
from transformer_cli.model.build import build_model
from transformer_cli.model.spans import InPlace
from transformer_cli.model.transformer import Transformer
from transformer_cli.training import objective
from transformer_cli.training.objective import loss_of, objective_of, of_nothing
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.run import train
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.schedules import Spent, learning_rate
from transformer_cli.training.sharding import Uncompiled, shard
from transformer_cli.training.update import Learner, Portions, seed_dropout
from transformer_cli.training.validation import Validation

SEED, STEPS = 3, (1, 2, 3)
SHAPES: list[dict[str, Any]] = [
    {"tied": "all", "dropout": 0.2},
    {"tied": "none", "positions": "learned", "max_positions": 16, "norm": "rms-norm", "bias": False, "dropout": 0.1}
    | {"qk_norm": True},
]
HELD = {"encoder.layers.0.self_attention.query_key_value.weight", "decoder.layers.1.residuals.0.norm.weight"}
"""Frozen, both in a group of others that are not."""


def model(shape: dict[str, Any], dtype: torch.dtype, *, vocab: int = 31, compiled: bool = False) -> Transformer:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2}
    made = build_model(ModelConfig.model_validate(sizes | shape), source_vocab=vocab, target_vocab=vocab).to(dtype)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name not in HELD)
    if compiled:
        made.use_compiled()
    return made


def batches(size: int, accumulation: int, step: int) -> list[list[Batch]]:
    """Of each process: of other lengths, one batch less than usual at the last step, and one process without any."""
    chance = np.random.default_rng([size, accumulation, step])
    n = max(1, accumulation - (step == STEPS[-1]))
    drawn = [[[tuple(chance.integers(4, 31, size=chance.integers(1, 9)) for _ in range(2)) for _ in
               range(chance.integers(1, 5))] for _ in range(n)] for _ in range(size)]  # fmt: skip
    if step == 2:
        drawn[size - 1][n - 1] = []
    return [[collate([s for s, _ in some], [t for _, t in some]) for some in own] for own in drawn]


class Recorder(torch.optim.SGD):
    """Keeps the gradients of its last step, as they are held."""

    def step(self, closure: Any = None) -> None:
        self.gradients = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)


def is_trained(parameter: Tensor) -> bool:
    return parameter.requires_grad


def expected(of: Transformer, every: list[list[Batch]], step: int, options: TrainingConfig) -> tuple[float, float]:
    """One process's gradients from all batches, by torch's own clipping; returns the mean loss and the norm."""
    of.train()
    n = sum(batch.n_target_tokens for own in every for batch in own)
    total = 0.0
    for rank, own in enumerate(every):
        for number, batch in enumerate(own):
            if batch.n_target_tokens:
                seed_dropout(SEED, step, number, rank)
                loss = loss_of(of, batch, smoothing=options.label_smoothing) / n
                loss.backward()
                total += loss.item()
    norm = nn.utils.clip_grad_norm_(filter(is_trained, of.parameters()), options.clip_norm or float("inf"))
    return total, norm.item()


Batches = Callable[[int, int, int], list[list[Batch]]]
"""(processes, batches an update, step) -> those of each process."""


class Steps:
    """A few updates by one process, which several have to make alike: to be made once, before those are forked."""

    def __init__(self, n: int, made: Callable[[], Transformer], batches: Batches = batches, **named: Any) -> None:
        """n: how many they are. made: the model as it begins."""
        self.ours, self.theirs, self.batches = made(), made(), batches
        self.options = TrainingConfig.model_validate({"warmup_steps": 2} | named)
        self.expected: list[tuple[float, float, float, list[Tensor]]] = []
        reference = Recorder(filter(is_trained, self.theirs.parameters()), lr=0.0)
        for step in STEPS:
            loss, norm = expected(self.theirs, batches(n, self.options.accumulation, step), step, self.options)
            rate = reference.param_groups[0]["lr"] = learning_rate(Spent(step=step), self.options, d_model=16)
            reference.step()
            reference.zero_grad()
            self.expected.append((loss, norm, rate, reference.gradients))

    def check(self, world: World) -> None:
        """An assertion that fails is the end of this process."""
        is_exact = self.ours.output.weight.dtype == torch.float64
        near = {"rtol": 1e-12, "atol": 1e-12} if is_exact else {"rtol": 0.0, "atol": 1e-6}
        sharding = shard(self.ours, self.options, world)
        optimizer = Recorder(filter(is_trained, self.ours.parameters()), lr=0.0)
        learner = Learner(sharding, optimizer, self.options, SEED, world)
        for step, (loss, norm, rate, gradients) in zip(STEPS, self.expected, strict=True):
            every = self.batches(world.size, self.options.accumulation, step)
            update = train_step(learner, every[world.rank], step=step)
            assert update.loss == pytest.approx(loss, rel=near["atol"])
            assert update.gradient_norm == pytest.approx(norm, rel=near["atol"])
            assert update.learning_rate == rate > 0
            assert update.target_tokens == sum(b.n_target_tokens for own in every for b in own)
            for one, other in zip(optimizer.gradients, gradients, strict=True):
                torch.testing.assert_close(held_here(one), held_here(as_held(other, like=one)), **near)
        for name, tensor in weights(sharding.whole()).items():
            torch.testing.assert_close(tensor, self.theirs.get_parameter(name).detach(), **near)


CASES = (SHAPES[0], 1, None, False), (SHAPES[1], 3, 0.1, True)
"""The model, batches an update, clipping, and whether activations are computed again."""


def test_replicas_wait_for_no_compiler_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's wrapper would import it; that takes as long as to import torch."""
    torch.manual_seed(SEED)
    layer, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    expected = torch.autograd.grad(layer(inputs).square().sum(), [*layer.parameters()])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    monkeypatch.delitem(vars(torch), "_dynamo", raising=False)
    wrapped: nn.Module | None = None
    try:
        wrapped = Uncompiled(layer, gradient_as_bucket_view=True)
        for _ in range(2):
            layer.zero_grad()
            wrapped(inputs).square().sum().backward()
            assert all(torch.equal(p.grad, one) for p, one in zip(layer.parameters(), expected, strict=True))
        assert "_dynamo" not in vars(torch)
    finally:
        monkeypatch.undo()
        wrapped = None
        gc.collect()  # were the wrapper the last to hold the group, it might wait for ever
        dist.destroy_process_group()


def test_whatever_else_the_wrapper_asks_of_a_compiler_is_answered_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another version of PyTorch may."""
    asked: list[Any] = []
    monkeypatch.setattr(nn.parallel.DistributedDataParallel, "__init__", lambda *_: asked.append(torch._dynamo.config))
    Uncompiled(nn.Linear(3, 2))
    assert asked == [importlib.import_module("torch._dynamo").config]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("n", [2, 4])
def test_gradients_are_those_of_one_process_with_all_sentences(n: int, parallel: str, tmp_path: Path) -> None:
    made = [
        Steps(
            n,
            partial(model, shape, dtype),
            **{"parallel": parallel, "accumulation": accumulation, "clip_norm": clip_norm, "recompute": recompute},
        )
        for dtype in (torch.float64, torch.float32)
        for shape, accumulation, clip_norm, recompute in CASES
    ]

    def check(rank: int) -> None:
        torch.set_num_threads(1)
        with joined("cpu") as world:
            for steps in made:
                steps.check(world)

    ended = codes(start(n, check, tmp_path), limit_s=120)
    assert ended == [0] * n, "".join((tmp_path / str(rank)).read_text() for rank in range(n))


@needs_compiler
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_so_are_those_by_compiled_code(parallel: str, tmp_path: Path) -> None:
    """Beside what is written out in one process, of a table that is an embedding and the output, too."""
    shape = {"n_heads": 1, "d_ff": 32, "dropout": 0.0, "activation": "gelu"}
    made = []
    for recompute in (False, True):
        options = {"parallel": parallel, "accumulation": 1 + 2 * recompute, "recompute": recompute}
        is_compiled = iter([True, False])
        made.append(Steps(2, lambda i=is_compiled: model(shape, torch.float32, compiled=next(i)), **options))  # type: ignore[misc]
        assert made[-1].ours.layout is InPlace
        assert made[-1].theirs.layout is not InPlace

    def check(rank: int) -> None:
        torch.set_num_threads(1)
        with joined("cpu") as world:
            for steps in made:
                steps.check(world)

    ended = codes(start(2, check, tmp_path), limit_s=120)
    assert ended == [0, 0], "".join((tmp_path / str(rank)).read_text() for rank in range(2))


@pytest.mark.parametrize(("parallel", "n", "accumulation"), [("ddp", 4, 3), ("fsdp", 4, 1)])
def test_so_are_those_of_what_other_numbers_of_processes_have_left_of_an_epoch_cut_anew(
    parallel: str, n: int, accumulation: int, tmp_path: Path, loaded_run: OpenedRun
) -> None:
    config, tokenizer = loaded_run.config, loaded_run.tokenizer
    known = load_training(config.data)
    times = 2 * n * accumulation
    text = Corpus(times * [*known.source], times * [*known.target])
    plain = encode(text, tokenizer, tmp_path / "data", split="valid", source_eos=config.data.source_eos)
    drawn = SampledCorpus(plain, text, tokenizer, Draw(0.2, SEED, epoch=1), max_length=64)
    budget = int(2 * drawn.lengths.max())
    options: dict[str, Any] = {"budget": budget, "seed": SEED, "epoch": 1}

    def of_the_rest(size: int, accumulation: int, step: int) -> list[list[Batch]]:
        shares = [(3, 2), (1, 1)]  # three processes had two batches each, then one had another
        plans = [plan_of_rest(drawn.lengths, shares, **options, rank=rank, world=size) for rank in range(size)]
        here = slice(accumulation * (step - 1), accumulation * step)
        return [[*loader.batches(drawn, plan[here])] for plan in plans]

    last = of_the_rest(n, accumulation, STEPS[-1])
    assert [len(own) for own in last] == [accumulation] * n
    assert all(batch.n_target_tokens for own in last for batch in own)

    made = partial(model, SHAPES[0], torch.float64, vocab=tokenizer.target_size)
    steps = Steps(n, made, of_the_rest, parallel=parallel, accumulation=accumulation)

    def check(rank: int) -> None:
        torch.set_num_threads(1)
        with joined("cpu") as world:
            steps.check(world)

    ended = codes(start(n, check, tmp_path), limit_s=120)
    assert ended == [0] * n, "".join((tmp_path / str(rank)).read_text() for rank in range(n))


def test_two_readings_of_a_sentence_agree_wherever_they_are_made(tmp_path: Path) -> None:
    """A process without a sentence has nothing to compare."""

    def check(rank: int) -> None:
        torch.set_num_threads(1)
        with joined("cpu") as world:
            losses = []
            for parallel in ("ddp", "fsdp"):
                ours = model(SHAPES[0], torch.float64)
                options = TrainingConfig.model_validate({"parallel": parallel, "r_drop": 3.0, "warmup_steps": 2})
                sharding = shard(ours, options, world)
                optimizer = Recorder(filter(is_trained, ours.parameters()), lr=0.0)
                learner = Learner(sharding, optimizer, options, SEED, world)
                updates = [train_step(learner, batches(2, 1, step)[rank], step=step) for step in STEPS]
                losses.append([update.loss for update in updates])
                alone = objective_of(model(SHAPES[0], torch.float64), options)
                expected = 0.0
                for other, [batch] in enumerate(batches(2, 1, 1)):
                    seed_dropout(SEED, 1, 0, other)
                    expected += alone(batch).item() / updates[0].target_tokens
                assert losses[-1][0] == pytest.approx(expected, rel=1e-12)
            assert losses[0] == pytest.approx(losses[1], rel=1e-12)

    assert codes(start(2, check, tmp_path), limit_s=120) == [0, 0], (tmp_path / "0").read_text()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_in_half_as_many_bits_parts_of_weights_learn_as_whole_ones_do(dtype: torch.dtype, tmp_path: Path) -> None:
    scaled = dtype == torch.float16

    def check(rank: int) -> None:
        gradients = []
        with joined("cpu") as world:
            for parallel in ("ddp", "fsdp"):
                ours = model(SHAPES[0], torch.float32).compute_in(dtype, training=True)
                options = TrainingConfig.model_validate({"parallel": parallel, "clip_norm": None})
                sharding = shard(ours, options, world)
                optimizer = Recorder(filter(is_trained, ours.parameters()), lr=0.0)
                of = Learner(sharding, optimizer, options, SEED, world)
                update = train_step(of, batches(2, 2, 1)[rank], step=1, scale=LossScale() if scaled else None)
                assert update.overflowed is None
                gradients.append([whole(gradient) for gradient in optimizer.gradients])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)
        if scaled:
            exact = model(SHAPES[0], torch.float32)
            expected(exact, batches(2, 2, 1), 1, options)
            for one, other in zip(gradients[0], filter(is_trained, exact.parameters()), strict=True):
                assert (one - other.grad).norm() < 0.01 * other.grad.norm() + 1e-6  # type: ignore[union-attr]

    assert codes(start(2, check, tmp_path), limit_s=60) == [0, 0], (tmp_path / "0").read_text()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_what_overflows_on_one_is_skipped_by_all(parallel: str, tmp_path: Path) -> None:
    """With no more said between them than in any other update."""

    def check(rank: int) -> None:
        ours = model(SHAPES[0], torch.float32).compute_in(torch.float16, training=True)
        with joined("cpu") as world:
            options = TrainingConfig.model_validate({"parallel": parallel})
            sharding, scale = shard(ours, options, world), LossScale()
            optimizer = Recorder(filter(is_trained, ours.parameters()), lr=0.0)
            of = Learner(sharding, optimizer, options, SEED, world)
            own, found, sums = batches(2, 1, 1)[rank], [], []
            for step in (1, 2, 3):
                with pytest.MonkeyPatch.context() as patch:
                    real = World.sum
                    patch.setattr(World, "sum", lambda *values, real=real: sums.append(0) or real(*values))
                    if (rank, step) == (1, 2):
                        patch.setattr(objective, "loss_of", exploding)
                    found.append(train_step(of, own, step=step, scale=scale).overflowed)
            assert found == [None, 2.0**16, None]
            assert len(sums) == 3
            assert scale == LossScale(2.0**15, kept=1)

    assert codes(start(2, check, tmp_path), limit_s=60) == [0, 0], (tmp_path / "0").read_text()


def exploding(*arguments: Any, **named: Any) -> Tensor:
    loss = loss_of(*arguments, **named)
    loss.register_hook(lambda gradient: gradient * float("inf"))
    return loss


def test_numbers_that_are_not_finite_are_named_on_all_though_one_holds_them(tmp_path: Path) -> None:
    name = "decoder.layers.1.feed_forward.down.weight"

    def check(rank: int) -> None:
        ours = model(SHAPES[0], torch.float32)
        with torch.no_grad():
            ours.get_parameter(name)[-1, -1] = float("nan")
        with joined("cpu") as world:
            options = TrainingConfig(parallel="fsdp")
            sharding = shard(ours, options, world)
            learner = Learner(sharding, Recorder(ours.parameters(), lr=0.0), options, SEED, world)
            assert train_step(learner, batches(2, 1, 1)[rank], step=1).fault == name

    assert codes(start(2, check, tmp_path), limit_s=60) == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [
        (torch.float32, False),
        (torch.bfloat16, False),
        pytest.param(torch.float32, True, marks=needs_compiler),
        pytest.param(torch.bfloat16, True, marks=needs_compiler),
    ],
    ids=["fp32", "bf16", "fp32-compiled", "bf16-compiled"],
)
def test_layers_that_compute_again_keep_less_and_learn_the_same_bits(
    dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compiled_products, transformer):  # whose products are ours on any processor
        monkeypatch.setattr(module, "by_pairs", lambda dtype: dtype == torch.bfloat16)
    kept: list[int] = []
    gradients: list[list[Tensor | None]] = []
    shape = SHAPES[0] | ({"n_heads": 1, "d_ff": 32} if compiled else {})
    for recompute in (False, True):
        ours = model(shape, torch.float32).compute_in(dtype, training=True)
        if compiled:
            ours.use_compiled()
        sharding = shard(ours, TrainingConfig(recompute=recompute), World())
        sizes: list[int] = []
        pack = lambda tensor, sizes=sizes: sizes.append(tensor.nbytes) or tensor  # type: ignore[misc]  # noqa: E731
        seed_dropout(SEED, 1, 0, 0)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            sharding.begin()
            sharding.learn(batches(1, 1, 1)[0][0], n_targets=7, is_last=True)
        kept.append(sum(sizes))
        gradients.append([parameter.grad for parameter in ours.parameters()])
    assert kept[1] < kept[0] / 2
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def saved(parallel: str, *ends: int, place: Path, name: str, **others: Any) -> Checkpoint:
    """What a run of three processes saved last, stopped and continued at each of these steps."""
    for end in ends:
        options = {"parallel": parallel, "max_steps": end, "validate_every": 2, "validation_bleu": False} | others
        children = start(3, lambda _, chosen=options: train(tiny(**chosen), Path(name)), place)  # type: ignore[misc]
        assert codes(children, limit_s=60) == [0] * 3, (place / "0").read_text()
    return load_checkpoint(list_checkpoints(name)[-1], with_optimizer=True)


OPTIONS: dict[str, Any] = {
    "best_by": "loss",
    "ema": 0.9,
    "freeze": ["encoder.layers.0.feed_forward"],
    "accumulation": 3,
    "eps": 1e-3,
}
"""With an eps that noise of gradients that should be zero does not exceed."""


def test_a_run_of_three_that_was_stopped_ends_in_the_bits_of_one_that_was_not_and_holds_what_all_held(
    tmp_path: Path,
) -> None:
    """Of three numbers the order of a sum is seen in its last bits; and parts of weights are whole in the files."""
    (errors := tmp_path / "errors").mkdir()
    straight: dict[str, Checkpoint] = {}
    for parallel in ("ddp", "fsdp"):
        straight[parallel] = saved(parallel, 4, place=errors, name=f"straight-{parallel}", **OPTIONS)
        stopped = saved(parallel, 2, 4, place=errors, name=f"stopped-{parallel}", **OPTIONS)
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert (stopped.path / file).read_bytes() == (straight[parallel].path / file).read_bytes()
    near = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(straight["fsdp"].model, straight["ddp"].model, **near)
    torch.testing.assert_close(straight["fsdp"].optimizer, straight["ddp"].optimizer, **near)


def test_parts_of_weights_begin_as_those_of_another_run(tmp_path: Path, trained_run: Path) -> None:
    tree = load_config(trained_run / "config.yaml").model_dump()
    changes = {"parallel": "fsdp", "init_from": str(trained_run), "max_steps": 1, "learning_rate": 1e-12}
    tree["training"] |= changes | {"warmup_steps": 0, "validate_every": 1}
    config = RunConfig.model_validate(tree)
    assert codes(start(2, lambda _: train(config, Path("child")), tmp_path), limit_s=60) == [0, 0]
    before = load_checkpoint(find_checkpoint(str(trained_run)), with_optimizer=False).model
    after = load_checkpoint(list_checkpoints("child")[-1], with_optimizer=False).model
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    assert read_record(Path("child"))["parameters"] == sum(tensor.numel() for tensor in before.values())


def test_a_validation_of_several_processes_is_that_of_one(tmp_path: Path, loaded_run: OpenedRun) -> None:
    config, tokenizer = loaded_run.config, loaded_run.tokenizer
    text = load_validation(config.data)
    assert text is not None
    encoded = encode(text, tokenizer, tmp_path / "data", split="valid", source_eos=config.data.source_eos)
    small = config.model_copy(update={"training": config.training.model_copy(update={"budget_tokens": 8})})

    def results(world: World) -> dict[str, Any]:
        return Validation(text, encoded, tokenizer, small, decide(config), 1, world).results(loaded_run.model)

    def together(rank: int) -> None:
        with joined("cpu") as world:
            write_json(tmp_path / f"results-{rank}", results(world))

    alone = json.loads(json_text(results(World())))
    assert codes(start(3, together, tmp_path), limit_s=60) == [0] * 3
    shared = [json.loads((tmp_path / f"results-{rank}").read_text()) for rank in range(3)]
    # Of single sentences, whose batches are others; with AVX2 alone their sums differ in the eighth digit.
    assert shared[0] == alone | {"unsure_below": pytest.approx(alone["unsure_below"], rel=1e-6)}
    assert shared == [shared[0]] * 3


@pytest.mark.parametrize(("parallel", "number", "ends_well"), [("ddp", 0, True), ("ddp", 1, False), ("fsdp", 0, False)])
def test_what_others_take_no_part_in_is_begun_anew_in_parts(
    parallel: str, number: int, ends_well: bool, tmp_path: Path
) -> None:
    """Of two batches one is too much for one process: the first, or the last, after which gradients are exchanged."""
    shape, real = SHAPES[0] | {"dropout": 0.0}, objective.loss_of

    def check(rank: int) -> None:
        calls = itertools.count(-1 if parallel == "ddp" else 0)  # the wrapper learns from nothing first

        def loss_of(*arguments: Any, **named: Any) -> Tensor:
            if next(calls) == number and rank == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(*arguments, **named)

        objective.loss_of = loss_of
        ours, theirs = model(shape, torch.float64), model(shape, torch.float64)
        with joined("cpu") as world:
            options = TrainingConfig(parallel=parallel, accumulation=2)  # type: ignore[arg-type]
            sharding, optimizer = shard(ours, options, world), Recorder(filter(is_trained, ours.parameters()), lr=0.0)
            left = Portions(leave=lambda n: write_json(tmp_path / f"left-{rank}", n))
            learner = Learner(sharding, optimizer, options, SEED, world, portions=left)
            every = batches(2, 2, 4)
            update = train_step(learner, every[rank], step=4)
            objective.loss_of = real
            loss, norm = expected(theirs, every, 4, options)
            assert (update.loss, update.gradient_norm) == pytest.approx((loss, norm), rel=1e-12)
            assert learner.portions.n == rank + 1

    ended = codes(start(2, check, tmp_path), limit_s=60)
    assert ended == ([0, 0] if ends_well else [5, 5]), (tmp_path / "0").read_text()
    assert ends_well or "process 1 of 2: not enough memory to learn from" in (tmp_path / "0").read_text()
    assert {path.name: path.read_text() for path in tmp_path.glob("left-*")} == ({} if ends_well else {"left-1": "2\n"})


class Still(Recorder):
    """Weights stay as they are."""

    def step(self, closure: Any = None) -> None:
        pass


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_in_parts_from_the_beginning_gradients_are_those_of_whole_batches(parallel: str, tmp_path: Path) -> None:
    """Whatever number of sentences a process has, none at all among them: all compute as often."""
    made = partial(model, SHAPES[0] | {"dropout": 0.0}, torch.float64)
    options = TrainingConfig(parallel=parallel, accumulation=2)  # type: ignore[arg-type]
    windows = {step: batches(2, 2, step) for step in (1, 2, 4)}
    alone = {step: expected(made(), every, step, options) for step, every in windows.items()}

    def check(rank: int) -> None:
        with joined("cpu") as world:
            for n_parts in (2, 3):
                ours = made()
                sharding, optimizer = shard(ours, options, world), Still(filter(is_trained, ours.parameters()), lr=0.0)
                learner = Learner(sharding, optimizer, options, SEED, world, portions=Portions(n=n_parts))
                for step, every in windows.items():
                    update = train_step(learner, every[rank], step=step)
                    assert (update.loss, update.gradient_norm) == pytest.approx(alone[step], rel=1e-12)

    assert codes(start(2, check, tmp_path), limit_s=60) == [0, 0], (tmp_path / "0").read_text()


def test_the_norm_of_large_gradients_is_exact() -> None:
    sharding = shard(model(SHAPES[0], torch.float32), TrainingConfig(), World())
    gradients = [torch.randn(2048, 2048), torch.randn(256), torch.randn(3, 64, 8), torch.zeros(0, 4)]
    exact = nn.utils.get_total_norm([gradient.double() for gradient in gradients]).item()
    assert sharding.norm(gradients).item() == pytest.approx(exact, rel=1e-6)


def test_who_has_no_sentence_learns_nothing() -> None:
    subject = model(SHAPES[0], torch.float32)
    loss = loss_of(subject, of_nothing(), smoothing=0.1)
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in subject.parameters())
    assert sum(p.grad is not None for p in subject.parameters()) == sum(p.requires_grad for p in subject.parameters())


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted by Linux")
def test_no_wrapper_is_the_last_to_hold_the_group(tmp_path: Path) -> None:
    """It would wait for gloo's threads to end, and they for Python's lock, which it holds."""

    def running() -> int:
        """Once no more of them end by themselves."""
        found, latest = [len(os.listdir("/proc/self/task"))], time.monotonic() + 10
        while (len(found) < 20 or len({*found[-20:]}) > 1) and time.monotonic() < latest:
            time.sleep(0.01)
            found.append(len(os.listdir("/proc/self/task")))
        return found[-1]

    def check(rank: int) -> None:
        ours = model(SHAPES[0], torch.float32)
        alone = running()
        with joined("cpu") as world:
            sharding = shard(ours, TrainingConfig(parallel="ddp"), world)
        before = running()
        del sharding
        gc.collect()
        assert running() == before > alone, (before, alone)

    assert codes(start(2, check, tmp_path), limit_s=60) == [0, 0], (tmp_path / "0").read_text()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_gradients_travel_once_an_update_however_many_batches_it_has(parallel: str, tmp_path: Path) -> None:
    """`no_sync` of either; and all counts and flags together, once. PyTorch's profiler counts."""
    reduces = "c10d::allreduce_" if parallel == "ddp" else "c10d::_reduce_scatter_base_"

    def check(rank: int) -> None:
        torch.set_num_threads(1)
        counts = []
        with joined("cpu") as world:
            for accumulation in (1, 3):
                ours = model(SHAPES[0], torch.float32)
                options = TrainingConfig.model_validate({"parallel": parallel, "accumulation": accumulation})
                sharding = shard(ours, options, world)
                optimizer = Recorder(filter(is_trained, ours.parameters()), lr=0.0)
                learner = Learner(sharding, optimizer, options, SEED, world)
                train_step(learner, batches(2, accumulation, 1)[rank], step=1)
                profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                with profile if rank == 0 else nullcontext():  # what one sends the other receives
                    train_step(learner, batches(2, accumulation, 3)[rank], step=2)
                if rank == 0:
                    found = {event.key: event.count for event in profile.key_averages()}
                    assert found["c10d::allreduce_"] == 2  # of counts, and of DDP's one bucket or of FSDP's norm
                    counts.append(found.get(reduces, 0))
        assert rank or counts[0] == counts[1] > 0, counts

    assert codes(start(2, check, tmp_path), limit_s=120) == [0, 0], (tmp_path / "0").read_text()
