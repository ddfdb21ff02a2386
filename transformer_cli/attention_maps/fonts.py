"""Which of the installed fonts can show a text; found by asking them for its characters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from transformer_cli.needs import drawing_library

PREFERRED = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "Noto Naskh Arabic", "Arial Unicode MS")
"""Asked first, in this order; matplotlib brings the first one along."""

REGULAR = (400, "normal", "regular")
SHOWS_NOTHING = re.compile(r"\.?Last ?Resort|.*Colou?r Emoji")
"""Fonts of boxes for every character there is, and of pictures that no figure can show; macOS begins names of its own
with a dot, which come first."""
EMOJI = re.compile("[\u20e3\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
_AFTER_SCRIPT = re.compile(
    " (LETTER|CAPITAL|SMALL|SYLLAB|SIGN|SYMBOL|VOWEL|CHARACTER|LIGATURE|CONSONANT|IDEOGRAM|UNIFIED|COMPATIBILITY|MARK"
    "|PHARYNGEAL|TONE|FINAL|ANJI|COMPONENT|OM|CHOSEONG|JUNGSEONG|JONGSEONG|HIEROGLYPHIC LETTER"
    r"|CURSIVE LETTER|INDEPENDENT|MTAVRULI|CLAN).*|-\d.*"
)
"""What follows a script in the name of a letter."""
LEAST = 15
"""Letters of a script, at least: a symbol's name begins with that of a thing."""
NOTO = {
    **dict.fromkeys(("LATIN", "CYRILLIC", "GREEK"), "Sans"),
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "HALFWIDTH"), "Sans CJK"),
    **dict.fromkeys(("FULLWIDTH", "KATAKANA-HIRAGANA"), "Sans CJK"),
    **dict.fromkeys(("MATHEMATICAL", "DOUBLE-STRUCK", "BLACK-LETTER", "SCRIPT"), "Sans Math"),
    **dict.fromkeys(("ANATOLIAN", "EGYPTIAN"), "Sans {} Hieroglyphs"),
    **dict.fromkeys(("AHOM", "DOGRA", "HENTAIGANA", "MAKASAR", "TANGUT", "TIBETAN", "TOTO", "YEZIDI"), "Serif {}"),
    **dict.fromkeys(("DIVES AKURU", "OLD UYGHUR"), "Serif {}"),
    "CANADIAN": "Sans Canadian Aboriginal",
    "CUNEIFORM": "Sans Cuneiform",
    "KHITAN": "Serif Khitan Small Script",
    "MUSICAL": "Music",
    "NKO": "Sans NKo",
    "NYIAKENG PUACHUE HMONG": "Serif NP Hmong",
    "PHAGS-PA": "Sans PhagsPa",
    "VEDIC": "Sans Devanagari",
}
"""The Noto font of a script by what its letters' names begin with, where it is not Noto Sans and that."""


def fonts_for(texts: Iterable[str]) -> tuple[list[str], str]:
    """Names of fonts that together have the characters of the texts, and the characters that none has, in order."""
    needed = {char for text in texts for char in text if not (char.isspace() or _has_no_shape(char))}
    chosen: list[str] = []
    for name, path in _installed():
        has = _characters(path)
        if not chosen or needed & has:
            chosen.append(name)
            needed -= has
        if not needed:
            break
    return chosen, "".join(sorted(needed))


def _has_no_shape(char: str) -> bool:
    """Whether it is drawn on another one, or only says how others are."""
    return unicodedata.category(char) == "Mn" or char in "\u200c\u200d"


def lacking(missing: str) -> str:
    """What to say of characters that no font has."""
    named = ", ".join(f"{char} (U+{ord(char):04X})" for char in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"no installed font has {named}{more}; install {' and '.join(to_install(missing)) or 'a font that has them'}"


def to_install(chars: str) -> list[str]:
    """The fonts that would have these characters, as far as their names tell."""
    found: dict[str, None] = {}
    for char in chars:
        if EMOJI.match(char):
            found["Noto Emoji (figures cannot show the coloured one)"] = None
        elif font := _noto(unicodedata.name(char, "")):
            found[f"Noto {font}"] = None
    return list(found)


def _noto(name: str) -> str | None:
    """The font that has characters of such a name; None where it tells no script."""
    known = next((script for script in (*NOTO, *_scripts()) if name.startswith((f"{script} ", f"{script}-"))), None)
    return known and NOTO.get(known, "Sans {}").format(known.replace("-", " ").title())


@cache
def _scripts() -> tuple[str, ...]:
    """What names of letters begin with, the longest first, but for letters of several scripts."""
    letters = (char for char in map(chr, range(0x20000)) if unicodedata.category(char) in ("Lo", "Lu"))
    found = Counter(_AFTER_SCRIPT.sub("", unicodedata.name(char, "")) for char in letters)
    return tuple(sorted((script for script, n in found.items() if script and n >= LEAST), key=len, reverse=True))


def _installed() -> Iterator[tuple[str, str]]:
    """Names and files of upright fonts of ordinary weight, the preferred ones first, then by name."""
    drawing_library()
    from matplotlib import font_manager

    order = {name: place for place, name in enumerate(PREFERRED)}
    fonts = {
        font.name: font.fname
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.weight in REGULAR and not SHOWS_NOTHING.match(font.name)
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
