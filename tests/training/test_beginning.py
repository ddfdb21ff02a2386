"""A run that begins with another's weights, and parts that stay as they are."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import PAIRS

from transformer_cli.accounting.freezing import EMBEDDINGS, frozen, without_frozen
from transformer_cli.accounting.parameters import count
from transformer_cli.accounting.weights import stored
from transformer_cli.checkpoints.find import find_checkpoint, list_checkpoints
from transformer_cli.checkpoints.store import OpenedRun, load_checkpoint, open_run
from transformer_cli.checkpoints.tensors import load_weights, weights
from transformer_cli.cli.app import main
from transformer_cli.config.data import InlinePairs
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import WITH_PIECES, RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.corpus import Corpus
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.evaluation.words import WordCounts, count_words, load_word_counts
from transformer_cli.model.build import build_model
from transformer_cli.tokenizer import Tokenizer, cut_before, extended, train_tokenizer
from transformer_cli.training.beginning import VOCABULARIES, inherited, learn_tokenizer, parent_of
from transformer_cli.training.forecast import forecast
from transformer_cli.training.listening import Listener
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
    digest = hashlib.sha256((find_checkpoint("parent") / "model.safetensors").read_bytes()).hexdigest()
    assert record["init_from"]["sha256"] == digest
    seen, known = load_word_counts(Path("child")), load_word_counts(Path("parent"))
    assert seen is not None
    assert known is not None
    both = known.with_those(count_words(*zip(*PAIRS[:6], strict=True)))
    assert seen == WordCounts(dict(both.source), dict(both.target))  # its weights have seen them
    shutil.rmtree("parent")  # it is not asked again
    train(load_config("child/config.yaml", ["training.max_steps=3"]), Path("child"))
    assert load_checkpoint(list_checkpoints("child")[-1], with_optimizer=False).step == 3


@pytest.mark.parametrize(("name", "command"), [("multi30k-both", ": tx train -c multi30k-both.yaml"), ("mine", "")])
def test_a_parent_that_is_not_there_is_to_be_trained_first(name: str, command: str) -> None:
    config = load_config(
        "multi30k-de-en-best.yaml", [f"training.init_from=runs/{name}", "data.train={pairs: [[a, b]]}"]
    )
    with pytest.raises(ModelError, match=rf"runs/{name}, which training begins with .* does not exist") as failure:
        parent_of(config, replaced=Path("new"))
    assert str(failure.value.hint).startswith(f"train it first{command}; or name another run")


def test_what_does_not_fit_is_named_and_not_skipped(parent: Path) -> None:
    with pytest.raises(UsageError, match="parent does not fit") as caught:
        train(settings(parent, model={"d_ff": 8, "dropout": 0.3, "n_heads": 4}), Path("child"))
    assert "model.d_ff: 8 here, 64 there" in caught.value.message
    assert "model.n_heads: 4 here, 2 there" in caught.value.message
    assert "dropout" not in caught.value.message
    assert not Path("child/tokenizer").exists()


def test_a_parent_fits_however_its_shape_is_written(parent: Path) -> None:
    """An imported one has layers of both stacks: it was another shape."""
    here = settings(parent)
    written = {"n_layers": here.model.depths, "d_head": here.model.head_width, "final_norm": True}
    assert parent_of(here.model_copy(update={"model": here.model.model_copy(update=written)}), replaced=Path("new"))


NEW = [["der Schmetterling schläft", "the butterfly sleeps"], ["der Schmetterling trinkt", "the butterfly drinks"]] * 3


def test_a_tokenizer_that_is_given_is_read_and_not_said_to_be_trained(parent: Path) -> None:
    given = TokenizerConfig.model_validate({"model": str(parent / "tokenizer" / "spm.model")})
    config, said = settings(parent).model_copy(update={"tokenizer": given}), list[str]()

    def stage(what: str, total: int | None = None) -> AbstractContextManager[Any]:
        said.append(what)
        return nullcontext()

    text, place = Corpus(["ein bier"], ["a beer"]), Path("tokenizer")
    learn_tokenizer(config, text, place, Listener(say=said.append, stage=stage))
    assert said == ["reading the tokenizer", f"tokenizer: given, {Tokenizer.load(place).source_size} pieces"]


def test_new_pieces_begin_with_the_mean_of_what_they_were_cut_into(parent: Path) -> None:
    said: list[str] = []
    config = settings(parent, learning_rate=1e-12, warmup_steps=0)
    texts = {"train": InlinePairs(pairs=[*PAIRS, *NEW]), "valid": InlinePairs(pairs=PAIRS[:2])}
    config = config.model_copy(
        update={
            "data": config.data.model_copy(update=texts),
            "tokenizer": config.tokenizer.model_copy(update={"extend": 20}),
        }
    )
    foreseen = forecast(config, Path("child"))
    assert foreseen.tokenizer == "of the run, and up to 20 new pieces, to be trained"
    train(config, Path("child"), listener=Listener(say=said.append))
    before, after = (open_run(find_checkpoint(name)) for name in ("parent", "child"))
    assert after.tokenizer.source_size == before.tokenizer.source_size + 20
    assert "tokenizer: that of parent, and 20 new pieces" in said
    size = before.tokenizer.source_size
    assert foreseen.pieces == (size + 20, size + 20)
    assert foreseen.parameters == sum(p.numel() for p in after.model.parameters())
    old, new = (run.model.target_embedding.table.weight for run in (before, after))
    torch.testing.assert_close(new[:size], old, rtol=0, atol=1e-6)
    for id, ids in enumerate(cut_before(after.tokenizer.source, before.tokenizer.source), start=size):
        torch.testing.assert_close(new[id], old[ids or slice(4, None)].mean(0), rtol=0, atol=1e-6)
    shutil.rmtree("parent")
    train(load_config("child/config.yaml", ["training.max_steps=3"]), Path("child"))
    assert main(["translate", "-q", "-m", "child", "der Schmetterling trinkt"]) == 0


@pytest.mark.parametrize("tied", ["all", "embeddings", "decoder", "none"])
@pytest.mark.parametrize("joint", [True, False])
def test_all_that_belongs_to_a_piece_is_inherited(tied: str, joint: bool) -> None:
    if tied in ("all", "embeddings") and not joint:
        return
    old, german, english = ([text for pair in pairs for text in pair] for pairs in (PAIRS, NEW, NEW))
    config = TokenizerConfig(vocab_size=60, joint=joint)
    tokenizer, _ = train_tokenizer(config, old, old[:-3], seed=1)
    now = extended(tokenizer, 12, german, english[:6], seed=1)
    shape = ModelConfig(d_model=8, n_heads=2, d_ff=8, n_layers=1, tied=tied, output_bias=True)
    model = build_model(shape, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size)
    torch.nn.init.normal_(model.output_bias)
    tensors = inherited(cast(OpenedRun, SimpleNamespace(model=model, tokenizer=tokenizer)), now)
    larger = build_model(shape, source_vocab=now.source_size, target_vocab=now.target_size)
    load_weights(larger, tensors, origin="here")
    for name, tensor in weights(model).items():
        new = tensors[name][len(tensor) :]
        assert torch.equal(tensors[name][: len(tensor)], tensor)
        side = VOCABULARIES.get(name)
        cuts = cut_before(getattr(now, side), getattr(tokenizer, side)) if side else []
        assert len(new) == len(cuts)
        for row, ids in zip(new, cuts, strict=True):
            rows = [tensor[id] for id in ids] or list(tensor[4:])
            torch.testing.assert_close(row, sum(rows) / len(rows), rtol=0, atol=1e-6)


def test_whatever_has_a_row_for_each_piece_is_held_by_such_a_name() -> None:
    assert {name.partition(".")[0] for name in VOCABULARIES} | {EMBEDDINGS} == WITH_PIECES


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


def test_where_only_a_table_that_nothing_changes_is_left_there_is_nothing_to_train(parent: Path) -> None:
    """A bug in tx: an optimizer got an empty parameter list."""
    tree = settings(parent, init_from=None, freeze=["encoder.layers", "decoder.layers", "encoder.norm"]).model_dump()
    tree["model"]["positions"] = "sinusoidal-table"
    config = RunConfig.model_validate(tree)
    rest = [name for name in stored(config.counted, source_vocab=1, target_vocab=1) if name not in frozen(config)]
    tree["training"]["freeze"] += [name for name in rest if ".positions." not in name]
    with pytest.raises(UsageError, match="leaves nothing to train"):
        frozen(RunConfig.model_validate(tree))


@pytest.mark.parametrize(
    ("freeze", "said"),
    [
        (["encoder.layers.0-1"], "training.freeze: encoder.layers.0-1: the model has no encoder.layers.1"),
        (["encodr"], "the model has no encodr"),
        (["encoder.layers.1-0"], "training.freeze: encoder.layers.1-0: 1-0 is no layer"),
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
        ["output_bias"],
        ["decoder.layers.0.self_attention.query_norm"],
    ],
    ids=str,
)
def test_what_is_frozen_is_counted_as_such_part_by_part(freeze: list[str], tied: str) -> None:
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 3, "tied": tied, "positions": "learned"}
    shape |= {"output_bias": True, "qk_norm": True}
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


@pytest.mark.parametrize(("init_from", "said"), [("parent", False), (None, True)])
def test_parts_that_are_frozen_as_they_were_drawn_are_said_to_be_so(
    parent: Path, init_from: str | None, said: bool
) -> None:
    lines: list[str] = []
    config = settings(parent, freeze=["encoder"], init_from=init_from, max_steps=1)
    train(config, Path("child"), listener=Listener(say=lines.append))
    [line] = [line for line in lines if " of them frozen" in line]
    assert ("as they were drawn, at random" in line) == said
