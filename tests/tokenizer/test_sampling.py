from __future__ import annotations

import io
import math
import os
import struct
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
import sentencepiece
from compiling import needs_compiler
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, PhrasebookConfig
from transformer_cli.data.corpus import load_training
from transformer_cli.tokenizer import compiled
from transformer_cli.tokenizer.compiled import CompiledDropout
from transformer_cli.tokenizer.renumbering import Model
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


RATES = st.sampled_from([ALMOST_NEVER, 1e-12, 0.1, 0.5, 0.9, 1]) | st.floats(ALMOST_NEVER, 1)


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


def by_python(model: bytes) -> Sampler:
    """As where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "code", lambda: None)
        return Sampler(model)


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


@pytest.mark.parametrize("sampler_of", [by_python, pytest.param(Sampler, marks=needs_compiler)])
def test_where_all_or_no_merges_are_made_the_pieces_are_those_of_sentencepiece(bpe, sampler_of):
    sampler, reference = sampler_of(bpe), sentencepiece.SentencePieceProcessor(model_proto=bpe)

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


UNIGRAM = {
    "nfkc": {},
    "bytes": {"byte_fallback": True},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "space behind": {"treat_whitespace_as_suffix": True},
    "across spaces": {"split_by_whitespace": False},
}
SYMBOLS = ["hund", "<mask>", "un", "unter", "☃", "⟦NUM⟧", "in▁the"]


@pytest.mark.parametrize("name", UNIGRAM)
def test_unigram_sampling_never_cuts_what_a_user_defined_and_knows_what_the_plain_cut_knows(name):
    """The n best of SentencePiece go as far down as that: of a line hardly ever, of a word often."""
    model = train(model_type="unigram", vocab_size=500, user_defined_symbols=SYMBOLS, **UNIGRAM[name])
    sampler, reference = Sampler(model), sentencepiece.SentencePieceProcessor(model_proto=model)
    symbols = {reference.piece_to_id(symbol) for symbol in SYMBOLS}
    assert len(symbols - {UNK}) == len(SYMBOLS)

    @settings(max_examples=100)
    @given(TEXT | st.lists(st.sampled_from([*WORDS, *SYMBOLS])).map("".join), st.sampled_from([1e-9, 0.1, 0.5]))
    def of_any_text(line, rate):
        plain = reference.encode(line)
        for seed in range(5):
            ids = cut(sampler, line, rate=rate, seed=seed)
            assert [id for id in ids if id in symbols] == [id for id in plain if id in symbols]
            assert reference.decode(ids) == reference.decode(plain)

    of_any_text()


def test_unigram_sampling_of_a_model_without_a_letter_makes_none_unknown_that_a_piece_has(unigram):
    known = [name for name in Model(unigram).pieces if name not in ("h", "g")]
    vocabulary = Model(unigram).numbered(known)
    lines = [line for line in LINES if UNK not in vocabulary.encode([line])[0]]
    assert sum(("h" in line or "g" in line) for line in lines) > 20
    for epoch in range(5):
        assert UNK not in chain.from_iterable(vocabulary.sample(lines, rate=0.1, key=f"source 1 {epoch}"))
    some_unknown = ["gggg", "the ghost", "sggh日日the"] * 50  # a run of unknown characters is one id
    samples = vocabulary.sample(some_unknown, rate=1e-9, key="k")
    assert vocabulary.decode(samples) == vocabulary.decode(vocabulary.encode(some_unknown))


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
            env=os.environ | others | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed, others in (("1", {}), ("2", {}), ("3", {"CXX": ""}))
    }
    assert len(outputs) == 1


def assert_as_in_python(model: bytes, reference: Sampler, lines: list[str], rate: float, seeds: list[str]) -> None:
    """Twice, for the first time all words are new."""
    sampler = Sampler(model)
    assert isinstance(sampler._lines, CompiledDropout)
    expected = reference.sample(lines, rate=rate, seeds=seeds)
    assert [sampler.sample(lines, rate=rate, seeds=seeds) for _ in range(2)] == [expected] * 2


@needs_compiler
def test_compiled_code_draws_what_python_draws(bpe):
    reference = by_python(bpe)

    @settings(max_examples=60)
    @given(st.lists(st.tuples(TEXT, st.text(st.characters(exclude_categories=["Cs"])))), RATES)
    def of_any_text(lines, rate):
        assert_as_in_python(bpe, reference, [line for line, _ in lines], rate, [seed for _, seed in lines])

    of_any_text()
    for rate in (0.1, 0.5):
        some = [*LINES[:1000], *LINES[:100], "der hund und die hunde unterkinder <mask>un ☃s"]
        assert_as_in_python(bpe, reference, some, rate, [f"source 1 2 {place}" for place in range(len(some))])


@needs_compiler
@pytest.mark.parametrize("name", ["nfkc bytes", "across spaces"])
def test_compiled_code_draws_as_often_as_anyone_asks(name):
    """More draws than a generator has words in its state, of seeds that have more, and in words of any length."""
    model, every = train(**MODELS[name]), " ".join(LINES[:500])
    lines = [every, every.replace(" ", ""), "ha" * 5000, "日" * 100_000, "☃" * 1000, " " * 1000, ""]
    seeds = ["a", "\0\0\0\0\0b", "long" * 1000, "", "日本", "f", "g"]
    for rate in (ALMOST_NEVER, 0.3, 1):
        assert_as_in_python(model, by_python(model), lines, rate, seeds)


PIECES = st.lists(
    st.tuples(
        st.text(st.sampled_from("aabbb▁▁日🙂"), min_size=1, max_size=4),
        st.sampled_from([0.0, -1.0, -1.0, -2.5, math.inf, -math.inf]) | st.floats(width=32, allow_nan=False),
        st.sampled_from([NORMAL, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED, UNUSED]),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda piece: piece[0],
)


AROUND = [("ab", 0.0, USER_DEFINED), ("abb", -1.0, NORMAL), ("bab", -1.0, NORMAL), ("aa", -1.0, NORMAL)]


@needs_compiler
@example("identity", AROUND, [[1, 3]] * 8, 0.5)
@example("identity", AROUND, [[3, 2]] * 8, 0.5)
@settings(max_examples=300)
@given(
    st.sampled_from(["identity", "identity bytes"]),
    PIECES,
    st.lists(st.lists(st.integers(0, 29), max_size=12), max_size=8),
    st.sampled_from([0.2, 0.5, 1]),
)
def test_compiled_code_merges_in_the_order_of_python_in_any_model(name, pieces, numbers, rate):
    """Of equal scores, over spaces, with symbols inside of others; whatever another program may have written."""
    model = _nearly_empty(name)
    known = set(Vocabulary(model).names)
    for text, score, kind in pieces:
        if text not in known:
            model = with_piece(model, text, score=score, kind=kind)
    lines = ["".join(pieces[number % len(pieces)][0] for number in line) for line in numbers]
    assert_as_in_python(model, by_python(model), lines, rate, [f"{place}" for place in range(len(lines))])


@cache
def _nearly_empty(name: str) -> bytes:
    return train(["x"], **MODELS[name] | {"vocab_size": 300})


@needs_compiler
def test_scores_that_are_no_numbers_are_left_to_python():
    model = with_piece(train(), "hi", score=math.nan, kind=NORMAL)
    assert not isinstance(Sampler(model)._lines, CompiledDropout)


WITH_LITTLE_MEMORY = """
import pathlib, re, resource, sys
from transformer_cli.tokenizer import compiled
from transformer_cli.tokenizer.renumbering import Model
from transformer_cli.tokenizer.sampling import Sampler

