"""A clause as meaning, and its two word orders.

German: one constituent before the finite verb (none in a yes-no question), then subject, pronouns, time, objects,
nicht, manner, place, and at the end what belongs to the verb: infinitive and separable prefix. English: subject, verb,
objects, manner, place, time, with do-support where there is no auxiliary.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_cli.data.phrasebook.lexicon import Verb
from transformer_cli.data.phrasebook.phrases import DU, ER, ICH, Adverbial, Nominal, Prepositional, Word, Words


@dataclass(frozen=True)
class Modal:
    """A modal verb, and its English negated form (None: there is no such sentence).

    full: English has a full verb, with do-support: want to, don't want to.
    """

    german: tuple[str, ...]
    english: str
    english_third: str
    negated: str | None
    past: bool = False
    full: bool = False


MODALS = (
    Modal(("kann", "kannst", "kann", "können", "können"), "can", "can", "can't"),
    Modal(("soll", "sollst", "soll", "sollen", "sollen"), "should", "should", "shouldn't"),
    # muss nicht is not must not, and must not is darf nicht: neither is ever negated.
    Modal(("muss", "musst", "muss", "müssen", "müssen"), "must", "must", None),
    Modal(("konnte", "konntest", "konnte", "konnten", "konnten"), "could", "could", "couldn't", past=True),
    Modal(("wollte", "wolltest", "wollte", "wollten", "wollten"), "wanted", "wanted", "want", past=True, full=True),
)
MOECHTE = Modal(("möchte", "möchtest", "möchte", "möchten", "möchten"), "want", "wants", "want", full=True)


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, when, where and how; and what stands first."""

    subject: Nominal
    verb: Verb
    accusative: Nominal | None = None
    dative: Nominal | None = None
    modal: Modal | None = None
    past: bool = False
    negated: bool = False
    frequency: Adverbial | None = None
    time: Adverbial | None = None
    clock: Adverbial | None = None
    manner: Adverbial | None = None
    companion: Prepositional | None = None
    place: Prepositional | None = None
    predicate: Nominal | None = None
    """What the subject is said to be: das ist ein hund."""
    asked: Adverbial | None = None
    """The question word of wann, wo, wohin, warum, wie; wer and was may be subject and object, too."""
    front: str = "subject"
    """The field before the finite verb: subject, accusative, time, clock, place, asked, or nothing."""

    @property
    def has_kein(self) -> bool:
        """Whether the negation is in an object's determiner."""
        return any(
            nominal and nominal.determiner == "kein" for nominal in (self.accusative, self.dative, self.predicate)
        )

    @property
    def asks_object(self) -> bool:
        return self.accusative is not None and self.accusative.asked

    @property
    def interrogative(self) -> bool:
        """Whether English asks with do or an auxiliary: not when the question is about the subject."""
        return self.front in ("nothing", "asked") or self.asks_object


def german(clause: Clause) -> Words:
    """The main clause, verb second, or verb first where nothing stands before it."""
    fields = _german_fields(clause)
    finite, end = _german_verb(clause)
    before = fields.pop(clause.front, ())
    return (*before, finite, *_middle(clause, fields), *end)


def german_subordinate(clause: Clause) -> Words:
    """The clause as it follows weil: the finite verb last."""
    finite, end = _german_verb(clause)
    return (*_middle(clause, _german_fields(clause)), *end, finite)


def _middle(clause: Clause, fields: dict[str, Words]) -> Words:
    return tuple(word for name in _german_order(clause) for word in fields.get(name, ()))


def _german_fields(clause: Clause) -> dict[str, Words]:
    fields: dict[str, Words] = {"subject": clause.subject.german("nom", "subject")}
    if clause.accusative:
        fields["accusative"] = clause.accusative.german("acc", "accusative")
    if clause.dative:
        fields["dative"] = clause.dative.german("dat", "dative")
    if clause.predicate:
        fields["predicate"] = clause.predicate.german("nom", "predicate")
    if clause.negated and not clause.has_kein:
        fields["nicht"] = (Word("nicht", ("negation",)),)
    for name in ("frequency", "time", "clock", "manner", "companion", "place", "asked"):
        adverbial = getattr(clause, name)
        if adverbial:
            fields[name] = adverbial.german(name)
    return fields


