"""What is too long is cut where it hurts least, and nothing of it is lost."""

from __future__ import annotations

import random
import re
import time
import unicodedata

import pytest

from transformer_cli.decoding.long_lines import join, sentences, split, usual_sentences

CHARACTERS = 'abcÄß0 .,;!?…。，「」한今\u0301\u200d\u2028😀"”)'


def at_most(n: int):
    return lambda text: len(text) <= n


@pytest.mark.parametrize(
    "parts",
    [
        ["Ein Hund.", "Zwei Katzen!", "Wirklich?", "Ja…", "Ende"],
        ['Er sagte: "Nein."', "(Das war alles.)", "Gut."],
        ["Am 3. Oktober kam Dr. Meier.", "Er sah z. B. nichts.", "J. S. Bach spielte."],
        ["Er ging... weg.", "Sie blieb."],
        ["今天天气很好。", "我们去公园吧！", "「好。」", "他说？"],
        ["これはペンです。", "OK.", "Next"],
        ["Er kauft einen Hut.", "Sie steht auf.", "du auch."],
        ["ich trinke bier.", "er steht auf.", "trinkst du mit?", "nein!", "gut."],
        ["Er kam bzw. lief, sah ca. zwei usw. und ging.", "The Dept. of St. Ives, e.g. the one on 3 Oct. Street."],
        ['Er rief "Nein!" und ging.', "„Komm.“ sagte er zu Prof. Meier."],
        ["წიგნი კარგია.", "სახლი დიდია."],
        ["هل أنت بخير؟", "نعم."],
        ["वह घर गया।", "वह सो गया।"],
        ["der mann schlaft .", "das ist gut .", "was ?", "so ( ja ) .", "- Ende ."],
        ["Am 3 . Oktober kam Dr . Meier .", "Er sah z . B . nichts . . . und ging .", "Gut ."],
    ],
)
def test_sentences_end_at_their_marks(parts: list[str]) -> None:
    unspaced = any(ord(part[-1]) >= 0x3000 for part in parts)
    text = ("" if unspaced else " ").join(parts).replace("OK.Next", "OK. Next")
    assert sentences(text) == parts


def test_one_letter_beyond_the_first_plane_changes_nothing_for_the_rest() -> None:
    """Text with one is cut by another expression, which also has the marks of scripts there."""
    text = "der Hund schläft. die Katze trinkt! ነው።ሄደ። 私は読む。犬"
    parts = sentences(text)
    assert len(parts) == 6
    assert sentences(f"{text}\U00010a00") == [*parts[:-1], f"{parts[-1]}\U00010a00"]
    assert sentences(f"{text}\U00010a00\U00010a56 \U00010a00") == [
        *parts[:-1],
        f"{parts[-1]}\U00010a00\U00010a56",
        "\U00010a00",
    ]


@pytest.mark.parametrize("mark", "։؟܀߹।॥။።፧፨᙮᠃។៕᱾᱿꓿꘎꛳꧉꫰꯫𑁇𑅁𖫵")
def test_a_mark_that_is_no_latin_one_ends_a_sentence_before_a_space_or_a_letter(mark: str) -> None:
    """Three sentences in Khmer, or in Amharic without spaces, became one."""
    for between in (" ", "", "\u200b", "\u200b "):
        parts = sentences(f"ក ខ{mark}{between}គ{mark}{between}ง")
        assert [part.strip("\u200b") for part in parts] == [f"ក ខ{mark}", f"គ{mark}", "ง"]
    for whole in (f"ក{mark}", f"ក{mark}១", f"ក{mark}, ខ", f"{mark}ក", f'ក{mark}"ខ'):
        assert sentences(whole) == [whole]


@pytest.mark.parametrize(
    "parts",
    [
        ["ነው።", "«አዎ» አለ።", "«አይ።»", "ሄደ።"],
        ["ጥሩ ነው?።", "ሄደ።"],
        ["བྱེད་སོ། །", "དེ་ནས་སོང་།། །།", "ཡང་།", "མི"],
        ["यह ॥१॥", "वह ॥२॥"],
        ["စာ၊ စာ။", "စာ"],
        ["میں پی۔ایچ۔ڈی ہوں۔", "وہ ایم۔اے ہے۔", "تم؟"],
        ["なに︖", "だめ︒", "はい﹖"],
    ],
)
def test_sentences_of_other_scripts_end_at_theirs(parts: list[str]) -> None:
    for between in ("", " "):
        assert sentences(between.join(parts)) == parts


