"""Subjects and objects drawn at random, so that determiner, adjective, number and noun fit together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import TypeVar

from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, Adjective, Noun
from transformer_cli.data.phrasebook.phrases import (
    NUMBERS,
    SUBJECT_PRONOUNS,
    Nominal,
    NounPhrase,
    Pronoun,
)

T = TypeVar("T")

_COMMON = frozenset(("common",))
_OWNED = frozenset(("kin", "pet", "thing", "light", "tidy"))
_POSSESSIVES = ("mein", "dein", "sein", "ihr", "unser")


def chance(random: Random, probability: float) -> bool:
    """True with this probability."""
    return random.random() < probability


def pick(random: Random, options: Sequence[T]) -> T:
    """One of the options, each as likely."""
    return options[int(random.random() * len(options))]


@cache
def _nouns(kinds: tuple[str, ...], but: str = "") -> tuple[Noun, ...]:
    fitting = [noun for noun in NOUNS.values() if noun.kinds & set(kinds) and noun.german != but]
    return (*fitting, *(noun for noun in fitting if noun.kinds & _COMMON))


@cache
def _adjectives(noun: Noun) -> tuple[Adjective, ...]:
    fitting = [adjective for adjective in ADJECTIVES.values() if (adjective.kinds & noun.kinds) - _COMMON]
    return (*fitting, *(adjective for adjective in fitting if adjective.kinds & _COMMON))


def noun_phrase(
    random: Random, kinds: Sequence[str], determiners: Sequence[str], *, adjectives: float = 0.25
) -> NounPhrase:
    """A singular noun phrase of one of these kinds."""
    noun = pick(random, _nouns(tuple(kinds)))
    return NounPhrase(noun, pick(random, determiners), _adjective(random, noun, adjectives))


def _adjective(random: Random, noun: Noun, probability: float) -> Adjective | None:
    fitting = _adjectives(noun)
    return pick(random, fitting) if fitting and chance(random, probability) else None


def adjective_for(random: Random, noun: Noun) -> Adjective:
    """An adjective that the noun may have."""
    return pick(random, _adjectives(noun))


def subject_of(random: Random, kinds: Sequence[str], *, pronouns: float = 0.5, indefinite: float = 0.15) -> Nominal:
    """A subject: a pronoun (where persons do such things), or a noun phrase, now and then in the plural."""
    if "person" in kinds and chance(random, pronouns):
        return Pronoun(pick(random, SUBJECT_PRONOUNS))
    noun = pick(random, _nouns(tuple(kinds)))
    plural = noun.german_plural is not None and chance(random, 0.2)
    determiner = _determiner(random, noun, indefinite=0.0 if plural else indefinite)
    return NounPhrase(noun, determiner, _adjective(random, noun, 0.3), plural)


def _determiner(random: Random, noun: Noun, *, indefinite: float) -> str:
    drawn = random.random()
    if "mood" in noun.kinds:
        return pick(random, _POSSESSIVES) if "own" in noun.kinds else "der"
    if "relative" in noun.kinds:
        return pick(random, _POSSESSIVES) if drawn < 0.7 else "der"
    if drawn < indefinite:
        return "ein"
    return pick(random, _POSSESSIVES) if drawn > 0.7 and noun.kinds & _OWNED else "der"


def object_of(
    random: Random,
    kinds: Sequence[str],
    *,
    subject: Nominal,
    pronouns: float = 0.12,
    indefinite: float = 0.45,
    adjectives: float = 0.45,
    singular: bool = False,
) -> Nominal:
    """An object that is not the subject: a pronoun for a person, a counted plural, or a singular noun phrase."""
    if "person" in kinds and chance(random, pronouns):
        return person_pronoun(random, subject, case="acc")
    noun = pick(random, _nouns(tuple(kinds), but=(subject.lemmas or ("",))[-1]))
    adjective = _adjective(random, noun, adjectives)
    if not singular and noun.german_plural is not None and chance(random, 0.05 if "person" in noun.kinds else 0.22):
        return NounPhrase(noun, pick(random, _COUNTS), adjective, plural=True)
    return NounPhrase(noun, _determiner(random, noun, indefinite=indefinite), adjective)


def how_many(random: Random, kinds: Sequence[str]) -> NounPhrase | None:
    """wie viele äpfel, if anything of these kinds can be counted."""
    countable = [noun for noun in _nouns(tuple(kinds)) if noun.german_plural is not None]
    if not countable:
        return None
    noun = pick(random, countable)
    return NounPhrase(noun, "wie viele", _adjective(random, noun, 0.2), plural=True)


_COUNTS = (*NUMBERS, "viele", "viele")


def person_pronoun(random: Random, subject: Nominal, *, case: str) -> Pronoun:
    """mich, dich, ihn, uns or mir, dir, ihm, ihr, uns: never the subject itself, and never sie."""
    names = [name for name in ("ich", "du", "er", "wir") if Pronoun(name).person != subject.person]
    if case == "dat" and subject.is_pronoun and subject.person != Pronoun("sie").person:
        names.append("sie")
    if subject.is_pronoun and subject.person in (Pronoun("ich").person, Pronoun("wir").person):
        names = [name for name in names if name not in ("ich", "wir")]
    return Pronoun(pick(random, names))
