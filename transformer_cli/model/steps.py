"""What a prepared model remembers from one step to the next: its key-value cache.

B sentences, W places for beams, R beams of all sentences, N cached keys, P keys or values (2), G heads of these,
K d_head, or ids of a row, L layers, S source length, J heads of keys of all sentences (B * G), D d_model, V vocabulary,
U ids whose logits are wanted, X any features

Keys and values of self-attention are written once and never moved. All beams of a sentence share one row of them, and
a table says which of them are whose past, as what is added to the scores: following a parent copies a row of that
table, not the keys. Attention has a query for each place; where there is no beam, it is that of another one, and nobody
reads what comes of it. Keys of the memory, written once and read often, are transposed as the product with queries
wants them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_cli.model import masks
from transformer_cli.model.folded import Folded
from transformer_cli.model.products import Product

LEAST_KEYS = 16
"""PyTorch's softmax over fewer numbers than a vector register holds is several times as slow."""


@dataclass(frozen=True)
class Exact:
    """Logits of some ids as they are, where a step rounds them: by what the output reads, (R, D), and its table and
    bias. only_U: the ids that logits are of, if not all."""

    x_RD: Tensor
    table_VD: Tensor
    bias_V: Tensor | None
    only_U: Tensor | None

    def __call__(self, places_RK: Tensor) -> Tensor:
        """(R, K), of ids, or of places of those that are wanted."""
        ids_RK = places_RK if self.only_U is None else self.only_U[places_RK]
        logits_RK = torch.bmm(F.embedding(ids_RK, self.table_VD), self.x_RD[:, :, None]).squeeze(2)
        return logits_RK if self.bias_V is None else logits_RK.add_(self.bias_V[ids_RK])


