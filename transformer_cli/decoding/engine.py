"""Text to text by CTranslate2: the same texts and scores as a greedy search in fp32; no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from typing import Any, Unpack

from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import Stack
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import NotFinite, SearchOptions
from transformer_cli.decoding.texts import Input, Learned, TextTranslator
from transformer_cli.errors import ModelError
from transformer_cli.tokenizer import EOS, Tokenizer

Texts = Sequence[Sequence[str]]
"""Of pieces."""
PATIENCE = 2.0
"""A search by beams is over when so many times their number have ended: where no open one can win, as tx does it, the
engine does not know. With 1, its default, one text in twelve is another than tx finds (docs/measurements.md)."""


class EngineTranslator(TextTranslator):
    """A model as CTranslate2 has it, with its tokenizer: lines to lines."""

    def __init__(
        self,
        engine: Any,
        name: str,
        tokenizer: Tokenizer,
        config: DecodingConfig,
        *,
        rooms: Mapping[Stack, int | None],
        workers: int = 1,
        several: Callable[[], Any] | None = None,
        **learned: Unpack[Learned],
    ) -> None:
        """engine: a ctranslate2.Translator, of one batch at a time. name: with its version. rooms: see `room`. several:
        opens another one, which has as many at once as there are workers."""
        super().__init__(tokenizer, config, **learned)
        self.name, self._engine, self._rooms = name, engine, rooms
        self._workers, self._several = workers, several and cache(several)
        self._source, self._target = tokenizer.source.names, tokenizer.target.names
        self._ids = {piece: id for id, piece in enumerate(self._target)}

    def room(self, stack: Stack) -> int | None:
        return self._rooms[stack]

    def share(
        self, found_for: Callable[[int], list[list[Hypothesis]]], n_batches: int
    ) -> Generator[tuple[int, list[list[Hypothesis]]]]:
        """By threads of the engine's own: small products do not fill two threads. For each another batch waits in the
        engine, so that none of them waits for Python."""
        several = self._for_several() if n_batches >= 2 * self._workers > 2 else None
        if several is None:
            yield from super().share(found_for, n_batches)
            return
        one, self._engine = self._engine, several
        pool = ThreadPoolExecutor(2 * self._workers)
        try:
            numbers = {pool.submit(found_for, number): number for number in range(n_batches)}
            for done in as_completed(numbers):
                if done.exception() is not None:  # of all that have begun, the first to fail is told
                    pool.shutdown(cancel_futures=True)
                    done = next(one for one in numbers if not one.cancelled() and one.exception() is not None)
                yield numbers[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)
            self._engine = one

    def _for_several(self) -> Any:
        """The engine for several batches at once; None where there is none, or its files went meanwhile."""
        try:
            return self._several and self._several()
        except ModelError:
            return None

    def search(self, inputs: Sequence[Input], options: SearchOptions, lines_before: int) -> list[list[Hypothesis]]:
        assert options.search == "beam"
        assert not any(one.prefix for one in inputs)
        ends = [len(one.ids) - self.source_eos for one in inputs]  # the engine adds the mark itself
        sources = [[self._source[id] for id in one.ids[:end]] for one, end in zip(inputs, ends, strict=True)]
        limits = [self.limit(end) for end in ends]
        found = self._allowed(sources, options, limits)
        too_long = [row for row, limit in enumerate(limits) if any(_is_cut(one, limit) for one in found[row])]
        if options.beam_size > 1:  # greedily found, what is beyond the limit can be cut off
            wide = replace(options, n_best=options.beam_size)  # some of which are the same once they are cut
            for limit in {limits[row] for row in too_long}:
                rows = [row for row in too_long if limits[row] == limit]
                anew = self._allowed([sources[row] for row in rows], wide, [limit] * len(rows))
                for row, several in zip(rows, anew, strict=True):
                    found[row] = several
        for row, several in enumerate(found):
            if not all(math.isfinite(one.log_probability) for one in several):
                raise NotFinite(row)
        cut = self._scored(
            [sources[row] for row in too_long], [[_cut(one, limits[row]) for one in found[row]] for row in too_long]
        )
        for row, several in zip(too_long, cut, strict=True):
            best: dict[tuple[int, ...], Hypothesis] = {}
            for one in sorted(several, key=lambda one: one.rank(options.penalty)):
                best.setdefault(one.ids, one)
            found[row] = [*best.values()][: options.n_best]
        return found

    def _allowed(self, sources: Texts, options: SearchOptions, limits: Sequence[int]) -> list[list[Hypothesis]]:
        """Without what must not be written. The engine would give the rest more of the probability where something is
        banned, so that nothing is until it has to be: a model that was trained writes no such piece. What was searched
        for again is cut, as no more than the limit can be scored where the model has a table of positions."""
        found = self._search(sources, options, max(limits), banning=False)
        banned = [row for row, several in enumerate(found) if any(self._is_banned(one) for one in several)]
        if banned:
            some = [sources[row] for row in banned]
            anew = self._search(some, options, max(limits), banning=True)
            cut = [[_cut(one, limits[row]) for one in several] for row, several in zip(banned, anew, strict=True)]
            for row, several in zip(banned, self._scored(some, cut), strict=True):
                found[row] = several
        return found

    def _search(self, sources: Texts, options: SearchOptions, limit: int, *, banning: bool) -> list[list[Hypothesis]]:
        """limit: most pieces, end mark not counted; what is truncated has one more."""
        alpha = options.penalty.alpha if options.beam_size > 1 else 0.0
        mark = self.tokenizer.target.mark
        found = self._engine.translate_batch(
            sources,
            target_prefix=None if mark is None else [[mark]] * len(sources),
            beam_size=options.beam_size,
            patience=PATIENCE,
            num_hypotheses=options.n_best,
            length_penalty=alpha,
            max_input_length=0,
            max_decoding_length=limit + 1,
            min_decoding_length=0,
            suppress_sequences=[[self._target[id]] for id in self.symbols.banned] if banning else None,
            return_end_token=True,
            return_scores=True,
        )
        return [
            [
                self._hypothesis(pieces, score * len(pieces) ** alpha)
                for pieces, score in zip(one.hypotheses, one.scores, strict=True)
            ]
            for one in found
        ]

    def _hypothesis(self, pieces: Sequence[str], log_probability: float) -> Hypothesis:
        ids = tuple(self._ids[piece] for piece in pieces)
        if ids[-1:] == (EOS,):
            return Hypothesis(ids[:-1], log_probability)
        return Hypothesis(ids, log_probability, truncated=True)

    def _is_banned(self, one: Hypothesis) -> bool:
        return not set(one.ids).isdisjoint(self.symbols.banned)

    def _scored(self, sources: Texts, found: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """With the probability that the model gives them under no ban."""
        pairs = [(source, one) for source, several in zip(sources, found, strict=True) for one in several]
        if not pairs:
            return []
        texts = [[self._target[id] for id in one.ids] for _, one in pairs]
        scores = iter(self._engine.score_batch([source for source, _ in pairs], texts, max_input_length=0))
        n_given = len(self.tokenizer.target.given)
        return [
            [replace(one, log_probability=math.fsum(next(scores).log_probs[n_given : one.length])) for one in several]
            for several in found
        ]


def _is_cut(one: Hypothesis, limit: int) -> bool:
    """Whether it was cut, or will have to be."""
    return one.truncated or len(one.ids) > limit


def _cut(one: Hypothesis, limit: int) -> Hypothesis:
    """At the limit, if it goes beyond."""
    return replace(one, ids=one.ids[:limit], truncated=True) if len(one.ids) > limit else one
