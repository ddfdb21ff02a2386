from __future__ import annotations

import io
import random
import threading
from collections import Counter

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.errors import ModelError
from transformer_cli.tokenizer import BOS, EOS, PAD, UNK, Vocabulary
from transformer_cli.tokenizer.sampling import LITERAL, BpeDropout
from transformer_cli.tokenizer.vocabulary import FEW_LINES

SENTENCE = "the happy unhappy cat on a mat sat kind unkind kindness happiness unhappiness dog log möchte bier trinken"
TEXT = [" ".join(random.Random(n).choices(SENTENCE.split(), k=8)) for n in range(200)]
ODD = "Größe <s> 日本 ﬁn\u2028x\u0085y\rz\0 ▅ <0x41> ⁇ 🙂 e\u0301"


def spm(lines=TEXT, **options) -> bytes:
    model = io.BytesIO()
    options = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "vocab_size": 120, "model_type": "bpe"} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, hard_vocab_limit=False, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def bpe() -> Vocabulary:
    return Vocabulary(spm())


@pytest.fixture(scope="module")
def unigram() -> Vocabulary:
    return Vocabulary(spm(model_type="unigram"))


@pytest.fixture(scope="module")
def literal() -> Vocabulary:
    """Text as it is, bytes for what has no piece."""
    model = spm(vocab_size=400, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False)
    return Vocabulary(model)


def test_ids_and_pieces_are_those_of_sentencepiece(bpe):
    reference = sentencepiece.SentencePieceProcessor(model_proto=bpe.model)
    lines = [*TEXT, ODD, "", "   "]
    assert bpe.encode(lines) == [reference.encode(line) for line in lines]
    assert bpe.pieces(lines) == [reference.encode(line, out_type=str) for line in lines]
    assert bpe.size == len({bpe.piece(id) for id in range(bpe.size)})


@pytest.mark.parametrize("n", [1, FEW_LINES, FEW_LINES + 1, 3 * FEW_LINES])
def test_a_line_has_the_ids_that_it_has_among_others(bpe, n):
    lines = [*TEXT[: n - 1], ODD]
    assert bpe.encode(lines) == bpe.encode([*lines, *TEXT])[:n] == [bpe.encode([line])[0] for line in lines]


def test_no_marks_are_added_and_none_can_be_typed(bpe, unigram, literal):
    for vocabulary in (bpe, unigram, literal):
        (ids,) = vocabulary.encode(["<pad> <unk> <s> </s> a<s>b </s><pad>"])
        assert not {PAD, BOS, EOS} & set(ids)


WITH_BYTES = {
    f"{kind}, {name}": {"model_type": kind, "byte_fallback": True, "vocab_size": 400, **options}
    for kind in ("bpe", "unigram", "word", "char")
    for name, options in {
        "nfkc": {},
        "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        "no space in front": {
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "add_dummy_prefix": False,
        },
    }.items()
}


@pytest.mark.parametrize("name", WITH_BYTES)
def test_a_model_with_bytes_loses_nothing_that_normalization_keeps(name):
    """Before a word that had no piece, the first of several blanks was lost: it was taken for the mark of the first."""
    model = spm([*TEXT, " the  cat", "   "], **WITH_BYTES[name])
    vocabulary, processor = Vocabulary(model), sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = st.text(st.sampled_from("acht \t日é")) | st.lists(st.sampled_from(["the", "cat", "foo", " ", ""])).map(
        " ".join
    )

    @given(texts, st.booleans())
    def of_any_text(text, is_marked):
        kept = text if "nfkc" not in name else processor.normalize(text).replace("▁", " ").removeprefix(" ")
        [ids] = vocabulary.encode([text])
        assert vocabulary.decode([[BOS, *ids] if is_marked else ids]) == [kept]

    of_any_text()


@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_text_without_normalisation_and_with_bytes_survives(literal, text):
    assert literal.decode(literal.encode([text])) == [text]


def test_the_character_that_stands_for_a_space_is_a_space(bpe, literal):
    assert bpe.encode(["the▁cat"]) == bpe.encode(["the cat"])
    assert literal.decode(literal.encode(["the▁cat"])) == ["the cat"]


def test_nothing_in_gives_nothing_out(bpe):
    assert bpe.encode([]) == bpe.pieces([]) == bpe.decode([]) == []
    assert bpe.encode([""]) == [[]]
    assert bpe.decode([[], [PAD, BOS, EOS]]) == ["", ""]


def test_what_would_break_a_line_or_end_a_sentence_unasked_is_banned():
    lines = [*TEXT, "a\rb", "c\nd"]
    model = spm(
        lines,
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        character_coverage=1.0,
        control_symbols=["<mask>"],
    )
    vocabulary = Vocabulary(model)
    banned = {vocabulary.piece(id) for id in vocabulary.banned_ids}
    assert banned == {"<pad>", "<unk>", "<s>", "<mask>", "<0x0A>", "<0x0D>", "\r", "\n"}


def test_what_must_not_be_generated_is_found_once(bpe):
    """Each validation used to ask four questions about every piece: a quarter of a second for 32,000 pieces."""
    assert bpe.banned_ids is bpe.banned_ids


