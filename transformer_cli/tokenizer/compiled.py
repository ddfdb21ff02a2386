"""BPE-dropout by the C++ in cpp/, where that can be compiled: the same ids as by sampling.py.

A call cuts many lines, and other threads have the interpreter meanwhile.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha512
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transformer_cli.compiler import library
from transformer_cli.tokenizer.sampling import BpeDropout, scale_of

MOST_BYTES = 1 << 25
"""Of words that are remembered, roughly; then all are forgotten."""
WORD_BYTES = 100
"""What a word takes besides its text."""

_P, _N = ctypes.c_void_p, ctypes.c_int64
ARGUMENTS = {
    "bpe_make": [_P, _P, _P, _P, _P, _N, _P, ctypes.c_int32, ctypes.c_int],
    "bpe_free": [_P],
    "bpe_learn": [_P, _P, _N, _P, _N],
    "bpe_cut": [_P, _P, _P, _N, _P, _P, ctypes.c_double, _P, _P],
}


@cache
def code() -> ctypes.CDLL | None:
    """None where there is no compiler, or it could not."""
    loaded = library(Path(__file__).with_name("cpp")).loaded
    if loaded is not None:
        for name, arguments in ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, {"bpe_make": _P, "bpe_free": None}.get(name, _N)
    return loaded


def can_cut(plain: BpeDropout) -> bool:
    """Which of scores that are no numbers comes first, only Python's heap knows."""
    return code() is not None and not any(map(math.isnan, plain.scores.values()))


class CompiledDropout:
    """BPE-dropout of lines."""

    def __init__(self, plain: BpeDropout, *, spans: bool) -> None:
        """plain: the same in Python. spans: whether pieces span spaces."""
        loaded = code()
        assert loaded is not None
        self._code, self._plain, self._spans = loaded, plain, spans
        self._turn = threading.Lock()
        self._begin()

    def sample(self, lines: Sequence[str], rate: float, seeds: Sequence[str]) -> list[list[int]]:
        """Ids of lines. seeds: of their generators."""
        text, ends = _joined(map(str.encode, lines))
        assert len(text) < 2**31
        keys, key_ends = _joined(seed + sha512(seed).digest() for seed in map(str.encode, seeds))
        ids, id_ends = np.empty(2 * len(text), dtype=np.int32), np.empty(len(lines), dtype=np.int64)
        given = (text, _at(ends), len(lines), keys, _at(key_ends), scale_of(rate), _at(ids), _at(id_ends))
        with self._turn:
            if self._n_bytes > MOST_BYTES:
                self._free()
                self._begin()
            while n_unknown := self._done(self._code.bpe_cut(self._model, *given)):
                places = ids[: 2 * n_unknown].reshape(-1, 2).tolist()
                for word in dict.fromkeys(text[begin:end] for begin, end in places):
                    self._learn(word)
        flat, limits = ids[: int(id_ends[-1]) if lines else 0].tolist(), id_ends.tolist()
        return [flat[begin:end] for begin, end in zip([0, *limits], limits, strict=False)]

    def _begin(self) -> None:
        """With no words."""
        plain, pieces = self._plain, list(self._plain.ids)
        strings, ends = _joined(map(str.encode, pieces))
        ids, bytes_ = (np.array(list(some), dtype=np.int32) for some in (plain.ids.values(), plain.bytes))
        scores = np.array([plain.scores[piece] for piece in pieces], dtype=np.float64)
        frozen = np.array([piece in plain.frozen for piece in pieces], dtype=np.uint8)
        tables = (strings, _at(ends), _at(ids), _at(scores), _at(frozen), len(pieces))
        self._model = self._code.bpe_make(*tables, _at(bytes_) if plain.bytes else None, plain.unk, self._spans)
        if not self._model:
            raise MemoryError
        self._n_bytes = 0
        self._free = weakref.finalize(self, self._code.bpe_free, self._model)
        self._free.atexit = False  # a thread may still be cutting

    def _learn(self, word: bytes) -> None:
        ids = np.array(self._plain.processor.encode(word), dtype=np.int32)
        assert len(ids) <= len(word)
        self._done(self._code.bpe_learn(self._model, word, len(word), _at(ids), len(ids)))
        self._n_bytes += WORD_BYTES + len(word)

    def _done(self, result: int) -> int:
        if result < 0:
            self._n_bytes = MOST_BYTES + 1
            raise MemoryError
        return result


def _joined(parts: Iterable[bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """One after the other, and where each ends."""
    listed = list(parts)
    return b"".join(listed), np.cumsum(np.array(list(map(len, listed)), dtype=np.int64))


def _at(array: npt.NDArray[np.generic]) -> int:
    return array.ctypes.data
