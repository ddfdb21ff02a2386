"""Where two texts that should match line by line stop doing so.

The evidence that two lines match is how much likelier they are as a translation than as lines drawn at random, by their
lengths (Gale and Church 1993), their words, the numbers in them, and the mark at their ends.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.partners import Partners
from transformer_cli.errors import DataError

Floats = npt.NDArray[np.float64]

VARIANCE = 6.8
"""Of the length of a translation, for each character of its source: Gale and Church's."""
KEPT = 0.9
"""How often a translation keeps the numbers of its source, or the kind of mark at its end; else it has any other."""
MOST_PLACES = 20
"""As many missing lines may each be missing at a place of its own; more are looked for at one place."""
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

    Of all ways to leave out lines of the longer text in order to match the shorter, the one with the most evidence.
    """
    n_lines, surplus = min(len(source), len(target)), len(target) - len(source)
    evidence = Evidence(source, target)

    def summed(step: int) -> Floats:
        """(n + 1) evidence for the shorter text's first lines, matched `step` lines further down the longer."""
        one, other = (0, step) if surplus > 0 else (step, 0)
        return _sums(evidence.of(slice(one, one + n_lines), slice(other, other + n_lines)))

    best, came_from = summed(0), []
    for step in range(1, abs(surplus) + 1) if abs(surplus) <= MOST_PLACES else [abs(surplus)]:
        here = summed(step)
        most = np.maximum.accumulate(best - here)
        rises = np.diff(most, prepend=-np.inf) > 0
        came_from.append(np.maximum.accumulate(np.where(rises, np.arange(n_lines + 1), 0)))
        best = here + most
    if best[-1] < SURE:
        return []
    places, place = set(), n_lines
    for origin in reversed(came_from):
        place = int(origin[place])
        places.add(place)
    return sorted(places)


def unequal(source: Path, target: Path, left: Sequence[str], right: Sequence[str]) -> DataError:
    """Both counts, and the place where a line seems to be missing."""
    message = (
        f"{source.name} has {len(left):,} lines, {target.name} has {len(right):,}: parallel files must match line by "
        f"line.\n  first file: {files.shown(source)}   second file: {files.shown(target)}"
    )
    n_lines = min(len(left), len(right))
    longer, rest = (source, left[n_lines:]) if len(left) > n_lines else (target, right[n_lines:])
    if not any(line.strip() for line in rest):
        return DataError(
            message, hint=f"{longer.name} has nothing but blanks after line {n_lines:,}: delete those lines"
        )
    places = partings(left, right)
    if not places:
        return DataError(message, hint="no place shows where: few of their lines look like translations of each other")
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
    return DataError(
        message, hint="look around that line for one that is missing in one file, or too much in the other"
    )


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

    def __init__(self, source: Sequence[str], target: Sequence[str]) -> None:
        lengths = [np.array([len(line) for line in text], dtype=np.float64) + 1 for text in (source, target)]
        ratio = max(lengths[1].sum(), 1) / max(lengths[0].sum(), 1)
        self.expected = np.log(lengths[0] * ratio)
        self.variance = VARIANCE / lengths[0] + 0.01
        self.found = np.log(lengths[1])
        self.mean, self.spread = (
            (float(self.found.mean()), float(self.found.var()) + 0.02) if len(target) else (0.0, 1.0)
        )
        self.partners = Partners(source, target, steps=sorted({0, len(target) - len(source)}))
        self.kinds = [  # of numbers, then of marks
            _Kinds.of([_numbers(line) for line in source], [_numbers(line) for line in target]),
            _Kinds.of([_mark(line) for line in source], [_mark(line) for line in target]),
        ]

    def of(self, source: slice, target: slice, *, numbers: bool = True) -> Floats:
        """The evidence, in nats, that these lines match one by one; with or without that of their numbers."""
        error, variance = self.found[target] - self.expected[source], self.variance[source]
        matching = -0.5 * (np.log(variance) + error**2 / variance)
        random = -0.5 * (np.log(self.spread) + (self.found[target] - self.mean) ** 2 / self.spread)
        # One translation in ten has any length, so that no odd pair outweighs all others.
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
