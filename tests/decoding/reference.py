"""What a search has to find, written with lists from its definition: slow, plain, and without stopping early."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from tables import BANNED, EOS, Logits

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """A hypothesis: its ids without the end mark."""

    ids: Ids
    total: float
    truncated: bool = False


@dataclass(frozen=True)
class Reference:
    """One sentence of a table, and everything that can be asked for."""

    logits: Logits
    sentence: int
    limit: int
    vocab: int
    eos: int = EOS
    banned: Sequence[int] = BANNED
    beam_size: int = 1
    n_best: int = 1
    alpha: float = 1.0
    family: str = "power"
    min_length: int = 0
    no_repeat_ngram: int = 0
    prefix: Ids = ()
    seed: int = 0
    line: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @cached_property
    def longest(self) -> int:
        return max(self.limit, len(self.prefix))

    def beam(self) -> list[Found]:
        """Every slot is followed to its end: one that ends keeps its slot, the others go to the best continuations."""
        open_ones: list[tuple[float, Ids]] = [(0.0, ())]
        ended: list[Found] = []
        while True:
            best = sorted(self.continuations(open_ones), key=lambda one: -one[0])[: self.beam_size - len(ended)]
            going_on = [(total, ids) for total, ids in best if ids[-1] != self.eos]
            ended += [Found(ids[:-1], total) for total, ids in best if ids[-1] == self.eos]
            if not going_on or len(going_on[0][1]) > self.longest:
                known = {one.ids for one in ended}
                cut = [Found(ids, total, truncated=True) for total, ids in open_ones if ids not in known]
                return sorted(ended + cut, key=self.rank)[: self.n_best]
            open_ones = going_on

    def exhaustive(self) -> list[Found]:
        """The best of all sequences that end by themselves."""
        return sorted(self.all_that_end((), 0.0), key=self.rank)[: self.n_best]

    def all_that_end(self, ids: Ids, total: float) -> Iterator[Found]:
        logp = log_softmax(self.logits(self.sentence, ids))
        for token in self.allowed(ids):
            if token == self.eos:
                yield Found(ids, total + logp[token])
            elif len(ids) < self.longest:
                yield from self.all_that_end((*ids, token), total + logp[token])

    def samples(self) -> list[Found]:
        return [self.sample(draw) for draw in range(self.n_best)]

    def sample(self, draw: int) -> Found:
        ids: Ids = ()
        total = 0.0
        while True:
            logp = log_softmax(self.logits(self.sentence, ids))
            weights = self.weights(ids)
            if not weights:
                return Found(ids, total, truncated=True)
            noise = gumbels(self.seed, (len(ids), draw, self.line), self.vocab)
            token = max(weights, key=lambda token: math.log(weights[token]) + noise[token])
            if token == self.eos:
                return Found(ids, total + logp[token])
            if len(ids) >= self.longest:
                return Found(ids, total, truncated=True)
            ids, total = (*ids, token), total + logp[token]

    def weights(self, ids: Ids) -> dict[int, float]:
        """What each token that can come next is drawn with; their sum need not be 1."""
        logp = log_softmax(self.logits(self.sentence, ids))
        likeliest = sorted(self.allowed(ids), key=lambda token: (-logp[token], token))
        if self.top_k:
            likeliest = likeliest[: self.top_k]
        heights = [math.exp((logp[token] - logp[likeliest[0]]) / self.temperature) for token in likeliest]
        kept, mass = [], 0.0
        for token, height in zip(likeliest, heights, strict=True):
            if mass < self.top_p * sum(heights):
                kept.append((token, height))
            mass += height
        return dict(sorted(kept))

    def allowed(self, ids: Ids) -> list[int]:
        """Tokens of some probability that may come next."""
        if len(ids) < len(self.prefix):
            candidates = [self.prefix[len(ids)]]
        else:
            candidates = [t for t in range(self.vocab) if t not in self.banned and not self.repeats((*ids, t))]
            if len(ids) < min(self.min_length, self.longest):
                candidates.remove(self.eos)
        row = self.logits(self.sentence, ids)
        return [token for token in candidates if row[token] > -math.inf]

    def repeats(self, ids: Ids) -> bool:
        """Whether the last n tokens are in there twice; the end mark ends a sequence and repeats nothing."""
        n = self.no_repeat_ngram
        return n > 0 and ids[-1] != self.eos and ids[-n:] in [ids[i : i + n] for i in range(len(ids) - n)]

    def continuations(self, open_ones: list[tuple[float, Ids]]) -> Iterator[tuple[float, Ids]]:
        for total, ids in open_ones:
            logp = log_softmax(self.logits(self.sentence, ids))
            yield from ((total + logp[token], (*ids, token)) for token in self.allowed(ids))

    def rank(self, one: Found) -> tuple[bool, float]:
        return one.truncated, -self.score(one)

    def score(self, one: Found) -> float:
        length = max(len(one.ids) + (0 if one.truncated else 1), 1)
        return one.total / (length if self.family == "power" else (5 + length) / 6) ** self.alpha


def log_softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    total = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - total for x in row]


def gumbels(seed: int, place: tuple[int, int, int], n: int) -> list[float]:
    """Of the standard Gumbel distribution, by its quantile function."""
    words = [word for block in range(1, n // 4 + 2) for word in philox((block, *place), (seed, 0))]
    return [-math.log(-math.log(((word >> 12) + 0.5) / 2**52)) for word in words[:n]]


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011): four 64-bit words mixed in ten rounds."""
    a, b, c, d = counter
    for turn in range(10):
        k, m = (word + turn * weyl for word, weyl in zip(key, (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B), strict=True))
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (x % 2**64 for x in (second >> 64 ^ b ^ k % 2**64, second, first >> 64 ^ d ^ m % 2**64, first))
    return [a, b, c, d]


def mean_of(tables: list[Logits]) -> Logits:
    """The logarithm of the mean of the tables' probabilities."""

    @cache
    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        rows = [log_softmax(table(sentence, tokens)) for table in tables]
        return [math.log(sum(map(math.exp, column)) / len(rows)) for column in zip(*rows, strict=True)]

    return logits
