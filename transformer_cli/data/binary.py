"""Text as ids in files, volume by volume: written block by block, and read as one, sentence by sentence.

The index of a volume holds the digest of each of its files, so what is there unchanged is right.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.encoding import Block
from transformer_cli.data.text import Open
from transformer_cli.errors import DataError
from transformer_cli.sealing import sealed, unsealed
from transformer_cli.tokenizer import UNK

INDEX = "index.json"
ARRAYS: dict[str, np.dtype[Any]] = {
    "pairs": np.dtype(np.int64),
    "source": np.dtype(np.int32),
    "source_offsets": np.dtype(np.int64),
    "target": np.dtype(np.int32),
    "target_offsets": np.dtype(np.int64),
}
"""The files of a volume, `NAME.npy`: places in the text, ids one sentence after the other, their begins."""
STRETCH = 1 << 22
"""Ids that are looked through at a time."""

Array = npt.NDArray[Any]


class DamagedError(DataError):
    """An encoded text is not what was written."""


class EncodedCorpus:
    """Sentence pairs as ids on disk, where a sentence is read when it is asked for."""

    def __init__(self, places: Sequence[Path]) -> None:
        """places: the directories of all volumes, in order, which are known to be whole."""
        self.places = tuple(places)
        self.counts: dict[str, int] = dict(sum((Counter(_index(place)["counts"]) for place in places), Counter()))
        """Pairs that were left out, by reason."""
        self._volumes = [{name: Stored(place, name) for name in ARRAYS if name != "pairs"} for place in places]
        pairs = [loaded(place, "pairs").astype(np.int32) for place in places]
        self._begins = [0, *accumulate(map(len, pairs))]
        self.pairs = np.concatenate(pairs)
        """(N,) the place of each sentence in the corpus."""
        self.lengths = np.concatenate([_lengths(place) for place in places])
        """(N, 2) pieces of source and target, end marks included; see `narrow`."""

    def __len__(self) -> int:
        return len(self.lengths)

    def sources(self, indices: Sequence[int], copies: Sequence[int] = ()) -> list[npt.NDArray[np.int32]]:
        """Source ids as the encoder reads them: with EOS behind them, if the model wants it. The same in every copy."""
        return [self._ids("source", index) for index in indices]

    def targets(self, indices: Sequence[int], copies: Sequence[int] = ()) -> list[npt.NDArray[np.int32]]:
        """Target ids without marks. The same in every copy."""
        return [self._ids("target", index) for index in indices]

    def unknown(self, side: str, most: int) -> tuple[int, int, Array]:
        """How many ids of a side are UNK, how many there are, and the places in the corpus of sentences that have the
        first of these, that many at most."""
        n = n_ids = 0
        places = np.empty(0, dtype=np.int32)
        for volume, begin in zip(self._volumes, self._begins, strict=False):
            ids, size = volume[side], volume[side].size
            n_ids += size
            for start in range(0, size, STRETCH):
                found = np.flatnonzero(ids.read(start, min(start + STRETCH, size)) == UNK)
                n += len(found)
                if len(found) and len(places) < most:
                    offsets = volume[f"{side}_offsets"]
                    ends = offsets.read(1, offsets.size)
                    rows = np.unique(np.searchsorted(ends, start + found, side="right"))
                    places = np.unique(np.concatenate([places, self.pairs[begin + rows]]))[:most]
        return n, n_ids, places

    def _ids(self, side: str, index: int) -> npt.NDArray[np.int32]:
        number = bisect_right(self._begins, index) - 1
        volume, row = self._volumes[number], index - self._begins[number]
        return volume[side].read(*volume[f"{side}_offsets"].read(row, row + 2).tolist())


class Stored:
    """An array of a volume, read where it lies. Were it mapped, all that was ever read of it would count as memory of
    the process: in the end the whole text."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.npy"
        try:
            with open(self.path, "rb") as file:
                np.lib.format.read_magic(file)
                (self.size,), _, self.dtype = np.lib.format.read_array_header_1_0(file)
                self._begin = file.tell()
                self._file = Open(os.dup(file.fileno()))
        except OSError as failure:
            raise files.unreadable(self.path, failure) from failure

    def read(self, start: int, stop: int) -> Array:
        """What is at these places, which nobody can write to."""
        size = self.dtype.itemsize
        try:
            data = self._file.read((stop - start) * size, self._begin + start * size)
        except OSError as failure:
            raise files.unreadable(self.path, failure) from failure
        if len(data) != (stop - start) * size:
            raise _damaged(self.path)
        return np.frombuffer(data, dtype=self.dtype)


