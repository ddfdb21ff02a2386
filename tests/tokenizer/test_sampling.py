from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, PhrasebookConfig
from transformer_cli.data.corpus import load_training
from transformer_cli.tokenizer.sampling import Sampler
from transformer_cli.tokenizer.vocabulary import UNK, Vocabulary

GERMAN, ENGLISH = (
    load_training(DataConfig(source=source, target=target, phrasebook=PhrasebookConfig(n_pairs=2000))).target
    for source, target in (("en", "de"), ("de", "en"))
)
LINES = [line for pair in zip(GERMAN, ENGLISH, strict=True) for line in pair]
ALMOST_NEVER = 5e-324
LETTERS = "".join(sorted({character for line in LINES for character in line}))
MODELS = {
    "nfkc": {},
    "nfkc bytes": {"byte_fallback": True},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "identity bytes": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
    },
    "no space in front": {"add_dummy_prefix": False},
    "space behind": {"treat_whitespace_as_suffix": True},
    "across spaces": {"split_by_whitespace": False, "vocab_size": 800},
    "pieces of spaces": {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
    "user-defined": {"user_defined_symbols": ["hund", "<mask>", "un", "unter", "☃"]},
}
WORDS = sorted({word for line in LINES for word in line.split()})
TEXT = st.one_of(
    st.text(st.sampled_from(LETTERS + " ▁  日ﬁé\t\0🙂☃<0x41>") | st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from([*WORDS, "<mask>", "unter", "hunde", "☃", "  "])).map(" ".join),
)
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5


def train(lines=LINES, **options) -> bytes:
    model = io.BytesIO()
    options = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "vocab_size": 600, "model_type": "bpe"} | options
    lines = [*lines, "a  b", "c    d"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, hard_vocab_limit=False, minloglevel=2, **options
    )
    return model.getvalue()


def with_piece(model: bytes, text: str, *, score: float, kind: int) -> bytes:
    """A model with one more piece; the repeated field of a protobuf message may go on at its end."""
    piece = (
        b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])
    )
    return model + b"\x0a" + bytes([len(piece)]) + piece


@pytest.fixture(scope="module", params=MODELS)
def bpe(request) -> bytes:
    return train(**MODELS[request.param])


@pytest.fixture(scope="module")
def small() -> bytes:
    return train(vocab_size=400)


@pytest.fixture(scope="module")
def unigram() -> bytes:
    return train(model_type="unigram", vocab_size=300)


def cut(sampler: Sampler, line: str, *, rate: float, seed: int = 0) -> list[int]:
    [ids] = sampler.sample([line], rate=rate, seeds=[str(seed)])
    return ids


def drawn(model: bytes, line: str, *, rate: float, seed: int = 0) -> list[int]:
    return cut(Sampler(model), line, rate=rate, seed=seed)


def assert_ends_agree(sampler: Sampler, reference: sentencepiece.SentencePieceProcessor, line: str) -> None:
    """Neither end of the rate takes a draw of SentencePiece's; the upper one shows that no word was left out."""
    every_merge = cut(sampler, line, rate=ALMOST_NEVER)
    assert every_merge == reference.encode(line)
    no_merge = cut(sampler, line, rate=1)
    assert no_merge == reference.encode(line, enable_sampling=True, alpha=1.0, nbest_size=-1)


def test_where_all_or_no_merges_are_made_the_pieces_are_those_of_sentencepiece(bpe):
    sampler, reference = Sampler(bpe), sentencepiece.SentencePieceProcessor(model_proto=bpe)

    @settings(max_examples=100)
    @given(TEXT)
    def of_any_text(line):
        assert_ends_agree(sampler, reference, line)

    of_any_text()
    for line in [*LINES[:300], "der hund und die hunde unterkinder <mask>un ☃s"]:
        assert_ends_agree(sampler, reference, line)


def test_a_sample_reads_as_what_was_cut(bpe):
    vocabulary = Vocabulary(bpe)

    @given(st.lists(TEXT), st.sampled_from([0.1, 0.5, 0.9]))
    def of_any_text(lines, rate):
        assert vocabulary.decode(vocabulary.sample(lines, rate=rate, key="k")) == vocabulary.decode(
            vocabulary.encode(lines)
        )

    of_any_text()


