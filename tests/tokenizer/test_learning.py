from __future__ import annotations

import os
import subprocess
import sys
import unicodedata

import pytest
import sentencepiece

from transformer_cli.config.tokenizer import SideModels, SideVocabSizes, TokenizerConfig
from transformer_cli.errors import ConfigError, DataError, ModelError
from transformer_cli.tokenizer import SPECIALS, UNK, Vocabulary, learning, measured, train_tokenizer
from transformer_cli.tokenizer.learning import MAX_LINE_BYTES, MAX_PIECE_BYTES

GERMAN = ["ich möchte ein bier", "das ist ein großer hund", "die katze trinkt ein bier"] * 10
ENGLISH = ["i want a beer", "that is a big dog", "the cat drinks a beer"] * 10
KINDS = ["bpe", "unigram", "word", "char"]


def train(source=GERMAN, target=ENGLISH, **options):
    return train_tokenizer(TokenizerConfig(**({"vocab_size": 60} | options)), source, target, seed=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_every_kind_learns_its_text(kind, joint):
    tokenizer, report = train(kind=kind, joint=joint, vocab_size=40 if joint else 25)
    assert report.kind == kind
    assert report.lines_used == len(GERMAN) + len(ENGLISH)
    assert tokenizer.joint == joint
    assert [tokenizer.target.piece(id) for id in range(4)] == list(SPECIALS)
    if kind != "word":
        assert tokenizer.decode_source(tokenizer.encode_source(GERMAN)) == GERMAN
    sizes = {"joint": 40} if joint else {"source": 25, "target": 25}
    assert report.asked == sizes
    assert all(report.pieces[name] <= size for name, size in sizes.items())


def test_characters_are_the_pieces_and_no_others():
    tokenizer, report = train(kind="char", vocab_size=8000)
    characters = set("".join([*GERMAN, *ENGLISH])) - {" "}
    assert report.pieces == {"joint": len(SPECIALS) + len(characters) + 1}
    assert not report.fitted  # there are no more
    pieces = [tokenizer.source.piece(id) for [*ids] in tokenizer.encode_source(["ein hund"]) for id in ids]
    assert pieces == list("▁ein▁hund")


@pytest.mark.parametrize("normalization", ["nfkc", "identity"])
@pytest.mark.parametrize("joint", [True, False])
def test_bytes_spell_whatever_there_is_and_know_nothing_of_the_text(normalization, joint):
    """Of a blank three bytes are made otherwise, and nobody makes a blank of them again."""
    tokenizer, report = train(kind="byte", normalization=normalization, joint=joint, vocab_size=8000)
    assert set(report.pieces.values()) == {261}
    assert not report.fitted
    lines = ["ich möchte 日本", "a <s> b", "</s>", "😀 <pad>"]
    ids = tokenizer.encode_source(lines)
    assert tokenizer.decode_source(ids) == lines
    assert not any({0, 1, 2, 3} & set(one) for one in ids)
    assert [len(one) for one in tokenizer.encode_target(["é日 a"])] == [1 + 2 + 3 + 1 + 1]
    other, _ = train_tokenizer(
        TokenizerConfig(kind="byte", normalization=normalization, joint=joint), ["x"], ["<s> zz"], seed=2
    )
    assert other.fingerprint == tokenizer.fingerprint


def test_one_size_per_side_can_be_asked_for():
    _, report = train(joint=False, vocab_size=SideVocabSizes(source=40, target=30))
    assert report.pieces == {"source": 40, "target": 30}
    assert not report.fitted


def test_two_sizes_for_one_vocabulary_are_refused():
    with pytest.raises(ConfigError, match=r"tokenizer\.joint asks for one vocabulary"):
        train(vocab_size=SideVocabSizes(source=40, target=30))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_a_vocabulary_too_large_for_the_text_is_fitted_and_reported(kind):
    tokenizer, report = train(kind=kind, vocab_size=8000)
    assert report.fitted
    assert report.pieces == {"joint": tokenizer.source_size}
    assert report.as_json()["fitted"] is True
    # It is the largest there is: asked for exactly one more, SentencePiece refuses.
    exact = {
        "model_type": kind, "vocab_size": tokenizer.source_size, "character_coverage": 1.0, "minloglevel": 2,
        "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "model_prefix": os.devnull, "num_threads": 1,
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=f"value <= {tokenizer.source_size}"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(GERMAN + ENGLISH), **exact | {"vocab_size": tokenizer.source_size + 1}
        )


def test_a_vocabulary_too_small_for_the_characters_says_how_many_it_takes():
    characters = {c for line in GERMAN + ENGLISH for c in line if c != " "} | {"▁"}
    with pytest.raises(ConfigError, match=rf"vocab_size: 10 pieces .* which are {len(characters) + 4}$"):
        train(vocab_size=10)


def test_tokens_per_word_are_pieces_over_white_space_words():
    tokenizer, _ = train(vocab_size=50)
    found = measured(tokenizer, GERMAN, ENGLISH)
    for side, lines in (("source", GERMAN), ("target", ENGLISH)):
        n_pieces = sum(map(len, getattr(tokenizer, side).pieces(lines)))
        assert found[side][0] == pytest.approx(n_pieces / sum(len(line.split()) for line in lines))


def test_where_no_spaces_are_written_each_letter_is_a_word():
    """A sentence of Chinese was one, and tokens per word said nothing."""
    chinese = ["今天他吃三条鱼。", "他今天吃鱼。"] * 5
    tokenizer, _ = train_tokenizer(TokenizerConfig(kind="char"), chinese, ENGLISH, seed=1)
    ratio, _ = measured(tokenizer, chinese, ENGLISH)["source"]
    assert ratio == pytest.approx((9 + 7) / (8 + 6))  # the characters, and a mark before each line


def test_whole_words_are_one_token_each():
    tokenizer, _ = train(kind="word", vocab_size=100)
    assert [ratio for ratio, _ in measured(tokenizer, GERMAN, ENGLISH).values()] == [1.0, 1.0]
    assert [ratio for ratio, _ in measured(tokenizer, [], [" "]).values()] == [0.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_user_types_is_plain_text_even_if_training_text_held_it(kind):
    lines = ["a <s> b", "</s> c", "d <pad> e", "x<unk>y", "f ＜s＞ g"] * 5
    tokenizer, _ = train(lines, lines, kind=kind, vocab_size=80)
    for line, ids in zip(lines, tokenizer.encode_source(lines), strict=True):
        assert not {0, 2, 3} & set(ids)
        if kind != "word":
            assert UNK not in ids
            assert tokenizer.decode_source([ids]) == [unicodedata.normalize("NFKC", line)]


@pytest.mark.parametrize("line", ["f ＜s＞ g", "f ﹤/s﹥ g"])
def test_what_becomes_a_special_symbol_by_nfkc_alone_is_plain_text_too(line):
    tokenizer, _ = train([line] * 5, ["x"] * 5)
    assert tokenizer.decode_source(tokenizer.encode_source([line])) == [unicodedata.normalize("NFKC", line)]


def test_rare_characters_get_no_piece_where_the_coverage_says_so():
    lines = ["a" * 99 + "q"] * 5
    complete, _ = train(lines, lines)
    sparse, _ = train(lines, lines, character_coverage=0.98)
    assert UNK not in complete.encode_source(["q"])[0]
    assert UNK in sparse.encode_source(["q"])[0]


def test_letters_of_the_specials_are_not_forced_into_texts_without_them():
    tokenizer, _ = train(["ab"] * 5, ["ba"] * 5)
    assert "<" not in {tokenizer.source.piece(id) for id in range(tokenizer.source_size)}


def test_odd_characters_inside_a_line_do_not_split_it_for_the_trainer():
    """The line would be two sentences, and `ab` never one word, if any of these ended it."""
    odd = ["\u2028", "\u0085", "\r", "\x0b", "\x0c", "\0", "\n"]
    lines = [f"x{character}y" for character in odd]
    tokenizer, report = train(lines, lines, vocab_size=300, normalization="identity", byte_fallback=True)
    assert report.lines_used == 2 * len(odd)
    assert report.lines_skipped == {}
    assert tokenizer.decode_source(tokenizer.encode_source(lines)) == lines


def test_nfkc_is_the_default_and_identity_leaves_text_alone():
    text = ["ﬁne  ½ x²", "plain text"]
    default, _ = train(text * 5, text * 5, vocab_size=40)
    literal, _ = train(text * 5, text * 5, vocab_size=40, normalization="identity")
    assert default.decode_source(default.encode_source(text)) == ["fine 1⁄2 x2", "plain text"]
    assert literal.decode_source(literal.encode_source(text)) == text


def test_byte_fallback_spells_what_has_no_piece():
    plain, _ = train()
    spelled, _ = train(byte_fallback=True, vocab_size=330)
    assert UNK in plain.encode_source(["日本"])[0]
    assert spelled.decode_source(spelled.encode_source(["日本 🙂"])) == ["日本 🙂"]


def test_lines_that_cannot_be_learned_from_are_counted_by_reason():
    source = [*GERMAN, "", "  ", "\u3000", "a" * (MAX_LINE_BYTES + 1), "█▅"]
    target = [*ENGLISH, "", "x", "y", "z" * MAX_LINE_BYTES, "w"]
    _, report = train(source, target)
    assert report.lines_skipped == {
        "empty": 2,
        f"longer than {MAX_LINE_BYTES:,} bytes": 1,
        "reserved character U+2585": 1,
        "blank": 2,
    }
    assert report.lines_used + sum(report.lines_skipped.values()) == len(source) + len(target)


def test_blank_are_all_lines_without_a_piece_and_no_others():
    characters = [chr(code) for code in range(0x3100) if chr(code) != "\n"]
    tokenizer, report = train([*GERMAN, *characters], kind="word")
    assert report.lines_skipped["blank"] == tokenizer.encode_source(characters).count([]) > 40


def test_text_is_learned_from_without_being_encoded(monkeypatch):
    """The whole of it was, twice, for two numbers of a report, one of which training did not even show."""
    encoded = []
    monkeypatch.setattr(Vocabulary, "encode", lambda self, lines: encoded.extend(lines) or [[] for _ in lines])
    _, report = train([*GERMAN, " "], [*ENGLISH, "?"])
    assert encoded == [" ", "?"]
    assert report.lines_skipped["blank"] == 2


def test_sentencepiece_skips_none_of_the_lines_that_are_counted_as_used(tmp_path):
    """Its own log of the training, in a process of its own, is the witness."""
    lines = [*GERMAN, "", "a" * (MAX_LINE_BYTES + 1), "▅", "x\ny", "a\0b", "<s>", "ü" * (MAX_LINE_BYTES // 2)]
    program = f"""
import sentencepiece
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.tokenizer import learning
train = sentencepiece.SentencePieceTrainer.train
sentencepiece.SentencePieceTrainer.train = lambda **options: train(**options | {{"minloglevel": 0}})
_, report = learning.train_tokenizer(TokenizerConfig(vocab_size=60), {lines!r}, {ENGLISH!r}, seed=1)
print(report.lines_used)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert f"Loaded all {int(done.stdout)} sentences" in done.stderr
    assert "too long" not in done.stderr
    assert "Skipped:" not in done.stderr


@pytest.mark.parametrize("source", [[], [""], ["  "], ["▅"]])
def test_no_text_to_learn_from_is_a_data_error(source):
    with pytest.raises(DataError, match="no text to learn from"):
        train(source, source)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_model_bit_for_bit(kind):
    lines = [f"{a} {b} {c}" for a in ENGLISH[:3] for b in GERMAN[:3] for c in ENGLISH[:3]]
    first, _ = train(lines, lines, kind=kind)
    again, _ = train(lines, lines, kind=kind)
    assert again.source.model == first.source.model


def test_the_pieces_of_bpe_do_not_depend_on_the_number_of_threads(monkeypatch):
    ours, _ = train()
    real = sentencepiece.SentencePieceTrainer.train
    monkeypatch.setattr(
        sentencepiece.SentencePieceTrainer, "train", lambda **options: real(**options | {"num_threads": 5})
    )
    other, _ = train()
    pieces = [[tokenizer.source.piece(id) for id in range(tokenizer.source_size)] for tokenizer in (ours, other)]
    assert pieces[0] == pieces[1]


def test_of_a_corpus_too_large_as_many_lines_are_drawn_by_the_seed(monkeypatch):
    monkeypatch.setattr(learning, "MAX_LINES", 10)
    lines = [f"{word} {n}" for n, word in enumerate("abcdefghijklmnopqrstuvwxyz")]
    config = TokenizerConfig(vocab_size=300)
    tokenizers = [train_tokenizer(config, lines, lines, seed=seed) for seed in (1, 1, 2)]
    assert {report.lines_used for _, report in tokenizers} == {20}
    assert tokenizers[0][1].lines_skipped == {"beyond 10 lines a side": 32}
    assert tokenizers[0][0].fingerprint == tokenizers[1][0].fingerprint != tokenizers[2][0].fingerprint


def test_an_existing_model_is_taken_as_it_is(tmp_path):
    trained, _ = train(joint=False)
    trained.save(tmp_path)
    one, report = train(model=str(tmp_path / "source.model"))
    two, _ = train(model=SideModels(source=str(tmp_path / "source.model"), target=str(tmp_path / "target.model")))
    assert one.joint
    assert one.target.model == trained.source.model
    assert two.fingerprint == trained.fingerprint
    assert (report.kind, report.asked, report.lines_used, report.fitted) == ("given", {}, 0, False)


def test_an_existing_model_with_other_special_ids_is_refused_by_path(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(GERMAN), model_prefix=str(tmp_path / "my"), vocab_size=30, minloglevel=2
    )
    with pytest.raises(ModelError, match=r"my\.model has other special ids"):
        train(model=str(tmp_path / "my.model"))


def test_a_missing_model_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match=r"no\.model does not exist"):
        train(model=str(tmp_path / "no.model"))


@pytest.mark.parametrize(
    "long", ["x" * 9_000, "\ufdfa" * 300, f"gut {'ä' * 4_000} gut"], ids=["letters", "NFKC", "between"]
)
def test_a_word_that_is_too_long_for_a_piece_is_not_learned_from(long):
    tokenizer, report = train([*GERMAN, long, "x" * MAX_PIECE_BYTES], kind="word", vocab_size=100)
    assert report.lines_skipped == {f"with a word of more than {MAX_PIECE_BYTES:,} bytes": 1}
    assert report.lines_used == len(GERMAN) + len(ENGLISH) + 1
    assert tokenizer.source.pieces(["x" * MAX_PIECE_BYTES]) == [["▁" + "x" * MAX_PIECE_BYTES]]
    assert train([*GERMAN, long])[1].lines_skipped == {}
