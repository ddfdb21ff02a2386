"""What of a training text is held out of it to validate with."""

from __future__ import annotations

import gzip
import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, InlinePairs, WeightedText
from transformer_cli.data.corpus import EMPTY_SOURCE, Corpus, load_all, load_both, load_training, load_validation
from transformer_cli.data.used import hold_out
from transformer_cli.errors import DataError

BLANKS = " \t\u00a0\u3000\x1f"
words = st.text("aé" + BLANKS, min_size=1, max_size=3).map(lambda word: f"x{word}")
texts = st.lists(st.tuples(words, words), min_size=1, max_size=40)


def divided(pairs: list[tuple[str, str]], share: float) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What is learned from and what is held out; of nothing on one side, all on the other."""
    try:
        found = hold_out(Corpus(*map(list, zip(*pairs, strict=True))), share)
    except DataError:
        marked = [*pairs, *((f"more {n}", "pairs") for n in range(400))]  # so that both sides have some
        found = hold_out(Corpus(*map(list, zip(*marked, strict=True))), share)
    both = (zip(found[name].source, found[name].target, strict=True) for name in ("train", "valid"))
    train, valid = ([pair for pair in side if not pair[0].startswith("more")] for side in both)
    return train, valid


@given(pairs=texts, again=st.randoms(use_true_random=False), share=st.floats(0.05, 0.5))
def test_equal_pairs_are_on_one_side_wherever_they_lie(pairs, again, share):
    train, valid = divided(pairs, share)
    assert Counter(train) + Counter(valid) == Counter(pairs)
    assert [pair for pair in pairs if pair in set(train)] == train
    sides = [{(source.strip(), target.strip()) for source, target in side} for side in (train, valid)]
    assert sides[0].isdisjoint(sides[1])
    elsewhere = [*pairs, *pairs, ("x other", "x pair")]
    again.shuffle(elsewhere)
    assert set(divided(elsewhere, share)[1]) - {("x other", "x pair")} == set(valid)
    assert set(valid) <= set(divided(pairs, 0.5)[1])


@given(pairs=texts, share=st.floats(0.05, 0.5))
def test_both_directions_hold_out_the_same_pairs(pairs, share):
    there, back = (set(divided(one, share)[1]) for one in (pairs, [pair[::-1] for pair in pairs]))
    assert {pair[::-1] for pair in back} == there


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_of_pairs_that_differ_the_share_is_what_chance_allows(share):
    """Also where one side is nearly always the same: it is the pair that counts."""
    lines = [f"satz {n}" for n in range(20_000)], [f"sentence {n % 7}" for n in range(20_000)]
    for source, target in (lines, lines[::-1]):
        n = len(hold_out(Corpus(source, target), share)["valid"])
        assert abs(n - 20_000 * share) < 5 * math.sqrt(20_000 * share * (1 - share))


def write(prefix: Path, pairs: list[tuple[str, str]], *, gz: bool = False) -> str:
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\r\n" for pair in pairs).encode("utf-8")
        if gz:
            Path(f"{prefix}.{language}.gz").write_bytes(gzip.compress(text))
        else:
            Path(f"{prefix}.{language}").write_bytes(text)
    return str(prefix)


def test_of_files_and_of_several_texts_the_same_is_held_out_as_of_their_pairs(tmp_path):
    """In blocks of 4,096 lines, some of them left out, read where they lie; a pair may be in two of the texts."""
    draw = random.Random(1)
    pairs = [(f"satz {n}", f"sentence {n}") for n in draw.choices(range(6000), k=9000)]
    first, second = pairs[:5000], pairs[4000:]
    first[7] = ("", "nothing")
    texts = [
        WeightedText(text=write(tmp_path / "a", first), weight=2.0, name="a"),
        WeightedText(text=write(tmp_path / "b", second, gz=True), name="b"),
        WeightedText(text=InlinePairs(pairs=[list(pair) for pair in pairs[:50]])),
    ]
    data = DataConfig(train=texts, valid="3%")
    train, valid = load_both(data)
    expected = hold_out(Corpus(*map(list, zip(*[*first[:7], *first[8:], *second, *pairs[:50]], strict=True))), 0.03)
    assert train == Corpus(expected["train"].source, expected["train"].target, train.counts, parts=train.parts)
    assert (valid.source, valid.target) == (expected["valid"].source, expected["valid"].target)
    assert train.counts[EMPTY_SOURCE] == 1
    held = set(valid.source)
    assert [part.pairs for part in train.parts] == [
        sum(source not in held and source != "" for source, _ in part) for part in (first, second, pairs[:50])
    ]
    assert (load_training(data).sha256, load_validation(data).sha256) == (train.sha256, valid.sha256)


def test_the_whole_text_is_what_is_looked_at_line_by_line(tmp_path):
    pairs = [(f"satz {n}", f"sentence {n}") for n in range(300)]
    whole = load_all(DataConfig(train=write(tmp_path / "a", pairs), valid="10%"))
    assert list(whole) == ["train"]
    assert len(whole["train"]) == 300


def test_a_share_of_nothing_is_refused_with_the_counts():
    with pytest.raises(DataError, match=r"1% of the 3 pairs of the training text .* 0 to validate with, .* leaves 3 "):
        hold_out(Corpus(["a", "b", "c"], ["d", "e", "f"]), 0.01)
    with pytest.raises(DataError, match="which leaves 0 to learn from"):
        hold_out(Corpus(["satz 3"], ["sentence 3"]), 1 - 1e-9)
