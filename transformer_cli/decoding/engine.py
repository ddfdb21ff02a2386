"""Text to text by CTranslate2: the same texts and scores as a greedy search in fp32; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
        found: list[list[Hypothesis]] = [[]] * len(inputs)
        limits = [self.limit(end) for end in ends]
        for limit in set(limits):
            rows = [row for row, one in enumerate(limits) if one == limit]
            several = self._search([sources[row] for row in rows], options, limit, banning=False)
            # It would give the rest more of the probability where something is banned, so that nothing is until it has
            # to be: a model that was trained writes no such piece.
            again = [n for n, those in enumerate(several) if any(self._is_banned(one) for one in those)]
            if again:
                anew = self._search([sources[rows[n]] for n in again], options, limit, banning=True)
                several = [anew[again.index(n)] if n in again else those for n, those in enumerate(several)]
            for row, those in zip(rows, several, strict=True):
                if not all(math.isfinite(one.log_probability) for one in those):
                    raise NotFinite(row)
                found[row] = [
                    self._scored(sources[row], one, limit) if again or one.truncated else one for one in those
                ]
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

    def _scored(self, source: Sequence[str], one: Hypothesis, limit: int) -> Hypothesis:
        """Cut at the limit, with the probability that the model gives it under no ban."""
        ids = one.ids[:limit]
        pieces = [self._target[id] for id in ids]
        [scored] = self._engine.score_batch([source], [pieces], max_input_length=0)
        kept = scored.log_probs[: len(ids) + (not one.truncated)]
        return Hypothesis(ids, math.fsum(kept), one.truncated)
