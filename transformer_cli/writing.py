"""How text is written: what a word is, with what is written on its letters, and which scripts have no spaces."""

from __future__ import annotations

import re
import unicodedata

# Thai and Lao, Myanmar, Khmer; kana; Han. Each with its extensions; Korean has spaces.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"
    "\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# `\w` has no marks; accents, vowels and viramas are among them. The joiners stand inside words of Persian and Hindi.
_MARKS = "\u200c\u200d" + "".join(
    char
    for char in map(chr, [*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)])
    if unicodedata.category(char)[0] == "M"
)
_WORD = re.compile(rf"(?=\w)[{_UNSPACED}][{_MARKS}]*|[^\W{_UNSPACED}]+(?:[{_MARKS}]+[^\W{_UNSPACED}]*)*")
_CHUNK = re.compile(rf"[{_UNSPACED}][{_MARKS}]*|[^\s{_UNSPACED}]+")
_BEGINS_UNSPACED = re.compile(f"[{_UNSPACED}]")


def words(text: str) -> list[str]:
    """Runs of letters, digits and what is written on them, without regard to case; in scripts without spaces, each
    letter by itself.
    """
    return _WORD.findall(text.casefold())


def chunks(text: str) -> list[str]:
    """What white space separates, punctuation included, otherwise like `words`."""
    return _CHUNK.findall(text.casefold())


def begins_unspaced(text: str) -> bool:
    """Whether the first character belongs to a script that is written without spaces."""
    return _BEGINS_UNSPACED.match(text) is not None
