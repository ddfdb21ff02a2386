"""Loops, copies, stumps and broken characters are seen; plain translations are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import PAIRS
from hypothesis import given
from hypothesis import strategies as st

import transformer_cli
from transformer_cli.cli.translate import translate
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.corpus import parallel
from transformer_cli.decoding.quality import BROKEN, LOOPED, SIGNS, flags, flags_of
from transformer_cli.tokenizer import train_tokenizer


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("ein hund", "a dog", ()),
        ("ein hund", "a dog a dog a dog a dog", ("looped",)),
        ("ein hund", "a dog a dog a dog a", ()),
        ("der hund bellt", "the the the the dog barks", ("looped",)),
        ("der hund bellt", "the Dog dog dog DOG barks", ("looped",)),
        ("nein nein nein nein", "no no no no", ()),
        ("nein nein nein nein", "no no no no no", ("looped",)),
        ("unglücklich", "un" * 4 + "happy", ("looped",)),
        ("eine million", "1000000", ()),
        ("ein hund", "狗狗狗狗", ("looped",)),
        ("das ist ein haus", "das ist ein haus", ("copied",)),
        ("das ist ein haus", "Das ist EIN house", ("copied",)),
        ("das ist ein haus", "das is a house", ()),
        ("das haus haus", "haus haus haus in", ()),  # each counted as often as it stands in the source
        ("new york", "new york", ()),
        ("1 2 3 4 5", "1 2 3 4 5", ()),
        ("我们去公园", "我们去公园", ("copied",)),
        ("eins zwei drei vier fünf sechs", "one", ("short",)),
        ("eins zwei drei vier fünf sechs", "one two", ()),
        ("I never said that I wanted to go to Paris.", "ᐸᕆᓕᐊᕈᒪᓂᕋᓚᐅᖅᓯᒪᙱᑦᑐᖓ.", ()),
        ("I never said that I wanted to go to Paris.", "ᐸᕆᓕᐊᕈᒪᓂ.", ("short",)),
        ("When they had eaten they went out to hunt for a seal.", "ᓂᕆᔭᕇᕐᒪᑕ ᓇᑦᑎᕋᓱᒋᐊᖅᑐᑦ.", ()),
        ("However, they will say that he is good at typing.", "Aliikusersuillammassuaanerartassagaluarpaalli.", ()),
        ("However, they will say that he is good at typing.", "Aliikusersuillammassuaa.", ("short",)),
        ("Several firefighters are responding to an alarm", "Feuerwehrleute", ("short",)),
        ("コンピューター", "computer", ()),
        ("ขอบคุณมากครับ", "thanks", ()),
        ("我们昨天下午和朋友们一起去公园里踢足球然后回家吃饭", "we", ("short",)),
        ("Inhalt ..... 3", "Contents ........... 3", ()),
        ("Inhalt . . . . 3", "Contents . . . . . . . . 3", ()),
        ("Unterschrift: ____", "Signature: ______________", ()),
        ("Inhalt ..... 3", "the the the the ... 3", ("looped",)),
        ("der hund bellt", "the dog . . . . . .", ("looped",)),
        ("der hund bellt", "the dog.............", ("looped",)),
        ("John Smith, New York, USA 2010", "John Smith, New York, USA 2010", ()),
        ("DAS IST EIN HAUS", "DAS IST EIN HAUS", ("copied",)),
        ("Der Hund bellt laut", "Der Hund bellt laut", ("copied",)),
        ("eins zwei drei vier fünf", "one", ()),
        ("eins", "", ("short",)),
        ("eins", "  ", ("short",)),
        ("", "", ()),
        (" \u3000", "", ()),
        ("ein hund", "a d\ufffd\ufffdg", ("broken",)),
        ("ein h\ufffdnd", "a d\ufffdg", ()),
        ("ein h\ufffdnd", "\ufffd\ufffd", ("broken",)),
        ("Inhalt ..... 3", "\ufffd \ufffd \ufffd", ("broken",)),
        ("a b c d " + "x " * 5, "a b c d " + "x " * 7, ("looped", "copied")),
    ],
)
def test_signs(source: str, translation: str, expected: tuple[str, ...]) -> None:
    assert flags(source, translation) == expected


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(1, 8), st.integers(0, 40))
def test_a_loop_is_what_stands_there_four_times_in_a_row(words: list[str], period: int, place: int) -> None:
    """Brute force, of words, and of the characters of one; half of the texts have a stretch of 4 copies planted, and
    the other half one of 3."""
    text = [*words[:place], *words[:period] * (3 + place % 2), *words[place:]]
    for items, shortest in ((text, 1), ("".join(text), 2)):
        looped = any(
            items[first : first + 4 * n] == items[first : first + n] * 4
            for n in range(shortest, len(items) // 4 + 1)
            for first in range(len(items) - 4 * n + 1)
        )
        assert (LOOPED in flags("e", " ".join(text) if items is text else items)) is looped


def test_every_sign_is_told_shown_and_explained() -> None:
    package = Path(transformer_cli.__file__).parent
    page, messages = (package / "serving" / name for name in ("page/page.js", "messages.py"))
    for sign in SIGNS:
        assert f"\n  {sign}: " in page.read_text("utf-8")
        assert f"{sign}, " in messages.read_text("utf-8")
        assert f" {sign} (" in " ".join(str(translate.__doc__).split())


def test_bytes_that_are_no_character_are_said(tmp_path: Path) -> None:
    tokenizer, _ = train_tokenizer(TokenizerConfig(kind="byte"), ["ein hund"], ["a dog"], seed=1)
    [ids] = tokenizer.encode_target(["dög"])
    whole, cut = tokenizer.decode_target([ids, ids[:-2] + ids[-1:]])
    assert (flags("hund", whole), flags("hund", cut)) == ((), (BROKEN,))


def test_what_people_wrote_has_no_signs() -> None:
    assert [flags(*pair) for pair in PAIRS] == [()] * len(PAIRS)


def test_among_real_translations_signs_are_rarer_than_one_in_a_thousand(multi30k: Path) -> None:
    pairs = parallel(multi30k / "train.de", multi30k / "train.en")
    assert sum(bool(flags(*pair)) for pair in zip(pairs.source, pairs.target, strict=True)) < len(pairs) / 1000


@pytest.mark.parametrize(
    ("n_source", "n_translation", "is_short"), [(60, 36, True), (60, 41, False), (6, 3, True), (5, 3, False)]
)
def test_a_translation_with_too_few_sentences_is_short(n_source: int, n_translation: int, is_short: bool) -> None:
    """443 words of 60 sentences became 270, and nothing was said."""
    source, translation = " ".join(["er trinkt bier."] * n_source), " ".join(["he is drinking a beer."] * n_translation)
    assert ("short" in flags(source, translation)) == is_short


def test_a_translation_without_marks_is_not_called_short_for_it() -> None:
    assert "short" not in flags("er trinkt bier. " * 9, "he is drinking a beer " * 9)


def test_what_is_wrong_with_a_part_is_wrong_with_the_line() -> None:
    """Of a long line, one part can be lost whole, and the line still be long enough."""
    whole, part = ("eins zwei drei vier fünf sechs", "one two three four five six"), ("a b c d e f", "x")
    assert flags_of([whole]) == ()
    assert flags_of([whole, part, ("ja", "n n n n")]) == ("looped", "short")


def test_blanks_without_width_between_words_are_no_words() -> None:
    """Khmer with them was twice as long as without, and a good translation of it short."""
    words = ["ម្តាយ", "ខ្ញុំ", "លក់", "ទឹក", "ថ្ងៃ", "នេះ", "ស្អែក"]
    for blank in ("", "\u200b"):
        assert flags(f"{blank.join(words)}។", "she sells") == ()
