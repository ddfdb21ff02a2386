"""Where two texts that should match line by line stop doing so.

The evidence that two lines match is how much likelier they are as a translation than as lines drawn at random, by their
lengths (Gale and Church 1993), their words, the numbers in them, and the mark at their ends.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.partners import Partners
from transformer_cli.data.text import BLOCK
from transformer_cli.errors import DataError
from transformer_cli.wording import counted

Floats = npt.NDArray[np.float64]

VARIANCE = 6.8
"""Of the length of a translation, for each character of its source: Gale and Church's."""
KEPT = 0.9
"""How often a translation keeps the numbers of its source, or the kind of mark at its end; else it has any other."""
WIDER = 3.0
"""How many times the deviation of all lines' lengths that of one line in ten is."""
MOST_PLACES = 20
"""As many missing lines may each be missing at a place of its own; more are looked for at one place."""
MOST_COMPARED, FEWEST_COMPARED = 20_000, 8
"""Lines of the longer text that are looked at together; and one after the other, where they are some of its lines."""
MOST_LINES = 3
"""That a stretch is looked for further up and down."""
SURE, SURE_OTHERWISE = 25.0, 5.0
"""Evidence, in nats, from which on it is believed; and how much of it must not be in the numbers."""

WIDTH_SHOWN = 70
"""Characters of a line that an error shows."""

_NUMBERS = re.compile(r"\d+")
_MARKS = {mark: kind for kind, marks in enumerate((".。।", "?？؟", "!！", ":：;；", ",，、"), 1) for mark in marks}


@dataclass(frozen=True)
class Shift:
    """A stretch of the source, `first` to `last` (indices), whose translation stands `by` lines further down."""

    first: int
    last: int
    by: int


def partings(source: Sequence[str], target: Sequence[str]) -> list[int]:
    """Of texts of unequal length, the indices in the shorter one before which lines are missing; none where they do
    not look like translations at all.

    Of all ways to leave out lines of the longer text in order to match the shorter, the one with the most evidence; of
    more lines than MOST_COMPARED first by some from all over the text, then by all around each place.
    """
    n_lines = min(len(source), len(target))
    return sorted(set(_changes(source, target, range(n_lines), range(abs(len(target) - len(source)) + 1))))


def _changes(source: Sequence[str], target: Sequence[str], lines: range, steps: range) -> list[int]:
    """The indices, among these lines of the shorter text, from which on they match one step further down the longer:
    one for each of the steps but the first, or for all at once where they are many; none as above."""
    if not lines:
        return []
    taken = _Taken.of(lines, steps)
    shorter, longer = (source, target) if len(source) < len(target) else (target, source)
    here, there = taken.of_shorter(shorter), taken.of_longer(longer)
    is_turned = len(source) > len(target)
    sides = (there, here) if is_turned else (here, there)
    evidence = Evidence(*sides, steps={-offset if is_turned else offset for offset in taken.offsets})
    n_rows = len(here)

    def summed(offset: int) -> Floats:
        """(n + 1) evidence for the first rows of the shorter text, matched `offset` rows further down the longer."""
        one, other = (offset, 0) if is_turned else (0, offset)
        found = evidence.of(slice(one, one + n_rows), slice(other, other + n_rows))
        return _sums(np.where(taken.is_compared, found, 0.0))

    best, came_from = summed(0), []
    for offset in taken.offsets[1:]:
        here_on = summed(offset)
        most = np.maximum.accumulate(best - here_on)
        rises = np.diff(most, prepend=-np.inf) > 0
        came_from.append(np.maximum.accumulate(np.where(rises, np.arange(n_rows + 1), 0)))
        best = here_on + most
    if best[-1] < SURE:
        return []
    rows = [n_rows]
    for origin in reversed(came_from):
        rows.insert(0, int(origin[rows[0]]))
    rows.pop()
    if len(taken.starts) == 1:
        return [lines.start + row for row in rows]
    return _refined(source, target, taken, rows)


