"""What is planted in a clean text is found, in its line, and nothing else."""

from __future__ import annotations

import sys
import tracemalloc
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, Direction, PhrasebookConfig
from transformer_cli.data import checks
from transformer_cli.data.checks import EXAMPLES, Finding, Looked, check, check_all, in_passing, overlap
from transformer_cli.data.corpus import Corpus, load_all, load_both, load_tests, load_training
from transformer_cli.data.mixture import Part, by_direction, joined

BOOK = load_tests(DataConfig(phrasebook=PhrasebookConfig(n_pairs=2000)))["test"]


def planted(pairs: dict[int, tuple[str, str]]) -> Corpus:
    """The phrasebook's test with other pairs at some places."""
    source, target = list(BOOK.source), list(BOOK.target)
    for place, pair in pairs.items():
        source[place], target[place] = pair
    return Corpus(source, target)


def test_nothing_is_wrong_with_the_phrasebook_nor_told_of_it() -> None:
    assert check_all(load_all(DataConfig())) == []


@pytest.mark.parametrize(
    ("what", "pair"),
    [
        ("empty source", ("", "a dog")),
        ("empty source", (" \u3000", "a dog")),
        ("empty target", ("ein Hund", " \u3000")),
        ("empty target", ("ein Hund, der immer weiter lief und niemals an ein Ende kam", "")),
        ("both sides empty", ("", "")),
        ("tabs", ("ein\tHund", "a dog")),
        ("control characters", ("ein Hund", "a \0 dog")),
        ("control characters", ("ein Hund\x85", "a dog")),
        ("control characters", ("ein Hund", "a\u2028dog")),
        ("zero-width characters", ("ein\u200b Hund", "a dog")),
        ("zero-width characters", ("ein Hund", "\ufeffa dog")),
        ("zero-width characters", ("我\u200b吃", "a dog")),
        ("zero-width characters", ("ein \u180eHund", "a dog")),
        ("zero-width characters", ("ein Hund", "\u200cسگ a dog")),
        ("zero-width characters", ("ein Hund", "a \u200cسگ")),
        ("zero-width characters", ("ein Hu\u00adnd", "a dog")),
        ("zero-width characters", ("ein Hund", "a d\u200dog")),
        ("zero-width characters", ("\u200cein Hund", "a dog")),
        ("characters that turn the direction of writing", ("ein \u202eHund", "a dog")),
        ("characters that turn the direction of writing", ("ein Hund", "a \u202adog\u202c here")),
        ("characters that turn the direction of writing", ("ein \u202e\u05db\u05dc\u05d1", "a dog")),
        ("characters lost in decoding (U+FFFD)", ("ein H\ufffdnd", "a dog")),
        ("source and target alike", ("a dog", "a dog")),
        (
            "lengths unlike the other side's",
            ("ein Hund", "a dog that went on and on and on and never came to an end here"),
        ),
        ("lengths unlike the other side's", ("ein Hund, der immer weiter lief und niemals an ein Ende kam", "a dog")),
    ],
)
def test_what_is_suspicious_is_found_in_its_line(what: str, pair: tuple[str, str]) -> None:
    assert check("x", planted({41: pair})) == [Finding("x", what, 1, (42,))]


HIDDEN = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) == "Cf"
    and "SIGN" not in (name := unicodedata.name(chr(code), ""))
    and not name.startswith(("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN"))
]
"""Format characters but for numbers' signs and joiners of old scripts, which are seen."""


@pytest.mark.parametrize("char", HIDDEN, ids=lambda char: f"U+{ord(char):04X}")
def test_no_character_that_nobody_sees_goes_unnoticed_among_latin_letters(char: str) -> None:
    """U+202E, which turns what follows around, was not told."""
    pair = Corpus([f"ein Hu{char}nd"], ["a dog"])
    assert [finding.n for finding in check("x", pair) if finding.what in INVISIBLE] == [1]


INVISIBLE = ("control characters", "zero-width characters", "characters that turn the direction of writing")


