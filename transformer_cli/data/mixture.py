"""Several texts to learn from, and how often an epoch sees the pairs of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from transformer_cli.config.data import Directed, Direction, WeightedText
from transformer_cli.data.corpus import Corpus, total
from transformer_cli.errors import DataError

Ids = npt.NDArray[np.integer] | Sequence[int]

MOST = 2**31 - 1
"""Pairs of an epoch."""


@dataclass(frozen=True)
class Part:
    """One text of several that lie one after the other. weight: how often its pairs are seen, by the configuration.
    direction: where a text has to say it. left_out: of its pairs, or held out, besides those. counts: see Corpus, as
    far as they are known of it alone."""

    name: str
    pairs: int
    weight: float
    direction: Direction | None = None
    left_out: int = 0
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, Any]:
        """What it is known by again; direction: only where it has one."""
        found = asdict(self)
        del found["left_out"], found["counts"]
        return {name: value for name, value in found.items() if value is not None}


def parts_of(
    texts: Sequence[tuple[WeightedText, Directed]], sizes: Sequence[int], *, is_directed: bool
) -> tuple[Part, ...]:
    """The parts of a text that is made of these, of so many pairs; a text in both directions has one name."""
    numbers: dict[int, int] = {}
    parts = []
    for (one, way), pairs in zip(texts, sizes, strict=True):
        number = numbers.setdefault(id(one), len(numbers) + 1)
        name = one.name or (one.text if isinstance(one.text, str) else f"text {number}")
        direction = way.direction if is_directed else None
        parts.append(Part(f"{name} {direction}" if direction else name, pairs, one.weight, direction))
    return tuple(parts)


def joined(texts: Sequence[Corpus], ways: Sequence[Directed]) -> Corpus:
    """One after the other, in memory. ways: in which direction each is; none where that need not be said."""
    source, target = ([line for text in texts for line in getattr(text, side)] for side in ("source", "target"))
    parts = (
        Part(str(way.direction), len(text), 1.0, way.direction, counts=text.counts)
        for text, way in zip(texts, ways, strict=False)
    )
    return Corpus(source, target, total(text.counts for text in texts), parts=tuple(parts))


def by_direction(corpus: Corpus) -> dict[Direction | None, Corpus]:
    """The pairs in each direction, in order, apart again; in None where nothing says theirs."""
    directions = list(dict.fromkeys(part.direction for part in corpus.parts))
    if len(directions) < 2:
        alone = Corpus(corpus.source, corpus.target, corpus.counts)
        return dict.fromkeys(directions, alone) or {None: corpus}
    numbers = np.repeat([directions.index(part.direction) for part in corpus.parts], [p.pairs for p in corpus.parts])
    apart = ((way, corpus.without(np.flatnonzero(numbers != n), {})) for n, way in enumerate(directions))
    counts = {way: total(part.counts for part in corpus.parts if part.direction == way) for way in directions}
    return {way: Corpus(text.source, text.target, counts[way]) for way, text in apart}


def sources_into(corpus: Corpus, language: str | None) -> Sequence[str]:
    """Those that are to be translated into this language, as far as the text says; None: all."""
    if language is None:
        return corpus.source
    ways = by_direction(corpus).items()
    return [line for way, text in ways if way is None or way.target == language for line in text.source]


def weights_of(parts: Sequence[Part], sizes: Sequence[int], *, temperature: float) -> list[float]:
    """How often an epoch sees each pair of texts that have so many, see Mixture; of a single text where there are no
    parts. Raises DataError for an epoch of more than MOST."""
    most, given = max(sizes, default=0), [part.weight for part in parts] or [1.0]
    weights = [
        weight * (most / size) ** (1 - 1 / temperature) if size else 0.0
        for weight, size in zip(given, sizes, strict=True)
    ]
    all_seen = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    if all_seen > MOST:
        raise DataError(
            f"the weights of data.train's texts make an epoch of {all_seen:.3g} pairs; up to {MOST:,} are possible",
            hint="give smaller weights: they say how many times an epoch sees a text",
        )
    return weights


class Mixture:
    """What an epoch sees of the pairs of several texts.

    A text of weight w has each of its pairs floor(w) times in an epoch, and of them, drawn anew in every epoch, as many
    once more as make w times the text. A temperature T above 1 multiplies the weights by (most pairs / its pairs) to
    the power of 1 - 1/T: as they would be drawn by their sizes to the power of 1/T, the largest as its weight says
    (Arivazhagan et al. 2019, section 4.2).
    """

    def __init__(self, parts: Sequence[Part], kept: npt.NDArray[np.integer], *, temperature: float) -> None:
        """kept: the places of the pairs that there are, in order. Raises DataError for an epoch of more than MOST."""
        ends = np.cumsum([part.pairs for part in parts], dtype=np.int64)
        self.limits = [0, *np.searchsorted(kept, ends).tolist()] if parts else [0, len(kept)]
        self.sizes = np.diff(self.limits).tolist()
        self.weights = weights_of(parts, self.sizes, temperature=temperature)
        self.seen = [
            max(1, round(weight * size)) if size else 0 for weight, size in zip(self.weights, self.sizes, strict=True)
        ]
        """Pairs of each in an epoch, counted as often as they come; at least one of a text that has any."""

    @property
    def varies(self) -> bool:
        """Whether epochs differ in more than their order."""
        return any(seen % size for size, seen in zip(self.sizes, self.seen, strict=True) if size)

    def epoch(self, *, seed: int, epoch: int) -> Seen | None:
        """None where it has all pairs once."""
        if self.seen == self.sizes:
            return None
        more = []
        for number, (begin, size, seen) in enumerate(zip(self.limits, self.sizes, self.seen, strict=False)):
            every = np.arange(begin, begin + size, dtype=np.int32)
            n_more = seen % size if size else 0
            if n_more:
                np.random.default_rng([seed, epoch, number]).shuffle(every)
            more.append(np.sort(every[:n_more]))
        return Seen(self, more)


class Seen:
    """The pairs that an epoch has, each as often as it comes, text by text: a place for each time."""

    def __init__(self, mixture: Mixture, more: Sequence[npt.NDArray[np.int32]]) -> None:
        """more: the pairs of each text that come once more than all of it does."""
        self._mixture, self._more = mixture, more
        self._begins = [0, *accumulate(mixture.seen)]

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """(n,) which pair is at each place; as large as a plan, so made when it is asked for."""
        mixture, rows = self._mixture, np.empty(self._begins[-1], dtype=np.int32)
        parts = zip(self._begins, mixture.limits, mixture.sizes, mixture.seen, self._more, strict=False)
        for place, begin, size, seen, more in parts:
            whole = seen - len(more)
            for start in range(place, place + whole, max(size, 1)):
                rows[start : start + size] = np.arange(begin, begin + size, dtype=np.int32)
            rows[place + whole : place + seen] = more
        return rows

    def pair(self, place: int) -> tuple[int, int]:
        """Which pair is there, and how many times it came before."""
        number = bisect_right(self._begins, place) - 1
        copy, row = divmod(place - self._begins[number], self._mixture.sizes[number])
        is_whole = copy < self._mixture.seen[number] // self._mixture.sizes[number]
        return self._mixture.limits[number] + row if is_whole else int(self._more[number][row]), copy


class Drawn(Protocol):
    """The pairs of a text as ids, each of which an epoch may have several times."""

    @property
    def lengths(self) -> npt.NDArray[np.signedinteger]:
        """(N, 2) pieces of source and target, end marks included."""
        ...

    def sources(self, indices: Sequence[int], copies: Sequence[int] = ()) -> Sequence[Ids]:
        """Source ids, as the encoder reads them. copies: how many times the epoch had each before; else never."""
        ...

    def targets(self, indices: Sequence[int], copies: Sequence[int] = ()) -> Sequence[Ids]:
        """Target ids, without marks."""
        ...


class MixedCorpus:
    """A text as an epoch sees it: what comes several times is drawn anew each time."""

    def __init__(self, text: Drawn, seen: Seen) -> None:
        self.text, self.seen = text, seen

    @property
    def lengths(self) -> npt.NDArray[np.signedinteger]:
        """(n, 2) by place, made when they are asked for."""
        return self.text.lengths[self.seen.rows]

    def sources(self, places: Sequence[int]) -> Sequence[Ids]:
        """Source ids, as the encoder reads them."""
        return self.text.sources(*self._pairs(places))

    def targets(self, places: Sequence[int]) -> Sequence[Ids]:
        """Target ids, without marks."""
        return self.text.targets(*self._pairs(places))

    def _pairs(self, places: Sequence[int]) -> tuple[list[int], list[int]]:
        pairs = list(map(self.seen.pair, places))
        return [row for row, _ in pairs], [copy for _, copy in pairs]
