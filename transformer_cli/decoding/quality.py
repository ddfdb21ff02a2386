"""Signs that a translation is none, read off the two texts alone; no sign is a proof.

Words here are chunks: what white space separates and, in scripts that write without it, single characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from transformer_cli.decoding.long_lines import sentences
from transformer_cli.writing import LOOP, begins_unspaced, chunks, longest_row

SIGNS = LOOPED, COPIED, SHORT, BROKEN = "looped", "copied", "short", "broken"

COPY_WORDS, COPY_SHARE = 4, 0.75
"""A copy has so many words at least, and this share of them stands in the source, too."""
SHORT_WORDS, SHORT_SHARE = 6, 1 / 3
"""Short is what has less than this share of the words of a source that has so many at least..."""
SHORT_LETTERS_SHARE = 2 / 3
"""... and less than this of its letters: a word of Inuktitut or Greenlandic is a sentence elsewhere."""
SHORT_SENTENCES, SHORT_SENTENCES_SHARE = 6, 2 / 3
"""The same of sentences: languages agree in their number rather than in that of words."""

CHARACTERS_PER_WORD = 4
"""Rather too many for Han, too few for kana and Thai: a source is rather called short than its translation."""

# Ethiopic, Cherokee, Canadian, Vai and Hangul: a character is a syllable, of two letters at least.
_SYLLABLE = re.compile("[\u1200-\u167f\u18b0-\u18ff\ua500-\ua63f\uab70-\uabbf\uac00-\ud7a3]")
_UNDECODED = "\ufffd"
_LEADER = re.compile(r"((?!\s)[\W_] ?)\1{2,}")


def flags(source: str, translation: str) -> tuple[str, ...]:
    """Those of looped, copied, short, broken that fit, in this order; none for a source without text.

    looped: the same words, up to 32, stand four times in a row, or the same two or more characters inside a word, and
    the source has no such row as long; dot leaders and rules are no loops where the source has one, too. copied: of
    four or more words with a letter, three in four are words of the source, each counted as often as it stands there;
    a text all of names is no copy. short: less than a third of the words of a source of six or more, where four
    characters of a script without spaces are a word, and less than two thirds of its letters; less than two thirds of
    the sentences of a source of six or more, if it has any marks of their ends; or no text. broken: it has more of
    U+FFFD, as which bytes are read that are no character, than the source.
    """
    if not source.strip():
        return ()
    is_broken = translation.count(_UNDECODED) > source.count(_UNDECODED)
    if _LEADER.search(source):
        source, translation = (_LEADER.sub(r"\1", text) for text in (source, translation))
    both = chunks(source), chunks(translation)
    signs = {
        LOOPED: _is_looped(*both),
        COPIED: _is_copied(*both) and not _is_all_names(source),
        SHORT: _is_short(*both) or _lacks_sentences(source, translation),
        BROKEN: is_broken,
    }
    return tuple(name for name, holds in signs.items() if holds)


def flags_of(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Those that fit any of these sources and translations, such as a line and its parts."""
    found = {sign for pair in set(pairs) for sign in flags(*pair)}
    return tuple(sign for sign in SIGNS if sign in found)


def _is_looped(source: list[str], translation: list[str]) -> bool:
    row = longest_row(translation)
    return row >= LOOP and row > longest_row(source)


def _is_copied(source: list[str], translation: list[str]) -> bool:
    kept = [word for word in translation if any(map(str.isalpha, word))]
    shared = (Counter(kept) & Counter(source)).total()
    return len(kept) >= COPY_WORDS and shared >= COPY_SHARE * len(kept)


def _is_all_names(text: str) -> bool:
    """Every word begins with a capital, and not because all letters are capitals."""
    first = [word[0] for word in text.split() if word[0].isalpha()]
    return all(map(str.isupper, first)) and not text.isupper()


def _is_short(source: list[str], translation: list[str]) -> bool:
    n_source = sum(1 / CHARACTERS_PER_WORD if begins_unspaced(word) else 1 for word in source)
    if n_source < SHORT_WORDS or len(translation) >= SHORT_SHARE * n_source:
        return not translation
    return _n_letters(translation) < SHORT_LETTERS_SHARE * _n_letters(source)


def _n_letters(words: list[str]) -> int:
    """What stands for a syllable, in scripts without spaces any character, counts twice."""
    return sum(2 if begins_unspaced(word) else len(word) + len(_SYLLABLE.findall(word)) for word in words)


def _lacks_sentences(source: str, translation: str) -> bool:
    if (n_source := len(sentences(source))) < SHORT_SENTENCES:
        return False
    return 1 < len(sentences(translation)) < SHORT_SENTENCES_SHARE * n_source
