"""What only a GPU can show; without one all of it is skipped. `test_far_device.py` holds the same path on any machine.

`pytest tests/test_on_gpu.py -rP` prints how fast it is.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PAIRS
from torch import Tensor

import transformer_cli as tx
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch, collate
from transformer_cli.machine import DTYPES, decide
from transformer_cli.model.build import build_model
from transformer_cli.training.loop import fit
from transformer_cli.training.moving_average import MovingAverage, NoAverage
from transformer_cli.training.optimizers import build_optimizer
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.run import train
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.sharding import shard
from transformer_cli.training.update import Learner, Update
from transformer_cli.training.utilisation import peak_flops, training_flops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

PRECISIONS = ["fp32", "bf16", "fp16"]
SIZES: dict[str, dict[str, Any]] = {
    "base": {"d_model": 512, "n_heads": 8, "d_ff": 2048, "n_layers": 6},
    "big": {"d_model": 1024, "n_heads": 16, "d_ff": 4096, "n_layers": 6},
}
"""The paper's."""


@pytest.fixture(autouse=True)
def _torch_as_before() -> Iterator[None]:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(before[0])
    torch.use_deterministic_algorithms(before[1])


def learner(
    device: str, precision: str, *, vocab: int = 30, options: dict[str, Any] | None = None, **shape: Any
) -> Learner:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 64, "n_heads": 4, "d_ff": 128, "n_layers": 2, "dropout": 0.0} | shape
    model = build_model(ModelConfig.model_validate(sizes), source_vocab=vocab, target_vocab=vocab).to(device)
    model.use_attention(fused=device == "cuda")
    model.compute_in(DTYPES[precision], training=True)
    training = TrainingConfig.model_validate({"warmup_steps": 10, "label_smoothing": 0.1} | (options or {}))
    average = NoAverage() if training.ema is None else MovingAverage(model, training.ema)
    sharding, optimizer = shard(model, training, World()), build_optimizer(model, training)
    return Learner(sharding, optimizer, training, seed=5, world=World(), average=average)


def batch(n: int, *, longest: int = 30, vocab: int = 30, seed: int = 0) -> Batch:
    chance = np.random.default_rng(seed)
    return collate(*([chance.integers(4, vocab, size=chance.integers(1, longest)) for _ in range(n)] for _ in range(2)))


def updates(of: Learner, precision: str, some: Sequence[Batch]) -> list[Update]:
    """As training makes them: on a GPU each is read once it has the next one's gradients to compute."""
    made: list[Update] = []

    def after(update: Update) -> bool:
        made.append(update)
        return len(made) == len(some)

    progress = Progress(loss_scale=LossScale(2.0**10) if precision == "fp16" else None)
    fit(of, progress, lambda epoch, first: (len(some), iter(some)), after)
    return made


@pytest.mark.parametrize("shape", [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "positions": "rotary", "norm": "rms-norm"}])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_there_is_training_here(precision: str, shape: dict[str, Any]) -> None:
    near = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 5e-3}[precision]
    some = [batch(16, seed=seed) for seed in range(4)]
    here, there = learner("cpu", "fp32", **shape), learner("cuda", precision, **shape)
    for one, other in zip(updates(here, "fp32", some), updates(there, precision, some), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=near)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=3 * near)


