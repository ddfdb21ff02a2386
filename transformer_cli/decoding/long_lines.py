"""A line that is too long, or of several sentences to a model that never saw two of them together, becomes parts: at
sentence ends, else at clauses, else at spaces, else anywhere.

Nothing is lost: the parts, put together, are the line, but for white space where it was cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from transformer_cli.writing import begins_unspaced

SAMPLE = 10_000
"""Lines that are enough to know how many sentences a line of a text has."""

_CLOSERS = "\"'»«”’›‹)\\]}」』）】〉》"
# Marks that a space follows (Latin, Greek, Arabic, Devanagari, ...), marks that need none, ends of paragraphs.
_SPACED = ".!?…\u037e؟۔।॥։።"
_SENTENCE_END = re.compile(  # looks behind, lest a row of marks is tried from each of them
    rf"(?P<spaced>(?<![{_SPACED}])[{_SPACED}]+[{_CLOSERS}]*)\s+"
    rf"|[。！？｡．]+[{_CLOSERS}]*\s*|[\v\f\x85\u2028\u2029]+\s*"
)
_CLAUSE_END = re.compile(rf"[,;:،؛–—][{_CLOSERS}]*\s+|\s[–—-]\s|[、，；：]+\s*")
_SPACE = re.compile(r"\s+")
_PLAIN_END = re.compile(r"[.\u037e۔।॥։።]|[!?؟]+")
# Words without a vowel, and others that are hardly ever the last of a sentence. By their letters, not by their length:
# a sentence may end in "Hut." A wrong cut costs little, one that is missing a sentence.
_CONSONANTS = "b-df-hj-np-tv-xz"
_TITLE = re.compile(
    rf"[{_CONSONANTS.upper()}][{_CONSONANTS}]*|Abb|Abs|Art|Aug|Co|Col|Dec|Dept|Dez|Dipl|Feb|Fig|Gen|Gov|Inc|Ing|Jan|Jul"
    "|Jun|Kap|Nov|Oct|Okt|Prof|Rep|Rev|Sen|Sep|Sept|Tel|Vol"
)
_SHORTENED = re.compile(
    rf"[{_CONSONANTS}]+|approx|bes|ca|dept|etc|evtl|exkl|inc|inkl|max|min|prof|sog|urspr|usw", re.IGNORECASE
)


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


def usual_sentences(lines: Sequence[str]) -> int:
    """How many sentences a model that learns from these lines can be given at once: one line in a hundred has as many.

    A model drops sentences where it never saw so many together: one that learned from single ones writes two thirds of
    two of them and half of three, however short they are. Of many lines, some thousands all over the text are read.
    """
    counts = sorted(len(sentences(line)) for line in lines[:: len(lines) // SAMPLE + 1])
    return max(counts[-1 - len(counts) // 100], 1) if counts else 1


def sentences(text: str) -> list[str]:
    """A text cut at sentence ends, by marks alone: careful with what may be an abbreviation, a date or initials."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text) if _ends_sentence(match)]
    return list(_cut(text, ends))


def _ends_sentence(match: re.Match[str]) -> bool:
    """Not after a full stop behind a number or what may be short for something. Where a small letter follows, people
    write in small letters alone, unless the sentence goes on: after a quotation, three dots or an abbreviation.
    """
    mark, text = match["spaced"], match.string
    goes_on = bool(mark) and text[match.end() : match.end() + 1].islower()
    if goes_on and not _PLAIN_END.fullmatch(mark):
        return False
    if mark != ".":
        return True
    word = re.split(r"[\s(.]", text[max(0, match.start() - 20) : match.start()])[-1]
    shortened = _TITLE.fullmatch(word) or (goes_on and _SHORTENED.fullmatch(word))
    return not (shortened or word.isdigit() or len(word) < 2)


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
