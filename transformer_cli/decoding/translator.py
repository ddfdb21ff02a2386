"""Text in, text out: cut into pieces, batched by length, searched, joined, in the order of the input.

B batch, S source length
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.search import Hypothesis, NotFinite, Symbols
from transformer_cli.errors import DataError, DivergedError, UsageError
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import BOS, EOS, PAD, Tokenizer

MAX_PENALTY = 10
"""Of either sign: far beyond any use, and powers of lengths stay finite."""


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    score: log_probability / length^length_penalty. tokens: the pieces of text. truncated: it did not end by itself
    but at the longest length allowed.
    """

    text: str
    score: float
    log_probability: float
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    truncated: bool


@dataclass(frozen=True)
class Translation(Candidate):
    """The best translation of a line, and `n_best`: as many as were asked for, best first, itself included."""

    n_best: tuple[Candidate, ...]


_NO_TEXT = Candidate(text="", score=0.0, log_probability=0.0, ids=(), tokens=(), truncated=False)
NOTHING = Translation(**vars(_NO_TEXT), n_best=(_NO_TEXT,))
"""The translation of a line without text; the model never sees it."""


class Translator:
    """A model with its tokenizer: lines to lines."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        config: DecodingConfig,
        *,
        source_eos: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        """model: in the precision it is to compute in. source_eos: whether the sources it learned from end in eos."""
        self.model = model.to(device)
        self.tokenizer = tokenizer
        self.config = config
        self.source_eos = source_eos
        self.device = torch.device(device)
        self.symbols = Symbols(bos=BOS, eos=EOS, banned=tokenizer.banned_target_ids)

    def translate(
        self, lines: Sequence[str], *, beam_size: int | None = None, length_penalty: float | None = None
    ) -> list[str]:
        """One translation per line, in order; see `translate_all`."""
        found = self.translate_all(lines, beam_size=beam_size, length_penalty=length_penalty)
        return [translation.text for translation in found]

    @torch.inference_mode()
    def translate_all(
        self,
        lines: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        progress: Callable[[int], object] | None = None,
    ) -> list[Translation]:
        """The translations with their scores, one per line, in order; a line without text gives an empty one.

        beam_size, length_penalty: those of the configuration when not given. progress: called with the number of
        lines that are newly done. Raises UsageError for more n_best than beams or a wild penalty; DataError for a line
        longer than the model's table of positions and DivergedError where it computes no numbers, naming the line.
        """
        beam_size = self.config.beam_size if beam_size is None else beam_size
        alpha = self.config.length_penalty if length_penalty is None else length_penalty
        if not 1 <= n_best <= beam_size:
            raise UsageError(
                f"{n_best} translations per line were asked of a beam of {beam_size}",
                hint="a beam holds as many as its size: raise --beam-size, or lower --n-best",
            )
        if not abs(alpha) <= MAX_PENALTY:
            raise UsageError(f"a length penalty of {alpha} is not between -{MAX_PENALTY} and {MAX_PENALTY}")
        sources = self._encode(lines)
        found = [NOTHING] * len(lines)
        was_training = self.model.training
        self.model.eval()
        try:
            for batch in self._batches(sources):
                hypotheses = self._search(sources, batch, beam_size=beam_size, alpha=alpha, n_best=n_best)
                for index, several in zip(batch, hypotheses, strict=True):
                    found[index] = self._read(several, alpha)
                if progress is not None:
                    progress(len(batch))
        finally:
            self.model.train(was_training)
        if progress is not None:
            progress(sum(not ids for ids in sources))
        return found

    def _encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids per line, end mark included; none for a line without text."""
        end = [EOS] if self.source_eos else []
        sources = [ids + end if ids else [] for ids in self.tokenizer.encode_source(lines)]
        for number, ids in enumerate(sources, start=1):
            if len(ids) > self._room:
                raise DataError(
                    f"line {number:,} has {len(ids):,} pieces, but the model has learned {self._room:,} positions",
                    hint="split the line; a model with `positions: sinusoidal` or `rotary` has no such limit",
                )
        return sources

    @property
    def _room(self) -> int:
        """Positions that the model can tell apart; far too many to matter, but for a table of learned ones."""
        config = self.model.config
        return config.max_positions - config.first_position if config.positions == "learned" else 10**9

    def _batches(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Indices of the lines that have text, the longest first, so that neighbours need little padding."""
        order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: -len(sources[i]))
        size = self.config.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _search(
        self, sources: Sequence[Sequence[int]], batch: Sequence[int], *, beam_size: int, alpha: float, n_best: int
    ) -> list[list[Hypothesis]]:
        lengths_B = torch.tensor([len(sources[i]) for i in batch])
        source_BS = torch.full((len(batch), int(lengths_B.max())), PAD)
        for row, i in enumerate(batch):
            source_BS[row, : len(sources[i])] = torch.tensor(sources[i])
        source_BS = source_BS.to(self.device)
        limits = [self._limit(len(sources[i]) - self.source_eos) for i in batch]
        try:
            if beam_size == 1:
                greedy = greedy_search(self.model, source_BS, lengths_B, limits=limits, symbols=self.symbols)
                return [[hypothesis] for hypothesis in greedy]
            return beam_search(
                self.model,
                source_BS,
                lengths_B,
                limits=limits,
                symbols=self.symbols,
                beam_size=beam_size,
                length_penalty=alpha,
                n_best=n_best,
            )
        except NotFinite as failure:
            raise DivergedError(
                f"line {batch[failure.row] + 1:,}: the model's scores are not finite numbers",
                hint="the weights have diverged or overflow in this precision: try another checkpoint, or fp32",
            ) from failure

    def _limit(self, n_pieces: int) -> int:
        """Most pieces of a translation, for so many of the source; the end mark comes on top."""
        limit = int(self.config.max_length_factor * n_pieces + self.config.max_length_extra)
        return min(limit, self._room - 1)

    def _read(self, hypotheses: Sequence[Hypothesis], alpha: float) -> Translation:
        texts = self.tokenizer.decode_target([hypothesis.ids for hypothesis in hypotheses])
        candidates = tuple(
            Candidate(
                text=text,
                score=hypothesis.score(alpha),
                log_probability=hypothesis.log_probability,
                ids=hypothesis.ids,
                tokens=tuple(self.tokenizer.target.piece(id) for id in hypothesis.ids),
                truncated=hypothesis.truncated,
            )
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        )
        return Translation(**vars(candidates[0]), n_best=candidates)
