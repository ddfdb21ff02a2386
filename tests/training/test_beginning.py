"""A run that begins with another's weights, and parts that stay as they are."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS

from transformer_cli.accounting.freezing import frozen, without_frozen
from transformer_cli.accounting.parameters import count
from transformer_cli.accounting.weights import stored
from transformer_cli.checkpoints.store import find_checkpoint, list_checkpoints, load_checkpoint
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.errors import UsageError
from transformer_cli.training.run import train


@pytest.fixture
def parent(trained_run: Path) -> Path:
    return Path(shutil.copytree(trained_run, "parent"))


def settings(parent: Path, *, model: dict[str, Any] | None = None, **training: Any) -> RunConfig:
    """The parent's, to begin with it, on half of its text."""
    tree = load_config(parent / "config.yaml").model_dump()
    tree["data"] |= {"train": {"pairs": PAIRS[:6]}, "valid": {"pairs": PAIRS[6:]}}
    tree["model"] |= model or {}
    changes = {"init_from": str(parent), "max_steps": 2, "validate_every": 1, "keep_last": 9, "validation_bleu": False}
    tree["training"] |= {**changes, "best_by": "loss", **training}
    return RunConfig.model_validate(tree)


def test_a_run_begins_with_the_weights_and_the_tokenizer_of_another(parent: Path) -> None:
    train(settings(parent, learning_rate=1e-12, warmup_steps=0), Path("child"))
    before = load_checkpoint(find_checkpoint("parent"), with_optimizer=False)
    after = load_checkpoint(list_checkpoints("child")[0], with_optimizer=False)
    assert after.step == 1
    assert after.tokenizer == before.tokenizer
    for name, tensor in before.model.items():
        torch.testing.assert_close(after.model[name], tensor, rtol=0, atol=1e-6)
    record = json.loads(Path("child/run.json").read_text())
    assert record["init_from"]["checkpoint"] == str(find_checkpoint("parent"))
    shutil.rmtree("parent")  # it is not asked again
    train(load_config("child/config.yaml", ["training.max_steps=3"]), Path("child"))
    assert load_checkpoint(list_checkpoints("child")[-1], with_optimizer=False).step == 3


def test_what_does_not_fit_is_named_and_not_skipped(parent: Path) -> None:
    with pytest.raises(UsageError, match="parent does not fit") as caught:
        train(settings(parent, model={"d_ff": 8, "dropout": 0.3, "n_heads": 4}), Path("child"))
    assert "model.d_ff: 8 here, 64 there" in caught.value.message
    assert "model.n_heads: 4 here, 2 there" in caught.value.message
    assert "dropout" not in caught.value.message
    assert not Path("child/tokenizer").exists()


@pytest.mark.parametrize("freeze", [["embeddings", "encoder"], ["decoder.layers.0-0", "encoder.layers.0.feed_forward"]])
def test_frozen_parts_keep_their_bits_and_the_others_learn(parent: Path, freeze: list[str]) -> None:
    config = settings(parent, freeze=freeze, warmup_steps=0, weight_decay=0.1, optimizer="adamw")
    train(config, Path("child"))
    before = load_checkpoint(find_checkpoint("parent"), with_optimizer=False).model
    after = load_checkpoint(list_checkpoints("child")[-1], with_optimizer=True)
    same = {name for name, tensor in before.items() if torch.equal(after.model[name], tensor)}
    assert same == frozen(config)
    assert same
    assert {name.rpartition(".")[0] for name in after.optimizer} == before.keys() - same


@pytest.mark.parametrize(
    ("freeze", "said"),
    [
        (["encoder.layers.0-1"], "training.freeze: encoder.layers.0-1: the model has no encoder.layers.1"),
        (["encodr"], "the model has no encodr"),
        (["encoder", "decoder", "embeddings"], "leaves nothing to train"),
    ],
)
def test_a_part_that_there_is_not_is_said(parent: Path, freeze: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(settings(parent, freeze=freeze), Path("child"))
    assert not Path("child/run.json").exists()


@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize(
    "freeze",
    [
        ["embeddings"],
        ["encoder"],
        ["encoder.positions"],
        ["decoder.layers.0-1"],
        ["decoder.layers.1.cross_attention.query.bias", "decoder.norm"],
    ],
    ids=str,
)
def test_what_is_frozen_is_counted_as_such_part_by_part(freeze: list[str], tied: str) -> None:
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 3, "tied": tied, "positions": "learned"}
    config = RunConfig.model_validate({"model": shape, "training": {"freeze": freeze}})
    vocabs = {"source_vocab": 20, "target_vocab": 20}
    whole = count(config.counted, **vocabs)
    found = without_frozen(whole, config, **vocabs)
    tensors = stored(config.counted, **vocabs)
    held = sum(math.prod(tensors[name].shape) for name in frozen(config))
    assert (found.total, found.trainable, found.frozen) == (whole.total, whole.trainable - held, held)
    assert found.by_component() == whole.by_component()
    for by in ("component", "layer", "block"):
        assert sum(group.trainable for group in found.groups(by)) == found.trainable
    if freeze == ["decoder.layers.0-1"]:
        assert {group.name: group.trainable for group in found.groups("block")}["cross"] == (4 * 64 + 4 * 8)
