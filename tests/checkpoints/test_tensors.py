"""A file that is written a tensor at a time is the one that safetensors writes of all at once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from safetensors import torch as safetensors

from transformer_cli.checkpoints.tensors import DTYPES, mapped, portion


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_are_the_file_of_safetensors(seed: int) -> None:
    chance = random.Random(seed)
    tensors = {}
    for number in range(chance.randrange(12)):
        shape = [chance.randrange(5) for _ in range(chance.randrange(4))]
        drawn = torch.randint(0, 2, shape).to(chance.choice(DTYPES))
        tensors[chance.choice(["a", "ä", "Z", ".", '"', "_"]) + str(number)] = drawn.mT if drawn.dim() > 1 else drawn
    expected = safetensors.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    one = portion(tensors)
    file = bytearray(one.header)
    for offset, piece in one.pieces():
        assert offset == len(file)
        file += piece
    assert bytes(file) == expected
    assert len(file) == one.size
    assert not one.is_shared


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what memory is of")
def test_the_tensors_of_a_file_are_no_memory_of_the_process(tmp_path: Path) -> None:
    """A checkpoint of 3 GB was 3 GB in each process that went on with it, twice while it was read."""
    tensors = {name: torch.full((4, 1 << 20), float(number)) for number, name in enumerate("abcd")}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    before = anonymous_kib()
    found = mapped(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert anonymous_kib() - before < 8 * 1024


def anonymous_kib() -> int:
    """Memory of this process that is of no file."""
    [found] = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found)
