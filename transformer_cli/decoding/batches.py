"""Which sentences are translated together: neighbours in length, within a budget of padded pieces."""

from __future__ import annotations

from collections.abc import Sequence


def by_length(lengths: Sequence[int], *, batch_size: int, budget_tokens: int) -> list[list[int]]:
    """Indices of the sentences of each batch, the longest sentences first.

    A batch has at most batch_size sentences, and sentences x longest is at most budget_tokens, unless it is a sentence
    alone.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = []
    start = 0
    while start < len(order):
        room = budget_tokens // max(1, lengths[order[start]])  # the first of a batch is its longest
        size = max(1, min(batch_size, room))
        batches.append(order[start : start + size])
        start += size
    return batches