class Steps:
    """The memory's keys and values per sentence, and each beam's past.

    lengths_B: of the sources, on the CPU. position: tokens read so far. start, end: where the newest keys are. n_keys:
    those that are read, of which those from `end` on are hidden. beams: how many places there were at each position.
    taken_BW: where beams are, on the CPU; places_R: the same as numbers of B * W, None where they are everywhere.
    hidden_BWN: what is added to scores, for each key that there is room for. memory: its keys (J, K, S) and values (J,
    S, K) by layer; past and new: views of `past_PLBGNK` that a step reads and writes. only_U: the ids whose logits are
    wanted, None for all; products: what makes them, by whether it rounds, and has panels. exact: where the logits of
    the latest step are rounded, what computes some of them as they are. compiled: whether compiled code may read them.
    """

    def __init__(
        self, memory_keys_LBGKS: Tensor, memory_values_LBGSK: Tensor, memory_bias: Tensor | None, lengths_B: Tensor
    ) -> None:
        self.memory_keys_LBGKS, self.memory_values_LBGSK = memory_keys_LBGKS, memory_values_LBGSK
        self.lengths_B = lengths_B
        self.memory_bias = memory_bias
        L, B, G, K, _ = memory_keys_LBGKS.shape
        self.past_PLBGNK = memory_keys_LBGKS.new_zeros(2, L, B, G, LEAST_KEYS, K)
        self.hidden_BWN = memory_keys_LBGKS.new_full((B, 1, LEAST_KEYS), masks.hidden(memory_keys_LBGKS.dtype))
        self.new: Sequence[Tensor] = ()
        self.past: Sequence[tuple[Tensor, Tensor]] = ()
        self.memory: Sequence[tuple[Tensor, Tensor]] = self._layers_of_memory()
        self.start = self.end = self.n_keys = 0
        self.beams: list[int] = []
        self._settle(torch.ones(B, 1, dtype=torch.bool))
        self.folded: Sequence[Folded] = ()
        self.only_U: Tensor | None = None
        self.products: dict[tuple[bool, bool], Product] = {}
        self.exact: Exact | None = None
        self.compiled = False

    @property
    def position(self) -> int:
        return len(self.beams)

    def reorder(self, parents_BW: Tensor) -> None:
        """Let each new beam continue the old one at the place that parents_BW names, -1 where there is none."""
        self._settle(parents_BW >= 0)
        index = parents_BW.clamp(min=0).to(self.hidden_BWN.device)[:, :, None].expand(-1, -1, self.hidden_BWN.size(2))
        self.hidden_BWN = self.hidden_BWN.gather(1, index)

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these, which are given by their rows, in order."""
        self._settle(self.taken_BW[sentences.cpu()])
        self.lengths_B = self.lengths_B[sentences.cpu()]
        sentences = sentences.to(self.hidden_BWN.device)
        self.new = self.past = self.memory = ()  # whose views would hold the old tables until all new ones are made
        self.memory_keys_LBGKS = self.memory_keys_LBGKS.index_select(1, sentences)
        self.memory_values_LBGSK = self.memory_values_LBGSK.index_select(1, sentences)
        self.past_PLBGNK = self.past_PLBGNK.index_select(2, sentences)
        self.hidden_BWN = self.hidden_BWN.index_select(0, sentences)
        if self.memory_bias is not None:
            self.memory_bias = self.memory_bias.index_select(0, sentences)
        self.memory = self._layers_of_memory()

    def spread(self, x_RX: Tensor) -> Tensor:
        """From a row for each beam to one for each place, (B * W, X), with whatever is behind them."""
        return x_RX if self.places_R is None else x_RX.index_select(0, self._row_of)

    def make_room(self) -> None:
        """For one more token per place, which its own beam may look at."""
        n_beams = self.taken_BW.size(1)
        self.start, self.end = self.end, self.end + n_beams
        self.n_keys = max(self.end, LEAST_KEYS)
        self.beams.append(n_beams)
        if self.end > self.hidden_BWN.size(2):
            self._grow(max(2 * self.end, 4 * LEAST_KEYS))
        own_BWW = self.hidden_BWN.narrow(2, self.start, n_beams)
        if n_beams > 1:
            own_BWW.diagonal(dim1=1, dim2=2).zero_()
        else:
            own_BWW.zero_()

    def advance(self) -> Tensor | None:
        """Make room for one more token per place, and the views by which it is written and read.

        Returns what is added to the scores, (B, 1, W, N), or None where a beam may look everywhere.
        """
        self.make_room()
        n_beams = self.taken_BW.size(1)
        # One view for all layers is cut into theirs: a call for each would take as long as what it is for.
        new_PLBGWK = self.past_PLBGNK.narrow(4, self.start, n_beams)
        self.new = new_PLBGWK.permute(1, 2, 4, 0, 3, 5).unbind()
        keys_LJNK, values_LJNK = self.past_PLBGNK.narrow(4, 0, self.n_keys).flatten(2, 3).unbind()
        self.past = list(zip(keys_LJNK.transpose(2, 3).unbind(), values_LJNK.unbind(), strict=True))
        if self.end == self.position == self.n_keys:
            return None
        return self.hidden_BWN.narrow(2, 0, self.n_keys)[:, None]

    def positions(self) -> tuple[Tensor, Tensor]:
        """Those of the queries, and of each key, of which those beyond the last one are hidden."""
        counts = torch.tensor(self.beams)
        keys_N = torch.arange(len(self.beams)).repeat_interleave(counts)
        keys_N = F.pad(keys_N, (0, self.n_keys - self.end), value=self.position - 1)
        return keys_N[self.end - 1 : self.end].to(self.hidden_BWN.device), keys_N.to(self.hidden_BWN.device)

    def append(self, layer: int, key_values_BWXK: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys, and the values behind them; returns them all, (J, K, N) and (J, N, K)."""
        new_BWPGK = self.new[layer]
        new_BWPGK.copy_(key_values_BWXK.view(new_BWPGK.shape))
        return self.past[layer]

    def _settle(self, taken_BW: Tensor) -> None:
        """Beams are now where taken_BW says."""
        self.taken_BW = taken_BW
        self.places_R: Tensor | None = None
        if not taken_BW.all():
            taken, device = taken_BW.flatten(), self.memory_keys_LBGKS.device
            self.places_R = taken.nonzero().flatten().to(device)
            self._row_of = (taken.cumsum(0) - 1).clamp_(min=0).to(device)

    def _layers_of_memory(self) -> list[tuple[Tensor, Tensor]]:
        keys_LJKS, values_LJSK = self.memory_keys_LBGKS.flatten(1, 2), self.memory_values_LBGSK.flatten(1, 2)
        return list(zip(keys_LJKS.unbind(), values_LJSK.unbind(), strict=True))

    def _grow(self, room: int) -> None:
        """What is not written yet is not touched, and takes no memory."""
        self.new = self.past = ()
        written = self.past_PLBGNK
        self.past_PLBGNK = written.new_empty(*written.shape[:4], room, written.size(5))
        self.past_PLBGNK[..., : self.start, :] = written[..., : self.start, :]
        more = room - self.hidden_BWN.size(2)
        self.hidden_BWN = F.pad(self.hidden_BWN, (0, more), value=masks.hidden(self.hidden_BWN.dtype))
