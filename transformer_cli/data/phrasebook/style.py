"""How people type a source sentence: case, umlauts, punctuation. Targets are always plain."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from transformer_cli.data.phrasebook.everyday import OPENINGS
from transformer_cli.data.phrasebook.lexicon import NOUNS
from transformer_cli.data.phrasebook.phrases import NAMES

_NOUN_FORMS = frozenset(
    form
    for noun in NOUNS.values()
    for plural in [noun.german_plural]
    for form in (noun.german, *((plural, plural + "n") if plural else ()))
)
_OTHER_NOUNS = """
abend montag freitag sonntag tag woche uhr viertel nacht dank wiedersehen entschuldigung hunger durst deutsch englisch
deutschland berlin hamburg
"""
_CAPITALS = {
    "de": _NOUN_FORMS | {*_OTHER_NOUNS.split(), *NAMES},
    "en": frozenset(("i", "monday", "friday", "sunday", "german", "english", "germany", "berlin", "hamburg", *NAMES)),
}
_OPENINGS = {
    "de": tuple(" ".join(word.text for word in opening.german("")) for opening in OPENINGS),
    "en": tuple(" ".join(word.text for word in opening.english("")) for opening in OPENINGS),
}

_UMLAUTS = {
    "kept": str.maketrans({}),
    "stripped": str.maketrans({"ä": "a", "ö": "o", "ü": "u", "ß": "ss"}),
    "spelled": str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}),
}


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
    typed = [word.translate(_UMLAUTS[style.umlauts]) for word in words]
    if style.case == "sentence":
        capitals = _CAPITALS[language]
        typed = [
            _capital(word) if index == 0 or plain.strip('"') in capitals else word
            for index, (plain, word) in enumerate(zip(words, typed, strict=True))
        ]
        if words[:2] == ["guten", "morgen"]:  # which elsewhere is tomorrow
            typed[1] = _capital(typed[1])
    if style.punctuated:
        following = [*words[1:], ""]
        typed = [word + "," * (after in _AFTER_COMMA[language]) for word, after in zip(typed, following, strict=True)]
        opening = next((one for one in _OPENINGS[language] if f"{text} ".startswith(f"{one} ")), None)
        if opening and opening != text:
            typed[len(opening.split()) - 1] += ","
        typed[-1] += "?" if question else "."
    dressed = " ".join(typed)
    return dressed.upper() if style.case == "upper" else dressed


_AFTER_COMMA = {"de": ("weil", "aber"), "en": ("but",)}


def _capital(word: str) -> str:
    return '"' + _capital(word[1:]) if word.startswith('"') else word[0].upper() + word[1:]


def undressed(text: str) -> str:
    """What all styles of a sentence have in common: lower case, stripped umlauts, no marks at the ends of words."""
    return " ".join(word.strip(".,?") for word in text.lower().translate(_UMLAUTS["stripped"]).split())
