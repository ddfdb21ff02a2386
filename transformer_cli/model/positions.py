"""Section 3.5: how the model knows the order of its input.

B batch, T length, D d_model, H heads, K d_head
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from transformer_cli.config.model import ModelConfig


class PositionEncoding(nn.Module):
    """No positions; the base of the others, each of which replaces `add` or `rotate`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.first = config.first_position

    def add(self, x_BTD: Tensor, *, offset: int = 0) -> Tensor:
        """Embeddings with their positions; offset is the number of positions that came before."""
        return x_BTD

    def rotate(self, x_BHTK: Tensor, *, offset: int = 0) -> Tensor:
        """Queries or keys of self-attention, turned by their positions."""
        return x_BHTK


class Sinusoidal(PositionEncoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)); no limit on length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.d_model = config.d_model
        self.table_TD = torch.empty(0, config.d_model)

    def add(self, x_BTD: Tensor, *, offset: int = 0) -> Tensor:
        start = self.first + offset
        return x_BTD + self._rows(start + x_BTD.size(1), like=x_BTD)[start:]

    def _rows(self, n_rows: int, *, like: Tensor) -> Tensor:
        """The first rows of a table that grows by doubling; it follows the dtype and device of its use."""
        table = self.table_TD
        if table.size(0) < n_rows or table.dtype != like.dtype or table.device != like.device:
            table = sinusoids(max(n_rows, 2 * table.size(0), 128), self.d_model).to(like)
            self.table_TD = table
        return table[:n_rows]


class Learned(PositionEncoding):
    """One trained vector per position (Gehring et al. 2017); `max_positions` of them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding.from_pretrained(torch.empty(config.max_positions, config.d_model), freeze=False)

    def add(self, x_BTD: Tensor, *, offset: int = 0) -> Tensor:
        start = self.first + offset
        end = start + x_BTD.size(1)
        if end > self.table.num_embeddings:
            raise IndexError(f"position {end} of a table of {self.table.num_embeddings} learned positions")
        return x_BTD + self.table.weight[start:end]


class Rotary(PositionEncoding):
    """Turn each pair of features by an angle that grows with the position (Su et al. 2021, RoFormer, eq. 34).

    The pairs are (x_2i, x_2i+1), the angles those of the sinusoids; a query and a key then meet at an angle that
    depends on their distance alone.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.d_head = config.head_width

    def rotate(self, x_BHTK: Tensor, *, offset: int = 0) -> Tensor:
        start = self.first + offset
        table_TK = sinusoids(start + x_BHTK.size(2), self.d_head)[start:].to(x_BHTK)
        sin, cos = table_TK[:, 0::2], table_TK[:, 1::2]
        even, odd = x_BHTK[..., 0::2], x_BHTK[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


POSITIONS: dict[str, type[PositionEncoding]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "none": PositionEncoding,
}


def sinusoids(length: int, width: int) -> Tensor:
    """The paper's table, interleaved, computed in fp64 and returned so. Returns (length, width)."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table
