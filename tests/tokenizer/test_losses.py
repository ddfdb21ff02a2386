"""What a text loses by a tokenizer is counted and named, and of ordinary text nothing is said."""

from __future__ import annotations

import io
import unicodedata

import pytest
import sentencepiece

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.tokenizer import Vocabulary, learning, measured, train_tokenizer
from transformer_cli.tokenizer.losses import SAMPLE, Unknown, lacking, remedy, rewriting

ENGLISH = ["a dog sleeps", "the cat drinks a beer"] * 20
THAI = ["\u0e19\u0e49\u0e33", "\u0e41\u0e21\u0e27"] * 20


def vocabulary(lines: list[str], **options: object) -> Vocabulary:
    config = TokenizerConfig.model_validate({"vocab_size": 60} | options)
    return train_tokenizer(config, lines, lines, seed=1)[0].target


def test_characters_without_a_piece_are_named_most_frequent_first() -> None:
    lines = ["a\u732b\u72ac dog", "\u732b", "the \u00e5", "a cat"]
    for kind in ("char", "bpe", "unigram"):
        assert lacking(vocabulary(ENGLISH, kind=kind), lines) == ("\u732b", "\u72ac", "\u00e5")
    assert lacking(vocabulary(ENGLISH, kind="bpe", vocab_size=400, byte_fallback=True), lines) == ()
    assert lacking(vocabulary(ENGLISH, kind="word"), ["a big dog", "big big cows"]) == ("big", "cows")