def _german_order(clause: Clause) -> tuple[str, ...]:
    objects = [("accusative", clause.accusative), ("dative", clause.dative)]
    pronouns = [name for name, nominal in objects if nominal and nominal.is_pronoun]
    nouns = [name for name, nominal in reversed(objects) if nominal and not nominal.is_pronoun]
    when = ["time", "frequency", "clock"]
    if clause.negated and not clause.has_kein:
        # A definite object stands before nicht, and nicht before what it denies.
        order = [*pronouns, *nouns, "time", "frequency", "nicht", "clock", "companion", "predicate", "manner", "place"]
    else:
        order = [*pronouns, *when, *_around(clause, nouns), "predicate", "manner", "place"]
    return ("subject", *order)


def _around(clause: Clause, nouns: list[str]) -> list[str]:
    """With whom stands before the object, for whom after it."""
    if clause.companion and clause.companion.preposition == "für":
        return [*nouns, "companion"]
    return ["companion", *nouns]


def _german_verb(clause: Clause) -> tuple[Word, Words]:
    """The finite verb, and what stands at the end of the clause."""
    person, verb = clause.subject.person, clause.verb
    if clause.modal:
        return Word(clause.modal.german[person], ("modal",)), (Word(verb.german, ("verb",)),)
    if clause.past:
        assert verb.past is not None
        assert person != DU
        finite = verb.past[person > ER]
    else:
        finite = verb.present[person]
    return Word(finite, ("verb",)), (Word(verb.prefix, ("verb",)),) if verb.prefix else ()


def english(clause: Clause) -> Words:
    """The same clause in English."""
    fields = _english_fields(clause)
    asked = fields.pop("asked", ())
    if clause.asks_object:
        asked = fields.pop("accusative")
    before = fields.pop(clause.front) if clause.front in ("time", "clock", "place") else ()
    helper, verbs = _english_verb(clause)
    subject = clause.subject.english("nom", "subject")
    frequency = fields.pop("frequency", ())
    if clause.modal and not clause.modal.full:
        core = (*subject, *helper, *frequency, *verbs)
    else:
        core = (*subject, *frequency, *helper, *verbs)
    if clause.interrogative:
        core = (*helper, *subject, *frequency, *verbs)
    order = ("dative", "accusative", "predicate", "manner", "place", "companion", "clock", "time")
    rest = (word for name in order for word in fields.get(name, ()))
    return (*asked, *before, *core, *rest)


def _english_fields(clause: Clause) -> dict[str, Words]:
    fields: dict[str, Words] = {}
    if clause.accusative:
        fields["accusative"] = clause.accusative.english("acc", "accusative")
    if clause.dative:
        fields["dative"] = clause.dative.english("dat", "dative")
    if clause.predicate:
        fields["predicate"] = clause.predicate.english("nom", "predicate")
    for name in ("frequency", "time", "clock", "manner", "companion", "place", "asked"):
        adverbial = getattr(clause, name)
        if adverbial:
            fields[name] = adverbial.english(name)
    return fields


def _english_verb(clause: Clause) -> tuple[Words, Words]:
    """The auxiliary that questions put before the subject (there may be none), and the other verbs."""
    verb, modal = clause.verb, clause.modal
    if verb.english == "be":
        return _be(clause), ()
    third = clause.subject.person == ER
    particle = tuple(Word(word, ("verb",)) for word in verb.particle)
    base = (Word(verb.english, ("verb",)), *particle)
    if modal and not modal.full:
        if not clause.negated:
            return (Word(modal.english, ("modal",)),), base
        assert modal.negated is not None
        return (Word(modal.negated, ("modal", "negation")),), base
    past = modal.past if modal else clause.past
    support = clause.negated or clause.interrogative
    do = "did" if past else "does" if third else "do"
    carrier = "modal" if modal else "verb"
    if modal:
        wanted = "want" if support else modal.english_third if third else modal.english
        base = (Word(wanted, ("modal",)), Word("to", ("verb",)), *base)
    elif not support:
        finite = verb.english_past if past else verb.english_third if third else verb.english
        base = (Word(finite, ("verb",)), *particle)
    if clause.negated:
        return (Word(do + "n't", ("negation",)),), base
    return ((Word(do, (carrier,)),) if support else ()), base


def _be(clause: Clause) -> Words:
    """The copula, which needs no do: isn't, weren't; only "am not" has no short form."""
    person = clause.subject.person
    plural = person not in (ICH, ER)
    present = "are" if plural else "is" if person == ER else "am"
    text = ("were" if plural else "was") if clause.past else present
    if not clause.negated:
        return (Word(text, ("verb",)),)
    if text == "am":
        return (Word(text, ("verb",)), Word("not", ("negation",)))
    return (Word(text + "n't", ("verb", "negation")),)
