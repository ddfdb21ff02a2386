"""What is suspicious in parallel text: counted, with the lines where it is. Nothing is changed or left out here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli.data.corpus import EMPTY_BOTH, EMPTY_SOURCE, EMPTY_TARGET, Corpus, why_empty
from transformer_cli.data.shifts import shifted
from transformer_cli.errors import DataError

EXAMPLES = 5
"""Lines that a finding names."""
MOST_RATIO = 2.5
"""Of the two lengths of a pair, beside the usual one of its text."""
SMOOTHING = 20
"""Characters added to lengths before they are compared: short lines vary most."""

Hashes = npt.NDArray[np.int64]

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Joiners do their work in Persian, in Indian scripts and in emoji; first, or behind a Latin letter, they have none.
# So do tags behind a black flag, which make it England's.
_ZERO_WIDTH = re.compile(
    "[\u00ad\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001]"
    "|(?:^|[\x00-\u024f])[\u200c\u200d]"
    "|(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0020-\U000e007f]"
)
# Overrides show letters in another order than they have; the other marks have work to do beside Arabic and Hebrew.
_OVERRIDE = re.compile("[\u202d\u202e]")
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202c\u2066-\u2069]")


@dataclass(frozen=True)
class Finding:
    """Something suspicious. text: in which one. n: lines that are so. lines: the first of them, counted from 1; none
    where the text as a whole is meant.
    """

    text: str
    what: str
    n: int
    lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        numbers = ", ".join(f"{line:,}" for line in self.lines) + ", ..." * (self.n > len(self.lines))
        return f"{self.text}, {self.what}: {self.n:,}" + f" (line {numbers})" * bool(self.lines)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def refuse(found: Iterable[object]) -> None:
    """DataError that lists what is suspicious, where anything is."""
    if lines := [f"  {one}" for one in found]:
        raise DataError("\n".join(["the text is suspicious:", *lines]), hint="mend it, or go without --strict")


def check_all(texts: Mapping[str, Corpus]) -> list[Finding]:
    """Each text by itself, and beside every one before it: what is learned from must not be tested with."""
    names = list(texts)
    found = [finding for name in names for finding in check(name, texts[name])]
    for index, name in enumerate(names):
        for earlier in names[:index]:
            found += overlap(name, texts[name], earlier, _pairs(texts[earlier]))
    return found


def check(name: str, corpus: Corpus) -> list[Finding]:
    """What is suspicious within one text."""
    found = changes(name, corpus.counts)
    for what, is_so in PAIRS.items():
        found += _finding(name, what, [line for line, pair in enumerate(_pairs(corpus)) if is_so(*pair)])
    found += _finding(name, "lengths unlike the other side's", _misfits(corpus))
    found += _finding(name, "repeated pairs", _repeated(_hashes(_pairs(corpus)), _with_text(corpus.source)))
    if stretch := shifted(corpus.source, corpus.target):
        where = "down" if stretch.by > 0 else "up"
        lines = ("one line", "two lines", "three lines")[abs(stretch.by) - 1]
        what = f"lines that seem to be translated {lines} further {where}"
        found += _finding(name, what, range(stretch.first, stretch.last + 1))
    return found


def changes(text: str, counts: Mapping[str, int]) -> list[Finding]:
    """What reading a text had to change. counts: lines, by reason."""
    return [Finding(text, reason, n) for reason, n in counts.items()]


def overlap(name: str, corpus: Corpus, other_name: str, others: Iterable[tuple[str, str]]) -> list[Finding]:
    """The lines of a text that another one has, too: as a pair, or with another translation. Of the others, which may
    be many and are read once, no more is kept than that."""
    asked = {pair for pair in _pairs(corpus) if pair[0].strip()}
    asked_sources = {source for source, _ in asked}
    pairs, sources = set(), set()
    for pair in others:
        if pair[0] in asked_sources:
            sources.add(pair[0])
            if pair in asked:
                pairs.add(pair)
    shared = [line for line, pair in enumerate(_pairs(corpus)) if pair in pairs]
    elsewhere = [line for line, pair in enumerate(_pairs(corpus)) if pair[0] in sources and pair not in pairs]
    return [
        *_finding(name, f"pairs that {other_name} has, too", shared),
        *_finding(name, f"sources that {other_name} has, with another target", elsewhere),
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


def _misfits(corpus: Corpus) -> npt.NDArray[np.intp]:
    """Pairs of which one side is more than two and a half times as long as the other makes one expect."""
    lengths = [np.array([len(line) for line in side]) + SMOOTHING for side in (corpus.source, corpus.target)]
    full = _with_text(corpus.source) & _with_text(corpus.target)
    if not full.any():
        return np.flatnonzero(full)
    ratios = lengths[1] / lengths[0]
    ratios /= np.median(ratios[full])
    return np.flatnonzero(full & ((ratios > MOST_RATIO) | (ratios < 1 / MOST_RATIO)))


def _pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    return zip(corpus.source, corpus.target, strict=True)


def _hashes(items: Iterable[Hashable]) -> Hashes:
    """64 bits of each, so that a million lines take eight megabytes; two in so many are never the same by chance."""
    return np.fromiter(map(hash, items), dtype=np.int64)


def _repeated(hashes: Hashes, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """All but the first of each kind."""
    order = np.argsort(hashes, kind="stable")
    again = np.concatenate([[False], hashes[order][1:] == hashes[order][:-1]]) if len(order) else order.astype(bool)
    repeated = np.sort(order[again])
    return repeated[counted[repeated]]


def _with_text(lines: Sequence[str]) -> npt.NDArray[np.bool_]:
    return np.array([bool(line.strip()) for line in lines], dtype=bool)


def _finding(text: str, what: str, lines: Sequence[int] | npt.NDArray[np.intp]) -> list[Finding]:
    """A list of one, or of none where there are no lines."""
    return [Finding(text, what, len(lines), tuple(int(i) + 1 for i in lines[:EXAMPLES]))] if len(lines) else []
