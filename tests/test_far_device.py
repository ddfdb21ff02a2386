"""Training, searching, scoring and looking inside, with a model that is not where the text is.

What a GPU refuses is an error on any machine, and so is waiting for it other than at the places counted here.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from encoded import encode
from far import FAR, Far
from steps import train_step
from torch import Tensor

import transformer_cli as tx
from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.config.model import POSITIONS, ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.training import OPTIMIZERS, TrainingConfig
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.loader import Batch, collate
from transformer_cli.decoding import sampling
from transformer_cli.decoding.scoring import score_texts
from transformer_cli.decoding.translator import Translator
from transformer_cli.machine import decide
from transformer_cli.model.build import build_model
from transformer_cli.model.layout import sent
from transformer_cli.training import optimizers
from transformer_cli.training.loop import fit
from transformer_cli.training.moving_average import MovingAverage
from transformer_cli.training.objective import loss_of
from transformer_cli.training.optimizers import build_optimizer, can_leave_out, load_state_tensors, state_tensors
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.sharding import shard
from transformer_cli.training.update import Learner, Update, try_out
from transformer_cli.training.validation import Validation

LINES = ["a dog runs", "the man sees a house", "two children"]


def learner(*, dtype: torch.dtype, fused: bool, optimizer: str = "adam", **shape: Any) -> Learner:
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 4, "d_ff": 32, "n_layers": 1} | shape
    model = build_model(ModelConfig(**sizes), source_vocab=30, target_vocab=30).to(FAR)
    model.use_attention(fused=fused)
    model.compute_in(dtype, training=True)
    options = TrainingConfig(warmup_steps=10, label_smoothing=0.1, clip_norm=1.0, optimizer=optimizer)
    sharding, made = shard(model, options, World()), build_optimizer(model, options)
    return Learner(sharding, made, options, seed=5, world=World(), average=MovingAverage(model, 0.9))


def batch() -> Batch:
    return collate([[4, 5, 6, 2], [7, 2]], [[4], [5, 6, 7]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("fused", [False, True], ids=["written-out", "fused"])
def test_a_step_of_training_waits_once_however_many_batches_it_has(dtype: torch.dtype, fused: bool) -> None:
    scale = LossScale() if dtype == torch.float16 else None
    with Far() as far:
        trained = learner(dtype=dtype, fused=fused, n_kv_heads=2)
        for step in (1, 2):
            train_step(trained, [batch(), batch()], step=step, scale=scale)
    assert far.waits == 2


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS.own))
def test_a_step_waits_once_whoever_optimizes(optimizer: str) -> None:
    with Far() as far:
        trained = learner(dtype=torch.bfloat16, fused=True, optimizer=optimizer)
        for step in (1, 2):
            train_step(trained, [batch()], step=step)
        kept = state_tensors(trained.optimizer, trained.model)
        load_state_tensors(
            trained.optimizer, trained.model, {name: torch.ones(one.shape) for name, one in kept.items()}
        )
        train_step(trained, [batch()], step=3)
    assert far.waits == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_training_that_reads_each_update_in_the_next_one_waits_once_for_each(
    dtype: torch.dtype, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, by PyTorch's fused kernel and all that is around it: nothing else of an update waits, or is on
    another device."""
    monkeypatch.setattr(Learner, "is_late", True)
    monkeypatch.setattr(optimizers, "FUSED", ("cpu", FAR.type))
    monkeypatch.setattr(
        import_module("torch.optim.optimizer"), "_get_fused_kernels_supported_devices", lambda: ["cpu", FAR.type]
    )
    told: list[tuple[int, int]] = []
    with Far(lambda asked: torch.ones(asked.shape)) as far:
        trained = learner(dtype=dtype, fused=True, optimizer=optimizer)
        assert can_leave_out(trained.optimizer)
        options = trained.options.model_copy(update={"max_steps": 5, "accumulation": 2})
        progress = Progress(loss_scale=LossScale() if dtype == torch.float16 else None)
        every = [batch()] * 6

        def after(update: Update) -> bool:
            assert update.is_made
            told.append((progress.step, far.waits))
            return False

        fit(replace(trained, options=options), progress, lambda epoch, first: (6, iter(every)), after)
    assert told == [(n, n) for n in range(1, 6)]


def overflowed(asked: Tensor) -> Tensor:
    """Finite losses, and a norm of gradients that is not."""
    return torch.tensor([1.0] * (len(asked) - 1) + [torch.inf])