@pytest.mark.parametrize(
    "pair",
    [
        ("\u200fכלב (1)\u200f", "a dog (1)"),
        ("a \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f dog", "ein Hund"),
        ("2014", "2014"),
        ("un ami\u00a0!", "a friend!"),
        ("می\u200cخواهم یک نوشیدنی", "i want a drink"),
        ("چند CD\u200cها دارم", "i have some CDs"),
        ("អ្នក\u200bចង់\u200bបាន\u200bទឹក ថ្ងៃ\u200b12\u200bនេះ\u200b\u200b។\u200b", "you want water on day 12"),
        ("ฉัน\u200bกิน\u200bข้าว", "i eat rice"),
        ("ຂ້ອຍ\u200bກິນ\u2060ເຂົ້າ", "i eat rice"),
        ("ကျွန်တော်\u200bထမင်း\u200bစား", "i eat rice"),
        ("ᠮᠣᠩᠭᠣᠯ\u180eᠠ", "a mongolian"),
        ("die Familie 👨\u200d👩\u200d👧 lacht", "the family laughs"),
    ],
    ids=[
        "marks of Hebrew",
        "a flag of tags",
        "the same number",
        "no-break space",
        "Persian joiner",
        "its ending of CD",
        "Khmer words",
        "Thai words",
        "Lao words",
        "Burmese words",
        "Mongolian",
        "emoji",
    ],
)
def test_what_belongs_into_text_is_not_suspicious(pair: tuple[str, str]) -> None:
    assert check("x", planted({41: pair})) == []


def test_all_are_counted_and_the_first_few_are_named() -> None:
    [finding] = check("x", planted({place: (f"ein\tHund {place}", f"a dog {place}") for place in range(7, 27)}))
    assert finding == Finding("x", "tabs", 20, tuple(range(8, 8 + EXAMPLES)))
    assert str(finding) == "x, tabs: 20 (lines 8, 9, 10, 11, 12, ...)"


def test_lines_are_numbered_as_they_lie_in_their_files(tmp_path: Path) -> None:
    """They were those of all texts together, or of what was not held out: of lines that no file has."""
    book = list(zip(BOOK.source, BOOK.target, strict=True))
    for name, pairs in (("a", book[:50]), ("b", [*book[50:70], ("ein\thund", "a dog"), *book[70:90]])):
        for language, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    a, b = ({"text": str(tmp_path / name)} for name in "ab")

    def tabs(train: object, valid: object) -> list[Finding]:
        data = DataConfig.model_validate({"train": train, "valid": valid, "source": "de", "target": "en"})
        texts = zip(("train", "held out"), load_both(data), strict=True)
        return [found for found in check_all({name: text for name, text in texts if text}) if found.what == "tabs"]

    [found] = tabs([a, b], a["text"])
    assert (found.lines, str(found)) == ((21,), f"train, tabs: 1 ({tmp_path}/b.de, line 21)")
    [found] = tabs([b | {"both": True}], [a])
    assert (found.n, found.lines) == (2, (21, 21))
    assert str(found) == f"train, tabs: 2 ({tmp_path}/b.de, line 21; {tmp_path}/b.en, line 21)"
    [found] = tabs(b["text"], "20 %")
    used, _ = load_both(DataConfig(train=b["text"], valid="20 %", source="de", target="en"))
    assert list(used.source).index("ein\thund") < 20, "no line before it is held out: this proves nothing"
    assert (found.text, found.lines, found.where) == ("train", (21,), "")


