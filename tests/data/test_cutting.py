"""However a block of text becomes ids, they are those that SentencePiece gives of each of its lines."""

from __future__ import annotations

import io
import random
from collections import Counter
from itertools import product

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data import cutting
from transformer_cli.data.cutting import LineByLine, WordByWord, cutter
from transformer_cli.tokenizer import EOS, Vocabulary, train_tokenizer
from transformer_cli.tokenizer.renumbering import GRID, Model, appended, built
from transformer_cli.writing import words

LINES = ["der große Hund trinkt ein Bier", "die Katze trinkt nicht , sagt er", "a dog and a cat", "das Bier a_b"] * 5
KINDS = {
    "bpe": (TokenizerConfig(vocab_size=70), WordByWord),
    "bytes for unknown": (TokenizerConfig(vocab_size=330, byte_fallback=True), WordByWord),
    "char": (TokenizerConfig(kind="char"), WordByWord),
    "byte": (TokenizerConfig(kind="byte"), WordByWord),
    "unigram": (TokenizerConfig(kind="unigram", vocab_size=60), WordByWord),
    "unigram of characters": (TokenizerConfig(kind="unigram", vocab_size=32), WordByWord),
    "unigram with bytes": (TokenizerConfig(kind="unigram", vocab_size=330, byte_fallback=True), WordByWord),
    "unigram as it is": (TokenizerConfig(kind="unigram", vocab_size=60, normalization="identity"), LineByLine),
    "word": (TokenizerConfig(kind="word", vocab_size=20), LineByLine),
    "as it is": (TokenizerConfig(vocab_size=70, normalization="identity"), LineByLine),
}
SEVERAL = {"1": "  ", "2": "<s>", "3": "ΑΣ"}
ALPHABET = "aber Hund\u00a0\u3000\u00a8\u0301\u0308öﬁ½X犬か\u3099\U0001f600"
ALPHABET += "\t\r\x0b\x0c\x00\u200b\u200d\u2028\u2581\ufeff\ufffd"
LINE = st.text([*ALPHABET, *SEVERAL], max_size=12).map(lambda line: line.translate(str.maketrans(SEVERAL)))
TEXT = st.lists(LINE, min_size=1, max_size=6)


RULES = {"nmt_nfkc": WordByWord, "nmt_nfkc_cf": WordByWord, "nfkc": LineByLine, "nfkc_cf": LineByLine}
"""Of normalising, in a model that was made elsewhere."""


def made_elsewhere(rule: str) -> Vocabulary:
    model = io.BytesIO()
    options = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "vocab_size": 60, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type="bpe",
        normalization_rule_name=rule,
        minloglevel=2,
        **options,
    )
    return Vocabulary(model.getvalue())


@pytest.fixture(scope="module", params=[*KINDS, *RULES])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param in RULES:
        learned, kind = made_elsewhere(request.param), RULES[request.param]
    else:
        config, kind = KINDS[request.param]
        learned = train_tokenizer(config, LINES, LINES, seed=1)[0].source
    assert type(cutter(learned, with_eos=True, counts_words=True)) is kind
    return learned


@settings(max_examples=200)
@given(blocks=st.lists(TEXT, max_size=3), with_eos=st.booleans())
@example(blocks=[["a\u2581 Hund", "\u2581", "\u2581a \u2581 \u2581\u2581Hund\u2581"]], with_eos=True)
@example(blocks=[["a\u2581 Hund", "\u2581", "\u2581a \u2581 \u2581\u2581Hund\u2581"]], with_eos=False)
def test_ids_and_words_are_those_of_the_lines(vocabulary: Vocabulary, blocks: list[list[str]], with_eos: bool) -> None:
    cut = cutter(vocabulary, with_eos=with_eos, counts_words=True)
    for lines in blocks:
        check(cut, vocabulary, lines, marks=[EOS] * with_eos)
    assert cut.take_words() == Counter(word for lines in blocks for line in lines for word in words(line))


@given(blocks=st.lists(TEXT, max_size=3), seed=st.integers(0, 1000))
@example(blocks=[["a a", "a"], ["b a", "a"]], seed=1)
def test_the_words_of_lines_that_are_left_out_are_not_counted(
    vocabulary: Vocabulary, blocks: list[list[str]], seed: int
) -> None:
    cut, chance, kept = cutter(vocabulary, with_eos=False, counts_words=True), random.Random(seed), []
    for lines in blocks:
        left_out = {place for place in range(len(lines)) if chance.random() < 0.5}
        cut.encode("".join(f"{line}\n" for line in lines).encode())
        cut.uncount("".join(f"{lines[place]}\n" for place in sorted(left_out)).encode())
        kept += [line for place, line in enumerate(lines) if place not in left_out]
    found = cut.take_words()
    assert dict(found) == dict(Counter(word for line in kept for word in words(line)))


