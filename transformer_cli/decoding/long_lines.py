"""A line that is too long becomes parts that are not: at sentence ends, else at clauses, else at spaces, else anywhere.

Nothing is lost: the parts, put together, are the line, but for white space where it was cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from transformer_cli.writing import begins_unspaced

_CLOSERS = "\"'»«”’›‹)\\]}」』）】〉》"
# Marks that a space follows (Latin, Greek, Arabic, Devanagari, ...), marks that need none, ends of paragraphs.
_SPACED = ".!?…\u037e؟۔।॥։።"
_SENTENCE_END = re.compile(  # looks behind, lest a row of marks is tried from each of them
    rf"(?P<spaced>(?<![{_SPACED}])[{_SPACED}]+[{_CLOSERS}]*)\s+"
    rf"|[。！？｡．]+[{_CLOSERS}]*\s*|[\v\f\x85\u2028\u2029]+\s*"
)
_CLAUSE_END = re.compile(rf"[,;:،؛–—][{_CLOSERS}]*\s+|\s[–—-]\s|[、，；：]+\s*")
_SPACE = re.compile(r"\s+")


def split(text: str, fits: Callable[[str], bool]) -> list[str]:
    """The sentences of a text, each cut further only where it does not fit.

    A single character stays whole, whether it fits or not.
    """
    return [part for sentence in sentences(text) for part in _fitting(sentence, fits)]


def join(parts: Sequence[str]) -> str:
    """One line again: a space between parts, but none between scripts that write without it."""
    line = ""
    for part in filter(None, parts):
        unspaced = line and _ends_unspaced(line) and begins_unspaced(part)
        line += part if not line or unspaced else f" {part}"
    return line


def sentences(text: str) -> list[str]:
    """A text cut at sentence ends, by marks alone: careful with what may be an abbreviation, a date or initials."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text) if _ends_sentence(match)]
    return list(_cut(text, ends))


def _ends_sentence(match: re.Match[str]) -> bool:
    """Not where a small letter follows, nor after one full stop behind a number or what may be short for something."""
    mark, text = match["spaced"], match.string
    if mark and text[match.end() : match.end() + 1].islower():
        return False
    if mark != ".":
        return True
    word = re.split(r"[\s(.]", text[max(0, match.start() - 20) : match.start()])[-1]
    return not (word.isdigit() or len(word) < 2 or (len(word) < 4 and word[0].isupper()))


def _fitting(text: str, fits: Callable[[str], bool]) -> Iterator[str]:
    if len(text) < 2 or fits(text):
        yield text
        return
    for half in _cut(text, [_middle(text)]):
        yield from _fitting(half, fits)


def _middle(text: str) -> int:
    """Where to cut a text in two: the clause end, else the space, nearest to its middle and not far from it."""
    length = len(text)
    for mark in (_CLAUSE_END, _SPACE):
        ends = [match.end() for match in mark.finditer(text, length // 4, length - length // 4)]
        if ends and 0 < (end := min(ends, key=lambda end: abs(end - length / 2))) < length:
            return end
    middle = length // 2
    later = range(middle, length - length // 4)
    return next((end for end in later if not _continues(text[end])), middle)


def _continues(char: str) -> bool:
    """Whether a character belongs to the one before it, on which it is written."""
    return unicodedata.category(char).startswith("M") or char == "\u200d"


def _ends_unspaced(line: str) -> bool:
    last = line.rstrip("。！？｡．…" + _CLOSERS.replace("\\", ""))[-1:]
    return begins_unspaced(last)


def _cut(text: str, ends: Sequence[int]) -> Iterator[str]:
    """The text between these places, without white space around it; nothing for what has no text."""
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        if part := text[start:end].strip():
            yield part
