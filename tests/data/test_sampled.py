from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from encoded import encode
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.binary import narrow
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.sampled import Draw, SampledCorpus
from transformer_cli.tokenizer import EOS, Tokenizer, train_tokenizer

GERMAN = ["ich möchte ein bier", "das ist ein großer hund", "die katze trinkt ein bier"]
ENGLISH = ["i want a beer", "that is a big dog", "the cat drinks a beer"]
CORPUS = Corpus(["ein bier " * 60, *GERMAN * 4], ["y", *ENGLISH * 4])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=80), GERMAN * 5, ENGLISH * 5, seed=1)[0]


def drawn(folder, tokenizer, *, epoch=1, rate=0.5, max_length=100, source_eos=True) -> SampledCorpus:
    plain = encode(CORPUS, tokenizer, folder, split="train", source_eos=source_eos, max_length=max_length)
    return SampledCorpus(plain, CORPUS, tokenizer, Draw(rate, 3, epoch), max_length=max_length)


def as_lists(text):
    every = range(len(text))
    return [
        (list(source), list(target)) for source, target in zip(text.sources(every), text.targets(every), strict=True)
    ]


@pytest.mark.parametrize("source_eos", [True, False])
def test_a_line_is_drawn_by_seed_epoch_and_its_place_in_the_text(tmp_path, tokenizer, source_eos):
    """Its place among those that are kept is another: the first line of this text is too long."""
    text = drawn(tmp_path, tokenizer, source_eos=source_eos)
    options = {"rate": 0.5, "seed": 3, "epoch": 1}
    sources = [ids + [EOS] * source_eos for ids in tokenizer.sample_source(CORPUS.source, **options)][1:]
    targets = tokenizer.sample_target(CORPUS.target, **options)[1:]
    assert as_lists(text) == list(zip(sources, targets, strict=True))
    assert as_lists(text) == as_lists(text)
    assert as_lists(text) != as_lists(drawn(tmp_path, tokenizer, epoch=2, source_eos=source_eos))


def test_a_side_that_becomes_too_long_keeps_its_plain_pieces(tmp_path, tokenizer):
    limit = int(drawn(tmp_path, tokenizer).plain.lengths.max())
    text = drawn(tmp_path, tokenizer, rate=0.2, max_length=limit)
    plain = as_lists(text.plain)
    assert max(max(len(source), len(target) + 1) for source, target in as_lists(text)) <= limit
    kept = [mine == theirs for mine, theirs in zip(as_lists(text), plain, strict=True)]
    assert set(kept) == {True, False}


def test_batches_are_planned_for_as_many_pieces_as_there_will_be(tmp_path, tokenizer):
    text = drawn(tmp_path, tokenizer)
    pieces = sum(len(source) + len(target) + 1 for source, target in as_lists(text))
    assert text.plain.lengths.sum() < 0.8 * pieces
    assert text.lengths.sum() == pytest.approx(pieces, rel=0.05)
    assert drawn(tmp_path, tokenizer, max_length=30).lengths.max() <= 30


class Plain:
    """An encoded text of pairs that are so long."""

    def __init__(self, lengths):
        self.lengths, self.pairs = narrow(np.array(lengths)), np.arange(len(lengths))

    def __len__(self):
        return len(self.lengths)

    def sources(self, indices):
        return [np.full(self.lengths[index, 0], 7) for index in indices]

    def targets(self, indices):
        return [np.full(self.lengths[index, 1] - 1, 7) for index in indices]


class Growing:
    """A tokenizer by which a line of N pieces, which says so, is drawn as one of N x the rate, rounded down."""

    def __init__(self):
        self.tags = {}

    def sample_source(self, lines, *, rate, **where):
        return [[7] * int(int(line) * rate) for line in lines]

    sample_target = sample_source


sides = st.integers(2, 60) | st.integers(32_760, 32_767)


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=9), st.floats(1, 2), st.sampled_from([40_000, 10**12]))
@settings(max_examples=50)
def test_what_is_expected_is_as_before_for_each_pair_of_any_length(lengths, rate, max_length):
    """Runs that were begun go on with the same batches: once, each length was multiplied for itself, in eight bytes."""
    plain = Plain(lengths)
    text = SimpleNamespace(source=[str(source) for source, _ in lengths], target=[str(n - 1) for _, n in lengths])
    found = SampledCorpus(plain, text, Growing(), Draw(rate, 1, 1), max_length=max_length)
    every = range(len(lengths))
    sides = zip(found.sources(every), found.targets(every), strict=True)
    drawn = np.array([[len(source), len(target) + 1] for source, target in sides])
    growth = drawn.sum(axis=0) / np.array(lengths).sum(axis=0)
    expected = np.minimum(np.rint(np.array(lengths) * growth).astype(np.int64), max_length)
    assert found.lengths.tolist() == expected.tolist()
