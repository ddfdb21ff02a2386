"""Text to text by CTranslate2: the same texts and scores as a greedy search in fp32; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import Stack
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import NotFinite, SearchOptions
from transformer_cli.decoding.texts import Input, Learned, TextTranslator
from transformer_cli.tokenizer import EOS, Tokenizer


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
        **learned: Unpack[Learned],
    ) -> None:
        """engine: a ctranslate2.Translator. name: with its version. rooms: see `room`."""
        super().__init__(tokenizer, config, **learned)
        self.name, self._engine, self._rooms = name, engine, rooms
        self._source, self._target = (
            [vocabulary.piece(id) for id in range(vocabulary.size)]
            for vocabulary in (tokenizer.source, tokenizer.target)
        )
        self._ids = {piece: id for id, piece in enumerate(self._target)}

    def room(self, stack: Stack) -> int | None:
        return self._rooms[stack]

    def search(self, inputs: Sequence[Input], options: SearchOptions, lines_before: int) -> list[list[Hypothesis]]:
        assert options.search == "beam"
        assert not any(one.prefix for one in inputs)
        ends = [len(one.ids) - self.source_eos for one in inputs]  # the engine adds the mark itself
        sources = [[self._source[id] for id in one.ids[:end]] for one, end in zip(inputs, ends, strict=True)]
        limits = [self.limit(end) for end in ends]
        if options.beam_size == 1:  # what is too long can be cut, so that all go together
            return self._found_together(sources, limits, options)
        found: list[list[Hypothesis]] = [[]] * len(inputs)
        for limit in set(limits):
            rows = [row for row, one in enumerate(limits) if one == limit]
            several = self._found_together([sources[row] for row in rows], [limit] * len(rows), options)
            for row, those in zip(rows, several, strict=True):
                found[row] = those
        return found

    def _found_together(
        self, sources: Sequence[Sequence[str]], limits: Sequence[int], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        found = self._search(sources, options, max(limits), banning=False)
        # It would give the rest more of the probability where something is banned, so that nothing is until it has to
        # be: a model that was trained writes no such piece.
        again = [row for row, several in enumerate(found) if any(self._is_banned(one) for one in several)]
        if again:
            anew = self._search([sources[row] for row in again], options, max(limits), banning=True)
            for row, several in zip(again, anew, strict=True):
                found[row] = several
        for row, several in enumerate(found):
            if not all(math.isfinite(one.log_probability) for one in several):
                raise NotFinite(row)
        wrong = [
            (row, rank)
            for row, several in enumerate(found)
            for rank, one in enumerate(several)
            if row in again or len(one.ids) > limits[row]
        ]
        cut = [_cut(found[row][rank], limits[row]) for row, rank in wrong]
        scored = self._scored([sources[row] for row, _ in wrong], cut)
        for (row, rank), one in zip(wrong, scored, strict=True):
            found[row][rank] = one
        return found

    def _search(
        self, sources: Sequence[Sequence[str]], options: SearchOptions, limit: int, *, banning: bool
    ) -> list[list[Hypothesis]]:
        """limit: most pieces, end mark not counted; what is truncated has one more."""
        alpha = options.penalty.alpha if options.beam_size > 1 else 0.0
        found = self._engine.translate_batch(
            sources,
            beam_size=options.beam_size,
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

    def _scored(self, sources: Sequence[Sequence[str]], several: Sequence[Hypothesis]) -> list[Hypothesis]:
        """With the probability that the model gives them under no ban."""
        if not several:
            return []
        texts = [[self._target[id] for id in one.ids] for one in several]
        scores = self._engine.score_batch(sources, texts, max_input_length=0)
        return [
            replace(one, log_probability=math.fsum(score.log_probs[: one.length]))
            for one, score in zip(several, scores, strict=True)
        ]


def _cut(one: Hypothesis, limit: int) -> Hypothesis:
    """At the limit, if it goes beyond."""
    return replace(one, ids=one.ids[:limit], truncated=True) if len(one.ids) > limit else one
