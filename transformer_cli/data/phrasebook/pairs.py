"""Drawing the corpus: distinct pairs, held-out sentences, held-out combinations of words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random

from transformer_cli.data.phrasebook import compound, everyday, simple
from transformer_cli.data.phrasebook.clauses import MOECHTE, Clause
from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, VERBS
from transformer_cli.data.phrasebook.phrases import NounPhrase, Pronoun, Words
from transformer_cli.data.phrasebook.sentences import Sentence, from_clause
from transformer_cli.data.phrasebook.style import PLAIN, Style, draw_style, dress, undressed
from transformer_cli.errors import DataError

N_HELD_OUT = 500
"""Pairs in each of the four held-out sets."""

Kinds = tuple[tuple[float, Callable[[Random], Sentence]], ...]

KINDS: Kinds = (
    (28, simple.statement),
    (8, simple.order),
    (16, simple.question),
    (8, simple.rising),
    (5, simple.moving),
    (4, simple.resting),
    (5, simple.helping),
    (5, simple.giving),
    (2.8, simple.feeling),
    (3.9, simple.mannered),
    (2.2, simple.about_words),
    (3, compound.contrast),
    (8, compound.reason),
    (7, compound.copula),
    *everyday.KINDS,
)


@dataclass(frozen=True)
class Pair:
    """A sentence in German and English, both plain: lower case, umlauts, no mark at the end.

    alignment: (index of a German word, index of an English word), words as `split()` finds them, from 0.
    phenomena: names out of `PHENOMENA`.
    """

    german: str
    english: str
    alignment: tuple[tuple[int, int], ...]
    phenomena: frozenset[str]

    def as_source_target(self, *, source: str, style: Style = PLAIN) -> tuple[str, str]:
        """The source in this style and the plain target; source: "de" or "en"."""
        text, target = (self.german, self.english) if source == "de" else (self.english, self.german)
        return dress(text, language=source, style=style, question="question" in self.phenomena), target


@dataclass(frozen=True)
class Phrasebook:
    """Training, validation and test pairs.

    No sentence of the held-out sets, in whatever style, is in training. Each pair of the combinations contains one
    of the pairs of lemmas in `held_out`, which no pair outside of them does.
    """

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    valid_combinations: tuple[Pair, ...]
    test_combinations: tuple[Pair, ...]
    held_out: frozenset[tuple[str, str]]


def styled(pairs: Sequence[Pair], *, source: str, seed: int) -> tuple[list[str], list[str]]:
    """Sources, each in a style of its own drawn from (seed, index), and plain targets, line for line."""
    both = [
        pair.as_source_target(source=source, style=draw_style(seed=seed, index=index))
        for index, pair in enumerate(pairs)
    ]
    return [text for text, _ in both], [text for _, text in both]


def phrasebook(*, n_pairs: int = 40_000, seed: int = 1, reasons: float | None = None) -> Phrasebook:
    """The corpus with so many training pairs; the same seed gives the same held-out pairs for every size.

    reasons: the share of sentences that give one; None: as often as the grammar does by itself.
    Raises DataError when the grammar does not find enough distinct sentences.
    """
    random = Random(seed)
    held_out = _held_out_joins(random)
    partners = _partners(held_out)
    drawn = _Drawn()
    train = [pair_of(sentence) for sentence in always_taught()]
    for pair in train:
        drawn.add(pair)
    unseen: list[Pair] = []
    combinations: list[Pair] = []
    for pair, sentence in _distinct(random, drawn, _kinds(reasons)):
        if not sentence.joins.isdisjoint(held_out):
            if len(combinations) < 2 * N_HELD_OUT:
                combinations.append(pair)
        elif any(not partners[lemma].isdisjoint(sentence.lemmas) for lemma in sentence.lemmas & partners.keys()):
            continue  # both words, but not as verb and object: neither new nor fit for training
        elif len(unseen) < 2 * N_HELD_OUT:
            unseen.append(pair)
        elif len(train) < n_pairs:
            train.append(pair)
        elif len(combinations) == 2 * N_HELD_OUT:
            break
    if len(train) < n_pairs or len(combinations) < 2 * N_HELD_OUT:
        raise DataError(
            f"the phrasebook's grammar has {len(train):,} distinct training pairs beside the held-out ones, "
            f"not {n_pairs:,}.",
            hint="ask for fewer with data.phrasebook.n_pairs.",
        )
    return Phrasebook(
        tuple(train),
        tuple(unseen[:N_HELD_OUT]),
        tuple(unseen[N_HELD_OUT:]),
        tuple(combinations[:N_HELD_OUT]),
        tuple(combinations[N_HELD_OUT:]),
        held_out,
    )


_MISSES = 2_000
"""So many repetitions in a row mean that the grammar is exhausted."""


def _kinds(reasons: float | None) -> Kinds:
    """KINDS, with this share of sentences that give a reason."""
    if reasons is None:
        return KINDS
    others = sum(weight for weight, kind in KINDS if kind is not compound.reason)
    return tuple(
        (others * reasons if kind is compound.reason else weight * (1 - reasons), kind) for weight, kind in KINDS
    )


def _distinct(random: Random, drawn: _Drawn, weighted: Kinds) -> Iterator[tuple[Pair, Sentence]]:
    kinds = [kind for _, kind in weighted]
    weights = list(accumulate(weight for weight, _ in weighted))
    misses = 0
    while misses < _MISSES:
        sentence = random.choices(kinds, cum_weights=weights)[0](random)
        pair = pair_of(sentence)
        if drawn.add(pair):
            misses = 0
            yield pair, sentence
        else:
            misses += 1


@dataclass
class _Drawn:
    """What was drawn already; holds that one sentence has one translation, both ways, in every style."""

    english: dict[str, str] = field(default_factory=dict)
    german: dict[str, str] = field(default_factory=dict)

    def add(self, pair: Pair) -> bool:
        """Whether the pair is new."""
        german, english = undressed(pair.german), pair.english
        is_new = german not in self.english
        known = self.english.setdefault(german, english)
        back = self.german.setdefault(english, german)
        assert (known, back) == (english, german), f"{pair.german} / {english}, but also {back} / {known}"
        return is_new


def pair_of(sentence: Sentence) -> Pair:
    return Pair(
        " ".join(word.text for word in sentence.german),
        " ".join(word.text for word in sentence.english),
        _alignment(sentence.german, sentence.english),
        sentence.phenomena,
    )


def _alignment(german: Words, english: Words) -> tuple[tuple[int, int], ...]:
    expressed: dict[str, list[int]] = {}
    for index, word in enumerate(english):
        for link in word.links:
            expressed.setdefault(link, []).append(index)
    return tuple(
        (index, other)
        for index, word in enumerate(german)
        for other in sorted({other for link in word.links for other in expressed.get(link, ())})
    )


def always_taught() -> list[Sentence]:
    """Sentences that every corpus teaches, because the documentation shows them."""
    beer = Clause(Pronoun("ich"), VERBS["möchten"], NounPhrase(NOUNS["bier"], "ein"))
    animal, street = NounPhrase(NOUNS["tier"], "der"), NounPhrase(NOUNS["straße"], "der")
    crossing = Clause(animal, VERBS["überqueren"], street, past=True, negated=True)
    return [
        from_clause(beer),
        from_clause(replace(beer, verb=VERBS["trinken"], modal=MOECHTE)),
        compound.because(crossing, animal, "müde", ("zu", "too")),
        compound.because(crossing, street, "eng", ("zu", "too")),
        *everyday.always_taught(),
    ]


_SHARE_HELD_OUT = 0.07


def _held_out_joins(random: Random) -> frozenset[tuple[str, str]]:
    """Pairs of verb and object, adjective and noun, that training never joins; each of the words it often has."""
    joins = [
        (lemma, noun.german)
        for lemma, kinds in (
            *((verb.german, verb.objects) for verb in VERBS.values()),
            *((adjective.german, tuple(adjective.kinds)) for adjective in ADJECTIVES.values()),
        )
        for noun in NOUNS.values()
        if not noun.kinds.isdisjoint(set(kinds) - {"common"})
    ]
    needed = frozenset(lemma for sentence in always_taught() for lemma in sentence.lemmas)
    free = [join for join in joins if needed.isdisjoint(join)]
    return frozenset(random.sample(free, int(_SHARE_HELD_OUT * len(joins))))


def _partners(joins: frozenset[tuple[str, str]]) -> dict[str, set[str]]:
    partners: dict[str, set[str]] = {}
    for first, second in joins:
        partners.setdefault(first, set()).add(second)
    return partners
