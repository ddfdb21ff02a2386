"""How people type a source sentence: case, umlauts, punctuation. Targets are always plain."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from transformer_cli.data.phrasebook.lexicon import NOUNS

_NOUN_FORMS = frozenset(
    form
    for noun in NOUNS.values()
    for plural in [noun.german_plural]
    for form in (noun.german, *((plural, plural + "n") if plural else ()))
) | frozenset(("abend", "montag", "freitag", "sonntag", "tag", "woche", "uhr", "viertel"))
_CAPITALS = {"de": _NOUN_FORMS, "en": frozenset(("i", "monday", "friday", "sunday"))}

_STRIPPED = str.maketrans({"ä": "a", "ö": "o", "ü": "u", "ß": "ss"})
_SPELLED = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})


@dataclass(frozen=True)
class Style:
    """case: sentence, lower or upper; umlauts: kept, stripped (mochte) or spelled (moechte)."""

    case: str = "lower"
    umlauts: str = "kept"
    punctuated: bool = False


PLAIN = Style()


def draw_style(*, seed: int, index: int) -> Style:
    """The style of sentence `index`; depends on nothing else."""
    digest = blake2b(f"{seed} {index}".encode(), digest_size=3).digest()
    case, umlauts, mark = (byte / 256 for byte in digest)
    return Style(
        case="sentence" if case < 0.46 else "lower" if case < 0.96 else "upper",
        umlauts="kept" if umlauts < 0.6 else "stripped" if umlauts < 0.92 else "spelled",
        punctuated=mark < 0.5,
    )


def dress(text: str, *, language: str, style: Style, question: bool) -> str:
    """A plain sentence as it is typed in this style."""
    words = text.split()
    if style.punctuated:
        words = [
            word + "," if following in _AFTER_COMMA[language] else word
            for word, following in zip(words, [*words[1:], ""], strict=True)
        ]
        words[-1] += "?" if question else "."
    if style.case == "sentence":
        words = [_capital(word) if word.strip('".,?') in _CAPITALS[language] else word for word in words]
        words[0] = _capital(words[0])
    dressed = " ".join(words)
    if style.case == "upper":
        dressed = dressed.replace("ß", "ss").upper()
    if style.umlauts == "kept":
        return dressed
    table = _STRIPPED if style.umlauts == "stripped" else _SPELLED
    if style.case == "upper":
        return dressed.lower().translate(table).upper()
    return dressed[0] + dressed[1:].translate(table) if dressed[0].isupper() else dressed.translate(table)


_AFTER_COMMA = {"de": ("weil", "aber"), "en": ("but",)}


def _capital(word: str) -> str:
    if word.startswith('"'):
        return '"' + _capital(word[1:])
    return word[0].upper() + word[1:]


def undressed(text: str) -> str:
    """What all styles of a sentence have in common: lower case, stripped umlauts, no marks at the ends of words."""
    return " ".join(word.strip(".,?") for word in text.lower().translate(_STRIPPED).split())