def test_unknown_pieces_are_counted_on_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody told of characters that a coverage below 1 leaves out."""
    monkeypatch.setattr(learning, "CHUNK", 3)
    rare = [*ENGLISH * 20, "a \u732b dog", "\u732b\u72ac sleeps"]
    tokenizer, _ = train_tokenizer(TokenizerConfig(kind="char", character_coverage=0.98), ENGLISH, rare, seed=1)
    (_, source), (_, target) = measured(tokenizer, ENGLISH, rare).values()
    letters = [char for line in ENGLISH for char in line if char not in tokenizer.source.names and char != " "]
    assert source.n == len(letters)
    pieces = [piece for line in tokenizer.target.pieces(rare) for piece in line]
    unknown = [piece for piece in pieces if piece not in tokenizer.target.names]
    assert (target.n, target.tokens) == (len(unknown), len(pieces))
    assert {"\u732b", "\u72ac"} <= set(target.lacking)


def test_a_message_says_how_many_which_and_what_to_do() -> None:
    one = Unknown(1, 2000, ("\u0e33",))
    assert one.in_words("text", "sources", "do this") == (
        "text: 1 of 2,000 tokens of the sources is <unk>, for no piece has \u0e33 (U+0E33); do this"
    )
    words = Unknown(1300, 2000, ("a" * 99, "b", "c", "d", "e", "f")).in_words("text", "targets", "do this")
    assert words.startswith(
        f"text: 1,300 of 2,000 tokens of the targets are <unk>, for no piece has {'a' * 40}, b (U+0062)"
    )
    assert words.endswith(", e (U+0065), ...; do this")


def test_the_remedy_is_one_that_the_configuration_lacks() -> None:
    def of(*, is_inherited: bool = False, is_cut: bool = False, **options: object) -> str:
        return remedy(TokenizerConfig.model_validate(options), is_inherited=is_inherited, is_cut=is_cut)

    assert of() == "tokenizer.byte_fallback=true loses nothing"
    assert of(character_coverage=0.99).startswith("tokenizer.character_coverage=1 or tokenizer.byte_fallback=true")
    assert of(kind="char", is_cut=True).startswith("a larger tokenizer.vocab_size or ")
    assert of(is_inherited=True).startswith("tokenizer.extend learns")
    assert "tokenizer.model" in of(model="spm.model")
    cut = TokenizerConfig(kind="char", character_coverage=0.99)
    other_text = remedy(cut, is_inherited=False, is_cut=True, is_learned=False)
    assert other_text == "tokenizer.byte_fallback=true loses nothing"  # no piece is learned from validation


def test_blanks_between_words_in_bytes_are_blanks() -> None:
    """With whole words for pieces SentencePiece spells their mark, too, where it has no piece."""
    config = TokenizerConfig(kind="word", byte_fallback=True, vocab_size=270)
    tokenizer, _ = train_tokenizer(config, ["a dog runs"] * 20, ["a dog runs"] * 20, seed=1)
    lines = ["the zebra runs", "a dog runs"]
    assert tokenizer.target.decode(tokenizer.target.encode(lines)) == lines
    assert rewriting(lines, config, tokenizer.target) == ""


@pytest.mark.parametrize(
    ("lines", "becomes", "what"),
    [
        (THAI, "\u0e4d\u0e32 (U+0E4D U+0E32)", "\u0e33 (U+0E33)"),
        (["\u0645\u06cc\u200c\u06cc\u0627\u0628\u062f"] * 9, "a space", "U+200C"),
        (["\u0e41\u200b\u0e21\u0e27"] * 9, "a space", "U+200B"),
        (["a dog\uff0c"] * 9, ", (U+002C)", "\uff0c (U+FF0C)"),
        (["a d\u0001og"] * 9, "nothing", "U+0001"),
        ([unicodedata.normalize("NFD", "\u00e5l")] * 9, "\u00e5 (U+00E5)", "a\u030a (U+0061 U+030A)"),
    ],
    ids=["Thai", "Persian joiner", "Khmer blank", "wide comma", "control character", "decomposed"],
)
def test_targets_that_cannot_be_written_are_told_by_the_model_and_before_there_is_one(
    lines: list[str], becomes: str, what: str
) -> None:
    """A perfect translation of them had 40 BLEU, and nobody said why."""
    config = TokenizerConfig(vocab_size=60)
    n = sum(what.split(" (")[0] in line or what.startswith("U+") for line in lines)
    told = (
        f"{n} of {len(lines)} targets cannot be written as they are: tokenizer.normalization nfkc makes {becomes} of "
        f"{what}; `tokenizer.normalization: identity` keeps them"
    )
    assert rewriting(lines, config, vocabulary(lines)) == told
    assert rewriting(lines, config, None) == told
    same = TokenizerConfig(vocab_size=60, normalization="identity")
    assert rewriting(lines, same, vocabulary(lines, normalization="identity")) == ""
    assert rewriting(lines, same, None) == ""


def test_of_ordinary_text_nothing_is_said() -> None:
    """A ligature in a hundred lines or more, white space, and what has no piece, which is told by itself."""
    config = TokenizerConfig(vocab_size=60)
    assert rewriting([], config, None) == ""
    assert rewriting(["a  dog \u3000 sleeps\u00a0", " a\tdog"], config, vocabulary(ENGLISH)) == ""
    assert rewriting(["a \u732b\uff0c"], config, vocabulary(ENGLISH)) == ""
    assert rewriting([*ENGLISH * 3, "a \ufb01"], config, None) == ""
    assert rewriting([*ENGLISH * 2, "a \ufb01"], config, None).startswith("1 of 81 targets cannot")


def test_of_many_lines_a_sample_is_looked_at_and_it_is_said() -> None:
    lines = ["a dog\uff0c"] * (2 * SAMPLE + 1)
    said = rewriting(lines, TokenizerConfig(), None)
    assert said.startswith("1,334 of 1,334 targets (a sample of 4,001) cannot be written")


def test_a_model_that_was_given_is_not_said_to_follow_the_setting() -> None:
    config = TokenizerConfig(model="spm.model")
    assert ": the tokenizer makes , (U+002C) of" in rewriting(["a dog\uff0c"], config, vocabulary([*ENGLISH, "a,"]))


def test_what_normalization_is_not_to_blame_for_is_not_put_on_it() -> None:
    config = TokenizerConfig(vocab_size=60)
    told = rewriting(["a\u2581dog"] * 9, config, vocabulary(ENGLISH))
    assert told.endswith(
        ": the tokenizer, whose mark of a blank it is, makes a space of \u2581 (U+2581); keep it out of the text"
    )
    folded = rewriting(["a Dog"] * 9, TokenizerConfig(model="spm.model"), folding([*ENGLISH, "a Dog"]))
    assert ": the tokenizer, which folds case, makes d (U+0064) of D (U+0044);" in folded
    inherited = rewriting(["a dog\uff0c"] * 9, config, vocabulary([*ENGLISH, "a,"]), is_inherited=True)
    assert ": the tokenizer makes , (U+002C) of" in inherited  # whatever the setting says


def folding(lines: list[str]) -> Vocabulary:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc_cf",
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    return Vocabulary(model.getvalue())


def test_of_a_long_change_the_beginning_is_named() -> None:
    """It was 80 characters and their code points."""
    told = rewriting(["\uff01" * 45] * 9, TokenizerConfig(), None)
    codes = " ".join(["U+FF01"] * 8)
    assert f"of {chr(0xFF01) * 8}... ({codes}...);" in told
    assert len(told) < 330
