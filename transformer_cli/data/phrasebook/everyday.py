"""What people try first: where something is, what it costs, who somebody is, how one is; and greetings before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeVar

from transformer_cli.data.phrasebook import adverbials, simple
from transformer_cli.data.phrasebook.clauses import Clause, german
from transformer_cli.data.phrasebook.compound import copula
from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, VERBS
from transformer_cli.data.phrasebook.nominals import adjective_for, chance, noun_phrase, object_of, pick, subject_of
from transformer_cli.data.phrasebook.phrases import (
    DU,
    ER,
    ICH,
    NAMES,
    NUMBERS,
    WIR,
    Adverbial,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
    Word,
)
from transformer_cli.data.phrasebook.sentences import Sentence, from_clause, from_words, opened

T = TypeVar("T")

SEIN, KOSTEN = VERBS["sein"], VERBS["kosten"]
_COME_FROM = replace(VERBS["kommen"], particle=("from",))
_ANYTHING = (("person",), ("animal",), ("thing", "light"), ("food", "drink"), ("place", "goal", "way"))
_LANGUAGES = (Adverbial("deutsch", "german"), Adverbial("englisch", "english"))
_SOMEWHERE = (("berlin", "berlin"), ("hamburg", "hamburg"), ("deutschland", "germany"))
_NEEDS = (Adverbial("hunger", "hungry"), Adverbial("durst", "thirsty"))

OPENINGS = tuple(
    Adverbial(german, english)
    for german, english in (
        ("hallo", "hello"),
        ("guten|tag", "good|day"),
        ("guten|morgen", "good|morning"),
        ("guten|abend", "good|evening"),
        ("gute|nacht", "good|night"),
        ("danke", "thank you"),
        ("vielen|dank", "many|thanks"),
        ("auf wiedersehen", "goodbye"),
        ("tschüss", "bye"),
        ("entschuldigung", "excuse me"),
        ("ja", "yes"),
        ("nein", "no"),
    )
)
"""What stands before a sentence, before a name, or alone; the last two are answers."""
_ANSWERS = OPENINGS[-2:]
_THANKS = next(opening for opening in OPENINGS if opening.german_text == "danke")
_PLEASE = Adverbial("bitte", "please")


def greeting(random: Random) -> Sentence:
    """guten abend mein freund; ja bitte."""
    opening = pick(random, OPENINGS)
    if opening in _ANSWERS:
        return alone(opening, _PLEASE if opening.german_text == "ja" else _THANKS)
    whom = (
        Name(pick(random, NAMES)) if chance(random, 0.6) else noun_phrase(random, ("kin",), ("mein",), adjectives=0.2)
    )
    return opened(opening, from_words(whom.german("nom", "whom"), whom.english("nom", "whom"), nominative=whom))


def alone(first: Adverbial, *more: Adverbial) -> Sentence:
    """Only that: guten tag."""
    phrases = (first, *more)
    return from_words(
        tuple(word for index, phrase in enumerate(phrases) for word in phrase.german(f"said {index}")),
        tuple(word for index, phrase in enumerate(phrases) for word in phrase.english(f"said {index}")),
    )


def after_greeting(random: Random) -> Sentence:
    """entschuldigung wo ist der bahnhof; nein ich kaufe kein bier."""
    opening = pick(random, OPENINGS)
    others = (simple.statement, copula) if opening in _ANSWERS else (simple.question,)
    return opened(opening, pick(random, _SHORT if chance(random, 0.8) else others)(random))


def where(random: Random) -> Sentence:
    """wo ist das kleine haus; wo waren gestern die kinder."""
    clause = Clause(_anybody(random, pick(random, _ANYTHING)), SEIN, asked=adverbials.WHERE, front="asked")
    return from_clause(_at_some_time(random, clause))


def there(random: Random) -> Sentence:
    """der hund ist im garten; ist anna hier; wer war gestern in der küche."""
    subject = _anybody(random, pick(random, _ANYTHING[:4]))
    clause = _at_some_time(random, Clause(subject, SEIN, negated=chance(random, 0.15)))
    if chance(random, 0.35):
        clause = replace(clause, manner=pick(random, adverbials.HERE))
    else:
        clause = replace(clause, place=simple.in_place(random))
    if chance(random, 0.15):
        return from_clause(replace(clause, subject=Pronoun("wer")))
    return from_clause(replace(clause, front="nothing") if chance(random, 0.3) else clause)


def _anybody(random: Random, kinds: tuple[str, ...], *, indefinite: float = 0.1) -> Nominal:
    if "person" in kinds and chance(random, 0.3):
        return Name(pick(random, NAMES))
    return _often_said(subject_of(random, kinds, indefinite=indefinite))


def _often_said(said: T) -> T:
    """The nominal without an adjective where this had a form (mein neuer hut) that is too rare to be learnt."""
    if isinstance(said, NounPhrase) and said.noun.gender == "m" and not said.plural and said.determiner != "der":
        return said if said.noun.kinds & {"person", "animal"} else replace(said, adjective=None)
    return said


def _at_some_time(random: Random, clause: Clause) -> Clause:
    past = clause.subject.person != DU and chance(random, 0.25)
    return replace(clause, past=past, time=adverbials.moment(random, past=past) if chance(random, 0.2) else None)


def introduction(random: Random) -> Sentence:
    """das ist mein kleiner bruder; ist das ein hund; sie ist keine lehrerin; wer ist der mann."""
    if chance(random, 0.2):
        asked = Clause(_anybody(random, ("person",)), SEIN, asked=adverbials.WHO, front="asked")
        if chance(random, 0.4):
            asked = replace(asked, subject=Pronoun("das"), asked=pick(random, (adverbials.WHO, adverbials.WHAT)))
        return from_clause(replace(asked, past=asked.subject.person != DU and chance(random, 0.2)))
    subject, predicate = _introduced(random)
    clause = Clause(subject, SEIN, predicate=predicate, negated=chance(random, 0.2))
    if clause.negated and isinstance(predicate, NounPhrase) and predicate.determiner == "ein":
        clause = replace(clause, predicate=replace(predicate, determiner="kein"))
    return from_clause(replace(clause, front="nothing") if chance(random, 0.3) else clause)


def _introduced(random: Random) -> tuple[Nominal, Nominal]:
    """Somebody or something, and who or what that is; he is never a mother."""
    if chance(random, 0.15):
        return Pronoun(pick(random, ("das", "ich"))), Name(pick(random, NAMES))
    name = pick(random, ("das", "das", "das", "those", "ich", "du", "er", "sie"))
    kinds = pick(random, _ANYTHING) if name in ("das", "those") else ("person",)
    said = _often_said(noun_phrase(random, kinds, ("der", "ein", "ein", "mein", "mein", "dein", "unser")))
    if {"er": "f", "sie": "m"}.get(name) == said.noun.gender:
        return _introduced(random)
    if name == "those" and (said.noun.german_plural is None or said.determiner == "ein"):
        return _introduced(random)
    return Pronoun(name), replace(said, plural=name == "those")


def description(random: Random) -> Sentence:
    """wie ist das bier; wie alt ist dein bruder; warum bist du müde; es ist kalt; das war gut."""
    drawn = random.random()
    if drawn < 0.25:
        subject = _anybody(random, pick(random, _ANYTHING[2:]), indefinite=0)
        return from_clause(_at_some_time(random, Clause(subject, SEIN, asked=adverbials.HOW, front="asked")))
    if drawn < 0.45:
        subject = _anybody(random, ("person",))
        joins = frozenset(("alt", lemma) for lemma in subject.lemmas[-1:])
        return from_clause(Clause(subject, SEIN, asked=adverbials.HOW_OLD, front="asked"), joins=joins)
    if drawn < 0.75:
        subject, adjective = _anybody(random, ("person",)), pick(random, adverbials.FEELINGS)
        clause = _at_some_time(random, Clause(subject, SEIN, manner=_being(adjective)))
        if chance(random, 0.4):
            return from_clause(replace(clause, subject=Pronoun("wer")))
        joins = frozenset((adjective, lemma) for lemma in subject.lemmas[-1:])
        return from_clause(replace(clause, asked=adverbials.WHY, front="asked"), joins=joins)
    adjective = adjective_for(random, noun_phrase(random, ("thing", "food", "drink", "place"), ("der",)).noun).german
    clause = Clause(Pronoun(pick(random, ("es", "das"))), SEIN, manner=_being(adjective))
    clause = _at_some_time(random, replace(clause, negated=chance(random, 0.2)))
    return from_clause(replace(clause, front="nothing") if chance(random, 0.2) else clause)


def _being(adjective: str) -> Adverbial:
    return Adverbial(adjective, ADJECTIVES[adjective].english)


def price(random: Random) -> Sentence:
    """was kostet das bier; wie viel kosten die äpfel; das kostet drei euro."""
    kinds = pick(random, (("thing",), ("food",), ("drink",)))
    subject = _anybody(random, kinds) if chance(random, 0.75) else Pronoun("das")
    clause, asked = Clause(subject, KOSTEN), random.random()
    if asked < 0.4:
        return from_clause(replace(clause, accusative=Pronoun("was"), front="accusative"))
    if asked < 0.65:
        return from_clause(replace(clause, asked=adverbials.HOW_MUCH, front="asked"))
    clause = replace(clause, accusative=NounPhrase(NOUNS["euro"], pick(random, tuple(NUMBERS)), plural=True))
    return from_clause(replace(clause, front="nothing") if chance(random, 0.15) else clause)


def home(random: Random) -> Sentence:
    """woher kommt anna; ich komme aus deutschland; wir wohnen in einem kleinen haus; sprichst du deutsch."""
    subject = (
        _anybody(random, ("person",)) if chance(random, 0.4) else Pronoun(pick(random, ("ich", "du", "er", "sie")))
    )
    drawn, [german, english] = random.random(), pick(random, _SOMEWHERE)
    if drawn < 0.15:
        return from_clause(Clause(subject, _COME_FROM, asked=adverbials.WHENCE, front="asked"))
    if drawn < 0.35:
        clause = Clause(subject, VERBS["kommen"], manner=Adverbial(f"aus|{german}", f"from|{english}"))
    elif drawn < 0.45:
        return from_clause(Clause(subject, VERBS["wohnen"], asked=adverbials.WHERE, front="asked"))
    elif drawn < 0.6:
        clause = Clause(subject, VERBS["wohnen"], manner=Adverbial(f"in|{german}", f"in|{english}"))
    elif drawn < 0.85:
        clause = Clause(subject, VERBS["wohnen"], place=simple.in_place(random))
    else:
        clause = Clause(subject, VERBS["sprechen"], manner=pick(random, _LANGUAGES))
    return from_clause(replace(clause, front="nothing") if chance(random, 0.3) else clause)


def well_being(random: Random) -> Sentence:
    """wie geht es dir heute; meiner mutter geht es nicht gut; ich habe hunger: German needs another case, or verb."""
    subject: Nominal = Pronoun(pick(random, ("ich", "ich", "du", "du", "du", "er", "sie", "wir")))
    if chance(random, 0.3):
        subject = noun_phrase(random, ("kin",), ("mein", "dein", "unser"))
    elif chance(random, 0.2):
        subject = Name(pick(random, NAMES))
    clause = Clause(subject, SEIN, time=adverbials.moment(random, past=False) if chance(random, 0.3) else None)
    drawn = random.random()
    if drawn < 0.25 and subject.is_pronoun:
        clause = replace(clause, manner=pick(random, _NEEDS), front="nothing" if chance(random, 0.2) else "subject")
        return replace(from_clause(clause), german=german(replace(clause, verb=VERBS["haben"])))
    going = (Word("geht", ("verb",)), Word("es", ("verb",)))
    whom, when = subject.german("dat", "subject"), clause.time.german("time") if clause.time else ()
    if drawn < 0.7 and subject.person not in (ICH, WIR):
        clause = replace(clause, asked=adverbials.HOW, front="asked")
        return replace(from_clause(clause), german=(*adverbials.HOW.german("asked"), *going, *whom, *when))
    clause = replace(clause, manner=Adverbial("gut", "fine"), negated=chance(random, 0.25))
    denied = (Word("nicht", ("negation",)),) if clause.negated else ()
    return replace(from_clause(clause), german=(*whom, *going, *when, *denied, Word("gut", ("manner.0",))))


def name(random: Random) -> Sentence:
    """ich heiße anna; wie heißt du: English has a noun for the verb."""
    asked = chance(random, 0.35)
    owner, verb, owned = pick(random, _OWNERS)
    subject, being, who = Pronoun(owner), Word("is", ("verb",)), Word(pick(random, NAMES), ("name",))
    whose, theirs = subject.german("nom", "subject"), (Word(owned, ("subject",)), Word("name", ("verb",)))
    calling = Word(verb, ("verb",))
    if not asked:
        return from_words((*whose, calling, who), (*theirs, being, who))
    return from_words((Word("wie", ("name",)), calling, *whose), (Word("what", ("name",)), being, *theirs), "question")


_OWNERS = (*(("ich", "heiße", "my"), ("du", "heißt", "your")) * 2, ("er", "heißt", "his"), ("sie", "heißt", "her"))


def wish(random: Random) -> Sentence:
    """einen kaffee bitte; ich hätte gern zwei biere."""
    wanted = object_of(random, pick(random, (("drink",), ("food",))), subject=Pronoun("ich"))
    german, english = wanted.german("acc", "accusative"), wanted.english("acc", "accusative")
    if chance(random, 0.6):
        return from_words((*german, *_PLEASE.german("please")), (*english, *_PLEASE.english("please")), other=wanted)
    subject, verb = pick(random, ((Pronoun("ich"), "hätte"), (Pronoun("wir"), "hätten")))
    liking = (Word("would", ("verb",)), Word("like", ("verb",)))
    return from_words(
        (*subject.german("nom", "subject"), Word(verb, ("verb",)), Word("gern", ("verb",)), *german),
        (*subject.english("nom", "subject"), *liking, *english),
        other=wanted,
    )


def o_clock(random: Random) -> Sentence:
    """wie spät ist es jetzt; es ist halb acht."""
    clause = Clause(Pronoun("es"), SEIN, manner=adverbials.hour(random))
    if chance(random, 0.4):
        clause = replace(clause, manner=None, asked=adverbials.WHAT_TIME, front="asked")
        clause = replace(clause, time=adverbials.moment(random, past=False) if chance(random, 0.5) else None)
    return from_clause(clause)


def about_somebody(random: Random) -> Sentence:
    """anna trinkt jeden tag einen kaffee."""
    clause = simple.transitive(random)
    if clause.subject.person == ER and "person" in clause.verb.subjects:
        clause = replace(clause, subject=Name(pick(random, NAMES)))
    return from_clause(simple.finish(random, clause, fronting=0.5))


# What has the least in common with any other sentence comes most often.
_SHORT = (where, there, introduction, description, price, home, *(well_being, name) * 5, wish, *(o_clock,) * 2)


KINDS: tuple[tuple[float, Callable[[Random], Sentence]], ...] = (
    (2, where),
    (1.5, there),
    (1.6, introduction),
    (1.2, description),
    (1, price),
    (1.9, home),
    (1.2, well_being),
    (0.8, name),
    (1, wish),
    (0.4, o_clock),
    (1, about_somebody),
    (0.8, greeting),
    (4, after_greeting),
)


def always_taught() -> list[Sentence]:
    """The shortest of all, which no other sentence has as a part."""
    asked = [
        Clause(Pronoun("das"), SEIN, asked=adverbials.WHAT, front="asked"),
        Clause(Pronoun("das"), SEIN, asked=adverbials.WHO, front="asked"),
        Clause(Pronoun("das"), KOSTEN, Pronoun("was"), front="accusative"),
        Clause(Pronoun("ich"), VERBS["verstehen"], negated=True),
    ]
    return [
        *(alone(opening) for opening in (*OPENINGS, _PLEASE)),
        alone(OPENINGS[-2], _PLEASE),
        alone(OPENINGS[-1], _THANKS),
        *map(from_clause, asked),
    ]
