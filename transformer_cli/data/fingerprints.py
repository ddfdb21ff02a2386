"""Which lines a text has, in 64 bits each: sorted in a file of the run, where a line is looked up without the text.

Two of ten million lines have the same number by a chance of one in 370,000.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.text import BLOCK, Text
from transformer_cli.errors import ModelError

LINES = "lines.npy"
"""In a run directory: the sources of the training text, and its pairs, each row in the order of its numbers."""

Numbers = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Makes a pair another than the same the other way round."""


def fingerprints(source: bytes, target: bytes) -> Numbers:
    """(2, N) of sources and of pairs. Both sides in UTF-8, with a line feed behind each line."""
    sources, targets = _of_lines(source), _of_lines(target)
    return np.stack([sources, sources * _ODD + targets])


def fingerprints_of(source: Text, target: Text) -> Numbers:
    """The same of whole texts."""
    found = np.empty((2, len(source)), dtype=np.uint64)
    for first in range(0, len(source), BLOCK):
        last = min(first + BLOCK, len(source))
        found[:, first:last] = fingerprints(source.utf8(first, last), target.utf8(first, last))
    return found


def is_among(numbers: Numbers, known: Numbers) -> npt.NDArray[np.bool_]:
    """Which of them are known. known: in order."""
    if not len(known):
        return np.zeros(len(numbers), dtype=bool)
    there: npt.NDArray[np.bool_] = known[np.searchsorted(known, numbers).clip(max=len(known) - 1)] == numbers
    return there


def save_fingerprints(run_dir: Path, found: Numbers) -> None:
    """Keep them in a run, sorted by now; ResourceError where the disk refuses."""
    with files.atomic_file(run_dir / LINES) as file:
        write_fingerprints(file, found)


def write_fingerprints(file: BinaryIO, found: Numbers) -> None:
    """As NumPy would, which for its part writes past the file's own `write`."""
    shape = {"descr": np.lib.format.dtype_to_descr(found.dtype), "fortran_order": False, "shape": found.shape}
    np.lib.format.write_array_header_1_0(file, shape)
    for row in found:
        file.write(memoryview(row).cast("B"))


def load_fingerprints(run_dir: Path) -> Numbers | None:
    """What a run keeps, left on the disk; None where it keeps none, ModelError where that is damaged."""
    path = run_dir / LINES
    if not path.exists():
        return None
    try:
        found: Numbers = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as failure:
        raise files.unreadable(path, failure, error=ModelError) from failure
    except (ValueError, EOFError):
        found = np.empty(0, dtype=np.uint64)
    if found.dtype != np.uint64 or found.ndim != 2 or len(found) != 2:
        raise ModelError(
            f"{files.shown(path)} is damaged: it is not the array that was written",
            hint="delete it; where `tx train` made the run, the same command makes it again",
        )
    return found


def _of_lines(text: bytes) -> Numbers:
    digests = b"".join([blake2b(line, digest_size=8).digest() for line in text.split(b"\n")[:-1]])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False)
