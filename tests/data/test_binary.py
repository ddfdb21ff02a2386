from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from encoded import encode

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data import binary, volumes
from transformer_cli.data.binary import narrow
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.encoding import NO_PIECES
from transformer_cli.errors import DataError, ResourceError
from transformer_cli.tokenizer import EOS, UNK, Tokenizer, train_tokenizer

GERMAN = ["ich möchte ein bier", "das ist ein großer hund", "die katze trinkt ein bier"]
ENGLISH = ["i want a beer", "that is a big dog", "the cat drinks a beer"]
CORPUS = Corpus(GERMAN * 4, ENGLISH * 4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=80), GERMAN * 5, ENGLISH * 5, seed=1)[0]


class Unused:
    """A tokenizer of which nothing but the fingerprint may be asked."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.fingerprint = tokenizer.fingerprint


def put(folder, tokenizer, corpus=CORPUS, **options):
    return encode(corpus, tokenizer, folder, **{"split": "train", "source_eos": True, "max_length": 100} | options)


def as_lists(encoded):
    every = range(len(encoded))
    sides = zip(encoded.sources(every), encoded.targets(every), strict=True)
    return [(source.tolist(), target.tolist()) for source, target in sides]


@pytest.mark.parametrize("source_eos", [True, False])
def test_ids_on_disk_are_those_of_the_tokenizer(tmp_path, tokenizer, source_eos):
    encoded = put(tmp_path, tokenizer, source_eos=source_eos)
    marks = [EOS] if source_eos else []
    sources = [ids + marks for ids in tokenizer.encode_source(CORPUS.source)]
    targets = tokenizer.encode_target(CORPUS.target)
    assert as_lists(encoded) == list(zip(sources, targets, strict=True))
    assert encoded.lengths.tolist() == [[len(s), len(t) + 1] for s, t in as_lists(encoded)]


@pytest.mark.parametrize("kind", ["bpe", "word"])  # the second has them first and last, too
@pytest.mark.parametrize("stretch", [1, 7, 1 << 22])
def test_unknown_ids_are_counted_and_the_first_of_their_sentences_named(tmp_path, monkeypatch, stretch, kind):
    tokenizer, _ = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=80), GERMAN * 5, ENGLISH * 5, seed=1)
    monkeypatch.setattr(binary, "STRETCH", stretch)
    monkeypatch.setattr(volumes, "VOLUME", 5)
    odd = ["猫 das", "", "das 猫 und 犬", "猫" * 200, *GERMAN, "犬", "猫 犬 猫"]
    encoded = put(tmp_path, tokenizer, Corpus(GERMAN + odd, ENGLISH + odd), max_length=10)
    for side, ids in (("source", encoded.sources), ("target", encoded.targets)):
        rows = ids(range(len(encoded)))
        lists = {place: row.tolist() for place, row in zip(encoded.pairs.tolist(), rows, strict=True)}
        places = [place for place, one in lists.items() if UNK in one]
        assert len(places) > 2
        for most in (0, 2, 99):
            n, n_ids, found = encoded.unknown(side, most)
            assert n == sum(one.count(UNK) for one in lists.values())
            assert n_ids == sum(map(len, lists.values()))
            assert found.tolist() == places[:most]


def test_the_second_time_nothing_is_encoded(tmp_path, tokenizer):
    first = as_lists(put(tmp_path, tokenizer))
    assert as_lists(put(tmp_path, Unused(tokenizer))) == first


@pytest.mark.parametrize(
    "other",
    [
        {"corpus": Corpus(GERMAN, GERMAN)},
        {"source_eos": False},
        {"max_length": 99},
    ],
)
def test_whatever_decides_the_ids_decides_the_name(tmp_path, tokenizer, other):
    assert put(tmp_path, tokenizer).places[0] != put(tmp_path, tokenizer, **other).places[0]


def test_another_tokenizer_decides_the_name_too(tmp_path, tokenizer):
    other, _ = train_tokenizer(TokenizerConfig(vocab_size=80), ENGLISH * 5, ENGLISH * 5, seed=1)
    assert put(tmp_path, tokenizer).places[0] != put(tmp_path, other).places[0]


def test_only_the_latest_encoding_of_a_split_is_kept(tmp_path, tokenizer):
    put(tmp_path, tokenizer, split="valid")
    put(tmp_path, tokenizer, max_length=50)
    put(tmp_path, tokenizer)
    (tmp_path / "train-sampled-0123456789abcdef").mkdir()
    put(tmp_path, tokenizer, source_eos=False)
    assert sorted(path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir()) == ["train", "valid"]


def test_too_long_pairs_are_left_out_counted_and_shift_no_other(tmp_path, tokenizer):
    long = " ".join(GERMAN)
    corpus = Corpus([GERMAN[0], long, GERMAN[1], GERMAN[2]], [ENGLISH[0], ENGLISH[1], long, ENGLISH[2]])
    limit = max(len(ids) + 1 for ids in tokenizer.encode_source(GERMAN) + tokenizer.encode_target(ENGLISH))
    encoded = put(tmp_path, tokenizer, corpus, max_length=limit)
    assert encoded.pairs.tolist() == [0, 3]
    assert encoded.counts == {f"longer than {limit} pieces": 2}
    assert encoded.lengths.max() <= limit
    assert tokenizer.decode_target(encoded.targets([1])) == [ENGLISH[2]]


def test_the_limit_counts_the_end_marks(tmp_path, tokenizer):
    corpus = Corpus([GERMAN[0]], ["a"])
    n = len(tokenizer.encode_source([GERMAN[0]])[0])
    assert len(put(tmp_path, tokenizer, corpus, max_length=n + 1)) == 1
    assert len(put(tmp_path, tokenizer, corpus, max_length=n, source_eos=False)) == 1
    with pytest.raises(DataError, match="no sentence pair is left"):
        put(tmp_path, tokenizer, corpus, max_length=n)
    turned = Corpus(corpus.target, corpus.source)
    assert len(put(tmp_path, tokenizer, turned, max_length=n + 1)) == 1
    with pytest.raises(DataError, match="no sentence pair is left"):
        put(tmp_path, tokenizer, turned, max_length=n)


def test_pairs_without_a_piece_are_left_out_of_training_and_kept_elsewhere(tmp_path, tokenizer):
    """U+200B is no white space for Python; NFKC as SentencePiece knows it makes a space of it."""
    corpus = Corpus([GERMAN[0], "\u200b"], ["", ENGLISH[0]])
    with pytest.raises(DataError, match="no sentence pair is left"):
        put(tmp_path, tokenizer, corpus)
    assert put(tmp_path, tokenizer, Corpus([*corpus.source, "a"], [*corpus.target, "a"])).counts == {NO_PIECES: 2}
    kept = put(tmp_path, tokenizer, corpus, split="valid", max_length=None)
    assert kept.lengths.tolist() == [[len(tokenizer.encode_source(GERMAN[:1])[0]) + 1, 1], [1, kept.lengths[1, 1]]]


def test_an_empty_corpus_can_be_encoded_where_nothing_may_be_dropped(tmp_path, tokenizer):
    assert len(put(tmp_path, tokenizer, Corpus([], []), max_length=None)) == 0
    blank = put(tmp_path, tokenizer, Corpus([""], [""]), max_length=None, source_eos=False)
    assert as_lists(blank) == [([], [])]


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_are_read_from_the_disk_when_they_are_asked_for_and_cannot_be_written(tmp_path, tokenizer, side):
    encoded = put(tmp_path, tokenizer)
    last = len(encoded) - 1
    assert getattr(encoded, f"{side}s")([last])[0][-1] != 77
    with (encoded.places[0] / f"{side}.npy").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.int32(77).tobytes())
    [ids] = getattr(encoded, f"{side}s")([last])
    assert ids[-1] == 77
    with pytest.raises(ValueError, match="read-only"):
        ids[-1] = 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="for Linux")
def test_what_was_read_of_a_text_is_no_memory_of_the_process(tmp_path, tokenizer):
    """Mapped, the ids of ten million pairs were 1.2 GB of it after a hundred updates."""
    encoded = put(tmp_path, tokenizer)
    assert len(as_lists(encoded)) == len(CORPUS)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_text_that_was_cut_short_meanwhile_is_damaged(tmp_path, tokenizer):
    encoded = put(tmp_path, tokenizer)
    path = encoded.places[0] / "target.npy"
    os.truncate(path, path.stat().st_size - 4)
    assert len(encoded.targets([0])[0])
    with pytest.raises(DataError, match=f"{path} is damaged"):
        encoded.targets([len(encoded) - 1])


def test_a_text_that_cannot_be_read_any_more_is_an_error_that_names_the_file(tmp_path, tokenizer, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    encoded = put(tmp_path, tokenizer)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(ResourceError, match=r"source_offsets\.npy cannot be read: Input/output error"):
        encoded.sources([0])


@pytest.mark.parametrize(("longest", "n_bytes"), [(32_767, 2), (32_768, 4)])
def test_lengths_take_two_bytes_where_all_fit_and_their_sums_eight(longest, n_bytes):
    lengths = narrow(np.full((70_000, 2), longest))
    assert lengths.itemsize == n_bytes
    assert int(lengths[0, 0]) == longest
    assert int(lengths[:, 1].sum()) == 70_000 * longest
    assert lengths.sum().dtype == np.int64


def test_a_line_of_more_pieces_than_two_bytes_can_say_is_as_long_as_it_is(tmp_path, tokenizer, monkeypatch):
    """In a volume of its own, too."""
    monkeypatch.setattr(volumes, "VOLUME", 2)
    corpus = Corpus([GERMAN[0], "y " * 33_000, GERMAN[1]], [ENGLISH[0], "x", "y " * 32_767])
    encoded = put(tmp_path, tokenizer, corpus, max_length=None)
    assert encoded.lengths.max() > 32_767
    assert encoded.lengths.tolist() == [[len(s), len(t) + 1] for s, t in as_lists(encoded)]


def all_sevens(path):
    np.lib.format.open_memmap(path, mode="r+")[:] = 7


DAMAGES = [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\x93NUMPY no"),
    lambda path: path.write_bytes(path.read_bytes()[:-4]),
    lambda path: path.write_bytes(path.read_bytes()[:-3] + b"\x07" + path.read_bytes()[-2:]),
]


@pytest.mark.parametrize(
    ("name", "damage"),
    [("target.npy", all_sevens)]
    + [(name, damage) for name in ("source.npy", "target_offsets.npy", "index.json") for damage in DAMAGES],
)
def test_a_damaged_encoding_is_made_again_and_that_is_said(tmp_path, tokenizer, name, damage):
    """With all its targets set to 7 it was trained on; ids out of range were `a bug in tx`."""
    place = put(tmp_path, tokenizer).places[0]
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    damage(place / name)
    said = []
    put(tmp_path, tokenizer, warn=said.append)
    [line] = said
    assert line.startswith(f"{place / name} is ")
    assert line.endswith("it is made again from the text")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    put(tmp_path, Unused(tokenizer), warn=said.append)
    assert len(said) == 1


def test_counts_that_were_changed_are_damage(tmp_path, tokenizer):
    """`counts: 3` ended in an AttributeError."""
    index = put(tmp_path, tokenizer).places[0] / "index.json"
    index.write_text(index.read_text("utf-8").replace('"counts": {}', '"counts": 3'), "utf-8")
    said = []
    assert put(tmp_path, tokenizer, warn=said.append).counts == {}
    assert len(said) == 1


@pytest.mark.parametrize("opens", ["builtins.open", "numpy.load"])
def test_too_many_open_files_are_no_damage(tmp_path, tokenizer, monkeypatch, opens):
    """`ulimit -n 20` was a damaged text, and the advice to delete it."""
    place = put(tmp_path, tokenizer).places[0]
    before = {path.name: path.read_bytes() for path in place.iterdir()}

    def fail(*arguments, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(opens, fail)
        with pytest.raises(ResourceError, match="Too many open files") as caught:
            put(tmp_path, tokenizer)
    assert "ulimit -n" in caught.value.hint
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_failure_leaves_nothing_behind(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        put(tmp_path, tokenizer)
    assert list(tmp_path.iterdir()) == []