def test_an_update_that_overflows_waits_no_longer_than_others() -> None:
    scale = LossScale()
    with Far(overflowed) as far:
        trained = learner(dtype=torch.float16, fused=True)
        update = train_step(trained, [batch(), batch()], step=1, scale=scale)
    assert (update.overflowed, far.waits) == (2 * scale.factor, 1)


def test_what_a_gpu_fetches_lies_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is fetched without being waited for. Other devices are waited for: PyTorch does not keep the memory of what
    Apple's have still to fetch, so that they got what lay there later."""
    pinned: list[Tensor] = []
    asked: list[tuple[bool, bool]] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    def to(tensor: Tensor, device: torch.device, *, non_blocking: bool = False) -> Tensor:
        asked.append((any(tensor is one for one in pinned), non_blocking))
        return tensor

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "pin_memory", pin)
        patch.setattr(Tensor, "to", to)
        for device in ("cuda", "mps", "cpu"):
            sent(torch.ones(3), torch.device(device))
    assert asked == [(True, True), (False, False), (False, False)]


@pytest.mark.parametrize("positions", sorted(POSITIONS.own))
def test_every_kind_of_positions_is_where_the_model_is(positions: str) -> None:
    with Far():
        trained = learner(dtype=torch.float32, fused=True, positions=positions)
        train_step(trained, [batch()], step=1)
        with torch.inference_mode():
            loss_of(trained.model.eval(), batch(), smoothing=0.0)


@pytest.fixture
def translator(trained_run: Path) -> Translator:
    near = tx.load(trained_run)
    return Translator(near.models, near.tokenizer, near.config, device=FAR, source_eos=near.source_eos)


def said(asked: Tensor) -> Tensor:
    """The bits of log-probabilities, all of them the same, and ids, one after the other."""
    logp, ids = torch.full(asked.shape[1:], -1.0), torch.arange(asked[0].numel()) % 20 + 4
    return torch.stack((logp.view(torch.int32), ids.view(logp.shape).int()))


@pytest.mark.parametrize(
    "options", [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"search": "sampling", "n_best": 2}]
)
def test_a_search_waits_for_what_it_chose_alone(translator: Translator, options: dict[str, Any]) -> None:
    translator.config = translator.config.model_copy(update={"min_length": 2, "no_repeat_ngram": 2})
    with Far(said, wide="search" in options) as far:
        found = translator.translate_all(LINES, prefixes=["the", "", "a man"], **options)
    assert all(one.truncated for one in found)
    n_steps = max(len(one.ids) for one in found) + 1
    assert far.waits == n_steps


def test_a_validation_waits_for_its_losses_once(translator: Translator) -> None:
    [model], tokenizer = translator.models, translator.tokenizer
    settings = {"training": {"budget_tokens": 12}, "decoding": translator.config.model_dump(), "device": "cpu"}
    text, config = Corpus(LINES, LINES), RunConfig.model_validate(settings)
    encoded = encode(text, tokenizer, "encoded", split="valid", source_eos=True)
    machine = replace(decide(config), device=str(FAR))
    validation = Validation(text, encoded, tokenizer, config, machine, 1, World())
    with Far(lambda asked: torch.ones(asked.shape)) as far:
        assert validation.loss(model) * int(encoded.lengths[:, 1].sum()) == 3  # batches
    assert far.waits == 1
    with Far(said):
        assert len(validation.bleu(model)["samples"]) == 2


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.9}, {}], ids=["top-k", "top-p", "all"])
def test_sampling_needs_no_fp64_where_there_is_none(
    translator: Translator, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all searches it alone is computed in fp64: on MPS, by the CPU."""
    monkeypatch.setattr(sampling, "WITHOUT_FP64", ("mps", FAR.type))
    translator.config = translator.config.model_copy(update=options)
    with Far(lambda asked: torch.full(asked.shape, -1.0)):  # where fp64 is an error
        assert len(translator.translate_all(LINES, search="sampling", n_best=2)) == len(LINES)


def test_a_pair_is_scored_where_the_model_is(translator: Translator) -> None:
    with Far() as far:
        score_texts(translator, LINES, LINES)
    assert far.waits == 1


def test_attention_is_captured_where_the_model_is(translator: Translator) -> None:
    first = lambda asked: torch.eye(1, asked.size(-1)).expand(asked.shape)  # all look at the first piece  # noqa: E731
    with Far(first) as far:
        attention_maps(translator, LINES[0], target=LINES[1])
    assert far.waits == 4  # logits, and the weights of three blocks


def test_the_largest_batch_is_tried_out_where_the_model_is_and_nobody_waits_for_it() -> None:
    with Far() as far:
        try_out(learner(dtype=torch.bfloat16, fused=True), [batch()])
    assert far.waits == 0