@given(data=st.data())
def test_no_ids_that_may_be_generated_break_a_line(literal, data):
    allowed = sorted(set(range(literal.size)) - set(literal.banned_ids))
    ids = data.draw(st.lists(st.sampled_from(allowed), max_size=20))
    (text,) = literal.decode([ids])
    assert "\n" not in text
    assert "\r" not in text


def test_sampling_at_rate_zero_is_encoding(bpe, unigram):
    for vocabulary in (bpe, unigram):
        assert vocabulary.sample(TEXT, rate=0, key="k") == vocabulary.encode(TEXT)


def test_a_sample_reads_as_the_same_text(bpe, unigram):
    for vocabulary in (bpe, unigram):
        lines = [*TEXT[:50], ODD, ""]
        assert vocabulary.decode(vocabulary.sample(lines, rate=0.3, key="k")) == vocabulary.decode(
            vocabulary.encode(lines)
        )


def test_a_sample_depends_on_key_index_and_text_alone(bpe, unigram):
    for vocabulary in (bpe, unigram):
        whole = vocabulary.sample(TEXT, rate=0.3, key="epoch 1")
        backwards = [vocabulary.sample([TEXT[n]], rate=0.3, key="epoch 1", names=[n])[0] for n in reversed(range(200))]
        assert backwards[::-1] == whole
        assert vocabulary.sample(["other", *TEXT[1:]], rate=0.3, key="epoch 1")[1:] == whole[1:]


def test_a_line_is_cut_by_the_generator_that_is_seeded_with_its_name(bpe):
    """A run goes on with the draws it began with."""
    dropout = BpeDropout(sentencepiece.SentencePieceProcessor(model_proto=bpe.model + LITERAL))
    words = [f"▁{word}" for word in TEXT[0].split()]
    for name in range(20):
        expected = dropout.cut(words, 0.3, random.Random(f"epoch 1 {name}"))
        assert bpe.sample([TEXT[0]], rate=0.3, key="epoch 1", names=[name]) == [expected]


def test_samples_drawn_at_the_same_time_do_not_disturb_each_other(bpe):
    keys = ["one", "two", "three"]
    alone = {key: bpe.sample(TEXT, rate=0.3, key=key) for key in keys}
    together = {}
    threads = [
        threading.Thread(target=lambda key=key: together.update({key: bpe.sample(TEXT, rate=0.3, key=key)}))
        for key in keys
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_another_key_or_index_is_another_draw(bpe):
    first = bpe.sample(TEXT, rate=0.3, key="epoch 1")
    second = bpe.sample(TEXT, rate=0.3, key="epoch 2")
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20
    repeated = bpe.sample([TEXT[0]] * 50, rate=0.3, key="epoch 1")
    assert len(set(map(tuple, repeated))) > 40


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_samples_are_as_long_as_those_of_sentencepiece(bpe, rate):
    """2,000 draws of one sentence: the mean lengths agree within 5 standard errors."""
    ours = [len(ids) for ids in bpe.sample([TEXT[0]] * 2000, rate=rate, key="k")]
    reference = sentencepiece.SentencePieceProcessor(model_proto=bpe.model)
    theirs = [len(reference.encode(TEXT[0], enable_sampling=True, alpha=rate, nbest_size=-1)) for _ in range(2000)]
    mean = sum(ours) / 2000
    spread = sum((length - mean) ** 2 for length in ours) ** 0.5 / 2000
    assert abs(mean - sum(theirs) / 2000) < 5 * 2**0.5 * spread


def test_one_merge_is_skipped_as_often_as_the_rate_says():
    """A vocabulary whose one merge is `▁a`: it is missing in a tenth of the samples."""
    vocabulary = Vocabulary(spm(["a"], vocab_size=7))
    assert vocabulary.pieces(["a"]) == [["▁a"]]
    cut = Counter(len(ids) for ids in vocabulary.sample(["a"] * 4000, rate=0.1, key="k"))
    assert cut[2] == pytest.approx(400, abs=5 * (4000 * 0.1 * 0.9) ** 0.5)
    assert cut[1] + cut[2] == 4000


def test_whole_words_cannot_be_sampled_and_the_error_says_what_can():
    vocabulary = Vocabulary(spm(model_type="word"))
    with pytest.raises(ModelError, match="cannot sample") as caught:
        vocabulary.sample(["the cat"], rate=0.1, key="k")
    assert "tokenizer.sampling" in caught.value.hint


def test_an_id_that_is_not_there_is_an_index_error(bpe):
    for id in (bpe.size, -1):
        with pytest.raises(IndexError):
            bpe.decode([[id]])


def test_other_special_ids_are_refused_with_what_was_found():
    model = spm(pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
    with pytest.raises(ModelError, match="found pad missing, unk 0, bos 1, eos 2") as caught:
        Vocabulary(model, name="my.spm")
    assert caught.value.message.startswith("my.spm has other special ids than this program: expected pad 0, unk 1")
    assert "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3" in caught.value.hint


@pytest.mark.parametrize("damage", [lambda m: b"", lambda m: b"no model", lambda m: b"\0" * 99, lambda m: m[:5000]])
def test_what_is_no_model_is_a_model_error_with_its_name(damage):
    with pytest.raises(ModelError, match=r"^my\.spm is "):
        Vocabulary(damage(spm()), name="my.spm")


def test_an_unknown_character_is_unk(bpe):
    assert bpe.encode(["日"])[0][-1] == UNK
