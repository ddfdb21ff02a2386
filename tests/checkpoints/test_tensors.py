"""A file that is written a tensor at a time is the one that safetensors writes of all at once."""

from __future__ import annotations

import random

import pytest
import torch
from safetensors import torch as safetensors

from transformer_cli.checkpoints.tensors import DTYPES, pieces


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_are_the_file_of_safetensors(seed: int) -> None:
    chance = random.Random(seed)
    tensors = {}
    for number in range(chance.randrange(12)):
        shape = [chance.randrange(5) for _ in range(chance.randrange(4))]
        drawn = torch.randint(0, 2, shape).to(chance.choice(DTYPES))
        tensors[chance.choice(["a", "ä", "Z", ".", '"', "_"]) + str(number)] = drawn.mT if drawn.dim() > 1 else drawn
    expected = safetensors.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert b"".join(pieces(tensors)) == expected
