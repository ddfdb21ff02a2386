"""Hand-written sentences of every kind, with the alignment that a person would draw."""

from __future__ import annotations

from random import Random

import pytest

from transformer_cli.data.phrasebook import everyday
from transformer_cli.data.phrasebook.adverbials import HOW_OLD, WHEN, WHERE
from transformer_cli.data.phrasebook.clauses import MODALS, MOECHTE, Clause
from transformer_cli.data.phrasebook.compound import because
from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, VERBS
from transformer_cli.data.phrasebook.pairs import Pair, pair_of
from transformer_cli.data.phrasebook.phrases import Adverbial, Name, NounPhrase, Prepositional, Pronoun, Quoted
from transformer_cli.data.phrasebook.sentences import Sentence, from_clause, from_words, joined, opened


def phrase(determiner: str, noun: str, adjective: str | None = None, *, plural: bool = False) -> NounPhrase:
    return NounPhrase(NOUNS[noun], determiner, ADJECTIVES[adjective] if adjective else None, plural)


ICH, ER, WIR, THEY = (Pronoun(name) for name in ("ich", "er", "wir", "they"))
HALF_PAST_SEVEN = Adverbial("um|halb|acht", "at|half past|seven")
TODAY, YESTERDAY = Adverbial("heute", "today"), Adverbial("gestern", "yesterday")
TIER, STRASSE = phrase("der", "tier"), phrase("der", "straße")
CROSSING = Clause(TIER, VERBS["überqueren"], STRASSE, past=True, negated=True)
CAN = MODALS[0]

