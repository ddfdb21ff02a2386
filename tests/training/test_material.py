"""What a training says of its text once that is ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_cli.config.source import load_config
from transformer_cli.data import encoding, volumes
from transformer_cli.data.corpus import Corpus
from transformer_cli.tokenizer import UNK, train_tokenizer
from transformer_cli.training.listening import Listener
from transformer_cli.training.material import Material
from transformer_cli.training.parallel import World
from transformer_cli.training.signals import StopRequest

COMMON = ["a dog sleeps", "the cat drinks a beer"] * 60
RARE = Corpus([*COMMON, "a \u732b", "a \u72ac dog"], [*COMMON, "a \u732b\uff0c\u732b", "the \u72ac"])


@pytest.mark.parametrize("n_processes", [1, 2])
def test_what_no_piece_has_is_told_of_either_side_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_processes: int
) -> None:
    """Targets lost letters, and with them every translation, without a word."""
    monkeypatch.setattr(volumes, "VOLUME", 50)
    monkeypatch.setattr(encoding, "CHUNK", 20)
    monkeypatch.setattr(encoding, "WORTH_A_PROCESS", 10)
    monkeypatch.setattr(encoding, "processors", lambda: n_processes)
    options = ("tokenizer.kind=char", "tokenizer.character_coverage=0.98", "tokenizer.vocab_size=100")
    config = load_config("tiny.yaml", overrides=options)
    tokenizer, _ = train_tokenizer(config.tokenizer, COMMON * 9 + RARE.source, COMMON * 9 + RARE.target, seed=1)
    n = [
        sum(ids.count(UNK) for ids in cut)
        for cut in (tokenizer.encode_source(RARE.source), tokenizer.encode_target(RARE.target))
    ]
    assert min(n) > 1

    def told() -> list[str]:
        heard: list[str] = []
        material = Material(RARE, tokenizer, config, tmp_path, World(), Listener(warn=heard.append), StopRequest())
        material.prepare()
        return heard

    first = told()
    assert [line.partition(" of ")[0] for line in first] == [f"training text: {count}" for count in n]
    assert "tokens of the sources are <unk>, for no piece has" in first[0]
    assert "tokens of the targets are <unk>, for no piece has" in first[1]
    assert "\u732b (U+732B)" in first[1]
    assert first[1].endswith("tokenizer.character_coverage=1 or tokenizer.byte_fallback=true loses nothing")
    assert told() == first  # of what is encoded already, too


def test_references_that_no_translation_can_equal_are_told_of_the_text_to_validate_with(tmp_path: Path) -> None:
    config = load_config("tiny.yaml", overrides=("tokenizer.vocab_size=60",))
    text = Corpus(COMMON, [f"{line}\uff0c" for line in COMMON])
    tokenizer, _ = train_tokenizer(config.tokenizer, text.source, text.target, seed=1)
    heard: list[str] = []
    material = Material(text, tokenizer, config, tmp_path, World(), Listener(warn=heard.append), StopRequest())
    material.encode(text, "train")
    assert heard == []
    material.encode(text, "valid")
    assert [line.partition(":")[0] for line in heard] == ["validation text"]
    assert "120 of 120 targets cannot be written as they are" in heard[0]


def test_a_pair_to_validate_with_that_takes_much_memory_is_named(tmp_path: Path) -> None:
    """A whole document in one line ended training at its first validation, for want of memory."""
    config = load_config("tiny.yaml", overrides=("tokenizer.vocab_size=60", "data.max_length=32"))
    text = Corpus(COMMON, COMMON)
    tokenizer, _ = train_tokenizer(config.tokenizer, text.source, text.target, seed=1)
    for times, is_told in ((10, False), (400, True)):
        heard: list[str] = []
        material = Material(text, tokenizer, config, tmp_path, World(), Listener(warn=heard.append), StopRequest())
        material.encode(Corpus([*COMMON, "a dog " * times], [*COMMON, "a dog"]), "valid")
        assert [line.partition(" has ")[0] for line in heard] == [
            "validation text: pair 121: 801 pieces, where what is learned from"
        ] * is_told


@pytest.mark.parametrize("sampling", [0.0, 0.3])
def test_an_epoch_has_as_many_tokens_as_are_learned_from(sampling: float, tmp_path: Path) -> None:
    """Times were told of a text that is not cut anew, which has fewer."""
    config = load_config("tiny.yaml", overrides=(f"tokenizer.sampling={sampling}", "tokenizer.vocab_size=60"))
    text = Corpus(COMMON, COMMON)
    tokenizer, _ = train_tokenizer(config.tokenizer, COMMON, COMMON, seed=1)
    material = Material(text, tokenizer, config, tmp_path, World(), Listener(), StopRequest())
    material.prepare()
    drawn, plan = material.epoch(0)
    n = sum(len(ids) + 1 for batch in plan for ids in drawn.targets([int(place) for place in batch]))
    assert material.target_tokens(0) == pytest.approx(n, rel=0.05 * bool(sampling))
    assert bool(n > 1.05 * material.encoded.lengths[:, 1].sum()) == bool(sampling)
