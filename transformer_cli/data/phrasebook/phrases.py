"""Noun phrases, pronouns and adverbials, each said in both languages.

Every word carries the names of the meanings that it expresses ("a.noun": the noun of the accusative object); two
words of a pair that share a name are aligned. That is how several-to-several alignments need no further rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

from transformer_cli.data.phrasebook.lexicon import Adjective, Noun

PERSONS = ("ich", "du", "er", "wir", "sie")
"""The persons of a finite verb: 1st, 2nd, 3rd singular, 1st and 3rd plural."""
ICH, DU, ER, WIR, SIE = range(5)


class Word(NamedTuple):
    """A word and the names of the meanings it expresses."""

    text: str
    links: tuple[str, ...]


Words = tuple[Word, ...]


class Nominal(Protocol):
    """What can be subject or object."""

    @property
    def person(self) -> int:
        """Index into `PERSONS`."""
        ...

    @property
    def is_pronoun(self) -> bool: ...

    @property
    def asked(self) -> bool:
        """Whether it is what the question asks for: wer, was, wie viele."""
        ...

    @property
    def determiner(self) -> str:
        """A key of `DETERMINERS` or `QUANTIFIERS`; empty for a pronoun."""
        ...

    @property
    def lemmas(self) -> tuple[str, ...]:
        """German lemmas of its content words, the noun last."""
        ...

    def german(self, case: str, role: str) -> Words: ...

    def english(self, case: str, role: str) -> Words: ...


_DER = {
    "m": {"nom": "der", "acc": "den", "dat": "dem"},
    "f": {"nom": "die", "acc": "die", "dat": "der"},
    "n": {"nom": "das", "acc": "das", "dat": "dem"},
    "p": {"nom": "die", "acc": "die", "dat": "den"},
}
_EIN = {
    "m": {"nom": "", "acc": "en", "dat": "em"},
    "f": {"nom": "e", "acc": "e", "dat": "er"},
    "n": {"nom": "", "acc": "", "dat": "em"},
    "p": {"nom": "e", "acc": "e", "dat": "en"},
}
DETERMINERS = {
    "der": "the",
    "ein": "a",
    "kein": "a",  # the negation itself stands at the verb: don't ... a
    "mein": "my",
    "dein": "your",
    "sein": "his",
    "ihr": "her",
    "unser": "our",
}
NUMBERS = {
    "zwei": "two",
    "drei": "three",
    "vier": "four",
    "fünf": "five",
    "sechs": "six",
    "sieben": "seven",
    "acht": "eight",
    "neun": "nine",
    "zehn": "ten",
    "elf": "eleven",
    "zwölf": "twelve",
}
QUANTIFIERS = {**NUMBERS, "viele": "many", "wie viele": "how many"}


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjective, noun; plural with a definite or possessive determiner, or after a quantifier."""

    noun: Noun
    determiner: str
    adjective: Adjective | None = None
    plural: bool = False

    @property
    def person(self) -> int:
        return SIE if self.plural else ER

    @property
    def is_pronoun(self) -> bool:
        return False

    @property
    def asked(self) -> bool:
        return self.determiner == "wie viele"

    @property
    def lemmas(self) -> tuple[str, ...]:
        return (*([self.adjective.german] if self.adjective else []), self.noun.german)

    @property
    def gender(self) -> str:
        """m, f, n, or p in the plural, where German has none."""
        return "p" if self.plural else self.noun.gender

    @property
    def shows_case(self) -> bool:
        """Whether its determiner is another one as object than it would be as subject."""
        accusative, nominative = (_determiner(self.determiner, self.gender, case) for case in ("acc", "nom"))
        return accusative != nominative

    def german(self, case: str, role: str) -> Words:
        gender = self.gender
        determiner = _determiner(self.determiner, gender, case)
        links = (f"{role}.determiner", "negation") if self.determiner == "kein" else (f"{role}.determiner",)
        words = [Word(word, links) for word in determiner.split()]
        if self.adjective:
            ending = _adjective_ending(self.determiner, gender, case)
            words.append(Word(self.adjective.stem.removesuffix("e") + ending, (f"{role}.adjective",)))
        words.append(Word(_noun_form(self.noun, plural=self.plural, case=case), (f"{role}.noun",)))
        return tuple(words)

    def english(self, case: str, role: str) -> Words:
        noun = self.noun.english_plural if self.plural else self.noun.english
        rest = [Word(self.adjective.english, (f"{role}.adjective",))] if self.adjective else []
        rest.append(Word(noun, (f"{role}.noun",)))
        determiner = QUANTIFIERS.get(self.determiner) or DETERMINERS[self.determiner]
        if determiner == "a" and rest[0].text[0] in "aeiou":
            determiner = "an"
        return (*(Word(word, (f"{role}.determiner",)) for word in determiner.split()), *rest)


@cache
def _determiner(determiner: str, gender: str, case: str) -> str:
    if determiner in QUANTIFIERS:
        return determiner
    return _DER[gender][case] if determiner == "der" else determiner + _EIN[gender][case]


@cache
def _adjective_ending(determiner: str, gender: str, case: str) -> str:
    """Weak after der, mixed after ein and its like, strong after a number."""
    if determiner in QUANTIFIERS:
        return "en" if case == "dat" else "e"
    if case == "dat" or gender == "p" or (gender, case) == ("m", "acc"):
        return "en"
    if determiner == "der":
        return "e"
    return {"m": "er", "f": "e", "n": "es"}[gender]


@cache
def _noun_form(noun: Noun, *, plural: bool, case: str) -> str:
    if plural:
        assert noun.german_plural is not None
        return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")
    if noun.weak and case != "nom":
        assert noun.german_plural is not None
        return noun.german_plural
    return noun.german


