"""Words hold what is written on their letters, and every script without spaces is known."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.writing import _patterns, begins_unspaced, canonical, chunks, width, words

EVERY_CHARACTER = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) != "Cs"]
WITHOUT_SPACES = (
    *("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "IDEOGRAPHIC ITERATION", "IDEOGRAPHIC NUMBER"),
    *("HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR"),
)
"""How the names of their letters begin."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein Bier, bitte!", ["ein", "bier", "bitte"]),
        ("U-Bahn 2 Uhr", ["u", "bahn", "2", "uhr"]),
        ("STRASSE straße", ["strasse", "strasse"]),
        ("私は学生です", list("私は学生です")),
        ("𠮷野家、人々", list("𠮷野家人々")),
        ("맥주 한 잔", ["맥주", "한", "잔"]),
        ("हिन्दी में लिखा है।", ["हिन्दी", "में", "लिखा", "है"]),
        ("สวัสดี", ["ส", "วั", "ส", "ดี"]),
        ("re\u0301sume\u0301 re\u0301sume\u0301", ["r\xe9sum\xe9"] * 2),
        ("مُحَمَّدٌ", ["مُحَمَّدٌ"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("n\u0302gh", ["n\u0302gh"]),
        ("İstanbul", ["i\u0307stanbul"]),
        ("葛\U000e0100城", ["葛\U000e0100", "城"]),
        (" \t…", []),
        ("\u0301 \u200d", []),
    ],
)
def test_a_word_is_a_run_of_letters_and_digits_with_their_marks_and_without_case(
    text: str, expected: list[str]
) -> None:
    """Hindi fell apart at its vowels, NFD at its accents, Istanbul at its dot: Python's word characters have no
    marks.
    """
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("noël ±", 6), ("日本語 x", 8), ("ﾊﾝ", 2), ("กิน", 2), ("e\u0301", 1), ("می\u200cخورد", 6), ("👩🏽", 2)],
)
def test_wide_characters_take_two_columns_of_a_terminal_and_marks_none(text: str, columns: int) -> None:
    assert width(text) == columns


@given(st.text(st.characters(max_codepoint=0x300) | st.sampled_from("aß İ\u02ff\x1c\x85\xa0"), max_size=20))
def test_the_shorter_way_of_lower_letters_is_the_long_one(text: str) -> None:
    word, chunk = _patterns()
    assert words(text) == word.findall(canonical(text))
    assert chunks(text) == chunk.findall(unicodedata.normalize("NFC", text.casefold()))


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_a_word_is_the_same_however_its_letters_are_encoded(form: str) -> None:
    """What training had seen was not found, in Yoruba as NFD, in Bengali and in Thai."""
    for word in ("ọ̀rẹ́", "\u09dc\u09be\u09df", "น้ำ", "ນ້ຳ", "한국", "ﬁn", "Ｂier", "ᾳ\u0301", "𝐀", "ǰ", "がｶﾞ"):
        assert words(unicodedata.normalize(form, word)) == words(word) == words(words(word)[0]) + words(word)[1:]
    assert words("น\u0e4d\u0e49\u0e32") == words("น้ำ") == ["น้", "ำ"]
    assert chunks(unicodedata.normalize(form, "ọ̀rẹ́!")) == chunks("ọ̀rẹ́!")


def test_the_same_for_all_encodings_is_the_same_for_itself() -> None:
    changed = [char for char in EVERY_CHARACTER if canonical(once := canonical(char)) != once]
    assert changed == []
    encodings = ((char, unicodedata.normalize(form, char)) for char in EVERY_CHARACTER for form in ("NFD", "NFKC"))
    assert [char for char, other in encodings if other != char and words(other) != words(char)] == []


def test_no_mark_ends_a_word() -> None:
    marks = [char for char in EVERY_CHARACTER if unicodedata.category(char).startswith("M")]
    assert [mark for mark in marks if len(words(f"a{mark}b")) != 1] == []


def test_no_letter_or_digit_is_outside_of_words() -> None:
    letters = [char for char in EVERY_CHARACTER if char.isalnum() and unicodedata.is_normalized("NFKC", char)]
    assert [char for char in letters if "".join(words(char)) != canonical(char)] == []


def test_every_letter_of_a_script_without_spaces_is_known() -> None:
    letters = [char for char in EVERY_CHARACTER if unicodedata.name(char, "").startswith(WITHOUT_SPACES)]
    missing = [char for char in letters if char.isalpha() and not begins_unspaced(char)]
    assert missing == []
    assert not any(map(begins_unspaced, "aßжאعह한."))


def test_chunks_keep_their_punctuation_and_are_characters_where_nobody_writes_spaces() -> None:
    found = chunks("Ein Hund, 我们 ok好 한국 말 ดี।")
    assert found == ["ein", "hund,", "我", "们", "ok", "好", "한국", "말", "ดี", "।"]
