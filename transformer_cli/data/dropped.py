"""An encoded text some of whose source words are not read: anew in every epoch, when a batch asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from transformer_cli.data.mixture import Drawn, Ids
from transformer_cli.data.sampled import Draw
from transformer_cli.tokenizer import PAD, Vocabulary


class DroppedCorpus:
    """The pairs of a text without each source word with that probability, as one epoch draws them.

    All pieces of a word become padding, whose vector is zero, and keep their places (Sennrich et al. 2016, "Edinburgh
    Neural Machine Translation Systems for WMT 16", after Gal & Ghahramani 2016); marks stay.
    A draw depends on its seed, its epoch, the pair's place in the text and how many times the epoch had it before
    (`copy`).
    """

    def __init__(self, text: Drawn, vocabulary: Vocabulary, draw: Draw) -> None:
        self.text, self.draw = text, draw
        self.lengths = text.lengths
        self.opens, self.closes, self.is_mark = vocabulary.words

    def sources(self, indices: Sequence[int], copies: Sequence[int] = ()) -> list[npt.NDArray[np.integer]]:
        """Source ids as the encoder reads them."""
        rows = zip(self.text.sources(indices, copies), indices, copies or repeat(0), strict=False)
        return [self._left(np.asarray(ids, dtype=np.int32), index, copy) for ids, index, copy in rows]

    def targets(self, indices: Sequence[int], copies: Sequence[int] = ()) -> Sequence[Ids]:
        """Target ids without marks, all of them."""
        return self.text.targets(indices, copies)

    def _left(self, ids: npt.NDArray[np.integer], index: int, copy: int) -> npt.NDArray[np.integer]:
        begins = self.opens[ids]
        begins[1:] |= self.closes[ids[:-1]]
        words = np.cumsum(begins)
        chance = np.random.default_rng([self.draw.seed, self.draw.epoch, index, *([copy] if copy else [])])
        gone = chance.random(len(ids) + 1) < self.draw.rate
        return np.where(gone[words] & ~self.is_mark[ids], PAD, ids)