def _refined(source: Sequence[str], target: Sequence[str], taken: _Taken, rows: Sequence[int]) -> list[int]:
    """The same, of rows between which there are lines that nobody looked at: by all lines around each."""
    found: list[int] = []
    while len(found) < len(rows):
        first = last = len(found)
        around = taken.around(rows[first])
        while last + 1 < len(rows) and taken.around(rows[last + 1]).start < around.stop:
            last += 1
            around = range(around.start, taken.around(rows[last]).stop)
        coarse = [taken.line(row) for row in rows[first : last + 1]]
        steps = taken.steps
        if len(rows) == len(steps) - 1:
            steps = steps[first : last + 2]
        # Were all of them near each other's, nothing would be gained.
        closer = _changes(source, target, around, steps) if len(around) < len(taken.lines) // 2 else []
        found += closer if len(closer) == len(coarse) else coarse
    return found


@dataclass(frozen=True)
class _Taken:
    """Rows that stand for lines of two texts: blocks of `size` of the shorter, which begin at `starts`, each with as
    many rows of the longer as it takes to match it at every step.

    Of the shorter, the rows between two blocks are lines, too, but not compared.
    """

    lines: range
    steps: range
    starts: Sequence[int]
    size: int

    @classmethod
    def of(cls, lines: range, steps: range) -> _Taken:
        """All lines, or some from all over them."""
        whole = cls(lines, steps, [lines.start], len(lines))
        if whole.width <= MOST_COMPARED:
            return whole
        some = cls(lines, steps, [], max(FEWEST_COMPARED, min(len(steps), MOST_PLACES)))
        starts = np.linspace(lines.start, lines.stop - some.size, MOST_COMPARED // some.width).astype(np.int64)
        return cls(lines, steps, starts.tolist(), some.size)

    @property
    def is_far(self) -> bool:
        """Whether only the first step and the last are looked at."""
        return len(self.steps) > MOST_PLACES + 1

    @property
    def width(self) -> int:
        """Rows of a block in the longer text."""
        return 2 * self.size if self.is_far else self.size + len(self.steps) - 1

    @property
    def offsets(self) -> list[int]:
        """By how many rows lines that match are apart, step by step."""
        return [0, self.size] if self.is_far else [*range(len(self.steps))]

    @property
    def is_compared(self) -> npt.NDArray[np.bool_]:
        """Of the rows of the shorter text."""
        n_rows = len(self.starts) * self.width - (self.width - self.size)
        compared: npt.NDArray[np.bool_] = np.arange(n_rows) % self.width < self.size
        return compared

    def of_shorter(self, text: Sequence[str]) -> list[str]:
        rows: list[str] = []
        for start in self.starts:
            block = text[start : start + self.size]
            rows += [*block, *(block if self.is_far else text[start + self.size : start + self.width])]
        return rows[: len(self.is_compared)]

    def of_longer(self, text: Sequence[str]) -> list[str]:
        rows: list[str] = []
        for start in self.starts:
            first, last = start + self.steps[0], start + self.steps[-1]
            if self.is_far:
                rows += [*text[first : first + self.size], *text[last : last + self.size]]
            else:
                rows += text[first : first + self.width]
        return rows

    def line(self, row: int) -> int:
        """The line before which something changes when it does so before that row."""
        block, place = divmod(row, self.width)
        return self.starts[block] + min(place, self.size) if block < len(self.starts) else self.lines.stop

    def around(self, row: int) -> range:
        """Lines among which that line surely is, and enough of them to learn from."""
        block, n_least = row // self.width, MOST_COMPARED // 8
        first = min(self.starts[max(block - 3, 0)], self.line(row) - n_least)
        last = max(self.starts[min(block + 4, len(self.starts) - 1)], self.line(row) + n_least)
        is_last = block + 4 >= len(self.starts)
        return range(max(first, self.lines.start), self.lines.stop if is_last else min(last, self.lines.stop))


def unequal(source: Path, target: Path, left: Sequence[str], right: Sequence[str]) -> DataError:
    """Both counts, and the place where a line seems to be missing."""
    message = (
        f"{source.name} has {counted(len(left), 'lines')}, {target.name} has {len(right):,}: parallel files must match "
        f"line by line.\n  first file: {files.shown(source)}   second file: {files.shown(target)}"
    )
    n_lines = min(len(left), len(right))
    longer, lines = (source, left) if len(left) > n_lines else (target, right)
    rest = (lines[first : first + BLOCK] for first in range(n_lines, len(lines), BLOCK))
    if not any(line.strip() for block in rest for line in block):
        return DataError(
            message, hint=f"{longer.name} has nothing but blanks after line {n_lines:,}: delete those lines"
        )
    if not n_lines:
        return DataError(message, hint=f"{(source if not left else target).name} is empty: restore it")
    shorter, lines = (target, right) if longer is source else (source, left)
    n_returns = sum(line.count("\r") for first in range(0, n_lines, BLOCK) for line in lines[first : first + BLOCK])
    if n_returns and n_lines + n_returns == max(len(left), len(right)):
        within = f"{shorter.name} has {counted(n_returns, 'carriage returns')} within lines, and as many lines too few"
        return DataError(
            message,
            hint=f"{within}: make them line feeds" + ", by `tr '\\r' '\\n' < OLD > NEW`" * (n_lines == 1),
        )
    places = _where_equal_lines_end(left, right) or partings(left, right)
    if not places:
        return DataError(
            message,
            hint="nothing shows where: too little tells which of their lines are translations of each other",
        )
    if places == [n_lines]:
        message += f"\n  They seem to match up to line {n_lines:,}, where the shorter one ends."
        return DataError(message, hint=f"look for what should follow there, or delete the end of {longer.name}")
    place, *others = [place for place in places if place < n_lines]
    number = f"{place + 1:,}"
    message += f"\n  They seem to match up to about line {number}, and no longer from there on:"
    for lines in (left, right):
        message += f"\n    {number}: {textwrap.shorten(lines[place], WIDTH_SHOWN, placeholder=' ...')}"
    if others:
        message += f"\n  More lines seem to be missing at about line {', '.join(f'{other + 1:,}' for other in others)}."
    return DataError(message, hint="look around that line for one that is missing in one file, or extra in the other")


def _where_equal_lines_end(left: Sequence[str], right: Sequence[str]) -> list[int]:
    """The same for two texts in one language, as references and translations are, that are alike but for the lines
    that one has more, all at one place."""
    shorter, longer = sorted((left, right), key=len)
    n_lines, n_more = len(shorter), len(longer) - len(shorter)
    first = next((place for place in range(n_lines) if shorter[place] != longer[place]), n_lines)
    rest_is_equal = all(shorter[place] == longer[place + n_more] for place in range(first, n_lines))
    return [first] if rest_is_equal else []


def shifted(source: Sequence[str], target: Sequence[str]) -> Shift | None:
    """Of texts of equal length, the stretch that matches better when moved by a few lines, if that is sure.

    The one with the greatest sum of differences in evidence; the lines must match where they are moved to, too, and not
    by their numbers alone: pages may be numbered anew.
    """
    n_lines = len(source)
    evidence = Evidence(source, target)
    aligned = evidence.of(slice(0, n_lines), slice(0, n_lines))
    found, most = None, SURE
    for by in (by for lines in range(1, MOST_LINES + 1) for by in (lines, -lines)):
        if abs(by) >= n_lines:
            break
        first, last = max(0, -by), n_lines - max(0, by)  # of the lines that have a partner there
        moved = evidence.of(slice(first, last), slice(first + by, last + by))
        sums = _sums(moved - aligned[first:last])
        gained = sums - np.minimum.accumulate(sums)
        end = int(gained.argmax())
        start = int(sums[: end + 1].argmin())
        here, there = slice(first + start, first + end), slice(first + start + by, first + end + by)
        otherwise = evidence.of(here, there, numbers=False) - evidence.of(here, here, numbers=False)
        if gained[end] > most and moved[start:end].sum() > SURE and otherwise.sum() > SURE_OTHERWISE:
            found, most = Shift(first + start, first + end - 1, by), float(gained[end])
    return found


class Evidence:
    """What is known of each line of two texts."""

    def __init__(self, source: Sequence[str], target: Sequence[str], *, steps: Iterable[int] | None = None) -> None:
        """steps: see Partners; by default, as far as the one text is longer."""
        lengths = [np.array([len(line) for line in text], dtype=np.float64) + 1 for text in (source, target)]
        ratio = max(lengths[1].sum(), 1) / max(lengths[0].sum(), 1)
        self.expected = np.log(lengths[0] * ratio)
        self.variance = VARIANCE / lengths[0] + 0.01
        self.found = np.log(lengths[1])
        self.mean, self.spread = (
            (float(self.found.mean()), float(self.found.var()) + 0.02) if len(target) else (0.0, 1.0)
        )
        self.partners = Partners(source, target, steps=sorted(steps or {0, len(target) - len(source)}))
        self.kinds = [  # of numbers, then of marks
            _Kinds.of([_numbers(line) for line in source], [_numbers(line) for line in target]),
            _Kinds.of([_mark(line) for line in source], [_mark(line) for line in target]),
        ]

    def of(self, source: slice, target: slice, *, numbers: bool = True) -> Floats:
        """The evidence, in nats, that these lines match one by one; with or without that of their numbers."""
        error, variance = self.found[target] - self.expected[source], self.variance[source]
        matching = -0.5 * (np.log(variance) + error**2 / variance)
        apart, wide = (self.found[target] - self.mean) ** 2, WIDER**2 * self.spread
        random = np.logaddexp(
            np.log(KEPT) - 0.5 * (np.log(self.spread) + apart / self.spread),
            np.log(1 - KEPT) - 0.5 * (np.log(wide) + apart / wide),
        )
        # One translation in ten has any length, so that no odd pair outweighs all others; and one line in ten is much
        # shorter or longer than the rest, so that two of those are no wonder.
        by_length = np.log(KEPT * np.exp(matching - random) + 1 - KEPT)
        by_words = self.partners.evidence(target.start - source.start)[source]
        kinds = self.kinds if numbers else self.kinds[1:]
        evidence: Floats = by_length + by_words + sum(kind.evidence(source, target) for kind in kinds)
        return evidence


@dataclass(frozen=True)
class _Kinds:
    """Lines sorted into kinds. kept: for each line of the target, the evidence of a source of the same kind."""

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    kept: Floats

    @classmethod
    def of(cls, source: Sequence[int], target: Sequence[int]) -> _Kinds:
        kinds = np.array(target, dtype=np.int64)
        _, place, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        share = counts[place] / max(len(kinds), 1)
        return cls(np.array(source, dtype=np.int64), kinds, np.log(KEPT / share + 1 - KEPT))

    def evidence(self, source: slice, target: slice) -> Floats:
        same = self.source[source] == self.target[target]
        return np.where(same, self.kept[target], np.log(1 - KEPT))


def _sums(values: Floats) -> Floats:
    """(n + 1) of the first values, from none of them on."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _numbers(line: str) -> int:
    """The same for lines with the same numbers, in whatever order and however grouped; 0 for none."""
    found = _NUMBERS.findall(line)
    return hash("".join(sorted("".join(found)))) if found else 0


def _mark(line: str) -> int:
    """The kind of the mark that ends a line; 0 for none."""
    stripped = line.rstrip()
    return _MARKS.get(stripped[-1], 0) if stripped else 0
