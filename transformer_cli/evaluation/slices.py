"""Parts of a test on which a system may do much better or worse than on the whole."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformer_cli.evaluation.words import WordCounts
from transformer_cli.writing import words

LENGTHS = {10: "up to 10 words", 20: "11 to 20 words", 30: "21 to 30 words", 50: "31 to 50 words"}
LONGEST = "over 50 words"
RARE = 5
"""A rare word stands so many times in the training text, at most."""
NUMBER, WRONG_NUMBERS = "with a number", "other numbers"
EMPTY_SOURCE, EMPTY_REFERENCE, EMPTY = "empty source", "empty reference", "empty translation"
NEW_WORDS = [f"{kind} word in {side}" for side in ("source", "reference") for kind in ("unseen", "rare")]
ORDER = [*LENGTHS.values(), LONGEST, NUMBER, WRONG_NUMBERS, *NEW_WORDS, EMPTY_SOURCE, EMPTY_REFERENCE, EMPTY]
_DIGITS = re.compile(r"\d+")
_DIGIT = re.compile(r"\d")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:([.,'\u2019\u066c\s])\d{3})(?:\1\d{3})*(?!\d)")


@dataclass(frozen=True)
class Slice:
    """Lines that have something in common. lines: their indices, ascending and never none."""

    name: str
    lines: tuple[int, ...]


def slices(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    source: Sequence[str] | None = None,
    flags: Sequence[Sequence[str]] | None = None,
    counts: WordCounts | None = None,
) -> list[Slice]:
    """The slices that have a line; they overlap, but for the lengths and the empty references, which have each once.

    By the first reference: its number of words, a number in it. By the translation: numbers unlike those of every
    reference, no text where a reference has some, its flags. By source and first reference: words that the training
    text never has, or rarely.
    """
    found: dict[str, list[int]] = {name: [] for name in ORDER}
    for line, (hypothesis, *several) in enumerate(zip(hypotheses, *references, strict=True)):
        names = [*_of_reference(several[0]), *_of_translation(hypothesis, several), *(flags[line] if flags else ())]
        if counts is not None:
            names += _new_words(several[0], counts.target, "reference")
        if source is not None:
            names += [EMPTY_SOURCE] * (not source[line].strip())
            names += _new_words(source[line], counts.source, "source") if counts is not None else []
        for name in names:
            found.setdefault(name, []).append(line)
    return [Slice(name, tuple(lines)) for name, lines in found.items() if lines]


def _of_reference(reference: str) -> Iterator[str]:
    n_words = len(words(reference))  # none in a line of dots, say, which is short but not empty
    length = next((name for longest, name in LENGTHS.items() if n_words <= longest), LONGEST)
    yield length if reference.strip() else EMPTY_REFERENCE
    if _DIGITS.search(reference):
        yield NUMBER


def _of_translation(hypothesis: str, references: Sequence[str]) -> Iterator[str]:
    numbers = _numbers(hypothesis)
    if all(numbers != _numbers(reference) for reference in references):
        yield WRONG_NUMBERS
    if not hypothesis.strip() and any(reference.strip() for reference in references):
        yield EMPTY


def _numbers(text: str) -> list[str]:
    """Sorted; 1000, 1,000 and 1.000 are the same, in the digits of any script."""
    if not text.isascii():
        text = _DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
    return sorted(_DIGITS.findall(_GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)))


def _new_words(text: str, counts: Mapping[str, int], side: str) -> Iterator[str]:
    known = [counts.get(word, 0) for word in words(text)]
    if 0 in known:
        yield f"unseen word in {side}"
    if any(0 < n <= RARE for n in known):
        yield f"rare word in {side}"