def test_what_was_forgotten_is_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = train_tokenizer(KINDS["bpe"][0], LINES, LINES, seed=1)[0].source
    monkeypatch.setattr(cutting, "MOST_WORDS", 4)
    cut = cutter(learned, with_eos=False, counts_words=True)
    for first in range(0, len(LINES), 3):
        check(cut, learned, LINES[first : first + 3])
    assert cut.take_words() == Counter(words("\n".join(LINES)))
    assert cut.take_words() == Counter()


def test_a_language_s_mark_stands_before_each_line_that_has_pieces() -> None:
    plain = train_tokenizer(KINDS["bpe"][0], LINES, LINES, seed=1)[0].source
    pieces = [plain.piece(id) for id in range(4, plain.size)]
    model = Model(plain.model).numbered([*pieces, "__de__"], frozenset(["__de__"])).model
    marked = Vocabulary(model, mark="__de__")
    for with_eos in (True, False):
        cut = cutter(marked, with_eos=with_eos, counts_words=False)
        assert isinstance(cut, WordByWord)
        check(cut, marked, ["", "der Hund", " ", "a cat", "\u200b"], marks=[EOS] * with_eos)


OTHERS = {
    "blanks behind": b"\x12\x03\xc0\x01\x01",
    "no blank in front": b"\x1a\x02\x18\x00",
    "each of several blanks": b"\x1a\x02\x20\x00",
    "blanks as they are": b"\x1a\x02\x28\x00",
    "other rules": b"\x1a\x05\x0a\x03own",
    "a piece across a blank": b"\x0a\x07\x0a\x05a\xe2\x96\x81b",
    "a piece of its own": b"\x0a\x06\x0a\x02xy\x18\x04",
}
"""Protobuf that makes another model of one that it is appended to."""


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_model_of_another_kind_is_left_to_sentencepiece(kind: str, other: str) -> None:
    learned = train_tokenizer(KINDS[kind][0], LINES, LINES, seed=1)[0].source
    assert Model(learned.model).parts_at_blanks
    assert not Model(learned.model + OTHERS[other]).parts_at_blanks
    assert not Model(built({"a": -1.0}, kind="bpe")).parts_at_blanks


PARTS = ["".join(letters) for n in (1, 2, 3) for letters in product("αβγ", repeat=n)]
"""Pieces that no learned model has: as each of them has a score, a word of these letters can be cut in many ways."""
NEAR_TIE = 1e-6


@pytest.fixture(scope="module")
def unigram() -> Vocabulary:
    return train_tokenizer(KINDS["unigram"][0], LINES, LINES, seed=1)[0].source


@given(
    scores=st.lists(st.integers(-3, -1), min_size=len(PARTS), max_size=len(PARTS)),
    steps=st.lists(st.integers(0, 2), min_size=len(PARTS), max_size=len(PARTS)),
    step=st.sampled_from([0.0, GRID, NEAR_TIE]),
    words=st.lists(st.text("αβγ", min_size=2, max_size=9), min_size=1, max_size=9),
    before=st.sampled_from(["", "Hund " * 300, "犬" * 12_000]),
)
def test_ways_to_cut_a_word_that_are_as_good_or_nearly_are_told_apart_as_in_the_line(
    unigram: Vocabulary, scores: list[int], steps: list[int], step: float, words: list[str], before: str
) -> None:
    pieces = {part: score - step * n for part, score, n in zip(PARTS, scores, steps, strict=True)}
    tied = Vocabulary(appended(unigram.model, pieces))
    cut = cutter(tied, with_eos=True, counts_words=False)
    assert isinstance(cut, LineByLine if step == NEAR_TIE and any(steps) else WordByWord)
    check(cut, tied, [" ".join([before, *words * 9]), *words], marks=[EOS])


def test_where_sums_are_rounded_a_line_cuts_its_words_otherwise(unigram: Vocabulary) -> None:
    pieces = {"α": -1.0, "βγ": -2.0 - NEAR_TIE, "αβ": -2.0, "γ": -1.0, "β": -9.0}
    close = Vocabulary(appended(unigram.model, pieces))
    [alone] = close.encode(["αβγ"])
    [line] = close.encode(["αβγ " * 300])
    assert line != alone * 300
    assert isinstance(cutter(close, with_eos=True, counts_words=False), LineByLine)


@pytest.mark.parametrize("scores", [{"α": 1.0}, {"α": -40_000.0}, {"α" * 3000: -1.0}])
def test_sums_that_could_be_too_large_are_left_to_sentencepiece(unigram: Vocabulary, scores: dict[str, float]) -> None:
    assert Model(appended(unigram.model, {"α": -1.0})).parts_at_blanks
    assert not Model(appended(unigram.model, scores)).parts_at_blanks


def check(cut: cutting.Cutter, vocabulary: Vocabulary, lines: list[str], marks: list[int] | None = None) -> None:
    expected = [ids + (marks or []) for ids in vocabulary.encode(lines)]
    ids, lengths = cut.encode("".join(f"{line}\n" for line in lines).encode())
    assert lengths.tolist() == [len(line) for line in expected]
    assert ids.tolist() == [id for line in expected for id in line]
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int32)
