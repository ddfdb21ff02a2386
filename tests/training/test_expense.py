"""What a run would take of the disk is what it takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import codes, start
from torch import nn

from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.config.run import RunConfig
from transformer_cli.data.corpus import Corpus, load_training
from transformer_cli.data.encoding import Block
from transformer_cli.data.fingerprints import LINES
from transformer_cli.machine import decide
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.training import expense
from transformer_cli.training.forecast import forecast
from transformer_cli.training.optimizers import build_optimizer, load_state_tensors, state_tensors
from transformer_cli.training.run import train

RUN = Path("run")


def settings(**training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            **{"device": "cpu", "precision": "fp32", "threads": 1, "tokenizer": {"vocab_size": 300}},
            "data": {"phrasebook": {"n_pairs": 1000}},
            "model": {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1},
            "training": {"max_steps": 3, "validate_every": 1, "validation_bleu": False, "best_by": "loss"} | training,
        }
    )


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("precision", "training"),
    [
        ("fp32", {"optimizer": "schedule-free"}),
        ("fp32", {"ema": 0.9, "freeze": ["embeddings", "encoder"]}),
        ("fp32", {"optimizer": "muon", "keep_best": 3, "keep_last": 2}),
        ("bf16", {"optimizer": "muon", "ema": 0.9}),
        ("bf16", {"optimizer": "adam"}),
    ],
)
def test_a_checkpoint_takes_as_many_bytes_as_was_said(precision: str, training: dict[str, Any]) -> None:
    config = settings(**training).model_copy(update={"precision": precision})
    train(config, RUN)
    disk, _ = said(config)
    for path in list_checkpoints(RUN):
        assert disk.checkpoint == sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert disk.checkpoints >= len(list_checkpoints(RUN))
    assert disk.checkpoints == min(7, config.training.keep_best + config.training.keep_last + 1)


def test_of_processes_that_divide_it_a_checkpoint_has_moments_in_fp32(tmp_path: Path) -> None:
    """No code of its own updates what they hold."""
    wide = settings()
    narrow = settings(parallel="fsdp").model_copy(update={"precision": "bf16"})

    def tell(rank: int) -> None:
        disk = forecast(narrow, RUN).disk
        if disk is not None:
            Path("told").write_text(str(disk.checkpoint))

    assert codes(start(2, tell, tmp_path), limit_s=60) == [0, 0]
    alone = forecast(wide, RUN).disk
    assert alone is not None
    assert int(Path("told").read_text()) == alone.checkpoint


def test_a_text_takes_about_as_many_bytes_as_a_sample_of_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is not written once more."""
    monkeypatch.setattr(expense, "SAMPLE", 200)
    train(settings(), RUN)
    disk, preparing = said(settings())
    assert disk.text == pytest.approx(bytes_of(RUN / "data") + (RUN / LINES).stat().st_size, rel=0.05)
    assert (preparing.tokenizer, preparing.encoding) == (0.0, 0.0)
    assert disk.there == bytes_of(RUN) - sum(path.stat().st_size for path in RUN.iterdir() if path.is_file())
    assert disk.needed == disk.text + disk.checkpoint * disk.checkpoints + disk.tokenizer - disk.there
    anew, preparing = said(settings(), tokenizer=None, overwrite=True)
    assert anew.text == pytest.approx(disk.text, rel=0.1)
    assert preparing.tokenizer > 0 < preparing.encoding
    assert anew.needed >= anew.text + anew.tokenizer  # what is there goes only when that has been written


def said(config: RunConfig, *, overwrite: bool = False, **given: Any) -> tuple[expense.Disk, expense.Preparing]:
    tokenizer = given.get("tokenizer", Tokenizer.load(RUN / "tokenizer"))
    texts = {"train": load_training(config.data), "valid": Corpus(*[["x"] * 500] * 2)}
    there = Tokenizer.load(RUN / "tokenizer")
    pieces = (there.source_size, there.target_size)
    known: dict[str, Any] = {"machine": decide(config), "pieces": pieces, "reading_s": 1.0}
    return expense.expense(config, RUN, texts, tokenizer, overwrite=overwrite, **known)


def test_ten_times_the_text_takes_ten_times_the_bytes_and_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expense, "SAMPLE", 200)
    text = load_training(settings().data)
    found = []
    for n in (1, 10):
        texts = {"train": Corpus([*text.source] * n, [*text.target] * n)}
        known: dict[str, Any] = {"machine": decide(settings()), "pieces": (300, 300), "reading_s": 0.0}
        found.append(expense.expense(settings(), RUN, texts, None, overwrite=False, **known))
    (one, _), (ten, preparing) = found
    assert ten.text == pytest.approx(10 * one.text, rel=0.02)
    assert preparing.seconds == preparing.tokenizer + preparing.encoding


def test_what_is_timed_was_not_encoded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines without blanks are words, too: met again they take no time."""
    seen: list[set[bytes]] = []

    class Watched(expense.Encoder):
        def encode(self, source: bytes, target: bytes, tag: int | None = None) -> Block:
            seen.append(set(source.split(b"\n")[:-1]))
            return super().encode(source, target, tag)

    monkeypatch.setattr(expense, "Encoder", Watched)
    text = Corpus([f"犬{number}が走る" for number in range(100)], [f"dog {number}" for number in range(100)])
    known: dict[str, Any] = {"machine": decide(settings()), "pieces": (300, 300), "reading_s": 0.0}
    expense.expense(settings(), RUN, {"train": text}, None, overwrite=False, **known)
    first, second = seen
    assert len(first) == len(second) == 50
    assert first.isdisjoint(second)


def test_nothing_is_left_to_be_written_of_a_run_that_has_ended(trained_run: Path, tmp_path: Path) -> None:
    from transformer_cli.config.source import load_config

    run = Path(shutil.copytree(trained_run, tmp_path / "tiny"))
    assert forecast(load_config(run / "config.yaml"), run).disk is None


def test_what_an_optimiser_takes_back_is_in_memory_of_its_own() -> None:
    """What it is given lies in a file, whose pages an update would have copied one by one."""
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, settings().training)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    given = {name: tensor.clone() for name, tensor in state_tensors(optimizer, model).items()}
    load_state_tensors(optimizer, model, given)
    taken = state_tensors(optimizer, model)
    torch.testing.assert_close(taken, given)
    assert not {tensor.data_ptr() for tensor in given.values()} & {tensor.data_ptr() for tensor in taken.values()}