@pytest.mark.parametrize(
    "whole", ["3.5", "a.b!c?d…e", "www.a.de", "Dr. Meier", "Er … ging", '"Ja?" fragte er', "1۔5", "ສະບາຍດີ ໄປ", "ดี ไป"]
)
def test_what_is_no_end_of_a_sentence_stays(whole: str) -> None:
    assert sentences(whole) == [whole]


def test_every_full_stop_is_known() -> None:
    """By Unicode's names; but for those of Armenian and Adlam, which stand inside a sentence or before it."""
    names = re.compile("(?!DIGIT|NUMBER|INVERTED|NEGATIVE|SMALL).*(FULL STOP|DANDA|QUESTION MARK)")
    marks = [char for char in map(chr, range(0x20000)) if names.fullmatch(unicodedata.name(char, ""))]
    unknown = {unicodedata.name(char) for char in marks if len(sentences(f"ཀ ཁཁ{char} ག")) < 2}
    assert unknown == {"ARMENIAN QUESTION MARK", "ADLAM INITIAL QUESTION MARK", "COPTIC FULL STOP"}
    assert len(marks) > 60


@pytest.mark.parametrize(
    ("counts", "usual"), [([], 1), ([1], 1), ([3], 3), ([1] * 200 + [5], 1), ([1] * 200 + [5] * 3, 5), ([0] * 9, 1)]
)
def test_the_usual_number_of_sentences_is_that_of_one_line_in_a_hundred(counts: list[int], usual: int) -> None:
    assert usual_sentences([" ".join(["Ein Hund."] * count) for count in counts]) == usual


def test_a_paragraph_separator_ends_a_sentence() -> None:
    assert sentences("eins\u2029zwei\u2028 drei\x0cvier\x85fünf") == ["eins", "zwei", "drei", "vier", "fünf"]


@pytest.mark.parametrize("seed", range(300))
def test_parts_fit_and_put_together_are_the_line(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choices(CHARACTERS, k=chance.randint(0, 400)))
    limit = chance.randint(1, 50)
    parts = split(text, at_most(limit))
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_long_sentence_is_cut_at_a_clause_else_at_a_space_else_anywhere() -> None:
    assert split("eins zwei drei vier, fünf sechs sieben acht neun", at_most(30)) == [
        "eins zwei drei vier,",
        "fünf sechs sieben acht neun",
    ]
    assert split("eins zwei drei vier fünf sechs", at_most(20)) == ["eins zwei drei", "vier fünf sechs"]
    assert split("x" * 64, at_most(20)) == ["x" * 16] * 4


def test_a_sentence_that_fits_is_not_cut_though_others_are() -> None:
    parts = split("Kurz, aber gut. " + "Lang " * 20, at_most(20))
    assert parts[0] == "Kurz, aber gut."
    assert " ".join(parts[1:]) == ("Lang " * 20).strip()


def test_what_is_written_on_a_letter_stays_with_it() -> None:
    parts = split("e\u0301" * 40, at_most(21))
    assert all(part.startswith("e") for part in parts)


def test_ten_thousand_words_without_an_end_are_cut_evenly() -> None:
    words = [str(number) for number in range(10_000)]
    parts = split(" ".join(words), at_most(500))
    assert " ".join(parts).split() == words
    assert min(map(len, parts)) > 100


def test_a_row_of_marks_is_read_once() -> None:
    """It was tried from each of them to its end: minutes of work for a hundred thousand."""
    start = time.process_time()
    for row in ("!" * 30_000, "।" * 30_000 + "1", "«" * 30_000, "། " * 30_000 + "།"):
        assert sentences(f"Da!{row}") == [f"Da!{row}"]
    assert time.process_time() - start < 5


def test_a_character_that_does_not_fit_stays_whole() -> None:
    assert split("ab", lambda text: False) == ["a", "b"]


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ([], ""),
        (["", "a"], "a"),
        (["A dog.", "", "Two cats."], "A dog. Two cats."),
        (["今天。", "我们！", "好"], "今天。我们！好"),
        (["𠮷野家。", "𠮷野家。"], "𠮷野家。𠮷野家。"),
        (["他说「好。」", "「是」"], "他说「好。」 「是」"),
        (["好。", "OK", "fine"], "好。 OK fine"),
        (["개가 있다.", "고양이"], "개가 있다. 고양이"),
    ],
)
def test_joined_parts_have_a_space_where_their_script_has(parts: list[str], line: str) -> None:
    assert join(parts) == line
