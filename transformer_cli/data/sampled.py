"""An encoded text whose words are cut anew in every epoch, when a batch asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from transformer_cli.data.binary import EncodedCorpus, narrow
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.mixture import Ids
from transformer_cli.tokenizer import EOS, Tokenizer

SAMPLE = 500
"""Pairs that tell how many pieces more there are."""


@dataclass(frozen=True)
class Draw:
    """One epoch's draw of subwords."""

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
        self._end = [EOS] if plain.sources([0])[0][-1] == EOS else []
        self.lengths = self._expected()
        """(N, 2) the pieces of source and target, end marks included, that there will be on average."""

    def __len__(self) -> int:
        return len(self.plain)

    def sources(self, indices: Sequence[int], copies: Sequence[int] = ()) -> list[Ids]:
        """Source ids as the encoder reads them: with EOS behind them, if the model wants it."""
        drawn = self._drawn(self.tokenizer.sample_source, self.text.source, indices, copies)
        rows = [[*self._tag(index), *ids, *self._end] for index, ids in zip(indices, drawn, strict=True)]
        return _short_enough(rows, self.plain.sources, indices, most=self.max_length)

    def targets(self, indices: Sequence[int], copies: Sequence[int] = ()) -> list[Ids]:
        """Target ids without marks."""
        drawn = self._drawn(self.tokenizer.sample_target, self.text.target, indices, copies)
        return _short_enough(drawn, self.plain.targets, indices, most=self.max_length - 1)

    def _expected(self) -> npt.NDArray[np.signedinteger]:
        """A batch is planned before its words are cut: so many pieces more as some pairs all over the text have."""
        some = np.unique(np.linspace(0, len(self) - 1, SAMPLE).astype(np.int64)).tolist()
        drawn = [sum(map(len, self.sources(some))), sum(map(len, self.targets(some))) + len(some)]
        growth = drawn / self.plain.lengths[some].sum(axis=0)
        every = np.arange(int(self.plain.lengths.max()) + 1)
        grown = narrow(np.minimum(np.rint(np.outer(every, growth)), self.max_length))
        expected = np.empty_like(self.plain.lengths, dtype=grown.dtype)
        for side in (0, 1):
            expected[:, side] = grown[self.plain.lengths[:, side], side]
        return expected

    def _drawn(
        self, sample: Callable[..., list[list[int]]], text: Sequence[str], indices: Sequence[int], copies: Sequence[int]
    ) -> list[list[int]]:
        places = self.plain.pairs[[*indices]].tolist()
        return sample([text[place] for place in places], places=places, copies=copies, **self.draw)

    def _tag(self, index: int) -> list[int]:
        """What its source begins with in one of several directions."""
        if not self.tokenizer.tags:
            return []
        first = int(self.plain.sources([index])[0][0])
        return [first] if first in self.tokenizer.tags.values() else []


def _short_enough(
    drawn: Sequence[list[int]], plain: Callable[[Sequence[int]], Sequence[Ids]], indices: Sequence[int], *, most: int
) -> list[Ids]:
    """The plain ids where those drawn are more than that."""
    return [ids if len(ids) <= most else plain([index])[0] for index, ids in zip(indices, drawn, strict=True)]
