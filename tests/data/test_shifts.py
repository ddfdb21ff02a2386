"""Missing lines are planted, and found again."""

from __future__ import annotations

import itertools
import random
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, PhrasebookConfig
from transformer_cli.data import shifts
from transformer_cli.data.corpus import Corpus, load_tests, parallel
from transformer_cli.data.phrasebook.pairs import Phrasebook, phrasebook, styled
from transformer_cli.data.shifts import Evidence, Shift, partings, shifted, unequal
from transformer_cli.errors import DataError

TESTS = load_tests(DataConfig(phrasebook=PhrasebookConfig(n_pairs=2000)))
BOOK, MORE = TESTS["test"], TESTS["combinations"]
SOURCE = [f"{line} ({number % 97})" if number % 5 == 0 else line for number, line in enumerate(BOOK.source)]
TARGET = [f"{line} ({number % 97})" if number % 5 == 0 else line for number, line in enumerate(BOOK.target)]
"""Five hundred pairs; every fifth has a number."""
NEAR = 6
"""Lines that a place may be off by: neighbours can match as well as what is missing."""


@given(st.integers(20, 480), st.integers(1, 3), st.booleans())
@settings(max_examples=40)
def test_the_place_where_lines_are_missing_is_found(place: int, n_missing: int, in_source: bool) -> None:
    rest = [*range(place), *range(place + n_missing, 500)]
    source = [SOURCE[i] for i in rest] if in_source else SOURCE
    target = TARGET if in_source else [TARGET[i] for i in rest]
    found = partings(source, target)
    assert found
    assert all(abs(one - place) <= NEAR for one in found)


PLAIN = Corpus(*([*BOOK.source, *MORE.source], [*BOOK.target, *MORE.target]))
"""A thousand short pairs without numbers, every other one without a mark: their words alone tell."""


@given(st.integers(10, 990), st.booleans(), st.booleans())
@settings(max_examples=15)
def test_one_line_that_is_missing_or_too_much_is_found_by_its_words(
    place: int, in_source: bool, is_extra: bool
) -> None:
    """Nothing was found in the phrasebook, for all of its lines are about as long."""
    texts = [list(PLAIN.source), list(PLAIN.target)]
    changed = texts[0 if in_source else 1]
    if is_extra:
        changed.insert(place, changed[(place + 400) % 1000])
    else:
        del changed[place]
    [found] = partings(*texts)
    assert abs(found - place) <= 2


@given(st.integers(0, 800), st.sampled_from([1, -1, 2, -2, 3, -3]))
@settings(max_examples=10)
def test_two_hundred_shifted_pairs_are_found_by_their_words(start: int, by: int) -> None:
    part, end = PLAIN.target[start : start + 200], start + 200
    moved = [*part[-by:], *part[:-by]]  # round about: what falls out at one end comes in at the other
    found = shifted(PLAIN.source, [*PLAIN.target[:start], *moved, *PLAIN.target[end:]])
    assert isinstance(found, Shift)
    assert found.by == by
    assert abs(found.first - start) <= NEAR
    assert abs(found.last - end) <= NEAR


@given(st.permutations(range(1000)), st.integers(20, 1000))
@settings(max_examples=15)
def test_plain_text_in_order_is_not_called_shifted(order: list[int], n_lines: int) -> None:
    source, target = ([side[i] for i in order[:n_lines]] for side in (PLAIN.source, PLAIN.target))
    assert shifted(source, target) is None
    assert partings(source, target[::2]) == []


def test_every_one_of_several_places_is_found() -> None:
    missing = [100, 250, 400]
    found = partings(SOURCE, [line for i, line in enumerate(TARGET) if i not in missing])
    gone = range(3)  # from the shorter text, before each
    assert all(abs(one + n - place) <= NEAR for one, n, place in zip(found, gone, missing, strict=True))


def test_more_missing_lines_than_are_told_apart_are_found_at_one_place() -> None:
    [found] = partings(SOURCE, TARGET[:200] + TARGET[260:])
    assert abs(found - 200) <= NEAR


def test_lines_that_are_missing_at_the_end_part_there() -> None:
    assert partings(SOURCE, TARGET[:-2]) == [498]


