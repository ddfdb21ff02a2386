"""Batches of sentences for translation."""

from __future__ import annotations

import random

import pytest

from transformer_cli.decoding.batches import by_length


@pytest.mark.parametrize("seed", range(100))
def test_every_sentence_is_in_one_batch_that_keeps_to_its_limits(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.randint(1, 50) for _ in range(chance.randint(0, 200))]
    batch_size, budget = chance.randint(1, 20), chance.randint(1, 400)
    batches = by_length(lengths, batch_size=batch_size, budget_tokens=budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    longest = [max(lengths[index] for index in batch) for batch in batches]
    assert all(len(batch) <= batch_size for batch in batches)
    assert all(len(batch) == 1 or len(batch) * most <= budget for batch, most in zip(batches, longest, strict=True))
    assert longest == sorted(longest, reverse=True)


def test_as_many_go_together_as_may() -> None:
    assert by_length([3, 9, 3, 4, 3], batch_size=3, budget_tokens=12) == [[1], [3, 0, 2], [4]]
