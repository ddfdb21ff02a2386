"""How text is cut at random: BPE-dropout (Provilkov et al. 2020) and unigram sampling (Kudo 2018, section 3.3).

SentencePiece has both, but salts its generator anew in each process: no seed brings a draw back. So the draws are made
here, from a generator of the caller's, over SentencePiece's own pieces and scores.
"""

from __future__ import annotations

import math
import random
import re
import sys
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, repeat
from typing import Any, Protocol

import sentencepiece

from transformer_cli.errors import ModelError

NEVER = sys.maxsize
"""More merges than any text has."""
N_BEST = 64
"""Ways of cutting one word that unigram sampling draws from, as many as Kudo 2018 tried; he counts per sentence."""
UNKNOWN_PENALTY = 10.0
"""How far SentencePiece puts an unknown character below the worst piece of a unigram model."""
LITERAL = bytes.fromhex("1a 06 12 00 18 00 20 00")
"""Appended to a model, sets normalizer_spec's precompiled_charsmap, add_dummy_prefix, remove_extra_whitespaces to none.

Concatenated protobuf messages are one message whose later fields win.
"""


class Sampler:
    """Cuts lines as a SentencePiece model could have cut them, at random."""

    def __init__(self, model: bytes) -> None:
        """model: the serialised protobuf. Raises ModelError for models of whole words or of characters."""
        self._normalize = sentencepiece.SentencePieceProcessor(model_proto=model).normalize
        processor = sentencepiece.SentencePieceProcessor(model_proto=model + LITERAL)
        # No piece of ours spans a space, so words are cut one by one; a foreign model's may, and need the whole line.
        spans = any(re.search("[^▁]▁", piece) for piece in processor.id_to_piece(list(range(len(processor)))))
        self._lines = _kind(model, processor, spans)

    def sample(self, lines: Iterable[str], *, rate: float, seeds: Sequence[str]) -> list[list[int]]:
        """Ids of lines. rate: of BPE-dropout the chance to skip a merge; alpha of a unigram model. seeds: of the
        generator of each line, a random.Random.
        """
        return self._lines.sample(list(map(self._normalize, lines)), rate, seeds)


class Lines(Protocol):
    """A way to cut lines at random."""

    def sample(self, lines: Sequence[str], rate: float, seeds: Sequence[str]) -> list[list[int]]:
        """Ids of the lines, which are normalised and have their spaces as `▁`."""


class Cut(Protocol):
    """A way to cut words at random."""

    def cut(self, words: Iterable[str], rate: float, generator: random.Random) -> list[int]:
        """Ids of the words of a line."""


class ByWords:
    """Cuts lines word by word."""

    def __init__(self, words: Cut, *, unk: int, spans: bool) -> None:
        self._words, self._unk = words, unk
        self._units = re.compile(".+" if spans else "▁*[^▁]+|▁+", re.DOTALL)

    def sample(self, lines: Sequence[str], rate: float, seeds: Sequence[str]) -> list[list[int]]:
        generator, sampled = random.Random(), []
        for line, seed in zip(lines, seeds, strict=True):
            generator.seed(seed)
            sampled.append(one_unk(self._words.cut(self._units.findall(line), rate, generator), self._unk))
        return sampled


