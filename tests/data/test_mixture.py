"""How often an epoch sees the pairs of several texts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, InlinePairs, WeightedText
from transformer_cli.config.source import load_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.corpus import EMPTY_SOURCE, Corpus, load_training
from transformer_cli.data.loader import Encoded
from transformer_cli.data.mixture import Mixture, Part
from transformer_cli.data.used import learnable
from transformer_cli.errors import ConfigError, DataError
from transformer_cli.tokenizer import train_tokenizer
from transformer_cli.training.directory import check_text
from transformer_cli.training.listening import Listener
from transformer_cli.training.material import Epoch, Material
from transformer_cli.training.parallel import World
from transformer_cli.training.signals import StopRequest

weighted = st.lists(st.tuples(st.integers(0, 40), st.floats(0.01, 4)), min_size=1, max_size=4)


@given(texts=weighted, left_out=st.sets(st.integers(0, 159)), epoch=st.integers(0, 9), temperature=st.floats(1, 10))
def test_each_pair_comes_as_often_as_its_text_weighs_or_once_more(texts, left_out, epoch, temperature):
    parts = [Part(str(place), n, weight) for place, (n, weight) in enumerate(texts)]
    owner = [place for place, part in enumerate(parts) for _ in range(part.pairs)]
    kept = [place for place in range(len(owner)) if place not in left_out]
    mixture = Mixture(parts, np.array(kept, dtype=np.int64), temperature=temperature)
    seen = mixture.epoch(seed=1, epoch=epoch)
    times = Counter(range(len(kept)) if seen is None else seen.rows.tolist())
    for place, part in enumerate(parts):
        mine = [times[row] for row, index in enumerate(kept) if owner[index] == place]
        most = max((sum(owner[index] == other for index in kept) for other in range(len(parts))), default=0)
        weight = part.weight * (most / max(len(mine), 1)) ** (1 - 1 / temperature)
        assert sum(mine) == mixture.seen[place] == (max(1, round(weight * len(mine))) if mine else 0)
        assert max(mine, default=0) - min(mine, default=0) <= 1


def test_what_is_drawn_once_more_depends_on_seed_and_epoch_alone():
    mixture = Mixture([Part("a", 1000, 1.5), Part("b", 100, 1)], np.arange(1100), temperature=1)
    once, again, later, other = (
        mixture.epoch(seed=seed, epoch=epoch).rows.tolist() for seed, epoch in [(1, 2), (1, 2), (1, 3), (2, 3)]
    )
    assert once == again
    assert once != later != other


@pytest.mark.parametrize("others", [[], [Part("b", 10, 1)]])
def test_a_text_of_little_weight_is_seen_all_the_same(others):
    """A single pair of a weight of 0.4 was never learned from, in any epoch; alone it was a division by zero."""
    mixture = Mixture([Part("a", 1, 0.4), *others], np.arange(1 + sum(part.pairs for part in others)), temperature=1)
    assert mixture.seen[0] == 1


def test_an_epoch_that_nobody_could_count_is_refused():
    for weight, words in ((1e18, r"1e\+19"), (1e308, "inf")):
        with pytest.raises(DataError, match=f"make an epoch of {words} pairs"):
            Mixture([Part("a", 10, weight), Part("b", 10, 1)], np.arange(20), temperature=1)


def test_a_text_that_no_epoch_could_have_is_refused_where_it_is_read():
    """It was once the tokenizer was trained and all of it encoded, and the run kept the weights by then."""
    pairs = InlinePairs(pairs=[["a", "b"], ["c", "d"]])
    with pytest.raises(DataError, match=r"make an epoch of 2e\+10 pairs"):
        load_training(DataConfig(train=[WeightedText(text=pairs, weight=1e10)]))
    one, other = (WeightedText(text=InlinePairs(pairs=[["a", "b"]] * n), weight=10.0**6) for n in (1, 2500))
    data = DataConfig(train=[one, other], temperature=1)
    with pytest.raises(DataError, match=r"make an epoch of 2\.5e\+09 pairs"):
        load_training(data)


def test_texts_that_are_seen_once_are_one_text():
    assert Mixture([Part("a", 10, 1), Part("b", 5, 1)], np.arange(15), temperature=1).epoch(seed=1, epoch=0) is None
    assert Mixture([], np.arange(15), temperature=1).epoch(seed=1, epoch=0) is None


@given(texts=weighted, epoch=st.integers(0, 9))
def test_each_time_that_a_pair_comes_has_its_number(texts, epoch):
    parts = [Part(str(place), n, weight) for place, (n, weight) in enumerate(texts)]
    mixture = Mixture(parts, np.arange(sum(part.pairs for part in parts)), temperature=1)
    seen = mixture.epoch(seed=1, epoch=epoch)
    before = Counter[int]()
    for place, row in enumerate([] if seen is None else seen.rows.tolist()):
        assert seen.pair(place) == (row, before[row])
        before[row] += 1


def ids_of(text: Encoded, place: int) -> tuple[list[int], list[int]]:
    [source], [target] = text.sources([place]), text.targets([place])
    return list(source), list(target)


@pytest.mark.parametrize("seed", [1, 10**12])
def test_each_time_that_a_pair_comes_it_is_drawn_anew_and_the_first_as_if_it_came_once(tmp_path, seed):
    """All copies of a pair were cut alike."""
    lines = [f"der hund und die katze schlafen {number}" for number in range(12)]
    parts = (Part("a", 5, 4.5), Part("b", 7, 1.0))
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=50), lines, lines, seed=1)

    def epoch_of(folder: Path, *parts: Part) -> Epoch:
        text = Corpus(lines, lines, parts=parts)
        config = load_config("tiny.yaml", overrides=["tokenizer.sampling=0.3", f"seed={seed}"])
        material = Material(text, tokenizer, config, folder, World(), Listener(), StopRequest())
        material.prepare()
        return material.epoch(3)

    mixed, plan = epoch_of(tmp_path / "mixed", *parts)
    once, _ = epoch_of(tmp_path / "once")
    drawn = dict[int, list[tuple[list[int], list[int]]]]()
    for place in sorted(int(place) for batch in plan for place in batch):
        pair = ids_of(mixed, place)
        assert pair == ids_of(mixed, place)
        drawn.setdefault(mixed.seen.pair(place)[0], []).append(pair)
    assert all(pairs[0] == ids_of(once, row) for row, pairs in drawn.items())
    several = [[tuple(source) for source, _ in pairs] for pairs in drawn.values() if len(pairs) > 1]
    assert len(several) == 5
    assert all(len(set(sources)) > 1 for sources in several)


def written(folder: Path) -> str:
    (folder / "big.de").write_text("eins\n\nzwei\ndrei\n", "utf-8")
    (folder / "big.en").write_text("one\nnothing\ntwo\nthree\n", "utf-8")
    config = folder / "mixed.yaml"
    config.write_text(
        "extends: tiny.yaml\ndata:\n  train:\n    - {text: big, weight: 0.5}\n"
        "    - {text: {pairs: [[vier, four], [fünf, five]]}, weight: 2, name: made}\n  valid: {pairs: [[a, b]]}\n",
        "utf-8",
    )
    return str(config)


def test_a_list_of_texts_is_one_text_that_knows_its_parts(tmp_path):
    text = load_training(load_config(written(tmp_path)).data)
    assert text.source == ["eins", "zwei", "drei", "vier", "fünf"]
    assert text.target == ["one", "two", "three", "four", "five"]
    assert text.counts == {EMPTY_SOURCE: 1}
    assert text.parts == (Part(str(tmp_path / "big"), 3, 0.5, left_out=1), Part("made", 2, 2.0))
    assert text.sha256 == Corpus(list(text.source), list(text.target)).sha256


def test_one_text_alone_or_in_a_list_has_the_same_hash():
    pairs = InlinePairs(pairs=[["a", "b"], ["c", "d"]])
    alone, listed = (load_training(DataConfig(train=train)) for train in (pairs, [WeightedText(text=pairs)]))
    assert alone.sha256 == listed.sha256
    assert [part.name for part in listed.parts] == ["text 1"]


def test_of_null_there_is_no_text():
    with pytest.raises(ConfigError, match="there is no text to learn from"):
        load_training(DataConfig(train=None))


def test_a_run_goes_on_with_the_same_weights_only(tmp_path):
    """Its batches would be others; what a text is called, or where it lies, is not in them."""
    config = written(tmp_path)
    text = load_training(load_config(config).data)
    known = {"train": json.loads(json.dumps(text.as_json()))}
    check_text(tmp_path, known, {"train": replace(text, parts=tuple(replace(part, name="x") for part in text.parts))})
    other = replace(text, parts=(replace(text.parts[0], weight=0.6), text.parts[1]))
    with pytest.raises(DataError, match=r"data\.train has no longer the weights that"):
        check_text(tmp_path, known, {"train": other})


def test_a_text_that_is_no_list_is_seen_once(tmp_path):
    text = Corpus(["ein hund"] * 9, ["a dog"] * 9)
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=30), text.source, text.target, seed=1)
    material = Material(text, tokenizer, load_config("tiny.yaml"), tmp_path, World(), Listener(), StopRequest())
    material.prepare()
    _, plan = material.epoch(3)
    assert sorted(int(row) for batch in plan for row in batch) == list(range(9))


def test_of_each_text_it_is_said_how_many_of_its_pairs_are_learned_from(tmp_path):
    """Whatever they lack: one side, both, a pair too long to learn from, or one that is held out."""
    long = " ".join(["hund"] * 300)
    source = ["ein hund", "", "ein hund", "ein hund", long, "ein hund", "noch ein hund"]
    target = ["a dog", "a dog", "", "a dog", "a dog", "a dog", "another dog"]
    found = Corpus(source, target, parts=(Part("a", 2, 1.0), Part("b", 3, 1.0), Part("c", 2, 1.0)))
    text = learnable(found).without(np.array([4]), {})
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=30), text.source, text.target, seed=1)
    said: list[str] = []
    listener = Listener(say=said.append)
    material = Material(text, tokenizer, load_config("tiny.yaml"), tmp_path, World(), listener, StopRequest())
    material.prepare()
    assert [line.partition(", ")[0] for line in said[-3:]] == ["a: 1 pair of 2", "b: 1 pair of 3", "c: 1 pair of 2"]
    assert [(one["pairs"], one["given"]) for one in material.contributions()] == [(1, 2), (1, 3), (1, 2)]


def test_an_epoch_of_a_run_has_the_rows_of_its_mixture(tmp_path):
    text = Corpus(["ein hund"] * 9, ["a dog"] * 9, parts=(Part("a", 5, 2.0), Part("b", 4, 0.5)))
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=30), text.source, text.target, seed=1)
    said: list[str] = []
    listener = Listener(say=said.append)
    material = Material(text, tokenizer, load_config("tiny.yaml"), tmp_path, World(), listener, StopRequest())
    material.prepare()
    assert said[-2:] == ["a: 5 pairs, 2 times an epoch, 83.3% of it", "b: 4 pairs, 0.5 times an epoch, 16.7% of it"]
    assert material.contributions() == [
        {"name": "a", "pairs": 5, "given": 5, "weight": 2.0, "seen": 10},
        {"name": "b", "pairs": 4, "given": 4, "weight": 0.5, "seen": 2},
    ]
    mixed, plan = material.epoch(3)
    rows = [int(mixed.seen.rows[place]) for batch in plan for place in batch]
    assert sorted(rows) == sorted(material.seen(3).rows.tolist())
    assert Counter(Counter(rows).values()) == {2: 5, 1: 2}
    assert material.places(range(12)) == list(dict.fromkeys(mixed.seen.rows.tolist()))  # of this text all are there
    assert material.target_tokens(3) == 12 * material.encoded.lengths[0, 1]
