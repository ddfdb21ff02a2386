"""scripts/benchmark/reference.py, which counts whether a head looks at what `it` means, counts nothing else."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synthetic import synthetic_maps

from transformer_cli.attention_maps.maps import AttentionMaps

BENCHMARK = Path(__file__).parents[2] / "scripts" / "benchmark"
N_PAIRS = 200

Place = Callable[[int], tuple[float, float]]
"""Which of the two nouns is meant -> what a head has of its weight on either."""


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """By its path: other tests have a `reference` of their own."""
    spec = importlib.util.spec_from_file_location("benchmark_reference", BENCHMARK / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def pieces(text: str) -> list[str]:
    """Each word of more than two letters in two pieces."""
    return [part for word in text.split() for part in (f"▁{word[:2]}", word[2:]) if part]


def nouns(words: list[str]) -> tuple[int, int]:
    """Where they stand, by the words alone: behind the two articles."""
    places = [place + 1 for place, word in enumerate(words) if word in ("the", "der", "die", "das", "den")]
    return places[0], places[1]


def planted(english: str, german: str, meant: int, heads: list[Place]) -> AttentionMaps:
    """Attention whose heads look there from each pronoun, in every kind and layer; by chance from everywhere else."""
    maps = synthetic_maps(pieces(english), pieces(german), heads=len(heads))
    source, target = english.split(), german.split()
    blocks = []
    for block in maps.blocks:
        column_words = target if block.kind == "decoder" else source
        # The decoder reads a mark before its first piece; in its self-attention the pronoun comes out of what `weil` is
        # read by, of cross-attention there is a row for each piece that comes out.
        because = target.index("weil")
        rows = {
            "encoder": spans(source)[source.index("it")],
            "decoder": [1 + place for place in spans(target)[because]],
            "cross": spans(target)[because + 1],
        }[block.kind]
        columns = [[one + (block.kind == "decoder") for one in span] for span in spans(column_words)]
        weights = block.weights_HQK.copy()
        for number, head in enumerate(heads):
            weights[number, rows] = 0
            for place, share in zip(nouns(column_words), head(meant), strict=True):
                weights[np.ix_([number], rows, columns[place])] = share / len(columns[place])
        blocks.append(replace(block, weights_HQK=weights))
    return replace(maps, blocks=tuple(blocks))


def spans(words: list[str]) -> list[list[int]]:
    """The places of each word's pieces."""
    found, start = [], 0
    for word in words:
        n = len(pieces(word))
        found.append(list(range(start, start + n)))
        start += n
    return found


def test_a_pair_differs_in_its_last_word_alone_and_means_both_nouns(reference: Any) -> None:
    first = list(islice(reference.minimal_pairs(set()), 2 * N_PAIRS))
    known = {reference.pair_of(first[0][0]).english, reference.pair_of(first[5][1]).english}
    unknown = list(islice(reference.minimal_pairs(known), N_PAIRS))
    texts = [tuple(reference.pair_of(one) for one in pair) for pair in unknown]
    assert known.isdisjoint(one.english for pair in texts for one in pair)
    assert len({tuple(one.english for one in pair) for pair in texts}) == N_PAIRS
    for pair, (subject, thing) in zip(unknown, texts, strict=True):
        words = [one.english.split() for one in (subject, thing)]
        assert words[0][:-1] == words[1][:-1]
        assert words[0][-1] != words[1][-1]
        pronouns = [one.german.split()[one.german.split().index("weil") + 1] for one in (subject, thing)]
        assert pronouns[0] != pronouns[1]
        for one, sentence in zip((subject, thing), pair, strict=True):
            for side, text in ((sentence.english, one.english), (sentence.german, one.german)):
                assert [reference.place_of(side, role) for role in reference.ROLES] == [*nouns(text.split())]


def test_heads_are_counted_by_what_they_look_at_and_an_even_one_is_never_right(
    reference: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that looks at what is meant is right in all pairs; one that keeps to a noun, or looks at both alike, in none;
    a coin in a quarter."""
    coin = Random(7)
    heads: list[Place] = [
        lambda meant: (0.25, 0.75) if meant else (0.75, 0.25),
        lambda meant: (0.75, 0.25),
        lambda meant: (0.25, 0.75),
        lambda meant: (0.5, 0.5),
        lambda meant: (0.75, 0.25) if meant else (0.25, 0.75),
        lambda meant: coin.choice([(0.75, 0.25), (0.25, 0.75)]),
    ]
    texts = iter(
        [(one, meant) for pair in islice(reference.minimal_pairs(set()), N_PAIRS) for meant, one in enumerate(pair)]
    )
    monkeypatch.setattr(sys, "argv", ["reference.py", "runs/x"])
    monkeypatch.setattr(reference, "find_checkpoint", lambda run: run)
    config = SimpleNamespace(
        data=SimpleNamespace(phrasebook=SimpleNamespace(model_dump=dict)), model_copy=lambda update: None
    )
    monkeypatch.setattr(reference, "open_run", lambda path: SimpleNamespace(config=config))
    monkeypatch.setattr(reference, "phrasebook", lambda: SimpleNamespace(train=[]))
    said: list[str] = []

    def maps_of(translator: object, english: str, *, target: str) -> AttentionMaps:
        sentence, meant = next(texts)
        assert (reference.pair_of(sentence).english, reference.pair_of(sentence).german) == (english, target)
        said.append(target if len(said) % 4 else "falsch")  # one sentence in four, one pair in two
        return planted(english, target, meant, heads)

    monkeypatch.setattr(reference, "attention_maps", maps_of)
    translator = SimpleNamespace(translate=lambda lines, beam_size: said[-1:])
    monkeypatch.setattr(reference, "translator_of", lambda opened, settings: translator)
    reference.main()
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == (f"{N_PAIRS} pairs; translated as the grammar does: 75 % of sentences, 50 % of pairs in both")
    found = {tuple(row.split()[:2]): [int(number) for number in row.split()[2:]] for row in rows}
    assert len(found) == 3 * 2 * len(heads)
    chance = []
    for (_, name), shares in found.items():
        number = int(name.split(".")[1])
        if number < 6:
            assert shares == [[100, 100, 100], [100, 0, 0], [0, 100, 0], [0, 0, 0], [0, 0, 0]][number - 1], name
        else:
            chance.append(shares)
    assert abs(np.mean(chance, axis=0) - [50, 50, 25]).max() < 5
    assert list(found.values()) == sorted(found.values(), key=lambda shares: -shares[2])
