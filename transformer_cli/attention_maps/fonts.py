"""Which of the installed fonts can show a text; found by asking them for its characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache

PREFERRED = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "Noto Naskh Arabic", "Arial Unicode MS")
"""Asked first, in this order; matplotlib brings the first one along."""

REGULAR = (400, "normal", "regular")


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