def assert_as_often(ours: list[list[int]], theirs: list[list[int]]) -> None:
    """Each way to cut is among both as often as the other, within 5 standard errors of the difference."""
    n = len(ours)
    assert len(theirs) == n
    counts, expected = Counter(map(tuple, ours)), Counter(map(tuple, theirs))
    assert len(counts) > 1
    for ids in counts | expected:
        share = (counts[ids] + expected[ids]) / (2 * n)
        assert abs(counts[ids] - expected[ids]) <= 5 * (2 * n * share * (1 - share)) ** 0.5 + 5


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("line", ["gesungen", "the happy children sing", "nicht nicht", "Haus 日日 und"])
def test_bpe_dropout_cuts_in_each_way_as_often_as_sentencepiece(small, rate, line):
    reference = sentencepiece.SentencePieceProcessor(model_proto=small)
    ours = Vocabulary(small).sample([line] * 8000, rate=rate, key="k")
    assert_as_often(ours, [reference.encode(line, enable_sampling=True, alpha=rate, nbest_size=-1) for _ in ours])


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7])
def test_every_word_of_a_line_has_as_many_pieces_as_in_sentencepiece(small, rate):
    """A word's merges must not depend on those skipped in the words before it."""
    reference = sentencepiece.SentencePieceProcessor(model_proto=small)
    line = max(LINES, key=len)
    ours = Vocabulary(small).sample([line] * 2000, rate=rate, key="k")
    theirs = [reference.encode(line, enable_sampling=True, alpha=rate, nbest_size=-1) for _ in ours]
    counted = [[_lengths(reference, ids) for ids in samples] for samples in (ours, theirs)]
    for word in range(len(line.split())):
        means, errors = [], []
        for samples in counted:
            lengths = [words[word] for words in samples]
            means.append(sum(lengths) / len(lengths))
            errors.append(sum((length - means[-1]) ** 2 for length in lengths) / len(lengths) ** 2)
        assert abs(means[0] - means[1]) <= 5 * sum(errors) ** 0.5


def _lengths(reference, ids: list[int]) -> list[int]:
    """Pieces of each word."""
    words: list[int] = []
    for piece in reference.id_to_piece(ids):
        words.extend([0] * piece.startswith("▁"))
        words[-1] += 1
    return words


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("word", ["children", "unfreundlichkeitunhappychildrensing"])
def test_unigram_sampling_cuts_a_word_in_each_way_as_often_as_sentencepiece(unigram, word, alpha):
    reference = sentencepiece.SentencePieceProcessor(model_proto=unigram)
    ours = Vocabulary(unigram).sample([word] * 8000, rate=alpha, key="k")
    theirs = [reference.encode(word, enable_sampling=True, alpha=alpha, nbest_size=64) for _ in ours]
    assert_as_often(ours, theirs)


def test_a_known_piece_of_unknown_characters_is_preferred_to_them(unigram):
    vocabulary = Vocabulary(with_piece(unigram, "日本", score=-9, kind=NORMAL))
    samples = vocabulary.sample(["日本"] * 200, rate=0.9, key="k")
    assert sum(UNK in ids for ids in samples) < 5


def test_a_sharp_unigram_draw_is_the_best_segmentation(unigram):
    reference = sentencepiece.SentencePieceProcessor(model_proto=unigram)
    sampler = Sampler(unigram)
    for line in [*LINES[:500], "", "  ", "日 🙂日"]:
        assert cut(sampler, line, rate=1e6) == reference.encode(line)


def test_a_user_defined_symbol_is_never_cut():
    model = train(user_defined_symbols=["hund", "☃"])
    ids = {Vocabulary(model).encode([symbol])[0][-1] for symbol in ("hund", "☃")}
    for seed in range(50):
        assert ids <= set(drawn(model, "der hund☃schläft", rate=0.9, seed=seed))


def test_a_symbol_that_was_defined_after_the_training_is_never_cut_or_merged():
    """The trainer keeps a user's symbols out of all other pieces; a symbol that is added later is inside of some."""
    model = with_piece(train(), "his", score=0, kind=USER_DEFINED)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    line = "his hisgesungen"
    assert reference.piece_to_id("▁his") != UNK
    assert reference.encode(line).count(reference.piece_to_id("his")) == 2
    assert_ends_agree(Sampler(model), reference, line)


def test_a_word_that_is_cut_otherwise_than_by_sentencepiece_keeps_its_pieces():
    """Merges over an unused piece are undone by SentencePiece, which is not followed here."""
    model = with_piece(train(), "hi", score=1, kind=UNUSED)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    plain = reference.encode("children")
    assert plain != reference.encode("children", enable_sampling=True, alpha=1.0, nbest_size=-1)
    for seed in range(20):
        ids = drawn(model, "the children", rate=0.9, seed=seed)
        assert ids[-len(plain) :] == plain


def test_the_draws_are_the_same_in_every_process(tmp_path, unigram):
    """SentencePiece 0.2.3 salts its generator per process: with one seed, each process drew other pieces.

    An epoch encoded again after a restart was then another epoch than the one that had been stopped.
    """
    program = (
        "import sys, pathlib\n"
        "from transformer_cli.tokenizer.vocabulary import read_vocabulary\n"
        "lines = ['the children sing', 'der Hund schläft gern', 'nicht gesungen'] * 20\n"
        "for path in sys.argv[1:]:\n"
        "    print(read_vocabulary(pathlib.Path(path)).sample(lines, rate=0.3, key='source 1 2'))\n"
    )
    paths = []
    for name, model in {"bpe": train(), "unigram": unigram}.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(model)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *map(str, paths)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
