"""The only place that makes a mask. True means: this query may attend to this key.

B batch
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_cli.model.layout import sent


def padding(lengths_B: Tensor, length: int) -> Tensor | None:
    """Hide what lies beyond each sentence's end.

    lengths_B: real positions per sentence, on the CPU, so that asking about them never waits for a device.
    Returns (B, 1, 1, length), or None where nothing is padded and nothing needs hiding.
    """
    if bool((lengths_B == length).all()):
        return None
    return (torch.arange(length) < lengths_B[:, None])[:, None, None, :]


def causal(length: int, device: torch.device) -> Tensor:
    """Hide the future: query t sees the keys 0 to t. Returns (length, length)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def as_bias(mask: Tensor, *, like: Tensor) -> Tensor:
    """What is added to the scores: 0 where attention is allowed, a huge negative number where it is not.

    Finite, so that a row in which everything is hidden becomes uniform weights and not NaN; large enough that in
    any other row a hidden key's weight is exactly 0. Returns mask's shape, in the dtype and on the device of `like`.
    """
    mask = sent(mask, like.device)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, hidden(like.dtype))


def hidden(dtype: torch.dtype) -> float:
    """The huge negative number."""
    return torch.finfo(dtype).min / 2
