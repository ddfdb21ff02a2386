"""When, how often and how: adverbials as they are drawn, and the families of words around happy and kind."""

from __future__ import annotations

from random import Random

from transformer_cli.data.phrasebook.phrases import NUMBERS, Adverbial

TIMES = (
    Adverbial("heute", "today"),
    Adverbial("jetzt", "now", past=False),
    Adverbial("morgen", "tomorrow", past=False),
    Adverbial("gestern", "yesterday", past=True),
    Adverbial("heute abend", "tonight", past=False),
    Adverbial("jeden|tag", "every|day"),
    Adverbial("am|abend", "in the|evening"),
    Adverbial("am|montag", "on|monday"),
    Adverbial("am|freitag", "on|friday"),
    Adverbial("am|sonntag", "on|sunday"),
    Adverbial("letzte|woche", "last|week", past=True),
    Adverbial("nächste|woche", "next|week", past=False),
)
FREQUENCIES = tuple(
    Adverbial(german, english)
    for german, english in (("immer", "always"), ("oft", "often"), ("manchmal", "sometimes"), ("nie", "never"))
)
WHEN, WHY = Adverbial("wann", "when"), Adverbial("warum", "why")
# English has one word for both; the verb of movement tells them apart.
WHERE, WHITHER = Adverbial("wo", "where"), Adverbial("wohin", "where")
WHENCE = Adverbial("woher", "where")  # and from after the verb
WHO, WHAT = Adverbial("wer", "who"), Adverbial("was", "what")
WHAT_TIME = Adverbial("wie spät", "what time")
HOW, HOW_OLD, HOW_MUCH = Adverbial("wie", "how"), Adverbial("wie|alt", "how|old"), Adverbial("wie viel", "how much")
HERE = (Adverbial("hier", "here"), Adverbial("dort", "there"))

# Where a word stands more than once, it is drawn more often. The words around unhappy are rare, and happy is often
# spoken about: so byte pair encoding learns that un-, happ-, -y and -iness are parts. (Not happi- and -ness: "in" is
# among its first merges in any text of these languages, and takes the i and the n.)
MANNERS = (
    *(Adverbial("glücklich", "happily"),) * 3,
    *(Adverbial("freundlich", "kindly"),) * 3,
    *(Adverbial("unfreundlich", "unkindly"),) * 3,
    *(Adverbial("traurig", "sadly"),) * 3,
    Adverbial("unglücklich", "unhappily"),
)
FEELINGS = (*("glücklich", "traurig", "müde", "krank", "schwach") * 2, "unglücklich")
QUOTED = (
    *(("glücklich", "happy"),) * 4,
    *(("glück", "happiness"),) * 2,
    ("unglücklich", "unhappy"),
    ("unglück", "unhappiness"),
    ("freundlichkeit", "kindness"),
    ("unfreundlichkeit", "unkindness"),
    ("traurigkeit", "sadness"),
    ("krankheit", "illness"),
)
FAMILY = frozenset(
    lemma
    for family in (
        ("glück", "unglück", "glücklich", "unglücklich"),
        ("freundlich", "unfreundlich", "freundlichkeit", "unfreundlichkeit"),
        ("traurig", "traurigkeit"),
        ("krank", "krankheit"),
        ("faul", "faulheit"),
        ("müde", "müdigkeit"),
        ("dunkel", "dunkelheit"),
    )
    for lemma in family
)
"""Lemmas that share a stem with another one and differ by un-, -lich, -ig, -heit, -keit: un-, -ly, -ness."""


def time(random: Random, *, past: bool, negated: bool = False) -> Adverbial:
    """A time that goes with the tense; nobody says that he doesn't get up every day."""
    fitting = _PAST if past else _PRESENT
    drawn = fitting[int(random.random() * len(fitting))]
    return TIMES[0] if negated and drawn.german_text == "jeden|tag" else drawn


_PAST = tuple(adverbial for adverbial in TIMES if adverbial.past is not False)
_PRESENT = tuple(adverbial for adverbial in TIMES if adverbial.past is not True)


def moment(random: Random, *, past: bool) -> Adverbial:
    """A time at which something has a property."""
    fitting = ("heute", "gestern", "letzte|woche") if past else ("heute", "jetzt", "heute abend")
    name = fitting[int(random.random() * len(fitting))]
    return next(adverbial for adverbial in TIMES if adverbial.german_text == name)


def hour(random: Random) -> Adverbial:
    """The time that it is."""
    at = clock(random)
    return Adverbial(at.german_text.removeprefix("um|"), at.english_text.removeprefix("at|"))


def clock(random: Random) -> Adverbial:
    """A clock time, full, half, quarter past or quarter to; halb acht is half past seven."""
    return _CLOCK[int(random.random() ** 1.5 * len(_CLOCK))]


_HOURS = tuple(NUMBERS.items())
_CLOCK = (
    *(Adverbial(f"um|{german}|uhr", f"at|{english}|o'clock") for german, english in _HOURS),
    *(
        Adverbial(f"um|halb|{german}", f"at|half past|{before}")
        for (german, _), before in zip(_HOURS, ("one", *NUMBERS.values()), strict=False)
    ),
    *(Adverbial(f"um|viertel|nach|{german}", f"at|quarter|past|{english}") for german, english in _HOURS),
    *(Adverbial(f"um|viertel|vor|{german}", f"at|quarter|to|{english}") for german, english in _HOURS),
)
