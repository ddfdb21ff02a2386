"""Section 3.2: scaled dot-product attention and multi-head attention.

B batch, T queries, S keys, D d_model, H heads, G heads of keys and values, K d_head, N cached keys
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from transformer_cli.config.model import ModelConfig
from transformer_cli.model.blocks import Dropout, Linear
from transformer_cli.model.cache import SelfKeys
from transformer_cli.model.positions import PositionEncoding


class ScaledDotProductAttention(nn.Module):
    """Section 3.2.1: softmax(Q K^T / sqrt(K)) V.

    Two paths with the same result: `fused` calls PyTorch's kernel, which never holds the weights; written out, the
    softmax is a module of its own, whose output is the weights.
    """

    kernel: ClassVar[Callable[..., Tensor]] = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = Dropout(config.attention_dropout)
        self.fused = False

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, bias: Tensor | None) -> Tensor:
        """bias: what masks.as_bias made, broadcastable to (B, H, T, S). Returns (B, H, T, K)."""
        if self.fused:
            p = self.dropout.p if self.training else 0.0
            return self.kernel(query_BHTK, key_BHSK, value_BHSK, bias, dropout_p=p)
        scores_BHTS = self.scores(query_BHTK / math.sqrt(query_BHTK.size(-1)), key_BHSK)
        if bias is not None:
            scores_BHTS = scores_BHTS + bias
        return self.average(self.dropout(self.softmax(scores_BHTS)), value_BHSK)

    def scores(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """(B, H, T, S)."""
        return query_BHTK @ key_BHSK.transpose(-2, -1)

    def average(self, weights_BHTS: Tensor, value_BHSK: Tensor) -> Tensor:
        """(B, H, T, K)."""
        return weights_BHTS @ value_BHSK


class GroupedAttention(ScaledDotProductAttention):
    """H heads of queries over G of keys and values, which H / G neighbours share (Ainslie et al. 2023).

    Written out, the queries of a group stand below each other as if they were one head's; nothing is copied per head.
    """

    kernel = staticmethod(partial(F.scaled_dot_product_attention, enable_gqa=True))

    def scores(self, query_BHTK: Tensor, key_BGSK: Tensor) -> Tensor:
        return super().scores(_regrouped(query_BHTK, key_BGSK.size(1)), key_BGSK).view(*query_BHTK.shape[:3], -1)

    def average(self, weights_BHTS: Tensor, value_BGSK: Tensor) -> Tensor:
        return (
            super().average(_regrouped(weights_BHTS, value_BGSK.size(1)), value_BGSK).view(*weights_BHTS.shape[:3], -1)
        )


def _regrouped(x_BHTX: Tensor, n_groups: int) -> Tensor:
    """(B, H, T, ...) to (B, G, H / G * T, ...)."""
    return x_BHTX.reshape(x_BHTX.size(0), n_groups, -1, x_BHTX.size(3))


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: Concat(head_1, ..., head_H) W^O; where the queries and keys come from, the two below say."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_head = config.head_width
        self.width, self.kv_width = config.n_heads * config.head_width, config.kv_heads * config.head_width
        self.attend = (
            GroupedAttention(config) if config.kv_heads < config.n_heads else ScaledDotProductAttention(config)
        )
        self.output = Linear(self.width, config.d_model, bias=config.biases.attention)

    def split(self, x_BTD: Tensor) -> Tensor:
        """(B, T, H * K) to (B, H, T, K), for as many heads as there are."""
        return x_BTD.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def merge(self, x_BHTK: Tensor) -> Tensor:
        """(B, H, T, K) to (B, T, D), through W^O."""
        return self.output(x_BHTK.transpose(1, 2).flatten(2))


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values from the same place; W^Q, W^K and W^V are one matrix, one product."""

    def __init__(self, config: ModelConfig, positions: PositionEncoding) -> None:
        super().__init__(config)
        self.widths = (self.width, self.kv_width, self.kv_width)
        self.query_key_value = Linear(config.d_model, sum(self.widths), bias=config.biases.attention)
        self.rotate = positions.rotate

    def forward(self, x_BTD: Tensor, bias: Tensor | None) -> Tensor:
        query, key, value = self.project(x_BTD)
        return self.merge(self.attend(self.rotate(query), self.rotate(key), value, bias))

    def step(self, x_BWD: Tensor, cache: SelfKeys, bias: Tensor | None, *, position: int) -> Tensor:
        """The newest token of each beam, all at the same position, over what the sentence's beams wrote before.

        bias: (B, 1, W, N), which of the N cached keys are a beam's own past, its new one included.
        """
        query, key, value = self.project(x_BWD)
        key_BGNK, value_BGNK = cache.append(self._at(key, position), value)
        return self.merge(self.attend(self._at(query, position), key_BGNK, value_BGNK, bias))

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values, each (B, G, T, K)."""
        query, key, value = self.query_key_value(x_BTD).split(self.widths, dim=-1)
        return self.split(query), self.split(key), self.split(value)

    def _at(self, x_BHWK: Tensor, position: int) -> Tensor:
        """Beams are no positions: each one is turned alone, by the position that all of them are at."""
        return (
            self.rotate(x_BHWK.transpose(1, 2).flatten(0, 1).unsqueeze(2), offset=position)
            .view(x_BHWK.size(0), x_BHWK.size(2), x_BHWK.size(1), -1)
            .transpose(1, 2)
        )


class CrossAttention(MultiHeadAttention):
    """Queries from the decoder, keys and values from the encoder's output, the memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        bias = config.biases.attention
        self.query = Linear(config.d_model, self.width, bias=bias)
        self.key_value = Linear(config.d_model, 2 * self.kv_width, bias=bias)

    def forward(self, x_BTD: Tensor, memory: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
        """memory: keys and values, made once by `remember`; T may also be the beams of one step."""
        return self.merge(self.attend(self.split(self.query(x_BTD)), *memory, bias))

    def remember(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, each (B, G, S, K)."""
        key, value = self.key_value(memory_BSD).split(self.kv_width, dim=-1)
        return self.split(key), self.split(value)