class BpeDropout:
    """Byte-pair encoding that skips merges at random.

    At rate 0 it is SentencePiece's. A word for which it isn't keeps SentencePiece's pieces at any rate; in a model that
    was made elsewhere that may be one with a user-defined character, or one that unused pieces lead to.
    """

    def __init__(self, processor: Any) -> None:
        """processor: takes text as it is, see LITERAL."""
        self.processor = processor
        self.unk = int(processor.unk_id())
        ids = [id for id in range(len(processor)) if _is_normal(processor, id)]
        pieces = processor.id_to_piece(ids)
        self.ids = dict(zip(pieces, ids, strict=True))
        self.scores = {piece: float(processor.get_score(id)) for piece, id in self.ids.items()}
        of_bytes = [int(processor.piece_to_id(f"<0x{byte:02X}>")) for byte in range(256)]
        self.bytes = of_bytes if all(map(processor.is_byte, of_bytes)) else []
        """The pieces of bytes, in order; none where there are not all."""
        # Where every merge is skipped (which takes no draw), a user-defined symbol alone is still in one piece.
        split = processor.encode(pieces, enable_sampling=True, alpha=1.0, nbest_size=-1)
        self.frozen = {piece for piece, cut in zip(pieces, split, strict=True) if len(piece) > 1 and len(cut) == 1}
        longest_first = sorted(map(re.escape, self.frozen), key=len, reverse=True)
        self._symbols = re.compile("|".join([*longest_first, "."]), re.DOTALL)
        self._plain = lru_cache(maxsize=1 << 17)(self._merge_all)
        self._once = lru_cache(maxsize=1 << 18)(self._merge_but_one)

    def cut(self, words: Iterable[str], rate: float, generator: random.Random) -> list[int]:
        """One merge in 1 / rate is skipped, so what is drawn is how many are made until the next that is not.

        Most words thereby cost no draw, and words with one skipped merge or none are remembered.
        """
        gaps = _gaps(rate, generator)
        gap = next(gaps)
        ids: list[int] = []
        for word in words:
            plain, merges = self._plain(word)
            if gap >= merges:
                ids += plain
                gap -= merges
                continue
            once, merges = self._once(word, gap)
            second = next(gaps)
            if second >= merges:
                ids += once
                gap = second - merges
                continue
            cut, gap = self._merge(word, chain((gap, second), gaps))
            ids += cut
        return ids

    def _merge_all(self, word: str) -> tuple[tuple[int, ...], int]:
        """Plain ids, and how many merges they took: as many as could be skipped."""
        ids, left = self._merge(word, repeat(NEVER))
        expected = tuple(self.processor.encode(word))
        if tuple(one_unk(ids, self.unk)) != expected:
            return expected, 0
        return ids, NEVER - left

    def _merge_but_one(self, word: str, gap: int) -> tuple[tuple[int, ...], int]:
        """Ids where only the merge after `gap` others is skipped, and how many there were after it."""
        ids, left = self._merge(word, chain((gap,), repeat(NEVER)))
        return ids, NEVER - left

    def _merge(self, word: str, gaps: Iterator[int]) -> tuple[tuple[int, ...], int]:
        """Ids of a word, and what is left of the last gap. gaps: merges made before each that is skipped.

        The pair with the best score comes first, the leftmost of equals; a skipped one comes back only as part of
        another pair. Source: SentencePiece, bpe_model.cc, SampleEncode.
        """
        symbols = self._symbols.findall(word)
        before, after = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
        agenda = [pair for left in range(len(symbols) - 1) for pair in self._pair(symbols, left, left + 1)]
        heapify(agenda)
        gap = next(gaps)
        while agenda:
            _, left, right, merged = heappop(agenda)
            if not (symbols[left] and symbols[right]) or symbols[left] + symbols[right] != merged:
                continue  # one of them has been merged with another neighbour since
            if gap == 0:
                gap = next(gaps)
                continue
            gap -= 1
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            for pair in chain(self._pair(symbols, before[left], left), self._pair(symbols, left, after[left])):
                heappush(agenda, pair)
        return tuple(id for symbol in symbols if symbol for id in self._ids_of(symbol)), gap

    def _pair(self, symbols: list[str], left: int, right: int) -> list[tuple[float, int, int, str]]:
        """What to put on the agenda for these neighbours: nothing, or one entry."""
        if left < 0 or right < 0 or symbols[left] in self.frozen or symbols[right] in self.frozen:
            return []
        merged = symbols[left] + symbols[right]
        return [(-self.scores[merged], left, right, merged)] if merged in self.scores else []

    def _ids_of(self, symbol: str) -> list[int]:
        if symbol in self.ids:
            return [self.ids[symbol]]
        return [self.bytes[byte] for byte in symbol.encode("utf-8")] if self.bytes else [self.unk]


