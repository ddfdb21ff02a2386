"""A corpus as ids in memory-mapped files, encoded once for a text and a tokenizer.

The directory's name holds the hash of all that decides its content, and its index the digest of each file, so what is
there under the right name, unchanged, is right.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.encoding import Block, Encoder, encoded
from transformer_cli.data.fingerprints import Numbers
from transformer_cli.data.text import as_text
from transformer_cli.errors import DataError
from transformer_cli.sealing import sealed, unsealed
from transformer_cli.tokenizer import Tokenizer

FORMAT = 2
INDEX = "index.json"
ARRAYS: dict[str, np.dtype[Any]] = {
    "pairs": np.dtype(np.int64),
    "source": np.dtype(np.int32),
    "source_offsets": np.dtype(np.int64),
    "target": np.dtype(np.int32),
    "target_offsets": np.dtype(np.int64),
}
"""The files of an encoded corpus, `NAME.npy`: places in the text, ids one sentence after the other, their begins."""

Array = npt.NDArray[Any]


class DamagedError(DataError):
    """An encoded text is not what was written."""


@dataclass(frozen=True)
class Remembered:
    """What a run keeps of its training text, to tell of a test what is new. source, target: how often each word came
    there. numbers: see fingerprints.py, each row in order."""

    source: Mapping[str, int]
    target: Mapping[str, int]
    numbers: Numbers


class EncodedCorpus:
    """Sentence pairs as ids on disk; reading a sentence copies nothing."""

    def __init__(self, directory: Path, *, index: Mapping[str, Any] | None = None) -> None:
        """Open what `encode` wrote; DamagedError where it is no longer that. index: of what was written just now."""
        self.directory = directory
        self.counts: dict[str, int] = (index or _verified(directory))["counts"]
        """Pairs that were left out, by reason."""
        self.pairs = _open(directory, "pairs")
        """(N,) the place of each sentence in the corpus."""
        self._source, self._source_offsets = _open(directory, "source"), _open(directory, "source_offsets")
        self._target, self._target_offsets = _open(directory, "target"), _open(directory, "target_offsets")
        self.lengths = np.empty((len(self.pairs), 2), dtype=np.int32)
        """(N, 2) pieces of source and target, end marks included."""
        for side, offsets in enumerate((self._source_offsets, self._target_offsets)):
            np.subtract(offsets[1:], offsets[:-1], out=self.lengths[:, side], casting="same_kind")
        self.lengths[:, 1] += 1

    def __len__(self) -> int:
        return len(self.lengths)

    def source(self, index: int) -> npt.NDArray[np.int32]:
        """Source ids as the encoder reads them: with EOS behind them, if the model wants it."""
        return self._source[self._source_offsets[index] : self._source_offsets[index + 1]]

    def target(self, index: int) -> npt.NDArray[np.int32]:
        """Target ids without marks."""
        return self._target[self._target_offsets[index] : self._target_offsets[index + 1]]


def encode(
    corpus: Corpus,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    split: str,
    source_eos: bool,
    max_length: int | None = None,
    remember: Callable[[Remembered], None] | None = None,
    warn: Callable[[str], None] = lambda line: None,
    progress: Callable[[int], object] = lambda n: None,
) -> EncodedCorpus:
    """The corpus as ids, out of `directory` if it was encoded before, else encoded and put there.

    What is there but damaged is encoded again; warn takes the line that says so. progress: called with the number of
    pairs that are newly done.

    split: names the files. source_eos: whether a source ends in EOS. max_length: for training; pairs with more pieces
    on a side, end marks included, or with none, are left out and counted. None keeps every pair. remember: is told of
    the words and lines of the text, if it is encoded now. What was encoded before for the same split, of another text
    or tokenizer, is deleted.
    Raises DataError where no pair is left, ResourceError where the disk refuses.
    """
    directory = Path(directory)
    decisive = _decisive(corpus, tokenizer, source_eos, max_length)
    place = directory / _name(split, decisive)
    if place.is_dir():
        _delete_others(place, split)
        try:
            return EncodedCorpus(place)
        except DamagedError as damage:
            warn(f"{damage.message}: it is made again from the text")
            files.remove(place)
    encoder = Encoder(tokenizer, source_eos=source_eos, max_length=max_length, remembers=remember is not None)
    numbers = np.empty((2, len(corpus) if encoder.remembers else 0), dtype=np.uint64)
    n_seen = 0
    with files.atomic_directory(place) as aside:
        with _writing(aside) as writer:
            for block in encoded(as_text(corpus.source), as_text(corpus.target), encoder, _tags(corpus, tokenizer)):
                writer.add(block)
                numbers[:, n_seen : n_seen + block.numbers.shape[1]] = block.numbers
                n_seen += block.n_pairs
                progress(block.n_pairs)
        if max_length is not None and not writer.n_pairs:
            raise DataError(
                f"no sentence pair is left to learn from: all {len(corpus):,} are empty or longer than {max_length}",
                hint="raise data.max_length",
            )
        digests = {name: files.sha256(aside / f"{name}.npy") for name in ARRAYS}
        index = {**decisive, "counts": dict(writer.counts), "files": digests}
        with files.create_file(aside / INDEX) as file:
            file.write(sealed(index))
    _delete_others(place, split)
    if remember is not None:
        numbers.sort()
        source, target = (side.words() for side in encoder.sides)
        remember(Remembered(source, target, numbers))
    return EncodedCorpus(place, index=index)


def place_of(
    corpus: Corpus, tokenizer: Tokenizer, directory: Path, *, split: str, source_eos: bool, max_length: int | None
) -> Path:
    """Where `encode` puts such a text, or has put it."""
    return directory / _name(split, _decisive(corpus, tokenizer, source_eos, max_length))


def _tags(corpus: Corpus, tokenizer: Tokenizer) -> list[tuple[int, int | None]]:
    """How many pairs of the text begin with which tag, one after the other; none where there are no tags."""
    found = [(part.pairs, part.direction) for part in corpus.parts if part.direction is not None]
    return [(n, tokenizer.tags[direction.target]) for n, direction in found] if found and tokenizer.tags else []


def _decisive(corpus: Corpus, tokenizer: Tokenizer, source_eos: bool, max_length: int | None) -> dict[str, Any]:
    """All that decides what a text becomes."""
    tags = _tags(corpus, tokenizer)
    return {
        "format": FORMAT,
        "text": corpus.sha256,
        "tokenizer": tokenizer.fingerprint,
        "source_eos": source_eos,
        "max_length": max_length,
        "sampling": None,  # what is drawn is drawn by the loader; once it stood here
        **({"tags": tags} if tags else {}),
    }


def _name(split: str, decisive: Mapping[str, Any]) -> str:
    key = hashlib.sha256(json.dumps(decisive, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]
    return f"{split}-{key}"


@contextmanager
def _writing(directory: Path) -> Iterator[_Writer]:
    """The arrays of an encoded corpus, which are whole when the block ends without an error."""
    with ExitStack() as stack:
        opened = {name: stack.enter_context(files.create_file(directory / f"{name}.npy")) for name in ARRAYS}
        writer = _Writer(opened)
        yield writer
        writer.write_headers()


class _Writer:
    """Arrays that grow on the disk."""

    def __init__(self, opened: Mapping[str, BinaryIO]) -> None:
        self.counts: Counter[str] = Counter()
        self._files = opened
        self._lengths = dict.fromkeys(ARRAYS, 0)
        self._n_seen = 0
        self.write_headers()
        for side in ("source", "target"):
            self._write(f"{side}_offsets", np.zeros(1))

    @property
    def n_pairs(self) -> int:
        """That are kept."""
        return self._lengths["pairs"]

    def add(self, block: Block) -> None:
        """What comes next of the corpus."""
        self._write("pairs", block.kept + np.int64(self._n_seen))
        for side, ids, lengths in (
            ("source", block.source, block.source_lengths),
            ("target", block.target, block.target_lengths),
        ):
            self._write(f"{side}_offsets", self._lengths[side] + np.cumsum(lengths, dtype=np.int64))
            self._write(side, ids)
        self.counts.update(block.counts)
        self._n_seen += block.n_pairs

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


def _verified(directory: Path) -> dict[str, Any]:
    """The index, if it and all that it lists are what was written."""
    path = directory / INDEX
    index = unsealed(files.read_bytes(path)) if path.is_file() else None
    if index is None:
        raise _damaged(path)
    for name, digest in index["files"].items():
        path = directory / f"{name}.npy"
        if not path.is_file() or files.sha256(path) != digest:
            raise _damaged(path)
    return index


def _open(directory: Path, name: str) -> Array:
    path = directory / f"{name}.npy"
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as failure:
        raise files.unreadable(path, failure) from failure
    return array


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"{files.shown(path)} is {'damaged' if path.exists() else 'missing'}")


def _delete_others(place: Path, stem: str) -> None:
    """Delete what was encoded for the same split and is not `place`."""
    own_name = re.compile(re.escape(stem) + r"(-sampled)?-[0-9a-f]{16}")  # once, what was drawn was kept
    for other in sorted(place.parent.iterdir()):
        if other != place and own_name.fullmatch(other.name):
            files.remove(other)
