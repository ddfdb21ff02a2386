"""What is suspicious in parallel text: counted, with the lines where it is. Nothing is changed or left out here."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli.config.data import Direction
from transformer_cli.data.corpus import EMPTY, EMPTY_BOTH, EMPTY_SOURCE, EMPTY_TARGET, Corpus, why_empty
from transformer_cli.data.fingerprints import Numbers, fingerprints, is_among
from transformer_cli.data.shifts import MOST_LINES, Shift, shifted
from transformer_cli.data.text import BLOCK, as_text, where_in_words
from transformer_cli.errors import DataError
from transformer_cli.writing import JOINED, SOUTH_EAST_ASIAN, WordCounter

EXAMPLES = 5
"""Lines that a finding names."""
MOST_RATIO = 2.5
"""Of the two lengths of a pair, beside the usual one of its text."""
SMOOTHING = 20
"""Characters added to lengths before they are compared: short lines vary most."""

AT_ONCE = 200_000
"""Pairs, of all texts together, that take but seconds to look through."""

WINDOW = 100_000
"""Lines that are looked at together for a stretch that is shifted."""

LINES_OF_A_LANGUAGE, WORDS_OF_A_LANGUAGE = 2_000, 500
"""So many lines where a text begins, or some more, and their most frequent words tell which language it is in."""
SWAPPED = 0.3
"""Of those of either side, how many more the other text's other side has."""

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Joiners do their work in Persian, also between a Latin word and its ending, in Indian scripts and in emoji; first, or
# behind another Latin letter, they have none. So do tags behind a black flag, which make it England's. Scripts of South
# East Asia have U+200B between words and U+2060 where no line breaks; in Mongolian U+180E stands before a last vowel.
_ZERO_WIDTH = re.compile(
    f"(?<![{SOUTH_EAST_ASIAN}])[\u200b\u2060](?![{SOUTH_EAST_ASIAN}])"
    "|(?<![\u1800-\u18af])\u180e"
    "|[\u00ad\u2061-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001]"
    f"|(?:^|[\x00-\u0020\u00a0])[\u200c\u200d]|[\x21-\u024f][\u200c\u200d](?![{JOINED}])"
    "|(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0020-\U000e007f]"
)
# Overrides show letters in another order than they have; the other marks have work to do beside Arabic and Hebrew.
_OVERRIDE = re.compile("[\u202d\u202e]")
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202c\u2066-\u2069]")


@dataclass(frozen=True)
class Finding:
    """Something suspicious. text: in which one. n: lines that are so. lines: the first of them, by their numbers where
    they lie, from 1; none where the text as a whole is meant. where: the same with their files, if those are several or
    another text's.
    """

    text: str
    what: str
    n: int
    lines: tuple[int, ...] = ()
    where: str = ""

    def __str__(self) -> str:
        first = self.where or f"line{'s' * (len(self.lines) > 1)} {', '.join(f'{line:,}' for line in self.lines)}"
        more = ", ..." * (self.n > len(self.lines))
        return f"{self.text}, {self.what}: {self.n:,}" + f" ({first}{more})" * bool(self.lines)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def refuse(found: Iterable[object]) -> None:
    """DataError that lists what is suspicious, where anything is."""
    if lines := [f"  {one}" for one in found]:
        raise DataError("\n".join(["the text is suspicious:", *lines]), hint="mend it, or go without --strict")


def in_passing(texts: Mapping[str, Corpus]) -> tuple[str, bool]:
    """What is suspicious, for who asked for something else; nothing where nothing is. Of many pairs: that nobody
    looked. And whether somebody did, so that what was changed and left out is told, too."""
    n = sum(map(len, texts.values()))
    if n > AT_ONCE:
        many = f"{n:,} pairs are too many to be looked through in passing: --dry-run says what is suspicious in them"
        return many, False
    found = [
        f"  {finding}" + ", left out" * (finding.text == "train" and finding.what in EMPTY)
        for finding in check_all(texts)
    ]
    suspicious = "the text is suspicious (with --strict nothing would be trained):"
    return "\n".join([suspicious, *found]) if found else "", True


def check_all(texts: Mapping[str, Corpus]) -> list[Finding]:
    """Each text by itself, and beside every one before it: what is learned from must not be tested with."""
    return findings({name: Looked(corpus) for name, corpus in texts.items()})


def findings(texts: Mapping[str, Looked]) -> list[Finding]:
    """The same of texts that were looked at."""
    names = list(texts)
    found = [finding for name in names for finding in texts[name].findings(name)]
    for index, name in enumerate(names):
        for earlier in names[:index]:
            if earlier == "train" and (n := texts[name].n_swapped_beside(texts[earlier])):
                words = f"source and target seem to be swapped, or those of {earlier} are"
                found.append(Finding(name, words, n))
            found += overlap(name, texts[name], earlier, texts[earlier].sorted_numbers())
    return found


def check(name: str, corpus: Corpus) -> list[Finding]:
    """What is suspicious within one text."""
    return Looked(corpus).findings(name)


