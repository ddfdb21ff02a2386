"""What the decoder remembers from one step to the next.

B sentences, W beams, N cached keys, H heads, K d_head, S source length

Keys and values of self-attention are written once and never moved. All beams of a sentence share one row of them,
and a table says which of them are whose past: following a parent copies a row of that table, not the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SelfKeys:
    """Keys and values of one layer's self-attention, in tables that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self.key_BHNK = self.value_BHNK = torch.empty(0)

    def append(self, key_BHWK: Tensor, value_BHWK: Tensor) -> tuple[Tensor, Tensor]:
        """Write one step's keys and values behind the earlier ones; returns all of them, each (B, H, N, K)."""
        end = self.length + key_BHWK.size(2)
        if self.key_BHNK.numel() == 0 or end > self.key_BHNK.size(2):
            self._grow(key_BHWK, max(2 * end, 16))
        self.key_BHNK[:, :, self.length : end] = key_BHWK
        self.value_BHNK[:, :, self.length : end] = value_BHWK
        self.length = end
        return self.key_BHNK[:, :, :end], self.value_BHNK[:, :, :end]

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        self.key_BHNK = self.key_BHNK.index_select(0, sentences)
        self.value_BHNK = self.value_BHNK.index_select(0, sentences)

    def _grow(self, like_BHWK: Tensor, room: int) -> None:
        B, H, _, K = like_BHWK.shape
        for name in ("key_BHNK", "value_BHNK"):
            table = like_BHWK.new_empty(B, H, room, K)
            if self.length:
                table[:, :, : self.length] = getattr(self, name)[:, :, : self.length]
            setattr(self, name, table)


class DecoderState:
    """Everything a decoding step needs: the memory's keys and values per sentence, and each beam's past.

    memory: keys and values per layer, each (B, H, S, K), untouched by `reorder`. memory_bias: what hides the
    source's padding. position: tokens read so far.
    """

    def __init__(self, memory: list[tuple[Tensor, Tensor]], memory_bias: Tensor | None) -> None:
        self.memory = memory
        self.memory_bias = memory_bias
        self.self_keys = [SelfKeys() for _ in memory]
        self.position = 0
        n_sentences = memory[0][0].size(0)
        self.past_BWN = torch.ones(n_sentences, 1, 0, dtype=torch.bool, device=memory[0][0].device)

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
        self.position += 1
        return None if self.past_BWN.size(2) == self.position else self.past_BWN[:, None]
