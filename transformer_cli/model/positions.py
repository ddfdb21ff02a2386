"""Section 3.5: how the model knows the order of its input.

B batch, T length, or queries, S keys, N rows of any sentences, D d_model, H heads, K d_head
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from transformer_cli.config.model import POSITIONS, ModelConfig, Stack
from transformer_cli.model.compiled import rotated


class PositionEncoding(nn.Module):
    """No positions; the base of the others, which replace `vectors`, `rotate` or `relate`, or `add`. One per stack.

    A run is opened without drawing numbers: what is no parameter is computed when it is used, never in `__init__`.
    """

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__()
        self.first = config.first_position

    def add(self, x_BTD: Tensor, *, offset: int = 0) -> Tensor:
        """Embeddings with their positions; offset is the number of positions that came before."""
        vectors_TD = self.vectors(offset + x_BTD.size(1), like=x_BTD)
        return x_BTD if vectors_TD is None else x_BTD + vectors_TD[offset:]

    def vectors(self, end: int, *, like: Tensor) -> Tensor | None:
        """What is added to embeddings at the positions before `end`, (T, D), if anything is."""
        return None

    def rotate(self, x_BHTK: Tensor, *, offset: int = 0) -> Tensor:
        """Queries or keys of self-attention, turned by their positions."""
        return x_BHTK

    def rotate_rows(self, x_NHK: Tensor, positions_N: Tensor, *, end: int) -> Tensor:
        """The same of rows at these positions, all of them before `end`, by compiled code."""
        return x_NHK

    def relate(self, queries_T: Tensor, keys_S: Tensor) -> Tensor | None:
        """What is added to the scores of self-attention, (H, T, S), for queries and keys at these positions."""
        return None

    @property
    def rotates(self) -> bool:
        """Whether anything is turned."""
        return type(self).rotate is not PositionEncoding.rotate

    @property
    def relates(self) -> bool:
        """Whether anything is added to scores."""
        return type(self).relate is not PositionEncoding.relate

    def initialise(self) -> None:
        """Draw what is trained."""

    def bias(self, hidden: Tensor | None, queries_T: Tensor, keys_S: Tensor, *, like: Tensor) -> Tensor | None:
        """What masks hide, and on top of it what `relate` adds; in the dtype of `like`."""
        relation_HTS = self.relate(queries_T, keys_S)
        if relation_HTS is None:
            return hidden
        relation_1HTS = relation_HTS[None].to(like.dtype)
        return relation_1HTS if hidden is None else hidden + relation_1HTS


class Sinusoidal(PositionEncoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)); no limit on length."""

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        self.waves = Waves(config.d_model)

    def vectors(self, end: int, *, like: Tensor) -> Tensor:
        return self.waves.rows(self.first, self.first + end, like=like)


class SinusoidalHalves(Sinusoidal):
    """tensor2tensor's: PE(pos, i) = sin(pos / 10000^(i/(D/2-1))), PE(pos, D/2+i) its cosine.

    M2M100 has them, too, and counts from the id of padding + 1: `first_position: 2`, for its padding is 1.
    """

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        self.waves = Waves(config.d_model, halves)


class Table(PositionEncoding):
    """One vector per position, `max_positions` of them, kept with the weights."""

    is_trained: ClassVar[bool]

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        rows = torch.empty(config.max_positions_of(stack), config.d_model)
        self.table = nn.Embedding.from_pretrained(rows, freeze=not self.is_trained)

    def vectors(self, end: int, *, like: Tensor) -> Tensor:
        if (end := self.first + end) > self.table.num_embeddings:
            raise IndexError(f"position {end} of a table of {self.table.num_embeddings} positions")
        return self.table.weight[self.first : end]


class Learned(Table):
    """Trained vectors (Gehring et al. 2017)."""

    is_trained = True

    def initialise(self) -> None:
        nn.init.normal_(self.table.weight, std=self.table.embedding_dim**-0.5)


class SinusoidalTable(Table):
    """The sinusoids, kept like weights and never trained."""

    is_trained = False

    def initialise(self) -> None:
        self.table.weight.copy_(sinusoids(*self.table.weight.shape))


class Rotary(PositionEncoding):
    """Turn each pair of features by an angle that grows with the position (Su et al. 2021, RoFormer, eq. 34).

    The pairs are (x_2i, x_2i+1), the angles those of the sinusoids; a query and a key then meet at an angle that
    depends on their distance alone.
    """

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        self.waves = Waves(config.head_width)
        self.turns = Waves(2 * config.head_width, self._turns)

    def rotate(self, x_BHTK: Tensor, *, offset: int = 0) -> Tensor:
        start = self.first + offset
        table_TK = self.waves.rows(start, start + x_BHTK.size(2), like=x_BHTK)
        sin, cos = table_TK[:, 0::2], table_TK[:, 1::2]
        even, odd = x_BHTK[..., 0::2], x_BHTK[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def rotate_rows(self, x_NHK: Tensor, positions_N: Tensor, *, end: int) -> Tensor:
        return rotated(x_NHK, self.turns_before(end), positions_N)

    def turns_before(self, end: int) -> Tensor:
        """What compiled code turns heads by, of all positions before that: a row of twice K for each."""
        return self.turns.rows(self.first, self.first + end, like=torch.empty(0, dtype=torch.float32))

    def _turns(self, length: int, width: int) -> Tensor:
        """Each cosine twice, then each sine below 0 and above; width: twice that of a head."""
        table = self.waves.made(length, width // 2)
        sin, cos = table[:, 0::2], table[:, 1::2]
        return torch.cat([torch.stack(pair, dim=-1).flatten(-2) for pair in ((cos, cos), (-sin, sin))], dim=-1)


ROTATIONS = PositionEncoding.rotate, Rotary.rotate
"""Those that are had by `rotate_rows`, too."""


def positions_for(config: ModelConfig, stack: Stack) -> PositionEncoding:
    """The positions of a stack."""
    return POSITIONS.load(config.positions_of(stack))(config, stack)


class Waves:
    """The sinusoids up to the last position that was asked for; they follow the dtype and device of their use."""

    def __init__(self, width: int, made: Callable[[int, int], Tensor] | None = None) -> None:
        """made: a table of a length and a width; the paper's when not given."""
        self.made = sinusoids if made is None else made
        self.table = torch.empty(0, width)

    def rows(self, start: int, end: int, *, like: Tensor) -> Tensor:
        """Those of the positions from start to end."""
        table = self.table
        if table.size(0) < end or table.dtype != like.dtype or table.device != like.device:
            # Doubling, so that decoding step by step computes few tables. A table made in inference mode would be of
            # no use to the next backward pass.
            with torch.inference_mode(False):
                table = self.made(max(end, 2 * table.size(0), 128), table.size(1)).to(like.device, like.dtype)
            self.table = table
        return table[start:end]


def sinusoids(length: int, width: int) -> Tensor:
    """The paper's table, interleaved, computed in fp64 and returned so. Returns (length, width)."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table


def halves(length: int, width: int) -> Tensor:
    """tensor2tensor's table, sines before cosines, computed in fp64 and returned so. Returns (length, width)."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(width // 2, dtype=torch.float64) * (-math.log(10000.0) / max(width // 2 - 1, 1)))
    return torch.cat((torch.sin(position * frequency), torch.cos(position * frequency)), dim=1)
