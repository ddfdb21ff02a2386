"""A SentencePiece model whose pieces get other ids: text is cut as before, and a piece that was not there never is cut.

Other toolkits number pieces by a list of their own, beside the model. Here the model itself is the list.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from transformer_cli.tokenizer.sampling import UNKNOWN_PENALTY
from transformer_cli.tokenizer.vocabulary import SPECIALS, UNK, Vocabulary, processor_of

Kind = Literal["unigram", "bpe", "word", "char"]
KINDS: tuple[Kind, ...] = ("unigram", "bpe", "word", "char")
"""In the order of the format's numbers, from 1."""
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, TYPE, MODEL_TYPE = 1, 2, 3, 3
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BLANK = "\u2581"
USUAL = (b"nmt_nfkc", b"nmt_nfkc_cf")
"""Rules of normalising that SentencePiece brings, which read no blank together with what stands beside it. nfkc and
nfkc_cf leave a BLANK of the text as it is, and then it is trimmed at the end of a line, but not at that of a word."""
GRID = 2.0**-7
"""Its multiples add up in 32 bits without rounding, to 2^24 of it, which is 131,072."""
LARGEST_SUM = 100_000
"""A sum of scores that is larger SentencePiece takes off all others, and goes on from zero."""
IS_SUFFIX = 24
"""In the trainer's part: whether the mark of a blank comes behind a word."""
FIRST_OF_IDS, FIRST_OF_NAMES = 40, 45
"""In the trainer's part: the ids of unk, bos, eos and pad, and their names."""
NAME, PRECOMPILED, DUMMY_PREFIX, ONE_BLANK, ESCAPED = range(1, 6)
"""In the normaliser's part; what else it says is usual: blanks are marked, and one is as good as several."""


class Model:
    """The parts of a serialised model."""

    def __init__(self, model: bytes, *, name: str = "the SentencePiece model") -> None:
        """model: the serialised protobuf. name: what an error calls it. Raises ModelError where it isn't a model."""
        processor_of(model, name)
        self._others = b""
        self._pieces: dict[str, bytes] = {}
        self._types: set[bytes | int] = set()
        self._scores: list[float] = []
        self._said: dict[int, dict[int, bytes | int]] = {TRAINER: {}, NORMALIZER: {}}
        marks = set()
        for number, value, raw in _fields(model):
            if number == PIECES:
                inner = _inside(value)
                piece = bytes(inner[PIECE]).decode("utf-8")
                self._pieces[piece] = raw
                self._types.add(inner.get(TYPE, NORMAL))
                self._scores.append(_score(inner))
                if inner.get(TYPE) in (UNKNOWN, CONTROL):
                    marks.add(piece)
                continue
            self._others += raw
            if number in self._said:
                self._said[number] |= _inside(value)
        self.kind = KINDS[int(self._said[TRAINER].get(MODEL_TYPE, 1)) - 1]
        self.pieces = tuple(piece for piece in self._pieces if piece not in marks)
        """Of text; the marks are not among them."""

    @property
    def parts_at_blanks(self) -> bool:
        """Whether what stands between two blanks has the same ids wherever it stands. Not where runs of unknown words
        are one, nor where sums of a whole line are rounded.
        """
        trainer, normalizer = self._said[TRAINER], self._said[NORMALIZER]
        return (
            (self.kind in ("bpe", "char") or (self.kind == "unigram" and self._adds_exactly))
            and self._types <= {NORMAL, UNKNOWN, CONTROL, BYTE}
            and BLANK in self._pieces
            and not any(BLANK in piece[1:] for piece in self._pieces)
            and not trainer.get(IS_SUFFIX, 0)
            and normalizer.get(NAME) in USUAL
            and all(normalizer.get(flag, 1) for flag in (DUMMY_PREFIX, ONE_BLANK, ESCAPED))
        )

    @property
    def _adds_exactly(self) -> bool:
        """Whether a unigram model cuts a word in a line as alone.

        It prefers the largest sum of scores since the line began, in 32 bits: where these are rounded, what came before
        decides between two ways to cut a word that are about as good. Nothing is rounded where scores are on the grid,
        and with them sums, and none is too large: the best sum at a character is at most a piece's characters times the
        worst score beyond LARGEST_SUM. Of equals the first wins, in a line as alone.
        """
        worst = UNKNOWN_PENALTY - min(self._scores)
        a_piece = worst * max(map(len, self._pieces))
        return all(score <= 0 and score % GRID == 0 for score in self._scores) and LARGEST_SUM + a_piece <= GRID * 2**24

    def numbered(self, pieces: Sequence[str], marks: frozenset[str] = frozenset()) -> Vocabulary:
        """The same model with the specials and then these pieces as its ids. marks: those that are no text.

        A character that was unknown to a BPE model is known now: it takes part in no merge.
        """
        trainer = b"".join(
            _number(FIRST_OF_IDS + place, SPECIALS.index(name)) + _text(FIRST_OF_NAMES + place, name)
            for place, name in enumerate((*SPECIALS[1:], SPECIALS[0]))
        )
        known = {name: self._pieces[name] for name in self.pieces}
        made = [_piece(name, UNKNOWN if id == UNK else CONTROL) for id, name in enumerate(SPECIALS)]
        for name in pieces:
            if name in marks:
                made.append(_piece(name, CONTROL))
            elif name in known:
                made.append(known[name])
            else:
                made.append(_piece(name, NORMAL if self.kind == "bpe" and len(name) == 1 else UNUSED))
        # Concatenated protobuf messages are one message whose later fields win.
        return Vocabulary(b"".join(made) + self._others + _message(TRAINER, trainer))