@contextmanager
def writing(directory: Path, first: int) -> Iterator[Writer]:
    """The arrays of a volume that begins at this place; they are whole when the block ends without an error."""
    with ExitStack() as stack:
        arrays = {name: stack.enter_context(files.create_file(directory / f"{name}.npy")) for name in ARRAYS}
        writer = Writer(arrays, first)
        yield writer
        writer.write_headers()


class Writer:
    """Arrays that grow on the disk."""

    def __init__(self, arrays: Mapping[str, BinaryIO], first: int) -> None:
        self.counts: Counter[str] = Counter()
        self.n_seen = first
        """The place in the text of what comes next."""
        self._files = arrays
        self._lengths = dict.fromkeys(ARRAYS, 0)
        self.write_headers()
        for side in ("source", "target"):
            self._write(f"{side}_offsets", np.zeros(1))

    def add(self, block: Block) -> None:
        """What comes next of the corpus."""
        self._write("pairs", block.kept + np.int64(self.n_seen))
        for side, ids, lengths in (
            ("source", block.source, block.source_lengths),
            ("target", block.target, block.target_lengths),
        ):
            self._write(f"{side}_offsets", self._lengths[side] + np.cumsum(lengths, dtype=np.int64))
            self._write(side, ids)
        self.counts.update(block.counts)
        self.n_seen += block.n_pairs

    def _write(self, name: str, values: Array) -> None:
        self._files[name].write(values.astype(ARRAYS[name], copy=False).tobytes())
        self._lengths[name] += len(values)

    def write_headers(self) -> None:
        """NumPy leaves room in a header for a length of any number of digits, so a longer one has the same size."""
        for name, dtype in ARRAYS.items():
            shape = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (self._lengths[name],),
            }
            self._files[name].seek(0)
            np.lib.format.write_array_header_1_0(self._files[name], shape)


def write_index(directory: Path, fields: Mapping[str, Any]) -> None:
    """What there is to say of a volume, and the digest of each of its arrays."""
    digests = {name: files.sha256(directory / f"{name}.npy") for name in ARRAYS}
    with files.create_file(directory / INDEX) as file:
        file.write(sealed({**fields, "files": digests}))


def damage_of(directory: Path) -> DamagedError | None:
    """What of a volume is not what was written; None where all is."""
    try:
        for name, digest in _index(directory)["files"].items():
            path = directory / f"{name}.npy"
            if not path.is_file() or files.sha256(path) != digest:
                raise _damaged(path)
    except DamagedError as damage:
        return damage
    return None


def _index(directory: Path) -> dict[str, Any]:
    path = directory / INDEX
    index = unsealed(files.read_bytes(path)) if path.is_file() else None
    if index is None:
        raise _damaged(path)
    return index


def loaded(directory: Path, name: str) -> Array:
    """An array of a volume, in memory."""
    path = directory / f"{name}.npy"
    try:
        array: Array = np.load(path, allow_pickle=False)
    except OSError as failure:
        raise files.unreadable(path, failure) from failure
    return array


def narrow(lengths: Array) -> npt.NDArray[np.signedinteger]:
    """The same in two bytes each, where all fit. Signed, as NumPy's sums of them are then, which have eight."""
    fits = lengths.max(initial=0) <= np.iinfo(np.int16).max
    return lengths.astype(np.int16 if fits else np.int32)


def _lengths(place: Path) -> npt.NDArray[np.signedinteger]:
    source, target = (np.diff(loaded(place, f"{side}_offsets")) for side in ("source", "target"))
    return narrow(np.stack([source, target + 1], axis=1))


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"{files.shown(path)} is {'damaged' if path.exists() else 'missing'}")
