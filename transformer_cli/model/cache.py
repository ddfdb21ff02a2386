"""What the decoder remembers from one step to the next.

B sentences, W beams, N cached keys, G heads of keys and values, K d_head, S source length

Keys and values of self-attention are written once and never moved. All beams of a sentence share one row of them,
and a table says which of them are whose past: following a parent copies a row of that table, not the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class SelfKeys:
    """Keys and values of one layer's self-attention, in tables that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self.key_BGNK = self.value_BGNK = torch.empty(0)

    def append(self, key_BGWK: Tensor, value_BGWK: Tensor) -> tuple[Tensor, Tensor]:
        """Write one step's keys and values behind the earlier ones; returns all of them, each (B, G, N, K)."""
        end = self.length + key_BGWK.size(2)
        if self.key_BGNK.numel() == 0 or end > self.key_BGNK.size(2):
            self._grow(key_BGWK, max(2 * end, 16))
        self.key_BGNK[:, :, self.length : end] = key_BGWK
        self.value_BGNK[:, :, self.length : end] = value_BGWK
        self.length = end
        return self.key_BGNK[:, :, :end], self.value_BGNK[:, :, :end]

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        self.key_BGNK = self.key_BGNK.index_select(0, sentences)
        self.value_BGNK = self.value_BGNK.index_select(0, sentences)

    def _grow(self, like_BGWK: Tensor, room: int) -> None:
        B, G, _, K = like_BGWK.shape
        for name in ("key_BGNK", "value_BGNK"):
            table = like_BGWK.new_empty(B, G, room, K)
            if self.length:
                table[:, :, : self.length] = getattr(self, name)[:, :, : self.length]
            setattr(self, name, table)


class DecoderState:
    """Everything a decoding step needs: the memory's keys and values per sentence, and each beam's past.

    memory: keys and values per layer, each (B, G, S, K), untouched by `reorder`. memory_bias: what hides the
    source's padding. position: tokens read so far. positions_N: that of each cached key.
    """

    def __init__(self, memory: Sequence[Sequence[Tensor]], memory_bias: Tensor | None) -> None:
        self.memory = memory
        self.memory_bias = memory_bias
        self.self_keys = [SelfKeys() for _ in memory]
        self.position = 0
        n_sentences = memory[0][0].size(0)
        self.past_BWN = torch.ones(n_sentences, 1, 0, dtype=torch.bool, device=memory[0][0].device)
        self.positions_N = torch.empty(0, dtype=torch.int64, device=memory[0][0].device)

    def reorder(self, parents_BW: Tensor) -> None:
        """Let each new beam continue the old beam that parents_BW names; the number of beams may change."""
        index = parents_BW.to(self.past_BWN.device)[:, :, None].expand(-1, -1, self.past_BWN.size(2))
        self.past_BWN = self.past_BWN.gather(1, index)

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these, which are given by their rows, in order."""
        sentences = sentences.to(self.past_BWN.device)
        self.past_BWN = self.past_BWN.index_select(0, sentences)
        self.memory = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.memory]
        if self.memory_bias is not None:
            self.memory_bias = self.memory_bias.index_select(0, sentences)
        for keys in self.self_keys:
            keys.keep(sentences)

    def advance(self, n_beams: int) -> Tensor | None:
        """Make room for one more token per beam.

        Returns (B, 1, W, N), True where a beam may look, or None where it may look everywhere.
        """
        own = torch.eye(n_beams, dtype=torch.bool, device=self.past_BWN.device)
        self.past_BWN = torch.cat((self.past_BWN, own.expand(self.past_BWN.size(0), -1, -1)), dim=2)
        self.positions_N = torch.cat((self.positions_N, self.positions_N.new_full((n_beams,), self.position)))
        self.position += 1
        return None if self.past_BWN.size(2) == self.position else self.past_BWN[:, None]