def on_grid(model: bytes) -> bytes:
    """A serialised unigram model whose scores, logarithms of probabilities, are changed by 1/256 at most, so that they
    add up without rounding."""
    made = []
    for number, value, raw in _fields(model):
        if number == PIECES:
            inner = _inside(value)
            name, score = bytes(inner[PIECE]).decode("utf-8"), _score(inner)
            raw = _piece(name, int(inner.get(TYPE, NORMAL)), round(score / GRID) * GRID)
        made.append(raw)
    return b"".join(made)


def user_defined(model: bytes) -> frozenset[int]:
    """The ids of what a user defined, which is in one piece wherever a text has it."""
    pieces = (_inside(value) for number, value, _ in _fields(model) if number == PIECES and isinstance(value, bytes))
    return frozenset(id for id, piece in enumerate(pieces) if piece.get(TYPE) == USER_DEFINED)


def appended(model: bytes, pieces: Mapping[str, float]) -> bytes:
    """A serialised model with these pieces and their scores as its last ids; what is concatenated is one message."""
    return model + b"".join(_piece(name, NORMAL, score) for name, score in pieces.items())


def with_marks(model: bytes, names: Sequence[str]) -> bytes:
    """A serialised model with these control symbols, which no text has, as its last ids."""
    return model + b"".join(_piece(name, CONTROL) for name in names)


def built(pieces: Mapping[str, float], *, kind: Kind, is_suffix: bool = False) -> bytes:
    """A model of these pieces and their scores, which takes text as it is."""
    marks = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    trainer = _number(MODEL_TYPE, 1 + KINDS.index(kind)) + _number(IS_SUFFIX, int(is_suffix))
    return b"".join(
        [
            *(_piece(name, type) for name, type in marks.items()),
            *(_piece(name, NORMAL, score) for name, score in pieces.items()),
            _message(TRAINER, trainer),
            _message(NORMALIZER, _text(NAME, "identity") + _message(PRECOMPILED, b"")),
        ]
    )


def _inside(value: bytes | int) -> dict[int, bytes | int]:
    """The fields of a message inside of another, the last of those that are repeated."""
    assert isinstance(value, bytes)
    return {number: inner for number, inner, _ in _fields(value)}


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int, bytes]]:
    """Each field of a protobuf message: its number, its value, and all of its bytes."""
    end = 0
    while end < len(message):
        start = end
        tag, end = _varint(message, end)
        value: bytes | int
        if tag & 7 == 0:
            value, end = _varint(message, end)
        else:
            length, end = _varint(message, end) if tag & 7 == 2 else ({1: 8, 5: 4}.get(tag & 7, 0), end)  # 0: a group
            value, end = message[end : end + length], end + length
        yield tag >> 3, value, message[start:end]


def _varint(message: bytes, start: int) -> tuple[int, int]:
    """A number of as many bytes as it needs, and where it ends."""
    value = 0
    for place, byte in enumerate(message[start : start + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, start + place + 1
    raise AssertionError("SentencePiece has read this message")


def _encoded(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _encoded(value >> 7)


def _number(number: int, value: int) -> bytes:
    return _encoded(number << 3) + _encoded(value)


def _message(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | 2) + _encoded(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode("utf-8"))


def _piece(name: str, type: int, score: float = 0.0) -> bytes:
    scored = _encoded(SCORE << 3 | 5) + struct.pack("<f", score)
    return _message(PIECES, _text(PIECE, name) + scored + _number(TYPE, type))


def _score(piece: Mapping[int, bytes | int]) -> float:
    """What the fields of a piece say."""
    return float(struct.unpack("<f", bytes(piece.get(SCORE, bytes(4))))[0])