def test_what_is_held_out_is_numbered_as_it_lies_in_its_files(tmp_path: Path) -> None:
    """It was numbered by itself: line 3 of what no file has."""
    pairs = [(f"ein\thund {n}" if n % 7 == 0 else f"ein hund {n}", f"a dog {n}") for n in range(200)]
    for language, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        (tmp_path / f"a.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    text = {"text": str(tmp_path / "a"), "both": True}
    for train in (text["text"], [text]):
        config = DataConfig.model_validate({"train": train, "valid": "20 %", "source": "de", "target": "en"})
        _, valid = load_both(config)
        assert valid is not None
        for way, apart in by_direction(valid).items():
            side = apart.source if way is None or way.source == "de" else apart.target
            numbers = [pairs.index((line, f"a dog {line.split()[-1]}")) + 1 for line in side]
            assert numbers != list(range(1, len(side) + 1)), "this proves nothing"
            expected = [number for number, line in zip(numbers, side, strict=True) if "\t" in line]
            name = "de" if side is apart.source else "en"
            assert len(expected) > 2
            [found] = [one for one in check("valid", apart) if one.what == "tabs"]
            assert (found.n, found.lines) == (len(expected), tuple(expected[:EXAMPLES]))
            listed = ", ".join(map(str, expected[:EXAMPLES])) + ", ..." * (len(expected) > EXAMPLES)
            assert str(found) == f"valid, tabs: {len(expected)} ({tmp_path}/a.{name}, lines {listed})"


def test_what_reading_had_to_change_is_told_too() -> None:
    found = check("x", Corpus(BOOK.source, BOOK.target, {"byte order mark removed": 1}))
    assert found == [Finding("x", "byte order mark removed", 1)]


def test_a_stretch_that_is_off_by_a_line_is_found() -> None:
    source, target = ([f"{line} {i % 9}" for i, line in enumerate(side)] for side in (BOOK.source, BOOK.target))
    *_, finding = check("x", Corpus(source, target[:100] + target[101:400] + ["i do"] + target[400:]))
    assert finding.what == "lines that seem to be translated one line further up"
    assert 290 < finding.n < 310
    assert 95 < finding.lines[0] < 107


@pytest.mark.parametrize("window", [150, 250, 400])
def test_a_stretch_is_one_in_however_many_windows_it_lies(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "WINDOW", window)
    source, target = ([f"{line} {i % 9}" for i, line in enumerate(side)] for side in (BOOK.source, BOOK.target))
    *_, finding = check("x", Corpus(source, target[:100] + target[101:400] + ["i do"] + target[400:]))
    assert finding.what == "lines that seem to be translated one line further up"
    assert 280 < finding.n < 310
    assert 95 < finding.lines[0] < 107


def test_of_a_text_that_was_looked_at_there_are_numbers_and_none_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass for each check, and the words of every line in memory: half a gigabyte a million pairs."""
    monkeypatch.setattr(checks, "WINDOW", 500)
    monkeypatch.setattr(checks, "BLOCK", 250)
    for side, word in (("de", "Hund"), ("en", "dog")):
        lines = (f"der {word} Nummer {i} geht {'immer weiter ' * 5}und\n" for i in range(8_000))
        (tmp_path / f"train.{side}").write_text("".join(lines), encoding="utf-8")
    corpus = load_training(DataConfig(train=str(tmp_path / "train"), valid="x"))
    tracemalloc.start()
    try:
        looked = Looked(corpus)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert looked.words.tolist() == [8_000 * 16] * 2
    assert held < 40 * len(corpus)
    assert most - held < 200 * len(corpus)


def told_beside(corpus: Corpus, other: Corpus) -> list[Finding]:
    return overlap("x", Looked(corpus), "y", Looked(other).sorted_numbers())


SIDES = st.lists(st.tuples(st.sampled_from(["", " ", "a", "b", "c"]), st.sampled_from(["", "x", "y"])))


@given(SIDES, SIDES)
def test_repeated_and_shared_pairs_are_those_that_a_search_finds(
    pairs: list[tuple[str, str]], others: list[tuple[str, str]]
) -> None:
    """Brute force; a pair without a source is counted as empty, not as repeated."""
    corpus, other = (Corpus([s for s, _ in text], [t for _, t in text]) for text in (pairs, others))
    repeated = [i + 1 for i, pair in enumerate(pairs) if pair[0].strip() and pair in pairs[:i]]
    shared = [i + 1 for i, pair in enumerate(pairs) if pair[0].strip() and pair in others]
    sources = [i + 1 for i, (s, t) in enumerate(pairs) if s.strip() and s in other.source and (s, t) not in others]
    found = {finding.what: finding for finding in (*check("x", corpus), *told_beside(corpus, other))}
    for what, lines in {
        "repeated pairs": repeated,
        "pairs that y has, too": shared,
        "sources that y has, with another target": sources,
    }.items():
        assert (what in found) == bool(lines)
        if lines:
            assert found[what] == Finding("x", what, len(lines), tuple(lines[:EXAMPLES]))


LETTERS = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"))
PARTS = st.lists(st.tuples(st.sampled_from(["en-zh", "en-ar", "zh-en"]), st.lists(LETTERS, max_size=4)), min_size=1)


def with_parts(parts: list[tuple[str, list[tuple[str, str]]]]) -> tuple[Corpus, list[tuple[str, str, str]]]:
    """A text of several, and its pairs behind their directions."""
    pairs = [(way, *pair) for way, some in parts for pair in some]
    made = [Part(way, len(some), 1.0, Direction(*way.split("-"))) for way, some in parts]
    return Corpus([s for _, s, _ in pairs], [t for *_, t in pairs], parts=tuple(made)), pairs


@given(PARTS, PARTS)
def test_pairs_are_compared_with_those_of_their_direction(
    parts: list[tuple[str, list[tuple[str, str]]]], others: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    """A sentence that is there in three languages is no source with another target."""
    (corpus, pairs), (other, theirs) = with_parts(parts), with_parts(others)
    sources = {(way, source) for way, source, _ in theirs}
    expected = {
        "repeated pairs": [i + 1 for i, pair in enumerate(pairs) if pair in pairs[:i]],
        "pairs that y has, too": [i + 1 for i, pair in enumerate(pairs) if pair in theirs],
        "sources that y has, with another target": [
            i + 1 for i, pair in enumerate(pairs) if pair not in theirs and pair[:2] in sources
        ],
    }
    found = {finding.what: finding.lines for finding in (*check("x", corpus), *told_beside(corpus, other))}
    assert {what: found.get(what, ()) for what in expected} == {
        what: tuple(lines[:EXAMPLES]) for what, lines in expected.items()
    }


def test_a_text_in_several_directions_has_nothing_suspicious_by_that(tmp_path: Path) -> None:
    """Clean tests in three languages were refused by --strict, three times over."""
    lines = [f"sentence number {n} of those that there are" for n in range(40)]
    texts = {"en": lines, "zh": [f"{n} z" for n in range(40)], "ar": [f"{line} in the other one" for line in lines]}
    for language, side in texts.items():
        (tmp_path / f"train.{language}").write_text("\n".join(side[:30]) + "\n", encoding="utf-8")
        (tmp_path / f"test.{language}").write_text("\n".join(side[30:]) + "\n", encoding="utf-8")
    both = {"text": str(tmp_path / "train"), "source": "en", "target": "zh", "both": True}
    train = [both, both | {"target": "ar", "both": False}]
    data = DataConfig.model_validate({"train": train, "valid": "50%", "test": str(tmp_path / "test")})
    found = load_all(data)
    assert [*found] == ["train", "test/en-zh", "test/zh-en", "test/en-ar"]
    assert check_all(found) == []
    short = Corpus(
        found["test/en-zh"].source, ["z" * 99, *found["test/en-zh"].target[1:]], parts=found["test/en-zh"].parts
    )
    assert [str(one) for one in check_all(found | {"test/en-zh": short})] == [
        "test/en-zh, lengths unlike the other side's: 1 (line 1)"
    ]


def test_sides_are_swapped_or_not_in_each_direction() -> None:
    learned, other = phrasebook("train"), phrasebook("valid")
    there, back = (Part(str(way), len(other), 1.0, way) for way in (Direction("de", "en"), Direction("en", "de")))
    text = joined([turned(other), other], [])
    train = replace(learned, parts=(replace(there, pairs=len(learned)),))

    def n_swapped(*parts: Part) -> list[int]:
        found = check_all({"train": train, "valid": replace(text, parts=parts)})
        return [one.n for one in found if "swapped" in one.what]

    assert n_swapped(back, there) == []
    assert n_swapped(there, back) == [len(other)]


def test_where_nothing_says_the_direction_another_target_may_be_another_language() -> None:
    one, other = (
        Corpus(["a dog", "a cat"], ["ein Hund", "eine Katze"]),
        Corpus(["a dog", "a cat"], ["ein Hund", "un chat"]),
    )
    known = Looked(other).sorted_numbers()
    assert [found.n for found in overlap("x", Looked(one), "y", known)] == [1, 1]
    assert [found.what for found in overlap("x", Looked(one), "y", known, of_sources=False)] == [
        "pairs that y has, too"
    ]
    ways = [{"text": "t", "source": "en", "target": target} for target in ("de", "fr")]
    said = {"valid": "1%", "source": "en", "target": "de"}
    assert not DataConfig.model_validate({"train": ways, **said}).tells_directions_by_source
    assert DataConfig.model_validate({"train": [ways[0] | {"both": True}], **said}).tells_directions_by_source


def test_every_text_is_compared_with_those_before_it() -> None:
    def corpus(*words: str) -> Corpus:
        return Corpus([f"der {word}" for word in words], [f"the {word}" for word in words])

    found = check_all({"train": corpus("a", "b"), "valid": corpus("b", "c"), "test": corpus("c", "a", "d")})
    assert [(one.text, one.what, one.lines) for one in found] == [
        ("valid", "pairs that train has, too", (1,)),
        ("test", "pairs that train has, too", (2,)),
        ("test", "pairs that valid has, too", (1,)),
    ]


@pytest.mark.parametrize("swapped", ["train", "valid"])
def test_sides_that_are_swapped_in_one_text_are_found(swapped: str) -> None:
    """Files of the wrong names were trained on, and only the scores told."""
    learned, other = phrasebook("train"), phrasebook("valid")
    texts = {"train": learned, "valid": other} | {swapped: turned({"train": learned, "valid": other}[swapped])}
    found = [one for one in check_all(texts) if "swapped" in one.what]
    assert [str(one) for one in found] == [
        f"valid, source and target seem to be swapped, or those of train are: {len(other):,}"
    ]


def test_sides_in_both_directions_and_sides_that_are_alike_are_not_swapped() -> None:
    learned, other = phrasebook("train"), phrasebook("valid")
    both = {name: joined([text, turned(text)], []) for name, text in (("train", learned), ("valid", other))}
    alike = {name: Corpus(text.source, text.source) for name, text in (("train", learned), ("valid", other))}
    turned_alike = {"train": turned(learned), "valid": turned(other)}
    for fine in (both, {**both, "valid": other}, alike, turned_alike):
        assert not any("swapped" in one.what for one in check_all(fine))


def phrasebook(name: str) -> Corpus:
    return load_all(DataConfig(phrasebook=PhrasebookConfig(n_pairs=3000)))[name]


def turned(text: Corpus) -> Corpus:
    return Corpus(text.target, text.source)


def test_who_trains_hears_what_is_suspicious_and_of_many_pairs_that_nobody_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [f"a line number {n}" for n in range(9)]
    good, bad = Corpus(lines, [f"{line} there" for line in lines]), Corpus(["the same"] * 2, ["twice"] * 2)
    assert in_passing({"train": good}) == ("", True)
    said, has_looked = in_passing({"train": good, "valid": bad})
    assert (said.endswith(":\n  valid, repeated pairs: 1 (line 2)"), has_looked) == (True, True)
    monkeypatch.setattr(checks, "AT_ONCE", 10)
    said, has_looked = in_passing({"train": good, "valid": bad})
    assert ("11 pairs are too many" in said, has_looked) == (True, False)