class _Bare:
    """What stands alone: no determiner, and no word of the lexicon."""

    @property
    def asked(self) -> bool:
        return False

    @property
    def determiner(self) -> str:
        return ""

    @property
    def lemmas(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Pronoun(_Bare):
    """A personal pronoun, or the question words wer and was, which stand where a pronoun would."""

    name: str

    @property
    def person(self) -> int:
        return _PRONOUNS[self.name][0]

    @property
    def is_pronoun(self) -> bool:
        return True

    @property
    def asked(self) -> bool:
        return self.name in ("wer", "was")

    def german(self, case: str, role: str) -> Words:
        return (Word(_PRONOUNS[self.name][1][case], (role,)),)

    def english(self, case: str, role: str) -> Words:
        return (Word(_PRONOUNS[self.name][2]["nom" if case == "nom" else "obj"], (role,)),)


# "sie" is never an object: it would be her and them and it.
_PRONOUNS: dict[str, tuple[int, dict[str, str], dict[str, str]]] = {
    "ich": (ICH, {"nom": "ich", "acc": "mich", "dat": "mir"}, {"nom": "i", "obj": "me"}),
    "du": (DU, {"nom": "du", "acc": "dich", "dat": "dir"}, {"nom": "you", "obj": "you"}),
    "er": (ER, {"nom": "er", "acc": "ihn", "dat": "ihm"}, {"nom": "he", "obj": "him"}),
    "sie": (ER, {"nom": "sie", "dat": "ihr"}, {"nom": "she", "obj": "her"}),
    "wir": (WIR, {"nom": "wir", "acc": "uns", "dat": "uns"}, {"nom": "we", "obj": "us"}),
    "they": (SIE, {"nom": "sie"}, {"nom": "they"}),
    "wer": (ER, {"nom": "wer"}, {"nom": "who"}),
    "was": (ER, {"acc": "was"}, {"obj": "what"}),
    "es": (ER, {"nom": "es"}, {"nom": "it"}),
    "das": (ER, {"nom": "das"}, {"nom": "that"}),
    "those": (SIE, {"nom": "das"}, {"nom": "those"}),
}
SUBJECT_PRONOUNS = ("ich", "ich", "du", "du", "er", "sie", "wir", "they")


NAMES = ("anna", "maria", "lena", "paul", "peter", "max")


@dataclass(frozen=True)
class Name(_Bare):
    """A person by name, in all cases and both languages the same."""

    name: str

    @property
    def person(self) -> int:
        return ER

    @property
    def is_pronoun(self) -> bool:
        return False

    def german(self, case: str, role: str) -> Words:
        return (Word(self.name, (role,)),)

    def english(self, case: str, role: str) -> Words:
        return self.german(case, role)


@dataclass(frozen=True)
class Anaphor(_Bare):
    """The pronoun for a noun phrase: German by grammatical gender, English by what it is."""

    antecedent: NounPhrase

    @property
    def person(self) -> int:
        return self.antecedent.person

    @property
    def is_pronoun(self) -> bool:
        return True

    def german(self, case: str, role: str) -> Words:
        return (Word({"m": "er", "f": "sie", "n": "es", "p": "sie"}[self.antecedent.gender], (role,)),)

    def english(self, case: str, role: str) -> Words:
        return (Word("they" if self.antecedent.plural else self.antecedent.noun.english_pronoun, (role,)),)


@dataclass(frozen=True)
class Quoted:
    """A word that is spoken about: das wort "glück"."""

    frame: NounPhrase
    german_word: str
    english_word: str

    @property
    def person(self) -> int:
        return ER

    @property
    def is_pronoun(self) -> bool:
        return False

    @property
    def asked(self) -> bool:
        return False

    @property
    def lemmas(self) -> tuple[str, ...]:
        return (self.german_word, *self.frame.lemmas)

    @property
    def determiner(self) -> str:
        return self.frame.determiner

    def german(self, case: str, role: str) -> Words:
        return (*self.frame.german(case, role), Word(f'"{self.german_word}"', (f"{role}.quoted",)))

    def english(self, case: str, role: str) -> Words:
        return (*self.frame.english(case, role), Word(f'"{self.english_word}"', (f"{role}.quoted",)))


@dataclass(frozen=True)
class Adverbial:
    """A fixed adverbial; the parts between bars are aligned one to one: am|abend, in the|evening."""

    german_text: str
    english_text: str
    past: bool | None = None
    """True: only with the past; False: only with the present; None: with both."""

    def german(self, role: str) -> Words:
        return _parts(self.german_text, role)

    def english(self, role: str) -> Words:
        return _parts(self.english_text, role)


@cache
def _parts(text: str, role: str) -> Words:
    parts = enumerate(text.split("|"))
    return tuple(Word(word, (f"{role}.{index}",)) for index, part in parts for word in part.split())


_CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("zu", "dem"): "zum", ("zu", "der"): "zur"}


@dataclass(frozen=True)
class Prepositional:
    """A preposition, the German case it asks for, and its noun phrase; in + dem becomes im."""

    preposition: str
    english_preposition: str
    case: str
    nominal: NounPhrase

    def german(self, role: str) -> Words:
        first, *rest = self.nominal.german(self.case, role)
        contracted = _CONTRACTIONS.get((self.preposition, first.text))
        if contracted:
            return (Word(contracted, (f"{role}.preposition", *first.links)), *rest)
        return (Word(self.preposition, (f"{role}.preposition",)), first, *rest)

    def english(self, role: str) -> Words:
        preposition = Word(self.english_preposition, (f"{role}.preposition",))
        return (preposition, *self.nominal.english("obj", role))
