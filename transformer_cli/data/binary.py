"""Text as ids in memory-mapped files, volume by volume: written block by block, and read as one.

The index of a volume holds the digest of each of its files, so what is there unchanged is right.
"""

from __future__ import annotations

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
from transformer_cli.errors import DataError
from transformer_cli.sealing import sealed, unsealed

INDEX = "index.json"
ARRAYS: dict[str, np.dtype[Any]] = {
    "pairs": np.dtype(np.int64),
    "source": np.dtype(np.int32),
    "source_offsets": np.dtype(np.int64),
    "target": np.dtype(np.int32),
    "target_offsets": np.dtype(np.int64),
}
"""The files of a volume, `NAME.npy`: places in the text, ids one sentence after the other, their begins."""

Array = npt.NDArray[Any]


class DamagedError(DataError):
    """An encoded text is not what was written."""


class EncodedCorpus:
    """Sentence pairs as ids on disk; reading a sentence copies nothing."""

    def __init__(self, places: Sequence[Path]) -> None:
        """places: the directories of all volumes, in order, which are known to be whole."""
        self.places = tuple(places)
        self.counts: dict[str, int] = dict(sum((Counter(_index(place)["counts"]) for place in places), Counter()))
        """Pairs that were left out, by reason."""
        self._volumes = [{name: opened(place, name) for name in ARRAYS} for place in places]
        sizes = [len(volume["pairs"]) for volume in self._volumes]
        self._begins = [0, *accumulate(sizes)]
        self.pairs: npt.NDArray[np.integer] = self._volumes[0]["pairs"]
        """(N,) the place of each sentence in the corpus."""
        if len(places) > 1:
            self.pairs = np.concatenate([volume["pairs"] for volume in self._volumes], dtype=np.int32)
        self.lengths = np.empty((self._begins[-1], 2), dtype=np.int32)
        """(N, 2) pieces of source and target, end marks included."""
        for begin, size, volume in zip(self._begins, sizes, self._volumes, strict=False):
            for side, offsets in enumerate((volume["source_offsets"], volume["target_offsets"])):
                rows = self.lengths[begin : begin + size, side]
                np.subtract(offsets[1:], offsets[:-1], out=rows, casting="same_kind")
        self.lengths[:, 1] += 1

    def __len__(self) -> int:
        return len(self.lengths)

    def source(self, index: int) -> npt.NDArray[np.int32]:
        """Source ids as the encoder reads them: with EOS behind them, if the model wants it."""
        return self._ids("source", index)

    def target(self, index: int) -> npt.NDArray[np.int32]:
        """Target ids without marks."""
        return self._ids("target", index)

    def _ids(self, side: str, index: int) -> npt.NDArray[np.int32]:
        number = bisect_right(self._begins, index) - 1
        volume, row = self._volumes[number], index - self._begins[number]
        offsets = volume[f"{side}_offsets"]
        return volume[side][offsets[row] : offsets[row + 1]]


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


def opened(directory: Path, name: str) -> Array:
    """An array of a volume, left on the disk."""
    path = directory / f"{name}.npy"
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as failure:
        raise files.unreadable(path, failure) from failure
    return array


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"{files.shown(path)} is {'damaged' if path.exists() else 'missing'}")
