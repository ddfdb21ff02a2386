"""Which of the installed fonts can show a text; found by asking them for its characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache

PREFERRED = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "Noto Naskh Arabic", "Arial Unicode MS")
"""Asked first, in this order; matplotlib brings the first one along."""

REGULAR = (400, "normal", "regular")
EMOJI = re.compile("[\u20e3\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
NOTO = {
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "HALFWIDTH"), "Sans CJK"),
    "CANADIAN": "Sans Canadian Aboriginal",
    "MEETEI": "Sans Meetei Mayek",
    "NEW": "Sans New Tai Lue",
    "NKO": "Sans NKo",
    "OL": "Sans Ol Chiki",
    "SYLOTI": "Sans Syloti Nagri",
    "TIBETAN": "Serif Tibetan",
    "LATIN": "Sans",
}
"""The Noto font of a script, by the first word of its letters' names; of others it is Noto Sans and that word."""


def fonts_for(texts: Iterable[str]) -> tuple[list[str], str]:
    """Names of fonts that together have the characters of the texts, and the characters that none has, in order."""
    needed = {char for text in texts for char in text if not char.isspace() and unicodedata.category(char) != "Mn"}
    chosen: list[str] = []
    for name, path in _installed():
        has = _characters(path)
        if not chosen or needed & has:
            chosen.append(name)
            needed -= has
        if not needed:
            break
    return chosen, "".join(sorted(needed))


def lacking(missing: str) -> str:
    """What to say of characters that no font has."""
    named = ", ".join(f"{char} (U+{ord(char):04X})" for char in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"no installed font has {named}{more}; install {' and '.join(to_install(missing)) or 'a font that has them'}"


def to_install(chars: str) -> list[str]:
    """The fonts that would have these characters, as far as their names tell."""
    found: dict[str, None] = {}
    for char in chars:
        script = unicodedata.name(char, "").partition(" ")[0]
        if EMOJI.match(char):
            found["Noto Emoji (figures cannot show the coloured one)"] = None
        elif script in _scripts():
            found[f"Noto {NOTO.get(script, f'Sans {script.title()}')}"] = None
    return list(found)


@cache
def _scripts() -> frozenset[str]:
    """First words of the names of letters, but for those of several scripts; a symbol's is that of a thing."""
    letters = (char for char in map(chr, range(0x20000)) if unicodedata.category(char) == "Lo")
    return frozenset(unicodedata.name(char, "").partition(" ")[0] for char in letters) - {"", "OLD", "TAI"}


def _installed() -> Iterator[tuple[str, str]]:
    """Names and files of upright fonts of ordinary weight, the preferred ones first, then by name."""
    from matplotlib import font_manager

    order = {name: place for place, name in enumerate(PREFERRED)}
    fonts = {
        font.name: font.fname
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.weight in REGULAR and not font.name.startswith("Last Resort")
    }
    yield from sorted(fonts.items(), key=lambda font: (order.get(font[0], len(order)), font[0]))


@cache
def _characters(path: str) -> frozenset[str]:
    """What a font file has; nothing where it cannot be read, or has pictures instead of outlines."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        return frozenset(map(chr, font.get_charmap() if font.scalable else ()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()