def changes(text: str, counts: Mapping[str, int]) -> list[Finding]:
    """What reading a text had to change. counts: lines, by reason."""
    return [Finding(text, reason, n) for reason, n in counts.items()]


class Looked:
    """What is known of a text after one pass over it; of its lines no more is kept than numbers."""

    def __init__(self, corpus: Corpus) -> None:
        sides, n = (as_text(corpus.source), as_text(corpus.target)), len(corpus)
        self.source = sides[0]
        """To tell where its lines lie."""
        self.counts = corpus.counts
        self.pairs = {what: array("q") for what in PAIRS}
        """Where each of PAIRS is so."""
        self.lengths = np.empty((2, n), dtype=np.int32)
        """(2, N) characters."""
        self.with_text = np.empty((2, n), dtype=bool)
        self.numbers = np.empty((2, n), dtype=np.uint64)
        """See fingerprints.py."""
        self.words = np.zeros(2, dtype=np.int64)
        self.words_alone = np.zeros(2, dtype=np.int64)
        """Of those the words beside a line without text."""
        self.stretches = _stretches(corpus)
        vocabularies: dict[Direction | None, list[Counter[str]]] = {}
        self.shifts: list[Shift] = []
        for start, stop, direction in self.stretches:
            vocabulary = vocabularies.setdefault(direction, [Counter(), Counter()])
            windows = np.linspace(start, stop, -(-(stop - start) // WINDOW) + 1).astype(np.int64).tolist()
            for begin, end in pairwise(windows):
                window: tuple[list[str], list[str]] = ([], [])
                for first in range(begin, end, BLOCK):
                    block = [text.utf8(first, min(first + BLOCK, end)) for text in sides]
                    counted = vocabulary if first - start < LINES_OF_A_LANGUAGE else ()
                    for lines, found in zip(window, self._look(first, *block, vocabulary=counted), strict=True):
                        lines += found
                self._add_shift(shifted(*window), begin)
        self.frequent = {
            direction: [Counter(dict(words.most_common(WORDS_OF_A_LANGUAGE))) for words in both]
            for direction, both in vocabularies.items()
        }
        """How often either side has its most frequent words, in each direction."""

    def findings(self, name: str) -> list[Finding]:
        """What is suspicious."""
        found = changes(name, self.counts)
        for what, lines in self.pairs.items():
            found += self.finding(name, what, lines)
        found += self.finding(name, "lengths unlike the other side's", self._misfits())
        found += self.finding(name, "repeated pairs", self._repeated())
        for stretch in self.shifts:
            where = "down" if stretch.by > 0 else "up"
            lines_off = ("one line", "two lines", "three lines")[abs(stretch.by) - 1]
            what = f"lines that seem to be translated {lines_off} further {where}"
            found += self.finding(name, what, range(stretch.first, stretch.last + 1))
        return found

    def finding(self, name: str, what: str, places: Sequence[int] | npt.NDArray[np.intp]) -> list[Finding]:
        """A list of one, or of none where there are no such lines."""
        if not len(places):
            return []
        first = [int(place) for place in places[:EXAMPLES]]
        numbers = tuple(self.source.where(place)[1] for place in first)
        where = where_in_words(self.source, first) if self.source.has_files_to_name else ""
        return [Finding(name, what, len(places), numbers, where)]

    def _look(self, first: int, *block: bytes, vocabulary: Sequence[Counter[str]]) -> tuple[list[str], list[str]]:
        """The lines of both sides from that place on; the words of the first ones are counted."""
        texts = [data.decode("utf-8") for data in block]
        source, target = (text[:-1].split("\n") for text in texts)
        here = slice(first, first + len(source))
        for what, is_so in PAIRS.items():
            self.pairs[what].extend(
                line for line, pair in enumerate(zip(source, target, strict=True), first) if is_so(*pair)
            )
        for side, (text, lines) in enumerate(zip(texts, (source, target), strict=True)):
            self.lengths[side, here] = list(map(len, lines))
            self.with_text[side, here] = [bool(line.strip()) for line in lines]
            counts = _words(text)
            self.words[side] += counts.total()
            for frequent in vocabulary[side : side + 1]:
                frequent.update(counts)
        for side, lines in enumerate((source, target)):
            alone = np.flatnonzero(~self.with_text[1 - side, here])
            self.words_alone[side] += _words("\n".join(lines[place] for place in alone)).total()
        self.numbers[:, here] = fingerprints(*block)
        return source, target

    def places(self) -> dict[Direction | None, npt.NDArray[np.intp]]:
        """Of the pairs in each direction, in order."""
        return {
            direction: np.concatenate(
                [np.arange(first, end) for first, end, other in self.stretches if other == direction]
            )
            for direction in self.frequent
        }

    def sorted_numbers(self) -> dict[Direction | None, Numbers]:
        """Of the pairs in each direction, each row in order."""
        return {direction: np.sort(self.numbers[:, places]) for direction, places in self.places().items()}

    def n_swapped_beside(self, other: Looked) -> int:
        """How many pairs are in a direction whose either side has the words of the other one's other side, by far."""
        return sum(
            len(places)
            for direction, places in self.places().items()
            if direction in other.frequent and _is_swapped(self.frequent[direction], other.frequent[direction])
        )

    def _add_shift(self, found: Shift | None, begin: int) -> None:
        """found: of the window that begins there; it may go on with the one of the window before."""
        if found is None:
            return
        first, last = begin + found.first, begin + found.last
        before = self.shifts[-1] if self.shifts else None
        if before is not None and before.by == found.by and first - before.last <= 2 * MOST_LINES:
            self.shifts[-1] = Shift(before.first, last, found.by)
        else:
            self.shifts.append(Shift(first, last, found.by))

    def _misfits(self) -> npt.NDArray[np.intp]:
        """Pairs of which one side is more than two and a half times as long as the other makes one expect, in their
        direction."""
        full = self.with_text[0] & self.with_text[1]
        ratios = (self.lengths[1] + SMOOTHING) / (self.lengths[0] + SMOOTHING)
        for places in self.places().values():
            if (known := places[full[places]]).size:
                ratios[places] /= np.median(ratios[known])
        return np.flatnonzero(full & ((ratios > MOST_RATIO) | (ratios < 1 / MOST_RATIO)))

    def _repeated(self) -> npt.NDArray[np.intp]:
        """All but the first of each kind, in its direction."""
        found = [places[_again(self.numbers[1, places])] for places in self.places().values()]
        repeated = np.sort(np.concatenate(found))
        return repeated[self.with_text[0, repeated]]


def overlap(
    name: str, text: Looked, other_name: str, known: Mapping[Direction | None, Numbers], *, of_sources: bool = True
) -> list[Finding]:
    """The lines of a text that another one has, too, in their direction: as a pair, or, if of_sources, with another
    translation. known: the numbers of the other one's sources and pairs in each direction, each row in order."""
    sources, pairs = (np.zeros(len(text.with_text[0]), dtype=bool) for _ in range(2))
    for direction, places in text.places().items():
        for has, numbers, theirs in zip((sources, pairs), text.numbers, known.get(direction, ()), strict=False):
            has[places] = is_among(numbers[places], theirs) & text.with_text[0, places]
    return [
        *text.finding(name, f"pairs that {other_name} has, too", np.flatnonzero(pairs)),
        *text.finding(
            name, f"sources that {other_name} has, with another target", np.flatnonzero(sources & ~pairs & of_sources)
        ),
    ]


def _is(reason: str) -> Callable[[str, str], bool]:
    return lambda source, target: why_empty(source, target) == reason


def _has(pattern: re.Pattern[str]) -> Callable[[str, str], bool]:
    def found(source: str, target: str) -> bool:
        # Python knows most lines to be harmless without a search.
        return any(not text.isprintable() and pattern.search(text) is not None for text in (source, target))

    return found


def _turns(source: str, target: str) -> bool:
    return any(
        not text.isprintable()
        and (_OVERRIDE.search(text) or (_DIRECTION.search(text) and not any(map(_is_leftward, text))))
        for text in (source, target)
    )


def _is_leftward(char: str) -> bool:
    return unicodedata.bidirectional(char) in ("R", "AL") and char.isalpha()


PAIRS: dict[str, Callable[[str, str], bool]] = {
    EMPTY_SOURCE: _is(EMPTY_SOURCE),
    EMPTY_TARGET: _is(EMPTY_TARGET),
    EMPTY_BOTH: _is(EMPTY_BOTH),
    "control characters": _has(_CONTROL),
    "tabs": lambda source, target: "\t" in source or "\t" in target,
    "zero-width characters": _has(_ZERO_WIDTH),
    "characters that turn the direction of writing": _turns,
    "characters lost in decoding (U+FFFD)": lambda source, target: "\ufffd" in source or "\ufffd" in target,
    "source and target alike": lambda source, target: source == target and any(map(str.isalpha, source)),
}
"""What can be told from a pair alone; a check is one line here."""


def _stretches(corpus: Corpus) -> list[tuple[int, int, Direction | None]]:
    """Where each of its texts begins and ends, and in which direction that is, as far as it says so."""
    ends = [*accumulate(part.pairs for part in corpus.parts)] or [len(corpus)]
    directions = [part.direction for part in corpus.parts] or [None]
    return list(zip([0, *ends], ends, directions, strict=False))


def _again(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """All but the first of each kind."""
    order = np.argsort(numbers, kind="stable")
    return order[1:][numbers[order][1:] == numbers[order][:-1]]


def _is_swapped(one: Sequence[Counter[str]], other: Sequence[Counter[str]]) -> bool:
    """Whether either side has the words of the other one's other side, by far."""
    own, across = (
        [_known(words, there) for words, there in zip(one, sides, strict=True)] for sides in (other, other[::-1])
    )
    return all(far > near + SWAPPED for near, far in zip(own, across, strict=True))


def _words(text: str) -> Counter[str]:
    counter = WordCounter()
    counter.add(text)
    return counter.counts()


def _known(words: Counter[str], there: Counter[str]) -> float:
    """The share of running words that are there, too."""
    return sum(n for word, n in words.items() if word in there) / max(words.total(), 1)
