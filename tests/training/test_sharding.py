"""What several processes learn in a step is what one learns from all their sentences, whoever holds which weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import codes, start
from torch import Tensor, nn

from transformer_cli.checkpoints.store import OpenedRun, list_checkpoints
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data import binary
from transformer_cli.data.corpus import load_validation
from transformer_cli.data.loader import Batch, collate
from transformer_cli.files import json_text, write_json
from transformer_cli.machine import decide
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.loop import Learner, seed_dropout, train_step
from transformer_cli.training.objective import loss_of, of_nothing
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.run import train
from transformer_cli.training.sharding import shard
from transformer_cli.training.validation import Validation

SEED, STEPS = 3, (1, 2, 3)
SHAPES: list[dict[str, Any]] = [
    {"tied": "all", "dropout": 0.2},
    {"tied": "none", "positions": "learned", "max_positions": 16, "norm": "rms-norm", "bias": False, "dropout": 0.1},
]
HELD = {"encoder.layers.0.self_attention.query_key_value.weight", "decoder.layers.1.residuals.0.norm.weight"}
"""Frozen, both in a group of others that are not."""


def model(shape: dict[str, Any], dtype: torch.dtype) -> Transformer:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2}
    made = build_model(ModelConfig.model_validate(sizes | shape), source_vocab=31, target_vocab=31).to(dtype)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name not in HELD)
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


def tiny(**training: Any) -> RunConfig:
    words = ["schläft", "trinkt", "isst", "lacht", "weint"]
    text = {"pairs": [[f"der hund {word} {other}", f"the dog {word}"] for word in words for other in words]}
    whole = {
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "tokenizer": {"vocab_size": 60, "sampling": 0.1},
        "data": {"train": text, "valid": text, "max_length": 32},
        "model": {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1},
        "training": {"budget_tokens": 32, "warmup_steps": 2} | training,
    }
    return RunConfig.model_validate(whole)


class Recorder(torch.optim.SGD):
    """Keeps the gradients of its last step."""

    def step(self, closure: Any = None) -> None:
        self.gradients = [whole(p.grad.clone()) for group in self.param_groups for p in group["params"]]
        super().step(closure)


def whole(tensor: Tensor) -> Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)()


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
    norm = nn.utils.clip_grad_norm_([p for p in of.parameters() if p.requires_grad], options.clip_norm or float("inf"))
    return total, norm.item()


def steps(place: Path, world: World, parallel: str, dtype: torch.dtype) -> None:
    """Those of all cases, beside the same of one process; an assertion that fails is the end of this one."""
    near = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    for shape in SHAPES:
        for accumulation, clip_norm in ((1, None), (3, 0.1)):
            options = TrainingConfig(accumulation=accumulation, clip_norm=clip_norm, warmup_steps=2)
            ours, theirs = model(shape, dtype), model(shape, dtype)
            sharding = shard(ours, options, world)
            optimizer, reference = (
                Recorder([p for p in one.parameters() if p.requires_grad], lr=0.0) for one in (ours, theirs)
            )
            learner = Learner(sharding, optimizer, options, SEED, world)
            for step in STEPS:
                every = batches(world.size, accumulation, step)
                update = train_step(learner, every[world.rank], step=step)
                loss, norm = expected(theirs, every, step, options)
                assert update.loss == pytest.approx(loss, rel=1e-12 if dtype == torch.float64 else 1e-6)
                assert update.gradient_norm == pytest.approx(norm, rel=near["rtol"])
                assert update.target_tokens == sum(b.n_target_tokens for own in every for b in own)
                reference.param_groups[0]["lr"] = update.learning_rate
                reference.step()
                reference.zero_grad()
                for one, other in zip(optimizer.gradients, reference.gradients, strict=True):
                    torch.testing.assert_close(one, other, **near)
                for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                    torch.testing.assert_close(whole(one), other, **near)


def run(n: int, parallel: str, dtype: torch.dtype, place: Path) -> None:
    def alone(rank: int) -> None:
        torch.set_num_threads(1)
        with joined("cpu") as world:
            steps(place, world, parallel, dtype)

    ended = codes(start(n, alone, place), limit_s=60)
    assert ended == [0] * n, "".join((place / str(rank)).read_text() for rank in range(n))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("parallel", ["ddp"])
@pytest.mark.parametrize("n", [2, 4])
def test_gradients_are_those_of_one_process_with_all_sentences(
    n: int, parallel: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    run(n, parallel, dtype, tmp_path)


def test_a_run_of_three_that_was_stopped_ends_in_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    """Of three numbers the order of a sum is seen in its last bits."""
    tmp_path.joinpath("errors").mkdir()
    for name, ends in (("straight", [4]), ("stopped", [2, 4])):
        for end in ends:
            config = tiny(max_steps=end, validate_every=2, validation_bleu=False, best_by="loss")
            children = start(3, lambda _, c=config, n=name: train(c, Path(n)), tmp_path / "errors")  # type: ignore[misc]
            assert codes(children, limit_s=60) == [0] * 3
    straight, stopped = (list_checkpoints(name)[-1] / "model.safetensors" for name in ("straight", "stopped"))
    assert straight.read_bytes() == stopped.read_bytes()


def test_a_validation_of_several_processes_is_that_of_one(tmp_path: Path, loaded_run: OpenedRun) -> None:
    config, tokenizer = loaded_run.config, loaded_run.tokenizer
    text = load_validation(config.data)
    assert text is not None
    encoded = binary.encode(text, tokenizer, tmp_path / "data", split="valid", source_eos=config.data.source_eos)
    small = config.model_copy(update={"training": config.training.model_copy(update={"budget_tokens": 8})})

    def results(world: World) -> dict[str, Any]:
        return Validation(text, encoded, tokenizer, small, decide(config), 1, world).results(loaded_run.model)

    def together(rank: int) -> None:
        with joined("cpu") as world:
            write_json(tmp_path / f"results-{rank}", results(world))

    alone = json.loads(json_text(results(World())))
    assert codes(start(3, together, tmp_path), limit_s=60) == [0] * 3
    assert [json.loads((tmp_path / f"results-{rank}").read_text()) for rank in range(3)] == [alone] * 3


def test_who_has_no_sentence_learns_nothing() -> None:
    subject = model(SHAPES[0], torch.float32)
    loss = loss_of(subject, of_nothing(), smoothing=0.1)
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in subject.parameters())
    assert sum(p.grad is not None for p in subject.parameters()) == sum(p.requires_grad for p in subject.parameters())