class UnigramSampling:
    """One of a word's n best segmentations, with probability proportional to its own to the power of alpha.

    A sentence's probability is the product of its words', so drawing word by word is drawing sentences, from far more
    of them than the n best of a sentence are. Among these SentencePiece has such that cut what a user defined, or write
    as unknown what the best one has a piece for: they are left out.
    """

    def __init__(self, processor: Any, symbols: Collection[int]) -> None:
        """processor: takes text as it is, see LITERAL. symbols: ids of what a user defined."""
        self._processor, self._symbols = processor, symbols
        normal = [id for id in range(len(processor)) if _is_normal(processor, id)]
        self._scores = {id: float(processor.get_score(id)) for id in normal}
        self._lengths = {id: len(piece) for id, piece in zip(normal, processor.id_to_piece(normal), strict=True)}
        self._unknown = min(self._scores.values(), default=0.0) - UNKNOWN_PENALTY
        self._ids = list(range(len(processor)))
        self._candidates = lru_cache(maxsize=1 << 15)(self._n_best)

    def cut(self, words: Iterable[str], rate: float, generator: random.Random) -> list[int]:
        ids: list[int] = []
        for word in words:
            candidates, limits = self._candidates(word, rate)
            ids += candidates[bisect(limits, generator.random() * limits[-1], hi=len(limits) - 1)]
        return ids

    def _n_best(self, word: str, alpha: float) -> tuple[list[tuple[int, ...]], list[float]]:
        """Segmentations, best first, and the running sum of their weights."""
        candidates = self._processor.nbest_encode(word, nbest_size=N_BEST)
        known, symbols = self._known(candidates[0]), self._defined(candidates[0])
        candidates = [ids for ids in candidates if self._known(ids) >= known and self._defined(ids) == symbols]
        scores = [sum(self._scores.get(id, self._unknown) for id in ids) for ids in candidates]
        best = max(scores)
        # SentencePiece makes every integer anew; remembering the same ones takes half the memory.
        shared = [tuple(map(self._ids.__getitem__, ids)) for ids in candidates]
        return shared, list(accumulate(math.exp(alpha * (score - best)) for score in scores))

    def _known(self, ids: Iterable[int]) -> int:
        """Characters that have pieces; a run of others is one id, or their bytes."""
        return sum(self._lengths.get(id, 0) for id in ids)

    def _defined(self, ids: Iterable[int]) -> list[int]:
        return [id for id in ids if id in self._symbols]


def one_unk(ids: Iterable[int], unk: int) -> list[int]:
    """Ids with each run of unknown characters as one, as SentencePiece writes them."""
    ids = list(ids)
    if unk not in ids:
        return ids
    return [id for id, previous in zip(ids, [None, *ids], strict=False) if not id == previous == unk]


def _kind(model: bytes, processor: Any, spans: bool) -> Lines:
    """By what the model can do, for the processor does not name its kind."""
    from transformer_cli.tokenizer.compiled import CompiledDropout, can_cut  # not before: it needs NumPy
    from transformer_cli.tokenizer.renumbering import user_defined  # not before: it needs this

    unk = int(processor.unk_id())
    try:
        processor.nbest_encode("a", nbest_size=1)
    except RuntimeError:
        pass
    else:
        return ByWords(UnigramSampling(processor, user_defined(model)), unk=unk, spans=spans)
    try:
        dropout = BpeDropout(processor)
    except RuntimeError:
        raise ModelError(
            "this tokenizer cannot sample: its model knows only one way to split a word",
            hint="set tokenizer.sampling to 0, or tokenizer.model to a model of kind bpe or unigram",
        ) from None
    return CompiledDropout(dropout, spans=spans) if can_cut(dropout) else ByWords(dropout, unk=unk, spans=spans)


def _is_normal(processor: Any, id: int) -> bool:
    """Whether text can become this piece by merging."""
    return not (
        processor.is_unknown(id) or processor.is_control(id) or processor.is_byte(id) or processor.is_unused(id)
    )


def _gaps(rate: float, generator: random.Random) -> Iterator[int]:
    """Failures before each success of a trial that succeeds with chance `rate`: geometric, by its inverse."""
    scale = scale_of(rate)
    while True:
        yield int(min(math.log(1 - generator.random()) / scale, NEVER))


def scale_of(rate: float) -> float:
    """What the logarithm of a draw is divided by."""
    return math.log1p(-rate) if rate < 1 else -math.inf
