from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.evaluation.slices import EMPTY_REFERENCE, LENGTHS, LONGEST, slices
from transformer_cli.evaluation.words import WordCounts
from transformer_cli.writing import words

TEXTS = st.text(st.sampled_from("ab 12.\u3000"), max_size=20)


def names(hypothesis: str, reference: str | list[str], **known: object) -> set[str]:
    """The slices of one line, but for its length."""
    references = [[text] for text in ([reference] if isinstance(reference, str) else reference)]
    found = {part.name for part in slices([hypothesis], references, **known)}  # type: ignore[arg-type]
    return found - set(LENGTHS.values()) - {LONGEST}


@given(st.lists(st.integers(0, 60), min_size=1))
def test_every_line_with_words_is_in_the_slice_of_its_length(lengths: list[int]) -> None:
    found = slices(["x"] * len(lengths), [["a " * n for n in lengths]])
    bounds = {name: (least, most) for name, least, most in zip(LENGTHS.values(), (1, 11, 21, 31), LENGTHS, strict=True)}
    bounds[LONGEST] = (51, 60)
    for name, (least, most) in bounds.items():
        expected = [i for i, n in enumerate(lengths) if least <= n <= most]
        assert [list(part.lines) for part in found if part.name == name] == [expected] * bool(expected)


@given(st.lists(TEXTS, min_size=1))
def test_lengths_and_empty_references_have_every_line_once(references: list[str]) -> None:
    """A reference of punctuation alone was once in no slice."""
    found = slices(["x"] * len(references), [references])
    parts = [part.lines for part in found if part.name in (*LENGTHS.values(), LONGEST, EMPTY_REFERENCE)]
    assert sorted(line for lines in parts for line in lines) == list(range(len(references)))


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1))
def test_no_slice_is_empty_and_lines_ascend(lines: list[tuple[str, str, str]]) -> None:
    hypotheses, reference, source = map(list, zip(*lines, strict=True))
    counts = WordCounts({"a": 9, "b": 1}, {"a": 1})
    for part in slices(hypotheses, [reference], source=source, counts=counts):
        assert part.lines
        assert list(part.lines) == sorted(set(part.lines))


def test_numbers_are_compared_with_every_reference() -> None:
    assert names("in 1987 at 5", "um 5 in 1987") == {"with a number"}
    assert names("in 1978", "in 1987") == {"with a number", "other numbers"}
    assert names("in 1978", ["im Jahr", "in 1978"]) == set()
    assert names("twice 2 2", "twice 2") == {"with a number", "other numbers"}
    for grouped in ("1000", "1,000", "1.000", "1\u202f000", "1 000", "1'000"):
        assert names(f"costs {grouped}.", "kostet 1.000") == {"with a number"}
    assert names("1,000,000.5", "1.000.000,5") == {"with a number"}
    assert names("1.5", "15") == names("12.345", "12.354") == {"with a number", "other numbers"}
    assert names("two", "2") == {"with a number", "other numbers"}


def test_numbers_are_the_same_in_the_digits_of_any_script() -> None:
    """All translations into Persian that wrote 12 were said to have other numbers, and those that wrote wide digits."""
    for digits in ("1204", "۱۲۰۴", "١٢٠٤", "१२०४", "１２０４", "၁၂၀၄", "1٬204", "١٬٢٠٤"):
        assert names(f"{digits} x", "1,204 x") == names("1204", f"({digits})") == {"with a number"}
    assert names("5 m²", "5 sqm") == {"with a number"}
    assert names("۱۳", "12") == {"with a number", "other numbers"}


def test_words_are_rare_or_unseen_by_the_counts_of_their_side() -> None:
    counts = WordCounts({"hund": 5, "der": 900, "kuh": 1}, {"dog": 6, "the": 900})
    assert names("x", "The dog", source=["Der Hund!"], counts=counts) == {"rare word in source"}
    assert names("x", "the dog", source=["der Kuh"], counts=counts) == {"rare word in source"}
    assert names("x", "the hund", source=["der dog"], counts=counts) == {
        "unseen word in source",
        "unseen word in reference",
    }
    assert names("x", "the cat", source=["der Hund"]) == set()
    assert names("x", "the cat", counts=counts) == {"unseen word in reference"}


def test_empty_sides_are_told_apart() -> None:
    assert names("", "a", source=["b"]) == {"empty translation"}
    assert names(" ", "", source=[""]) == {"empty source", "empty reference"}
    assert names("a", "", source=["\t"]) == {"empty source", "empty reference"}


def test_a_flag_is_a_slice() -> None:
    found = slices(["a", "b", "c"], [["x", "y", "z"]], flags=[("looped",), (), ("copied", "looped")])
    assert {part.name: part.lines for part in found[-2:]} == {"looped": (0, 2), "copied": (2,)}


def test_length_is_that_of_words_as_they_are_counted() -> None:
    assert len(words("A, b - c.")) == 3
    assert slices(["x"], [["a - " * 10]])[0].name == "up to 10 words"
