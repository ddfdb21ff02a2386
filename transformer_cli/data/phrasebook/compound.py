"""Sentences of two clauses, and the copula: contrast with aber, reasons with weil and their pronouns."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from transformer_cli.data.phrasebook import adverbials
from transformer_cli.data.phrasebook.clauses import MODALS, Clause
from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, VERBS
from transformer_cli.data.phrasebook.nominals import adjective_for, chance, object_of, pick, subject_of
from transformer_cli.data.phrasebook.phrases import DU, Adverbial, Anaphor, Nominal, NounPhrase
from transformer_cli.data.phrasebook.sentences import Sentence, from_clause, joined
from transformer_cli.data.phrasebook.simple import TRANSITIVE


def contrast(random: Random) -> Sentence:
    """den hund kenne ich aber die katze kenne ich nicht: objects before the verb, their case tells them apart."""
    verb = pick(random, TRANSITIVE)
    subject = subject_of(random, verb.subjects, pronouns=0.6)
    past = verb.past is not None and subject.person != DU and chance(random, 0.5)
    first, second = (
        object_of(random, verb.objects, subject=subject, pronouns=0, indefinite=0, adjectives=share, singular=True)
        for share in (0.15, 0.0)
    )
    if first.lemmas[-1] == second.lemmas[-1]:
        return contrast(random)
    if isinstance(first, NounPhrase) and first.noun.gender != "m" and not subject.is_pronoun:
        return contrast(random)  # die katze sieht die frau: who sees whom?
    clause = Clause(subject, verb, first, past=past, front="accusative")
    denied = replace(clause, subject=_again(subject), accusative=second, negated=True)
    return joined(from_clause(clause, "verb-second"), ("aber", "but"), from_clause(denied, "verb-second"))


def _again(nominal: Nominal) -> Nominal:
    """How a nominal is named the second time: a noun by its pronoun."""
    return Anaphor(nominal) if isinstance(nominal, NounPhrase) else nominal


# What a thing can be too much of, for whom acts on it: verb | objects | adjectives. None of these is an adjective of
# `_ACTOR`, so that the adjective alone decides what the pronoun refers to.
_REASONS = """
überqueren | straße brücke                       | eng lang gefährlich breit
überqueren | platz wiese feld fluss              | breit gefährlich
betreten   | haus garten küche zimmer wald keller hotel | dunkel kalt klein schmutzig
essen      | suppe ei fisch tomate birne         | kalt alt
essen      | apfel kuchen birne brötchen         | klein alt
trinken    | bier wein limonade saft kaffee tee  | warm kalt
trinken    | wein limonade saft kaffee           | süß
tragen     | tasche koffer kiste tisch stuhl paket | schwer groß
kaufen     | auto fahrrad hemd hut jacke lampe tasche bild stuhl haus | teuer alt klein groß
verkaufen  | auto fahrrad bild lampe tisch       | alt schön
waschen    | auto hemd jacke fahrrad             | alt groß
reparieren | auto fahrrad lampe fenster tür      | alt schmutzig
"""
_ACTOR = ("müde", "krank", "schwach", "faul", "traurig", "jung")


def _reasons() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    rows = (line.split("|") for line in _REASONS.strip().split("\n"))
    return [(verb.strip(), tuple(nouns.split()), tuple(adjectives.split())) for verb, nouns, adjectives in rows]


_TABLE = _reasons()
_TOO, _VERY = ("zu", "too"), ("sehr", "very")
_INTENSIFIERS = (_TOO, _TOO, _VERY)


def reason(random: Random) -> Sentence:
    """das tier überquerte die straße nicht weil es zu müde war, weil sie zu eng war."""
    name, nouns, adjectives = _TABLE[0] if chance(random, 0.2) else pick(random, _TABLE)
    verb = VERBS[name]
    subject = subject_of(random, verb.subjects, pronouns=0.15)
    thing = NounPhrase(NOUNS[pick(random, nouns)], "der")
    clause = Clause(subject, verb, thing, negated=True, past=subject.person != DU and chance(random, 0.7))
    if chance(random, 0.3):
        modal = pick(random, [modal for modal in MODALS if modal.negated and modal.past == clause.past])
        clause = replace(clause, modal=modal)
    if chance(random, 0.5):
        return because(clause, subject, pick(random, _ACTOR), pick(random, _INTENSIFIERS))
    return because(clause, thing, pick(random, adjectives), pick(random, _INTENSIFIERS))


def because(clause: Clause, antecedent: Nominal, adjective: str, intensifier: tuple[str, str]) -> Sentence:
    """The clause, with what its subject or its object was as the reason."""
    why = Clause(_again(antecedent), VERBS["sein"], manner=_predicate(adjective, intensifier), past=clause.past)
    joins = frozenset((adjective, lemma) for lemma in antecedent.lemmas[-1:])
    return joined(from_clause(clause), ("weil", "because"), from_clause(why, "reference", joins=joins, last=True))


def _predicate(adjective: str, intensifier: tuple[str, str] | None) -> Adverbial:
    words = (*([intensifier] if intensifier else []), (adjective, ADJECTIVES[adjective].english))
    return Adverbial("|".join(german for german, _ in words), "|".join(english for _, english in words))


def copula(random: Random) -> Sentence:
    """gestern war die suppe nicht sehr kalt."""
    kinds = pick(random, _DESCRIBED)
    subject = subject_of(random, kinds, pronouns=0.6, indefinite=0)
    if isinstance(subject, NounPhrase):
        subject = replace(subject, adjective=None)
        adjective = adjective_for(random, subject.noun).german
    else:
        adjective = pick(random, adverbials.FEELINGS)
    intensifier = pick(random, _INTENSIFIERS) if chance(random, 0.6) else None
    if "person" in kinds and intensifier:
        intensifier = _VERY  # nobody is too happy
    past = subject.person != DU and chance(random, 0.5)
    clause = Clause(subject, VERBS["sein"], manner=_predicate(adjective, intensifier), past=past)
    clause = replace(clause, negated=chance(random, 0.3))
    if chance(random, 0.6):
        front = "time" if chance(random, 0.6) else "subject"
        clause = replace(clause, time=adverbials.moment(random, past=past), front=front)
    if clause.front == "subject" and not clause.negated and chance(random, 0.25):
        clause = replace(clause, front="nothing")
    return from_clause(clause, joins=frozenset((adjective, lemma) for lemma in subject.lemmas[-1:]))


_DESCRIBED = (("person",), ("person",), ("place", "way"), ("thing", "text"), ("food", "drink"))