GOLDEN = [
    (
        from_clause(Clause(phrase("der", "hund"), VERBS["suchen"], phrase("ein", "kollege", "traurig"))),
        "der hund sucht einen traurigen kollegen",
        "the dog looks for a sad colleague",
        "0-0 1-1 2-2 2-3 3-4 4-5 5-6",
    ),
    (
        from_clause(Clause(ICH, VERBS["trinken"], phrase("ein", "bier"), modal=MOECHTE)),
        "ich möchte ein bier trinken",
        "i want to drink a beer",
        "0-0 1-1 2-4 3-5 4-2 4-3",
    ),
    (
        from_clause(
            Clause(ICH, VERBS["aufstehen"], time=TODAY, clock=HALF_PAST_SEVEN, front="time")
        ),
        "heute stehe ich um halb acht auf",
        "today i get up at half past seven",
        "0-0 1-2 1-3 2-1 3-4 4-5 4-6 5-7 6-2 6-3",
    ),
    (
        from_clause(Clause(WIR, VERBS["anrufen"], phrase("unser", "bruder"), modal=CAN, negated=True)),
        "wir können unseren bruder nicht anrufen",
        "we can't call our brother",
        "0-0 1-1 2-3 3-4 4-1 5-2",
    ),
    (
        from_clause(Clause(ER, VERBS["kaufen"], phrase("kein", "apfel", "rot"), past=True, negated=True)),
        "er kaufte keinen roten apfel",
        "he didn't buy a red apple",
        "0-0 1-2 2-1 2-3 3-4 4-5",
    ),
    (
        from_clause(
            Clause(THEY, VERBS["helfen"], dative=phrase("der", "nachbar"), past=True, time=YESTERDAY, front="time")
        ),
        "gestern halfen sie dem nachbarn",
        "yesterday they helped the neighbor",
        "0-0 1-2 2-1 3-3 4-4",
    ),
    (
        from_clause(Clause(phrase("ein", "mann", "alt"), VERBS["geben"], phrase("ein", "buch"), phrase("der", "kind"))),
        "ein alter mann gibt dem kind ein buch",
        "an old man gives the child a book",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7",
    ),
    (
        from_clause(Clause(phrase("der", "frau"), VERBS["lesen"], phrase("der", "brief"), asked=WHEN, front="asked")),
        "wann liest die frau den brief",
        "when does the woman read the letter",
        "0-0 1-1 1-4 2-2 3-3 4-5 5-6",
    ),
    (
        from_clause(Clause(Pronoun("wer"), VERBS["einladen"], phrase("mein", "schwester"), time=TODAY)),
        "wer lädt heute meine schwester ein",
        "who invites my sister today",
        "0-0 1-1 2-4 3-2 4-3 5-1",
    ),
    (
        from_clause(
            Clause(Pronoun("du"), VERBS["kaufen"], phrase("wie viele", "ei", plural=True), front="accusative")
        ),
        "wie viele eier kaufst du",
        "how many eggs do you buy",
        "0-0 0-1 1-0 1-1 2-2 3-3 3-5 4-4",
    ),
    (
        from_clause(
            Clause(ER, VERBS["gehen"], place=Prepositional("zu", "to", "dat", phrase("der", "schule")), negated=True)
        ),
        "er geht nicht zur schule",
        "he doesn't go to the school",
        "0-0 1-2 2-1 3-3 3-4 4-5",
    ),
    (
        from_clause(
            Clause(phrase("der", "katze", plural=True), VERBS["schlafen"],
                   place=Prepositional("in", "in", "dat", phrase("der", "garten", "schön")), front="place")
        ),
        "im schönen garten schlafen die katzen",
        "in the beautiful garden the cats sleep",
        "0-0 0-1 1-2 2-3 3-6 4-4 5-5",
    ),
    (
        from_clause(Clause(ER, VERBS["sehen"], Pronoun("ich"), time=TODAY)),
        "er sieht mich heute",
        "he sees me today",
        "0-0 1-1 2-2 3-3",
    ),
    (
        from_clause(Clause(ER, VERBS["kaufen"], phrase("der", "hut"), negated=True, time=TODAY)),
        "er kauft den hut heute nicht",
        "he doesn't buy the hat today",
        "0-0 1-2 2-3 3-4 4-5 5-1",
    ),
    (
        because(CROSSING, TIER, "müde", ("zu", "too")),
        "das tier überquerte die straße nicht weil es zu müde war",
        "the animal didn't cross the street because it was too tired",
        "0-0 1-1 2-3 3-4 4-5 5-2 6-6 7-7 8-9 9-10 10-8",
    ),
    (
        because(CROSSING, STRASSE, "eng", ("zu", "too")),
        "das tier überquerte die straße nicht weil sie zu eng war",
        "the animal didn't cross the street because it was too narrow",
        "0-0 1-1 2-3 3-4 4-5 5-2 6-6 7-7 8-9 9-10 10-8",
    ),
    (
        joined(
            from_clause(Clause(ICH, VERBS["kennen"], phrase("der", "hund"), front="accusative")),
            ("aber", "but"),
            from_clause(Clause(ICH, VERBS["kennen"], phrase("der", "katze"), front="accusative", negated=True)),
        ),
        "den hund kenne ich aber die katze kenne ich nicht",
        "i know the dog but i don't know the cat",
        "0-2 1-3 2-1 3-0 4-4 5-8 6-9 7-7 8-5 9-6",
    ),
    (
        from_clause(
            Clause(phrase("sein", "freundlichkeit"), VERBS["machen"], phrase("der", "lehrerin"), past=True,
                   manner=Adverbial("unglücklich", "unhappy"))
        ),
        "seine freundlichkeit machte die lehrerin unglücklich",
        "his kindness made the teacher unhappy",
        "0-0 1-1 2-2 3-3 4-4 5-5",
    ),
    (
        from_clause(
            Clause(ICH, VERBS["verstehen"], Quoted(phrase("der", "wort"), "unglück", "unhappiness"), negated=True)
        ),
        'ich verstehe das wort "unglück" nicht',
        'i don\'t understand the word "unhappiness"',
        "0-0 1-2 2-3 3-4 4-5 5-1",
    ),
    (
        from_clause(Clause(ICH, VERBS["sein"], manner=Adverbial("sehr|glücklich", "very|happy"), negated=True)),
        "ich bin nicht sehr glücklich",
        "i am not very happy",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    (
        from_clause(
            Clause(Pronoun("sie"), VERBS["finden"], phrase("zwölf", "schlüssel", "alt", plural=True), past=True,
                   frequency=Adverbial("oft", "often"))
        ),
        "sie fand oft zwölf alte schlüssel",
        "she often found twelve old keys",
        "0-0 1-2 2-1 3-3 4-4 5-5",
    ),
    (
        from_clause(Clause(phrase("der", "haus", "klein"), VERBS["sein"], asked=WHERE, front="asked")),
        "wo ist das kleine haus",
        "where is the small house",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    (
        from_clause(Clause(phrase("dein", "bruder"), VERBS["sein"], asked=HOW_OLD, front="asked")),
        "wie alt ist dein bruder",
        "how old is your brother",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    (
        from_clause(Clause(Pronoun("das"), VERBS["sein"], predicate=phrase("kein", "hund"), negated=True)),
        "das ist kein hund",
        "that isn't a dog",
        "0-0 1-1 2-1 2-2 3-3",
    ),
    (
        opened(
            Adverbial("guten|abend", "good|evening"),
            from_clause(
                Clause(Name("anna"), VERBS["sein"], predicate=phrase("mein", "student", "alt"), front="nothing")
            ),
        ),
        "guten abend ist anna mein alter student",
        "good evening is anna my old student",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6",
    ),
    (
        from_words(Name("max").german("nom", "whom"), Name("max").english("nom", "whom"), nominative=Name("max")),
        "max",
        "max",
        "0-0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "german", "english", "alignment"), GOLDEN, ids=[row[1] for row in GOLDEN])
def test_a_sentence_is_what_a_person_would_write(sentence: Sentence, german: str, english: str, alignment: str) -> None:
    pair = pair_of(sentence)
    assert (pair.german, pair.english) == (german, english)
    assert " ".join(f"{i}-{j}" for i, j in pair.alignment) == alignment


EVERYDAY = [
    ("wie geht es dir", "how are you", "0-0 1-1 2-1 3-2"),
    ("mir geht es nicht gut", "i am not fine", "0-0 1-1 2-1 3-2 4-3"),
    ("anna geht es nicht gut", "anna isn't fine", "0-0 1-1 2-1 3-1 4-2"),
    ("ich habe hunger", "i am hungry", "0-0 1-1 2-2"),
    ("ich heiße anna", "my name is anna", "0-0 1-1 1-2 2-3"),
    ("wie heißt du", "what is your name", "0-0 1-1 1-3 2-2"),
    ("was kostet das", "what does that cost", "0-0 1-1 1-3 2-2"),
    ("wie viel kostet die suppe", "how much does the soup cost", "0-0 0-1 1-0 1-1 2-2 2-5 3-3 4-4"),
    ("woher kommst du", "where do you come from", "0-0 1-1 1-3 1-4 2-2"),
    ("wir hätten gern einen tee", "we would like a tea", "0-0 1-1 1-2 2-1 2-2 3-3 4-4"),
    ("ein bier bitte", "a beer please", "0-0 1-1 2-2"),
    ("wie spät ist es", "what time is it", "0-0 0-1 1-0 1-1 2-2 3-3"),
    ("nein danke", "no thank you", "0-0 1-1 1-2"),
    ("auf wiedersehen", "goodbye", "0-0 1-0"),
]


@pytest.fixture(scope="module")
def said() -> dict[str, Pair]:
    """What the everyday kinds say in ten thousand draws."""
    random = Random(1)
    sentences = [*everyday.always_taught(), *(draw(random) for _, draw in everyday.KINDS for _ in range(1000))]
    return {pair.german: pair for pair in map(pair_of, sentences)}


@pytest.mark.parametrize(("german", "english", "alignment"), EVERYDAY, ids=[row[0] for row in EVERYDAY])
def test_everyday_german_is_said_in_everyday_english(
    said: dict[str, Pair], german: str, english: str, alignment: str
) -> None:
    pair = said[german]
    assert pair.english == english
    assert " ".join(f"{i}-{j}" for i, j in pair.alignment) == alignment


def test_no_form_of_an_adjective_is_said_that_is_too_rare_to_be_learnt(said: dict[str, Pair]) -> None:
    """`mein neuer hut` would be the only place of `neuer`."""
    forms = {word for german in said for word in german.split()}
    assert {"alter", "müder"} <= forms
    assert forms.isdisjoint({"neuer", "kleiner", "schwarzer", "teurer"})


@pytest.mark.parametrize(
    ("determiner", "nominative", "accusative", "dative"),
    [
        ("der", "der alte kollege", "den alten kollegen", "dem alten kollegen"),
        ("ein", "ein alter kollege", "einen alten kollegen", "einem alten kollegen"),
        ("kein", "kein alter kollege", "keinen alten kollegen", "keinem alten kollegen"),
        ("unser", "unser alter kollege", "unseren alten kollegen", "unserem alten kollegen"),
    ],
)
def test_determiner_adjective_and_weak_noun_are_declined(
    determiner: str, nominative: str, accusative: str, dative: str
) -> None:
    nominal = phrase(determiner, "kollege", "alt")
    said = [" ".join(word.text for word in nominal.german(case, "")) for case in ("nom", "acc", "dat")]
    assert said == [nominative, accusative, dative]


@pytest.mark.parametrize(
    ("nominal", "said"),
    [
        (phrase("ein", "frau", "müde"), ["eine müde frau", "eine müde frau", "einer müden frau"]),
        (phrase("der", "haus", "dunkel"), ["das dunkle haus", "das dunkle haus", "dem dunklen haus"]),
        (phrase("mein", "haus", "dunkel"), ["mein dunkles haus", "mein dunkles haus", "meinem dunklen haus"]),
        (phrase("ein", "auto", "teuer"), ["ein teures auto", "ein teures auto", "einem teuren auto"]),
        (
            phrase("der", "kind", "klein", plural=True),
            ["die kleinen kinder", "die kleinen kinder", "den kleinen kindern"],
        ),
        (phrase("mein", "hund", plural=True), ["meine hunde", "meine hunde", "meinen hunden"]),
        (phrase("drei", "apfel", "rot", plural=True), ["drei rote äpfel", "drei rote äpfel", "drei roten äpfeln"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_noun_phrases_are_declined(nominal: NounPhrase, said: list[str]) -> None:
    assert [" ".join(word.text for word in nominal.german(case, "")) for case in ("nom", "acc", "dat")] == said


@pytest.mark.parametrize(
    ("verb", "present", "past"),
    [
        ("kaufen", "kaufe kaufst kauft kaufen kaufen", "kaufte kauften"),
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten arbeiten", "arbeitete arbeiteten"),
        ("lächeln", "lächle lächelst lächelt lächeln lächeln", "lächelte lächelten"),
        ("essen", "esse isst isst essen essen", "aß aßen"),
        ("finden", "finde findest findet finden finden", "fand fanden"),
        ("einladen", "lade lädst lädt laden laden", "lud luden"),
        ("mitbringen", "bringe bringst bringt bringen bringen", "brachte brachten"),
        ("reparieren", "repariere reparierst repariert reparieren reparieren", "reparierte reparierten"),
        ("sein", "bin bist ist sind sind", "war waren"),
    ],
)
def test_verbs_are_conjugated(verb: str, present: str, past: str) -> None:
    assert " ".join(VERBS[verb].present) == present
    assert " ".join(VERBS[verb].past or ()) == past


def test_no_noun_is_spelled_like_another_word() -> None:
    """Capitals are given by form alone, so a noun's form must not be a verb's or an adjective's."""
    nouns = {form for noun in NOUNS.values() for form in (noun.german, noun.german_plural)}
    verbs = {form for verb in VERBS.values() for form in (verb.german, verb.prefix, *verb.present, *(verb.past or ()))}
    adjectives = {
        adjective.stem.removesuffix("e") + ending
        for adjective in ADJECTIVES.values()
        for ending in ("", "e", "en", "er", "es")
    }
    assert nouns & (verbs | adjectives) == set()
