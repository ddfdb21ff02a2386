"""Words that are the reference's but for how their characters are encoded, which no metric takes for the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from unicodedata import normalize

from transformer_cli.wording import named
from transformer_cli.writing import separated

WORTH_SAYING = 0.01
"""Of the lines, how many have another form of a character: ordinary text has a ligature here and there."""
TRANSLATIONS, REFERENCE = "the translations", "the reference"
BLANK = "\u200b"
"""Without width: Khmer and Thai may have it between words."""

# Blanks without width, joiners, marks of direction, hyphens that only show where a line ends, and what chooses between
# the looks of the character before it.
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff]")


def warnings(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    """What to say of words that both sides have, each in its own spelling."""
    n_composed, n_other = 0, 0
    characters: Counter[tuple[str, str]] = Counter()
    for line, *ours in zip(hypotheses, *references, strict=True):
        ours = [reference for reference in ours if not (reference == line or (line.isascii() and reference.isascii()))]
        sides = [(_only(line, reference), _only(reference, line)) for reference in ours]
        if any(map(_is_composed_otherwise, sides)):
            n_composed += 1
        elif found := {
            *(one for theirs, wanted in sides for one in _other_forms(theirs, wanted)),
            *(one for reference in ours for one in _other_blanks(line, reference)),
        }:
            n_other += 1
            characters.update(found)
    said = []
    if n_composed:
        said.append(
            "lines with a word that is the reference's but for how its letters are composed (Unicode's NFC, NFD): "
            f"{n_composed:,}; scores take it for another one: bring both sides to one form"
        )
    if n_other >= max(1, WORTH_SAYING * len(hypotheses)):
        character, side = min(characters, key=lambda one: (-characters[one], one))
        keep = " (a run with tokenizer.normalization=identity keeps what its text has)" * (side == REFERENCE)
        said.append(
            "lines with a word that is the reference's but for another form of a character (Unicode's NFKC), or one "
            f"that nobody sees: {n_other:,}, most often for {named(character)} in {side}; scores take it for another "
            f"one: bring both sides to one form{keep}"
        )
    return said


def _only(line: str, other: str) -> set[str]:
    """The words that stand in the first line alone, as they are written there."""
    return set(separated(line)).difference(separated(other))


def _is_composed_otherwise(sides: tuple[set[str], set[str]]) -> bool:
    one, other = ({normalize("NFC", word) for word in words} for words in sides)
    return not one.isdisjoint(other)


def _other_forms(theirs: set[str], wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Characters, each with the side that has it: those of a word that is the other side's once they are replaced."""
    for words, others, side in ((theirs, wanted, TRANSLATIONS), (wanted, theirs, REFERENCE)):
        known = {_plain(word) for word in others}
        for word in words:
            parts = {_plain(part) for part in _UNSEEN.sub(" ", word).split()}
            if _plain(word) in known or (len(parts) > 1 and parts <= known):
                yield from ((char, side) for char in word if _UNSEEN.match(char) or normalize("NFKC", char) != char)


def _other_blanks(line: str, reference: str) -> Iterator[tuple[str, str]]:
    """The blank without width, with the side that has it, where it parts words that the other side parts by spaces, or
    not at all."""
    for text, other, side in ((line, reference, TRANSLATIONS), (reference, line, REFERENCE)):
        parted = [word for word in text.split() if BLANK in word] if BLANK not in other else []
        words = {part for word in parted for part in (*word.split(BLANK), word.replace(BLANK, ""))}
        if not words.isdisjoint(other.split()):
            yield BLANK, side


def _plain(word: str) -> str:
    return normalize("NFKC", _UNSEEN.sub("", word))
