from __future__ import annotations

from unicodedata import normalize

import pytest
from sacrebleu_cli import REFERENCE

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.appearance import IN_PIECES, LOWERCASED, TOKENISED, blank, misjudged, signs, warnings

FRENCH = [
    "Qui est là ? Personne, hélas !",
    "Il dit : oui.",
    "Un chien, deux chats ; rien.",
    "Quoi ? Non ! Si ! Ah ?",
] * 5


def tokenised(lines: list[str]) -> list[str]:
    """What sacreBLEU's own tokenizer for BLEU makes of them."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return [Tokenizer13a()(line) for line in lines]


def test_ordinary_text_has_no_sign() -> None:
    assert signs(REFERENCE) == signs(FRENCH) == signs([]) == signs(["", "ok"]) == set()


@pytest.mark.parametrize("lines", [REFERENCE, FRENCH], ids=["English", "French"])
def test_tokenised_text_is_recognised(lines: list[str]) -> None:
    assert signs(tokenised(lines)) == {TOKENISED}


@pytest.mark.parametrize(
    ("spaced", "glued", "expected"), [(5, 4, {TOKENISED}), (5, 5, set()), (4, 0, set()), (6, 5, {TOKENISED})]
)
def test_five_spaces_before_a_stop_and_more_than_without_are_a_sign(
    spaced: int, glued: int, expected: set[str]
) -> None:
    assert signs(["it rains ."] * spaced + ["it rains."] * glued) == expected


@pytest.mark.parametrize(("others", "expected"), [(99, {IN_PIECES}), (100, set())])
def test_one_line_of_a_hundred_is_a_sign(others: int, expected: set[str]) -> None:
    assert signs(["un@@ happy", *["so it is"] * others]) - {LOWERCASED} == expected


def test_the_escapes_and_marks_of_tokenizers_are_recognised() -> None:
    assert signs([*REFERENCE, "that &apos;s it"]) == {TOKENISED}
    assert signs([*REFERENCE, "hand @-@ made"]) == {TOKENISED}
    assert signs([*REFERENCE, "un@@ happy"]) == {IN_PIECES}
    assert signs([*REFERENCE, "▁un happy"]) == {IN_PIECES}


def test_text_without_capitals_is_recognised_where_there_is_enough_of_it_and_it_has_case() -> None:
    assert signs([line.lower() for line in REFERENCE]) == {LOWERCASED}
    assert signs(["i do", "so it is"]) == set()
    assert signs(["私は学生です" * 100]) == set()
    assert signs(["დედა და მამა სახლში არიან"] * 20) == set()  # Georgian's capitals are for headlines


def test_a_warning_says_which_side_it_is() -> None:
    bare, options = [line.lower() for line in REFERENCE], EvaluationConfig()
    assert warnings(REFERENCE, [REFERENCE], options) == []
    [both] = warnings(bare, [bare], options)
    assert both.startswith("translations and reference look lower-cased")
    [ours] = warnings(bare, [REFERENCE], options)
    assert ours.startswith("the translations look lower-cased, the reference is not: restore the case")
    [theirs] = warnings(REFERENCE, [REFERENCE, tokenised(REFERENCE)], options)
    assert theirs.startswith("the reference looks tokenised, the translations are not: detokenise")


def test_a_side_too_short_to_tell_is_not_called_the_other_way_round() -> None:
    """Both all in small letters, the reference not 200 of them: it was told not to be lower-cased."""
    short, long = ["a small dog sleeps .", *[""] * 19], ["a small dog sleeps and sleeps ."] * 20
    for said in (warnings(long, [short], EvaluationConfig()), warnings(short, [long], EvaluationConfig())):
        assert [line.split(":")[0] for line in said] == [
            "translations and reference look lower-cased",
            "translations and reference look tokenised",
        ]


@pytest.mark.parametrize("line", ["b b b b b", "a man in a man in a man in a man in", "kokokokoko"])
def test_what_only_repeats_itself_has_no_looks(line: str) -> None:
    """Of a model after ten updates they asked for capitals."""
    looped = [f"{line} {n}" * 9 for n in range(len(REFERENCE))]
    same = ["a small dog sleeps ."] * len(REFERENCE)
    for written in (looped, same, [*looped[:-1], same[0]]):
        assert warnings(written, [REFERENCE], EvaluationConfig()) == []
        assert warnings(written, [[line.lower() for line in REFERENCE]], EvaluationConfig()) == []
    some = [looped[0], *(line.lower() for line in REFERENCE[1:])]
    [said] = warnings(some, [REFERENCE], EvaluationConfig())
    assert said.startswith("the translations look lower-cased")


def test_sides_without_any_text_are_told() -> None:
    found = blank(["", " "], [["", ""], ["", "\t"]])
    assert [line.split(":")[0] for line in found] == [
        "the translations have no text at all",
        "the reference has no text at all",
    ]
    assert blank(["", "a"], [["", ""], ["", "a"]]) == []


@pytest.mark.parametrize("line", ["我母亲和朋友一起带来七本书。", "ฉันรักเธอมาก"])
@pytest.mark.parametrize(("tokenize", "fooled"), [("auto", "TER:"), ("char", "TER:"), ("13a", "BLEU and TER:")])
def test_what_counts_words_by_spaces_is_named_where_there_are_none(line: str, tokenize: str, fooled: str) -> None:
    [said] = warnings([line], [[line]], EvaluationConfig(tokenize=tokenize))
    assert f"what is between spaces is a word for {fooled}" in said
    assert ("evaluation.tokenize=auto" in said) == ("BLEU" in fooled)
    assert warnings([line], [[line]], EvaluationConfig(metrics=["bleu", "chrf"])) == []
    assert warnings(["ok so"], [["ok so"]], EvaluationConfig(tokenize=tokenize)) == []


@pytest.mark.parametrize(
    ("lines", "tokenize", "is_told"),
    [
        (["eins", "", "do it!"], "auto", True),
        (["eins", "one, two, three"], "13a", False),
        (["eins"] * 3000 + ["one two three four"], "auto", False),
        (["eins", "zwei"], "char", False),
        (["我母亲和朋友"], "auto", False),
        (["", " "], "auto", False),
    ],
)
def test_a_training_whose_score_stays_zero_is_told_why(lines: list[str], tokenize: str, is_told: bool) -> None:
    """Single words were all translated, and each validation said BLEU 0.00."""
    said = misjudged(lines, EvaluationConfig(tokenize=tokenize))
    assert said.startswith("no line has four words in a row, and without any BLEU is 0: ") == is_told
    assert bool(said) == is_told


@pytest.mark.parametrize("form", ["NFD", "NFKD"])
def test_words_that_differ_in_how_letters_are_composed_are_counted(form: str) -> None:
    """BLEU 0.75 of a text that looks the same."""
    lines = ["Ó ń jẹun níbẹ̀", "a cat", "Bàbá ra ewúrẹ́"]
    other = [normalize(form, lines[0]), "a dog", lines[2] + "."]
    for one, two in ((other, lines), (lines, other)):
        [said] = warnings(one, [["x"] * 3, two], EvaluationConfig())
        assert "(Unicode's NFC, NFD): 1;" in said
    assert warnings(lines, [lines], EvaluationConfig()) == warnings(["ạ b"], [["ạ́ b"]], EvaluationConfig()) == []


@pytest.mark.parametrize(
    ("written", "wanted", "told"),
    [
        ("من می خورم.", "من می\u200cخورم.", "most often for U+200C in the reference"),
        ("今天,我吃!", "今天，他喝！", "most often for ！ (U+FF01) in the reference"),
        ("カナを見る", "ｶﾅを買う", "most often for ｶ (U+FF76) in the reference"),
        ("wait...", "wait…", "most often for … (U+2026) in the reference"),
        ("ශ්රී ලංකා", "ශ්\u200dරී ලංකා", "most often for U+200D in the reference"),
        ("שלום\u200f לך", "שלום לך", "most often for U+200F in the translations"),
        ("គ្រូ លក់ ទឹក", "គ្រូ\u200bលក់\u200bនំ", "most often for U+200B in the reference"),
        ("ฉัน\u200bกิน", "ฉันกิน", "most often for U+200B in the translations"),
        ("❤ ok", "❤\ufe0f ok", "most often for \ufe0f (U+FE0F) in the reference"),
    ],
    ids=["Persian", "wide comma", "narrow kana", "dots", "Sinhala", "Hebrew", "Khmer", "Thai", "emoji"],
)
def test_words_that_differ_in_forms_of_characters_or_in_unseen_ones_are_counted(
    written: str, wanted: str, told: str
) -> None:
    """Perfect translations into Persian had 40 BLEU, and the worst of them looked like their reference."""
    for text in (written, wanted):
        assert not [said for said in warnings([text], [[text]], EvaluationConfig()) if "NFKC" in said]
    [said] = (
        said for said in warnings([written, "x"], [["y", "x"], [wanted, "x"]], EvaluationConfig()) if "NFKC" in said
    )
    assert f"(Unicode's NFKC), or one that nobody sees: 1, {told};" in said
    assert ("tokenizer.normalization=identity" in said) == ("in the reference" in told)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("می\u200cبرد", "می\u200cخورد"),  # other verbs
        ("کتاب را", "کتاب\u200cها را"),  # one book, several
        ("10 %", "10\u00a0%"),
        ("今天，我吃。", "今天，他喝。"),
        ("ﬁ b", "ﬂ b"),
        ("គ្រូ\u200bលក់\u200bទឹក", "គ្រូ\u200bលក់\u200bនំ"),
        ("ទឹក ok", "គ្រូ\u200bលក់ ok"),
    ],
)
def test_other_words_are_not_taken_for_other_forms(written: str, wanted: str) -> None:
    assert not [said for said in warnings([written], [[wanted]], EvaluationConfig()) if "Unicode" in said]


def test_a_ligature_in_a_hundred_lines_or_more_is_no_other_form() -> None:
    for n, expected in ((99, 1), (100, 0)):
        found = warnings(["A fish", *["A dog"] * n], [["A \ufb01sh", *["A dog"] * n]], EvaluationConfig())
        assert len(found) == expected


def test_kana_that_are_composed_otherwise_are_counted_inside_a_sentence() -> None:
    said = warnings(["がっこう"], [["か\u3099っこ"]], EvaluationConfig())
    assert any("(Unicode's NFC, NFD): 1;" in one for one in said)


def test_case_does_not_matter_where_it_is_ignored() -> None:
    bare = [line.lower() for line in REFERENCE]
    assert warnings(bare, [REFERENCE], EvaluationConfig(lowercase=True)) == []