sampler = Sampler(pathlib.Path(sys.argv[1]).read_bytes())
before = sampler.sample(["the children sing"] * 9, rate=0.3, seeds=list("abcdefghi"))
n = 16 << 20
used = int(re.findall(r"VmSize:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text("utf-8"))[0]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + 16 * n, resource.RLIM_INFINITY))  # Python asks for 11, C++ for 16
try:
    sampler._lines.sample(["a" * n], 0.3, ["0"])
except MemoryError:
    assert sampler._lines._n_bytes > compiled.MOST_BYTES, "of Python's"
    assert sampler.sample(["the children sing"] * 9, rate=0.3, seeds=list("abcdefghi")) == before
    print("an error")
"""


@needs_compiler
def test_compiled_code_raises_an_error_where_memory_lacks(small, tmp_path):
    """And begins anew; of C++ the end would be that of the process."""
    (tmp_path / "model").write_bytes(small)
    done = subprocess.run(
        [sys.executable, "-c", WITH_LITTLE_MEMORY, tmp_path / "model"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "an error\n", done.stderr


@needs_compiler
def test_compiled_code_forgets_words_rather_than_take_all_memory(monkeypatch):
    model = train()
    seeds = [f"{place}" for place in range(len(LINES))]
    expected = Sampler(model).sample(LINES, rate=0.3, seeds=seeds)
    monkeypatch.setattr(compiled, "MOST_BYTES", 3000)
    sampler = Sampler(model)
    found, most = [], 0
    for begin in range(0, len(LINES), 10):
        found += sampler.sample(LINES[begin : begin + 10], rate=0.3, seeds=seeds[begin : begin + 10])
        most = max(most, sampler._lines._n_bytes)
    assert found == expected
    assert most < 3000 + 10 * 5000
