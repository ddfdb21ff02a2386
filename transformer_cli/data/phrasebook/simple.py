"""Sentences of one clause: statements, wishes, questions, each kind drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from transformer_cli.data.phrasebook import adverbials
from transformer_cli.data.phrasebook.clauses import MODALS, MOECHTE, Clause
from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, VERBS, verbs
from transformer_cli.data.phrasebook.nominals import (
    chance,
    how_many,
    noun_phrase,
    object_of,
    person_pronoun,
    pick,
    subject_of,
)
from transformer_cli.data.phrasebook.phrases import (
    DU,
    Adverbial,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    Quoted,
)
from transformer_cli.data.phrasebook.sentences import Sentence, from_clause

TRANSITIVE = verbs(
    "kaufen verkaufen suchen finden brauchen haben sehen kennen besuchen lieben lesen schreiben verstehen trinken "
    "essen tragen waschen reparieren malen überqueren betreten anrufen einladen abholen mitbringen "
    "aufmachen zumachen aufräumen wegwerfen"
)
_INTRANSITIVE = verbs("schlafen arbeiten warten spielen")
_RISING = verbs("aufstehen aufwachen einschlafen ankommen zurückkommen einkaufen kommen")
_MOVING = verbs("gehen fahren laufen")
_HELPING = verbs("helfen danken folgen")
_GIVING = verbs("geben zeigen schicken")
_MANNERED = verbs("lächeln antworten sprechen")
_LASTING = verbs("kennen lieben haben verstehen")
"""Verbs of no particular time."""
_HOURLESS = (*_LASTING, *verbs("brauchen machen helfen"))
_NOWHERE = (*_LASTING, *verbs("brauchen überqueren betreten besuchen aufräumen einladen"))
_FOR_SOMEBODY = verbs("kaufen malen schreiben reparieren mitbringen tragen")


def statement(random: Random) -> Sentence:
    return from_clause(finish(random, transitive(random), fronting=0.5))


def transitive(random: Random) -> Clause:
    verb = pick(random, TRANSITIVE)
    subject = subject_of(random, verb.subjects)
    accusative = object_of(random, verb.objects, subject=subject)
    clause = _tense(random, Clause(subject, verb, accusative))
    if verb in _FOR_SOMEBODY and chance(random, 0.15):
        return replace(clause, companion=_for_somebody(random))
    if verb not in _NOWHERE and chance(random, 0.25):
        return replace(clause, place=in_place(random))
    if verb not in _NOWHERE and chance(random, 0.1):
        return replace(clause, companion=_with_somebody(random))
    return clause


def _tense(random: Random, clause: Clause, *, modal: float = 0.22, past: float = 0.35) -> Clause:
    """Present, past or a modal; du and lesen have no past."""
    can_be_past = clause.verb.past is not None and clause.subject.person != DU
    if chance(random, modal):
        chosen = MOECHTE if chance(random, 0.3) else pick(random, MODALS)
        if chosen.past and clause.subject.person == DU:
            chosen = MOECHTE
        return replace(clause, modal=chosen, past=chosen.past)
    return replace(clause, past=can_be_past and chance(random, past))


def finish(random: Random, clause: Clause, *, fronting: float, negation: float = 0.18) -> Clause:
    """Negation or adverbs of time, and what stands first."""
    clause = _negate(clause) if chance(random, negation) else clause
    full = clause.place is not None or clause.companion is not None
    if clause.verb not in _LASTING and chance(random, 0.35 if full else 0.6):
        clause = replace(clause, time=adverbials.time(random, past=clause.past, negated=clause.negated))
    elif not clause.negated and chance(random, 0.3):
        clause = replace(clause, frequency=pick(random, adverbials.FREQUENCIES))
    elif not clause.negated and clause.verb not in _HOURLESS and chance(random, 0.3):
        clause = replace(clause, clock=adverbials.clock(random))
    fronts = [name for name in ("time", "clock", "place") if getattr(clause, name) is not None]
    if fronts and chance(random, fronting):
        return replace(clause, front=fronts[0] if len(fronts) == 1 else pick(random, fronts))
    return clause


def _negate(clause: Clause) -> Clause:
    """The negated clause: ein becomes kein; what has no single negation (drei äpfel, muss) stays as it is."""
    if clause.modal and clause.modal.negated is None:
        return clause
    accusative, dative = clause.accusative, clause.dative
    if any(isinstance(nominal, NounPhrase) and nominal.plural for nominal in (accusative, dative)):
        return clause
    clause = replace(clause, negated=True)
    if isinstance(accusative, NounPhrase) and accusative.determiner == "ein":
        return replace(clause, accusative=replace(accusative, determiner="kein"))
    if isinstance(dative, NounPhrase) and dative.determiner == "ein":
        return replace(clause, dative=replace(dative, determiner="kein"))
    return clause


def in_place(random: Random) -> Prepositional:
    return Prepositional("in", "in", "dat", noun_phrase(random, ("place",), ("der", "der", "der", "mein", "unser")))


def _with_somebody(random: Random) -> Prepositional:
    return Prepositional("mit", "with", "dat", noun_phrase(random, ("kin",), ("der", "mein", "dein", "ein")))


def _for_somebody(random: Random) -> Prepositional:
    return Prepositional("für", "for", "acc", noun_phrase(random, ("person",), ("der", "mein", "unser", "ein")))


def order(random: Random) -> Sentence:
    """ich möchte ein bier; ich möchte ein bier trinken."""
    subject = subject_of(random, ("person",), pronouns=0.8)
    verb = VERBS["möchten"]
    clause = Clause(subject, verb, object_of(random, random.choice(_WANTED), subject=subject))
    if chance(random, 0.5):
        kind = pick(random, ("drink", "food", "thing"))
        verb = VERBS[pick(random, _WITH[kind])]
        clause = Clause(subject, verb, object_of(random, (kind,), subject=subject), modal=MOECHTE)
    if chance(random, 0.2):
        return from_clause(replace(clause, front="nothing"))
    return from_clause(finish(random, clause, fronting=0.5))


_WANTED = (("drink",), ("drink",), ("food",), ("thing",))
_WITH = {
    "drink": ("trinken", "trinken", "kaufen"),
    "food": ("essen", "essen", "kaufen"),
    "thing": ("kaufen", "haben"),
}


def question(random: Random) -> Sentence:
    clause = transitive(random) if chance(random, 0.7) else _anything_else(random)
    asked = random.random()
    timed = clause
    if clause.verb not in _LASTING and chance(random, 0.4):
        timed = replace(clause, time=adverbials.time(random, past=clause.past))
    if asked < 0.3:
        return from_clause(replace(timed, front="nothing"))
    if asked < 0.42:
        return from_clause(replace(clause, asked=adverbials.WHEN, front="asked"))
    if asked < 0.54:
        return from_clause(replace(timed, asked=adverbials.WHY, front="asked"))
    if asked < 0.68:
        where = adverbials.WHITHER if clause.verb in _MOVING else adverbials.WHERE
        return from_clause(replace(timed, place=None, asked=where, front="asked"))
    if asked < 0.82:
        return from_clause(replace(timed, subject=Pronoun("wer")))
    if clause.accusative is None:
        return from_clause(replace(timed, front="nothing"))
    counted = how_many(random, clause.verb.objects) if asked > 0.92 else None
    return from_clause(replace(timed, accusative=counted or Pronoun("was"), front="accusative"))


def _anything_else(random: Random) -> Clause:
    return pick(random, (_rising_clause, _moving_clause, _resting_clause, _helping_clause))(random)


def _rising_clause(random: Random) -> Clause:
    verb = pick(random, _RISING)
    return _tense(random, Clause(subject_of(random, verb.subjects), verb))


def rising(random: Random) -> Sentence:
    """Verbs without object, most of them separable, and mostly with a clock time."""
    clause = finish(random, _rising_clause(random), fronting=0.4, negation=0.15)
    if chance(random, 0.8) and clause.frequency is None and not clause.negated:
        clause = replace(clause, clock=clause.clock or adverbials.clock(random))
    return from_clause(clause)


def _moving_clause(random: Random) -> Clause:
    verb = pick(random, _MOVING)
    subject = subject_of(random, verb.subjects)
    if chance(random, 0.5):
        place = Prepositional("zu", "to", "dat", noun_phrase(random, ("goal",), ("der",)))
    else:
        place = Prepositional("in", "into", "acc", noun_phrase(random, ("place",), ("der", "der", "ein", "unser")))
    return _tense(random, Clause(subject, verb, place=place))


def moving(random: Random) -> Sentence:
    clause = _moving_clause(random)
    if chance(random, 0.35):
        clause = replace(clause, companion=_with_somebody(random))
    clause = finish(random, clause, fronting=0.6)
    return from_clause(replace(clause, front="subject") if clause.front == "place" else clause)


def _resting_clause(random: Random) -> Clause:
    verb = pick(random, _INTRANSITIVE)
    return _tense(random, Clause(subject_of(random, verb.subjects), verb, place=in_place(random)))


def resting(random: Random) -> Sentence:
    clause = _resting_clause(random)
    if chance(random, 0.3):
        clause = replace(clause, companion=_with_somebody(random))
    return from_clause(finish(random, clause, fronting=0.6))


def _helping_clause(random: Random) -> Clause:
    verb = pick(random, _HELPING)
    subject = subject_of(random, verb.subjects)
    return _tense(random, Clause(subject, verb, dative=_dative(random, verb.objects, subject)))


def _dative(random: Random, kinds: Sequence[str], subject: Nominal) -> Nominal:
    if chance(random, 0.25):
        return person_pronoun(random, subject, case="dat")
    return object_of(random, kinds, subject=subject, pronouns=0, singular=True)


def helping(random: Random) -> Sentence:
    clause = _helping_clause(random)
    if chance(random, 0.2):
        clause = replace(clause, place=in_place(random))
    return from_clause(finish(random, clause, fronting=0.5))


def giving(random: Random) -> Sentence:
    verb = pick(random, _GIVING)
    subject = subject_of(random, verb.subjects)
    accusative = object_of(random, verb.objects, subject=subject, pronouns=0)
    dative = _dative(random, ("person",), subject)
    clause = _tense(random, Clause(subject, verb, accusative, dative))
    return from_clause(finish(random, clause, fronting=0.6))


def feeling(random: Random) -> Sentence:
    """seine freundlichkeit macht die lehrerin glücklich."""
    subject = subject_of(random, ("mood",))
    if chance(random, 0.3):
        clause = Clause(subject, VERBS["helfen"], dative=_dative(random, ("person",), subject))
        return from_clause(finish(random, replace(clause, past=chance(random, 0.4)), fronting=0.5))
    clause = Clause(subject, VERBS["machen"], object_of(random, ("person",), subject=subject, indefinite=0))
    adjective = ADJECTIVES[pick(random, adverbials.FEELINGS)]
    clause = replace(clause, manner=Adverbial(adjective.german, adjective.english), past=chance(random, 0.4))
    return from_clause(finish(random, clause, fronting=0.5))


def mannered(random: Random) -> Sentence:
    """das kind lächelte unglücklich."""
    verb = pick(random, _MANNERED)
    subject = subject_of(random, verb.subjects)
    clause = _tense(random, Clause(subject, verb, manner=pick(random, adverbials.MANNERS)))
    if chance(random, 0.3):
        clause = replace(clause, place=in_place(random))
    return from_clause(finish(random, clause, fronting=0.6, negation=0.1))


def about_words(random: Random) -> Sentence:
    """ich verstehe das wort "glück" nicht."""
    verb = VERBS[pick(random, ("kennen", "verstehen", "schreiben", "suchen", "lesen"))]
    word = Quoted(NounPhrase(NOUNS["wort"], "der"), *pick(random, adverbials.QUOTED))
    clause = _tense(random, Clause(subject_of(random, ("person",)), verb, word))
    if chance(random, 0.25):
        return from_clause(replace(clause, front="nothing"), "family")
    return from_clause(finish(random, clause, fronting=0.6, negation=0.3), "family")
