"""A corpus as ids in memory-mapped files, encoded once for a text and a tokenizer.

The directory's name holds the hash of all that decides its content, and its index the digest of each file, so what is
there under the right name, unchanged, is right.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.corpus import Corpus
from transformer_cli.errors import DataError
from transformer_cli.sealing import sealed, unsealed
from transformer_cli.tokenizer import EOS, Tokenizer

FORMAT = 2
INDEX = "index.json"
CHUNK = 8192
"""Pairs that are encoded at a time: their ids are lists before they are arrays, and those of all wait for the end."""
NO_PIECES = "no pieces"
SAMPLED_TOO_LONG = "sampled too long, plain pieces used"

Array = npt.NDArray[Any]


class DamagedError(DataError):
    """An encoded text is not what was written."""


class EncodedCorpus:
    """Sentence pairs as ids on disk; reading a sentence copies nothing."""

    def __init__(self, directory: Path) -> None:
        """Open what `encode` wrote; DamagedError where it is no longer that."""
        self.directory = directory
        index = _verified(directory)
        self.counts: dict[str, int] = index["counts"]
        """Pairs that were left out or changed, by reason."""
        self.pairs = _open(directory, "pairs")
        """(N,) the place of each sentence in the corpus."""
        self._source, self._source_offsets = _open(directory, "source"), _open(directory, "source_offsets")
        self._target, self._target_offsets = _open(directory, "target"), _open(directory, "target_offsets")
        self.lengths: npt.NDArray[np.int64] = np.stack(
            [np.diff(self._source_offsets), np.diff(self._target_offsets) + 1], axis=1
        )
        """(N, 2) pieces of source and target, end marks included."""

    def __len__(self) -> int:
        return len(self.lengths)

    def source(self, index: int) -> npt.NDArray[np.int32]:
        """Source ids as the encoder reads them: with EOS behind them, if the model wants it."""
        return self._source[self._source_offsets[index] : self._source_offsets[index + 1]]

    def target(self, index: int) -> npt.NDArray[np.int32]:
        """Target ids without marks."""
        return self._target[self._target_offsets[index] : self._target_offsets[index + 1]]


@dataclass(frozen=True)
class SubwordDraw:
    """One epoch's draw of subwords."""

    rate: float
    seed: int
    epoch: int


def encode(
    corpus: Corpus,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    split: str,
    source_eos: bool,
    max_length: int | None = None,
    sampling: SubwordDraw | None = None,
    warn: Callable[[str], None] = lambda line: None,
    progress: Callable[[int], object] = lambda n: None,
) -> EncodedCorpus:
    """The corpus as ids, out of `directory` if it was encoded before, else encoded and put there.

    What is there but damaged is encoded again; warn takes the line that says so. progress: called with the number of
    pairs that are newly done.

    split: names the files. source_eos: whether a source ends in EOS. max_length: for training; pairs with more pieces
    on a side, end marks included, or with none, are left out and counted. None keeps every pair. sampling: for
    training; cuts words in this epoch's own way. A pair that becomes too long by it keeps its plain pieces, which is
    counted. What was encoded before for the same split, of another text, tokenizer or epoch, is deleted.
    Raises DataError where no pair is left, ResourceError where the disk refuses.
    """
    directory = Path(directory)
    decisive = {
        "format": FORMAT,
        "text": corpus.sha256,
        "tokenizer": tokenizer.fingerprint,
        "source_eos": source_eos,
        "max_length": max_length,
        "sampling": None if sampling is None else asdict(sampling),
    }
    key = hashlib.sha256(json.dumps(decisive, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]
    stem = split if sampling is None else f"{split}-sampled"
    place = directory / f"{stem}-{key}"
    if place.is_dir():
        _delete_others(place, stem)
        try:
            return EncodedCorpus(place)
        except DamagedError as damage:
            warn(f"{damage.message}: it is made again from the text")
            files.remove(place)
    encoding = _Encoding(source_eos=source_eos, max_length=max_length)
    for first in range(0, len(corpus), CHUNK):
        chunk = range(first, min(first + CHUNK, len(corpus)))
        encoding.add(corpus, tokenizer, chunk, sampling)
        progress(len(chunk))
    if max_length is not None and not encoding.pairs:
        raise DataError(
            f"no sentence pair is left to learn from: all {len(corpus):,} are empty or longer than {max_length}",
            hint="raise data.max_length",
        )
    encoding.write(place, decisive)
    _delete_others(place, stem)
    return EncodedCorpus(place)


class _Encoding:
    """Collects the ids of the pairs that are kept."""

    def __init__(self, *, source_eos: bool, max_length: int | None) -> None:
        self.marks = [EOS] if source_eos else []
        self.max_length = max_length
        self.counts: Counter[str] = Counter()
        self.pairs: list[int] = []
        self.ids: dict[str, list[Array]] = {"source": [], "target": []}
        self.lengths: dict[str, list[int]] = {"source": [], "target": []}

    def add(self, corpus: Corpus, tokenizer: Tokenizer, indices: range, sampling: SubwordDraw | None) -> None:
        """Encode the pairs of these indices."""
        source, target = corpus.source[indices.start : indices.stop], corpus.target[indices.start : indices.stop]
        plain = list(zip(tokenizer.encode_source(source), tokenizer.encode_target(target), strict=True))
        drawn = plain
        if sampling is not None:
            options = asdict(sampling) | {"first": indices.start}
            drawn = list(
                zip(tokenizer.sample_source(source, **options), tokenizer.sample_target(target, **options), strict=True)
            )
        for index, pair, sampled in zip(indices, plain, drawn, strict=True):
            reason = self._why_left_out(*pair)
            if reason is not None:
                self.counts[reason] += 1
                continue
            if self._why_left_out(*sampled) is not None:
                self.counts[SAMPLED_TOO_LONG] += 1
                sampled = pair
            self.pairs.append(index)
            self._append("source", sampled[0] + self.marks)
            self._append("target", sampled[1])

    def write(self, place: Path, decisive: dict[str, Any]) -> None:
        arrays: dict[str, Array] = {"pairs": np.array(self.pairs, dtype=np.int64)}
        for side in ("source", "target"):
            arrays[side] = np.concatenate([np.empty(0, dtype=np.int32), *self.ids[side]])
            arrays[f"{side}_offsets"] = np.cumsum([0, *self.lengths[side]], dtype=np.int64)
        with files.atomic_directory(place) as aside:
            for name, array in arrays.items():
                with files.create_file(aside / f"{name}.npy") as file:
                    # np.save would seek, which a file written through the seam does not.
                    header = np.lib.format.header_data_from_array_1_0(array)
                    np.lib.format.write_array_header_1_0(file, header)
                    file.write(array.tobytes())
            digests = {name: files.sha256(aside / f"{name}.npy") for name in arrays}
            with files.create_file(aside / INDEX) as file:
                file.write(sealed({**decisive, "counts": dict(self.counts), "files": digests}))

    def _append(self, side: str, ids: list[int]) -> None:
        self.ids[side].append(np.array(ids, dtype=np.int32))
        self.lengths[side].append(len(ids))

    def _why_left_out(self, source: list[int], target: list[int]) -> str | None:
        if self.max_length is None:
            return None
        if not source or not target:
            return NO_PIECES
        if max(len(source) + len(self.marks), len(target) + 1) > self.max_length:
            return f"longer than {self.max_length} pieces"
        return None


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
    own_name = re.compile(re.escape(stem) + r"-[0-9a-f]{16}")
    for other in sorted(place.parent.iterdir()):
        if other != place and own_name.fullmatch(other.name):
            files.remove(other)
