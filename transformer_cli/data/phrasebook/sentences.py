"""A sentence of the phrasebook: its words in both languages, the phenomena it shows, the lemmas it joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformer_cli.data.phrasebook.adverbials import FAMILY
from transformer_cli.data.phrasebook.clauses import Clause, english, german, german_subordinate
from transformer_cli.data.phrasebook.phrases import NUMBERS, Adverbial, Nominal, NounPhrase, Word, Words

PHENOMENA = (
    "case",
    "verb-second",
    "verb-final",
    "separable",
    "question",
    "negation",
    "adjective",
    "number",
    "time",
    "reference",
    "family",
)


@dataclass(frozen=True)
class Sentence:
    """One meaning in both languages, and what the splits need to know about it.

    lemmas: the German lemmas of its content words. joins: pairs of lemmas that are verb and object, or adjective and
    noun.
    """

    german: Words
    english: Words
    phenomena: frozenset[str]
    lemmas: frozenset[str]
    joins: frozenset[tuple[str, str]]


def from_clause(
    clause: Clause,
    *more: str,
    joins: frozenset[tuple[str, str]] = frozenset(),
    last: bool = False,
) -> Sentence:
    """A sentence of one clause; last: subordinate, the German finite verb last.

    more: phenomena that the form does not show; joins: lemmas that a predicate joins.
    """
    adverbials = [phrase.nominal for phrase in (clause.companion, clause.place) if phrase]
    nominative = [n for n in (clause.subject, clause.predicate) if n]
    nominals = [*nominative, *(n for n in (clause.accusative, clause.dative, *adverbials) if n)]
    objects = [n for n in (clause.accusative, clause.dative) if n and n.lemmas]
    manner = [word for said in (clause.manner, clause.asked) if said for word in said.german_text.split("|")[-1:]]
    lemmas = frozenset((clause.verb.german, *manner, *(lemma for nominal in nominals for lemma in nominal.lemmas)))
    return Sentence(
        german_subordinate(clause) if last else german(clause),
        english(clause),
        frozenset((*_phenomena(clause), *_shown(nominals, nominative), *_of_family(lemmas), *more)),
        lemmas,
        joins.union(
            (join for nominal in nominals for join in _adjective_joins(nominal)),
            ((clause.verb.german, nominal.lemmas[-1]) for nominal in objects),
        ),
    )


def from_words(
    german: Words, english: Words, *more: str, nominative: Nominal | None = None, other: Nominal | None = None
) -> Sentence:
    """A sentence that is no clause, of at most one nominal in the nominative or in another case; more: phenomena."""
    nominals = [nominal for nominal in (nominative, other) if nominal]
    lemmas = frozenset(lemma for nominal in nominals for lemma in nominal.lemmas)
    joins = (join for nominal in nominals for join in _adjective_joins(nominal))
    phenomena = frozenset((*_shown(nominals, nominals[:1] if nominative else []), *_of_family(lemmas), *more))
    return Sentence(german, english, phenomena, lemmas, frozenset(joins))


def _adjective_joins(nominal: Nominal) -> list[tuple[str, str]]:
    adjective = getattr(nominal, "adjective", None)
    return [(adjective.german, nominal.lemmas[-1])] if adjective else []


def _phenomena(clause: Clause) -> set[str]:
    shown = {
        "verb-second": clause.front in ("time", "clock", "place"),
        "verb-final": clause.modal is not None,
        "separable": bool(clause.verb.prefix),
        "question": clause.interrogative or clause.subject.asked,
        "negation": clause.negated,
        "time": clause.clock is not None,
    }
    return {name for name, present in shown.items() if present}


def _shown(nominals: Sequence[Nominal], nominative: Sequence[Nominal]) -> set[str]:
    """What noun phrases show, some of which are in the nominative."""
    phrases = [nominal for nominal in nominals if isinstance(nominal, NounPhrase)]
    shown = {
        "case": any(phrase.shows_case for phrase in phrases if not any(phrase is one for one in nominative)),
        "adjective": any(phrase.adjective for phrase in phrases),
        "number": any(phrase.determiner in NUMBERS for phrase in phrases),
    }
    return {name for name, present in shown.items() if present}


def _of_family(lemmas: frozenset[str]) -> tuple[str, ...]:
    return () if lemmas.isdisjoint(FAMILY) else ("family",)


def joined(first: Sentence, conjunction: tuple[str, str], second: Sentence) -> Sentence:
    """Two clauses with a conjunction between them; the meanings of the second get names of their own."""
    german_word, english_word = conjunction
    return Sentence(
        (*first.german, Word(german_word, ("conjunction",)), *_renamed(second.german)),
        (*first.english, Word(english_word, ("conjunction",)), *_renamed(second.english)),
        first.phenomena | second.phenomena,
        first.lemmas | second.lemmas,
        first.joins | second.joins,
    )


_LEMMAS = {"danke": "danken", "dank": "danken", "guten": "gut", "gute": "gut"}
"""Of the words that greetings have in common with sentences."""


def opened(opening: Adverbial, sentence: Sentence) -> Sentence:
    """The sentence after a greeting, an excuse, an answer."""
    words = opening.german("opening")
    return replace(
        sentence,
        lemmas=sentence.lemmas | {_LEMMAS[word.text] for word in words if word.text in _LEMMAS},
        german=(*words, *sentence.german),
        english=(*opening.english("opening"), *sentence.english),
    )


def _renamed(words: Words) -> Words:
    return tuple(Word(word.text, tuple(f"second {link}" for link in word.links)) for word in words)