@pytest.mark.parametrize("n_missing", [1, 2, 3])
def test_the_place_is_that_of_the_best_way_to_leave_lines_out(n_missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brute force over all ways to leave lines out of the longer text."""
    monkeypatch.setattr(shifts, "SURE", float("-inf"))
    draw = random.Random(n_missing)
    for _ in range(20):
        start = draw.randrange(400)
        source = SOURCE[start : start + 12]
        target = TARGET[start : start + 12]
        for _ in range(n_missing):
            target.pop(draw.randrange(len(target)))
        evidence = Evidence(source, target)
        table = {
            (i, j): float(evidence.of(slice(i, i + 1), slice(j, j + 1))[0])
            for i, j in itertools.product(range(12), range(len(target)))
        }
        ways = {
            left_out: sum(table[i, j] for j, i in enumerate(i for i in range(12) if i not in left_out))
            for left_out in itertools.combinations(range(12), n_missing)
        }
        most = max(ways.values())
        places = [
            sorted({line - before for before, line in enumerate(left_out)})
            for left_out, sure in ways.items()
            if sure > most - 1e-9
        ]
        assert partings(source, target) in places


MANY = [[f"{side[n % 1000]} {side[n * 7 % 997]}" for n in range(20_000)] for side in (PLAIN.source, PLAIN.target)]


class Counted(list[str]):
    """Lines that know how many of them were read."""

    n_read = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.n_read += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self):
        raise AssertionError("all lines were read")


@given(
    st.lists(st.integers(0, 19_999), min_size=1, max_size=3, unique=True).map(sorted),
    st.sampled_from([1, 1, 2, 30, 3000]),
    st.booleans(),
)
@settings(max_examples=10)
@example([19_999], 1, False)
@example([0], 1, True)
@example([0, 17184], 1, False)
@example([0, 3000, 14042], 2, False)
@example([0, 14300, 17782], 2, False)
@example([2144, 15892, 19384], 2, True)
def test_of_many_lines_few_are_read_and_the_places_are_found_all_the_same(
    places: list[int], n_missing: int, in_source: bool
) -> None:
    """A line that was missing among a million took a minute and a gigabyte."""
    texts = [list(side) for side in MANY]
    places = [place for place in places if place - places[0] in (0, *range(3000, 20_000))]
    places = places if n_missing < 3 else places[:1]
    for place in reversed(places):
        del texts[0 if in_source else 1][place : place + n_missing]
    source, target = map(Counted, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shifts, "MOST_COMPARED", 2000)
        found = partings(source, target)
    expected = {place - number * n_missing for number, place in enumerate(places)}
    assert all(min(abs(one - place) for one in found) <= NEAR for place in expected)
    assert all(min(abs(one - place) for place in expected) <= NEAR for one in found)
    assert max(source.n_read, target.n_read) < 2000 * 5


def test_many_lines_that_are_no_translations_of_each_other_part_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifts, "MOST_COMPARED", 200)
    assert partings(SOURCE, random.Random(1).sample(TARGET, 490)) == []


def test_texts_that_are_no_translations_of_each_other_part_nowhere() -> None:
    others = random.Random(1).sample(TARGET, 490)
    assert partings(SOURCE, others) == partings([], ["a"]) == partings(["a"], []) == []
    assert shifted(SOURCE[:490], others) is None


@given(st.integers(0, 400), st.integers(100, 150), st.sampled_from([1, -1, 2, -2, 3, -3]))
@settings(max_examples=60)
def test_a_stretch_that_is_off_by_a_few_lines_is_found_although_the_counts_agree(start: int, n: int, by: int) -> None:
    """Lines are missing at one end of the stretch, and as many are too many at the other end."""
    end = min(start + n, 500)
    part, new = TARGET[start:end], ["so it is"] * abs(by)
    moved = [*new, *part[:-by]] if by > 0 else [*part[-by:], *new]
    found = shifted(SOURCE, TARGET[:start] + moved + TARGET[end:])
    assert isinstance(found, Shift)
    assert found.by == by
    assert abs(found.first - start) <= NEAR
    assert abs(found.last - end) <= NEAR


@given(st.permutations(range(500)))
@settings(max_examples=20)
def test_text_in_order_is_not_called_shifted(order: list[int]) -> None:
    assert shifted([SOURCE[i] for i in order], [TARGET[i] for i in order]) is None


@pytest.mark.parametrize("lines", [[], ["a"], [""] * 9, ["the same line"] * 999, [str(n) for n in range(999)]])
def test_monotonous_text_is_not_called_shifted(lines: list[str]) -> None:
    assert shifted(lines, lines) is None


@pytest.mark.parametrize("n_lines", [9, 999])
def test_pages_that_are_numbered_anew_are_not_called_shifted(n_lines: int) -> None:
    source, target = ([f"{word} {n + offset}." for n in range(n_lines)] for word, offset in (("Seite", 0), ("Page", 1)))
    assert shifted(source, target) is None


@pytest.mark.parametrize(("seed", "source"), [(1, "en"), (1, "de"), (2, "en"), (2, "de")])
def test_a_few_very_short_lines_among_long_ones_are_not_called_shifted(seed: int, source: str) -> None:
    """The phrasebook with reasons begins with `Goodbye` and `Yes.`, which any short line once seemed to translate."""
    assert shifted(*styled(reasoning(seed).train, source=source, seed=seed)) is None


@cache
def reasoning(seed: int) -> Phrasebook:
    return phrasebook(n_pairs=5000, seed=seed, reasons=0.8)


def test_real_text_is_not_called_shifted(multi30k: Path) -> None:
    pairs = parallel(multi30k / "train.de", multi30k / "train.en")
    assert shifted(pairs.source, pairs.target) is None
    draw = random.Random(1)
    for _ in range(4):
        start, place = draw.randrange(27_000), draw.randrange(5, 1495)
        source, target = pairs.source[start : start + 1500], pairs.target[start : start + 1500]
        assert shifted(source, target) is None
        del target[place]
        [found_at] = partings(source, target)
        assert abs(found_at - place) <= NEAR
    by_two = [*pairs.target[:2000], "So it is.", "What?", *pairs.target[2000:4998]]
    found = shifted(pairs.source[:5000], by_two)
    assert found is not None
    assert found.by == 2
    assert abs(found.first - 2000) <= NEAR


def test_unequal_files_are_refused_with_the_place_and_what_stands_there(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("".join(f"{line}\n" for line in SOURCE), encoding="utf-8")
    (tmp_path / "a.en").write_text("".join(f"{line}\n" for line in TARGET[:50] + TARGET[51:]), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        parallel(tmp_path / "a.de", tmp_path / "a.en")
    assert "a.de has 500 lines, a.en has 499" in caught.value.message
    assert "line 51," in caught.value.message
    assert f"51: {SOURCE[50]}" in caught.value.message
    assert f"51: {TARGET[51]}" in caught.value.message
    assert "More lines" not in caught.value.message


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ([*TARGET, "", " "], "has 502", "a.en has nothing but blanks after line 500"),
        ([], "has 0", "a.en is empty: restore it"),
        (TARGET[:-3], "They seem to match up to line 497, where the shorter one ends", "delete the end of a.de"),
        (random.Random(1).sample(TARGET, 490), "has 490", "too little tells which of their lines"),
        (["\r".join(TARGET)], "has 1", "as many lines too few: make them line feeds, by `tr '\\r' '\\n' < OLD > NEW`"),
        ([TARGET[0] + "\r" + TARGET[1], *TARGET[2:]], "has 499", "a.en has 1 carriage return within lines"),
        ([TARGET[0] + "\r" + TARGET[1], *TARGET[2:-3]], "has 496", "look around that line"),
    ],
)
def test_the_hint_of_unequal_files_is_true(target: list[str], message: str, hint: str, tmp_path: Path) -> None:
    """It named an empty last line whatever the texts were."""
    for name, lines in (("a.de", SOURCE), ("a.en", target)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        parallel(tmp_path / "a.de", tmp_path / "a.en")
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(("first", "n"), [(0, 1), (9, 1), (9, 3), (29, 1)])
def test_what_is_missing_of_two_equal_texts_is_found_however_short_they_are(first: int, n: int, tmp_path: Path) -> None:
    """A translation that is right, beside its reference: no line of it looked like a translation."""
    lines = [first_letter + second for first_letter in "abcde" for second in "fghijk"]
    texts = lines, lines[:first] + lines[first + n :]
    left, right = texts if n == 1 else texts[::-1]
    place = (
        "up to line 29, where the shorter one ends" if first == 29 else f"up to about line {first + 1}, and no longer"
    )
    assert place in unequal(tmp_path / "a", tmp_path / "b", left, right).message


def test_a_second_place_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("".join(f"{line}\n" for line in SOURCE), encoding="utf-8")
    rest = TARGET[:50] + TARGET[51:300] + TARGET[301:]
    (tmp_path / "a.en").write_text("".join(f"{line}\n" for line in rest), encoding="utf-8")
    with pytest.raises(DataError, match=r"More lines seem to be missing at about line (29\d|30\d)\."):
        parallel(tmp_path / "a.de", tmp_path / "a.en")
