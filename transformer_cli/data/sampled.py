"""An encoded text whose words are cut anew in every epoch, when a batch asks for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from transformer_cli.data.binary import EncodedCorpus, narrow
from transformer_cli.data.corpus import Corpus
from transformer_cli.tokenizer import EOS, Tokenizer

SAMPLE = 500
"""Pairs that tell how many pieces more there are."""


@dataclass(frozen=True)
class Draw:
    """One epoch's draw, of subwords or of words."""

    rate: float
    seed: int
    epoch: int


class SampledCorpus:
    """The pairs of an encoded text as one epoch draws them: a line's ids depend on the draw, its place and text, and
    how many times the epoch had it before (`copy`).

    A side that would have more than max_length pieces by it keeps its plain ones.
    """

    def __init__(
        self, plain: EncodedCorpus, text: Corpus, tokenizer: Tokenizer, draw: Draw, *, max_length: int
    ) -> None:
        self.plain, self.text, self.tokenizer = plain, text, tokenizer
        self.draw = asdict(draw)  # once: it takes as long as cutting a word
        self.max_length = max_length
        self.lengths = self._expected()
        """(N, 2) the pieces of source and target, end marks included, that there will be on average."""

    def __len__(self) -> int:
        return len(self.plain)

    def source(self, index: int, copy: int = 0) -> npt.NDArray[np.int32]:
        """Source ids as the encoder reads them: with EOS behind them, if the model wants it."""
        place, plain = int(self.plain.pairs[index]), self.plain.source(index)
        [ids] = self.tokenizer.sample_source([self.text.source[place]], first=place, copy=copy, **self.draw)
        tag = [int(plain[0])] if plain[0] in self.tokenizer.tags.values() else []
        ids = [*tag, *ids, EOS] if plain[-1] == EOS else [*tag, *ids]
        return np.array(ids, dtype=np.int32) if len(ids) <= self.max_length else plain

    def target(self, index: int, copy: int = 0) -> npt.NDArray[np.int32]:
        """Target ids without marks."""
        place, plain = int(self.plain.pairs[index]), self.plain.target(index)
        [ids] = self.tokenizer.sample_target([self.text.target[place]], first=place, copy=copy, **self.draw)
        return np.array(ids, dtype=np.int32) if len(ids) < self.max_length else plain

    def _expected(self) -> npt.NDArray[np.signedinteger]:
        """A batch is planned before its words are cut: so many pieces more as some pairs all over the text have."""
        some = np.unique(np.linspace(0, len(self) - 1, SAMPLE).astype(np.int64))
        drawn = np.array([[len(self.source(i)), len(self.target(i)) + 1] for i in some])
        growth = drawn.sum(axis=0) / self.plain.lengths[some].sum(axis=0)
        every = np.arange(int(self.plain.lengths.max()) + 1)
        grown = narrow(np.minimum(np.rint(np.outer(every, growth)), self.max_length))
        expected = np.empty_like(self.plain.lengths, dtype=grown.dtype)
        for side in (0, 1):
            expected[:, side] = grown[self.plain.lengths[:, side], side]
        return expected