@pytest.mark.parametrize(("optimizer", "n_waits"), [("adam", 0), ("muon", 2)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_step_waits_for_the_gpu_before_it_has_all_work_but_where_the_optimizer_cannot_leave_out_an_update(
    precision: str, optimizer: str, n_waits: int
) -> None:
    """By PyTorch's own watch on what waits until the GPU has done everything. A wait for what it had done before an
    update, while it has the next one's gradients to compute, is none of those."""
    there = learner("cuda", precision, options={"ema": 0.9, "optimizer": optimizer}, n_kv_heads=2)
    updates(there, precision, [batch(8)])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            updates(there, precision, [batch(8, seed=1), batch(8, seed=2)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([one for one in found if "synchronizing" in str(one.message)]) == n_waits


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_stays_on_a_kernel_that_never_holds_its_weights(precision: str, n_kv_heads: int) -> None:
    there = learner("cuda", precision, n_kv_heads=n_kv_heads)
    with torch.nn.attention.sdpa_kernel(
        [
            torch.nn.attention.SDPBackend.FLASH_ATTENTION,
            torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
            torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
        ]
    ):
        [update] = updates(there, precision, [batch(8)])  # without a kernel that is an error
    assert update.fault is None


def settings(device: str, precision: str, **training: Any) -> RunConfig:
    text = {"pairs": PAIRS}
    return RunConfig.model_validate(
        {
            "device": device,
            "precision": precision,
            "deterministic": True,
            "tokenizer": {"vocab_size": 100},
            "data": {"train": text, "valid": text},
            "model": {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 1, "dropout": 0.1},
            "training": {"learning_rate": 0.01, "warmup_steps": 20, "max_steps": 150, "validate_every": 50} | training,
        }
    )


def weights(run: str) -> dict[str, Tensor]:
    return load_checkpoint(list_checkpoints(run)[-1], with_optimizer=False).model


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_that_was_stopped_ends_in_the_same_bits_where_it_is_asked_for_them(precision: str) -> None:
    train(settings("cuda", precision, max_steps=60, validate_every=20), Path("straight"))
    for end in (20, 40, 60):
        train(settings("cuda", precision, max_steps=end, validate_every=20), Path("stopped"))
    torch.testing.assert_close(weights("stopped"), weights("straight"), rtol=0, atol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_it_has_learned_it_translates_scores_and_shows(precision: str) -> None:
    train(settings("cuda", precision), Path("run"))
    there, here = tx.load("run"), tx.load("run", device="cpu", precision="fp32")
    lines, targets = zip(*PAIRS, strict=True)
    for options in ({"beam_size": 1}, {"beam_size": 4}):
        found = there.translate(list(lines), **options)
        assert found == here.translate(list(lines), **options)
        assert sum(one == target for one, target in zip(found, targets, strict=True)) >= len(targets) - 1
    assert len(there.translate(list(lines), search="sampling")) == len(lines)


CONTESTANTS = Path(__file__).parents[1] / "scripts" / "benchmark" / "contestants"
VOCAB, ROUNDS = 32_000, 5


def seconds_of(round_: Callable[[], object]) -> float:
    """Of all rounds; one comes before."""
    round_()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(ROUNDS):
        round_()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@pytest.mark.parametrize("n", [160, 900])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_how_fast_the_papers_models_train_beside_transformers(
    precision: str, size: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prints; a number that would fail depends on who has which GPU. Transformers has its Marian class, autocast and a
    plain loop, which has no scale of the loss for fp16."""
    chosen = decide(RunConfig(device="cuda", precision=precision))
    some = [batch(n, longest=60, vocab=VOCAB, seed=seed) for seed in range(4)]
    lengths = np.concatenate(
        [np.stack((one.source_lengths_B.numpy(), one.target_lengths_B.numpy()), axis=1) for one in some]
    )
    config = RunConfig.model_validate({"model": SIZES[size]})
    flops = ROUNDS * training_flops(config.counted, lengths, target_vocab=VOCAB)

    def tell(who: str, seconds: float) -> None:
        peak = peak_flops(chosen, n_processes=1)
        said = {
            "gpu": torch.cuda.get_device_name(),
            "who": who,
            "size": size,
            "precision": precision,
            "target_tokens_a_batch": round(sum(one.n_target_tokens for one in some) / len(some)),
            "target_tokens_per_s": round(ROUNDS * sum(one.n_target_tokens for one in some) / seconds),
            "tflops_per_s": round(flops / seconds / 1e12, 1),
            "mfu": None if peak is None else round(flops / seconds / peak, 3),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        }
        print(json.dumps(said))

    def ours() -> float:
        there = learner("cuda", precision, vocab=VOCAB, dropout=0.1, **SIZES[size])
        return seconds_of(lambda: updates(there, precision, some))

    tell("tx", ours())
    if precision == "fp16":
        return
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(CONTESTANTS)
    from by_transformers import marian, marian_step

    of_marian = marian(config.model.model_copy(update={"dropout": 0.1}), VOCAB).to("cuda")
    step = marian_step(of_marian, label_smoothing=0.1, bf16=precision == "bf16")
    tell("Transformers", seconds_of(lambda: [step(one) for one in some]))
