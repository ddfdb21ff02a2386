"""A block of text as ids: by SentencePiece, line by line, or each of its words once, where that comes to the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from transformer_cli.tokenizer import EOS, Vocabulary
from transformer_cli.tokenizer.renumbering import Model
from transformer_cli.writing import WordCounter

MOST_WORDS, MOST_IDS = 1 << 18, 1 << 22
"""That are remembered; where there are more, all are forgotten."""
END, NOTHING = 0, 1
"""The numbers of the end of a line, and of what stands between two blanks."""

Ids = npt.NDArray[np.int32]


def cutter(vocabulary: Vocabulary, *, with_eos: bool, counts_words: bool) -> Cutter:
    """How text of this vocabulary becomes ids. with_eos: each line ends in EOS."""
    parts = Model(vocabulary.model).parts_at_blanks
    return (WordByWord if parts else LineByLine)(vocabulary, with_eos=with_eos, counts_words=counts_words)


class Cutter(ABC):
    """One side of a text to ids, and how often its words came."""

    def __init__(self, vocabulary: Vocabulary, *, with_eos: bool, counts_words: bool) -> None:
        self.vocabulary = vocabulary
        self.marks = [EOS] if with_eos else []
        self.counts_words = counts_words
        self._counter = WordCounter()

    def encode(self, text: bytes, tag: int | None = None) -> tuple[Ids, Ids]:
        """The ids of all lines, one line after the other, and how many each has: those of Vocabulary.encode, and the
        end mark. text: in UTF-8, with a line feed behind each line. tag: the id that each line with pieces begins with,
        in place of the vocabulary's own mark."""
        ids, lengths = self._cut(text)
        mark = self.vocabulary.mark_id if tag is None else tag
        if mark is None:
            return ids, lengths
        has_pieces = lengths > len(self.marks)
        begins = (np.cumsum(lengths) - lengths)[has_pieces]
        marked: Ids = np.insert(ids, begins, mark)
        return marked, lengths + has_pieces.astype(np.int32)

    @abstractmethod
    def _cut(self, text: bytes) -> tuple[Ids, Ids]:
        """The same without a mark in front."""

    @abstractmethod
    def uncount(self, text: bytes) -> None:
        """Take back the words of these lines, which were encoded last, or among those."""

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """What another one counted."""
        self._counter.add_counts(counts)

    def take_words(self) -> Counter[str]:
        """How often each word came since this was asked last."""
        taken, self._counter = self._counter.counts(), WordCounter()
        return taken


class LineByLine(Cutter):
    """As SentencePiece does it."""

    def _cut(self, text: bytes) -> tuple[Ids, Ids]:
        if self.counts_words:
            self._counter.add(text.decode("utf-8"))
        ids, lengths = _joined(self.vocabulary.unmarked(text.split(b"\n")[:-1]))
        return (np.insert(ids, np.cumsum(lengths), EOS), lengths + np.int32(1)) if self.marks else (ids, lengths)

    def uncount(self, text: bytes) -> None:
        self._counter.add(text.decode("utf-8"), -1)

    def take_words(self) -> Counter[str]:
        return +super().take_words()  # none of which nothing is left


class WordByWord(Cutter):
    """Nothing is merged across a blank, so the ids of a line are those of its words, and most words have come before.
    How often each is looked up is how often it came.
    """

    def __init__(self, vocabulary: Vocabulary, *, with_eos: bool, counts_words: bool) -> None:
        super().__init__(vocabulary, with_eos=with_eos, counts_words=counts_words)
        self._counts = np.empty(0, dtype=np.int64)
        self._begin()

    def _cut(self, text: bytes) -> tuple[Ids, Ids]:
        if len(self._numbers) > MOST_WORDS or len(self._ids) > MOST_IDS:
            self._settle()
            self._begin()
        numbers = self._numbered(text)
        self._learn(self._numbers.new)
        self._numbers.new.clear()
        if self.counts_words:
            self._counts.resize(len(self._numbers), refcheck=False)
            self._counts += np.bincount(numbers, minlength=len(self._numbers))
        begins, ids = np.array(self._begins, dtype=np.int64), np.frombuffer(self._ids, dtype=np.int32)
        lengths = np.diff(begins)[numbers]
        ends = np.cumsum(lengths)
        found = ids[np.repeat(begins[numbers] - (ends - lengths), lengths) + np.arange(ends[-1])]
        line_ends = ends[numbers == END]
        return found, np.diff(line_ends, prepend=0).astype(np.int32)

    def uncount(self, text: bytes) -> None:
        self._counts -= np.bincount(self._numbered(text), minlength=len(self._numbers))

    def take_words(self) -> Counter[str]:
        self._settle()
        return super().take_words()

    def _numbered(self, text: bytes) -> npt.NDArray[np.int64]:
        parts = text.replace(b"\n", b" \n ").split(b" ")
        return np.fromiter(map(self._numbers.__getitem__, parts), dtype=np.int64, count=len(parts))

    def _learn(self, words: list[bytes]) -> None:
        """Words that are new, in the order of their numbers."""
        ids, lengths = _joined(self.vocabulary.unmarked(words))
        self._begins.frombytes((len(self._ids) + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self._ids.frombytes(ids.tobytes())

    def _settle(self) -> None:
        """Hand on how often each came."""
        for word, n in zip(self._numbers, self._counts.tolist(), strict=False):
            if n:
                self._counter.add(word.decode("utf-8"), n)
        self._counts = np.zeros(len(self._numbers), dtype=np.int64)

    def _begin(self) -> None:
        """Know nothing."""
        self._numbers = _Numbers({b"\n": END, b"": NOTHING})
        self._ids, self._begins = array("i", self.marks), array("q", [0, len(self.marks), len(self.marks)])
        self._counts = np.zeros(len(self._numbers), dtype=np.int64)


class _Numbers(dict[bytes, int]):
    """Words by number; one that is new gets the next."""

    def __init__(self, known: Mapping[bytes, int]) -> None:
        super().__init__(known)
        self.new: list[bytes] = []

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _joined(cut: Sequence[list[int]]) -> tuple[Ids, Ids]:
    """One after the other, and how many each has."""
    lengths = np.fromiter(map(len, cut), dtype=np.int32, count=len(cut))
    return np.fromiter(chain.from_iterable(cut), dtype=np.int32, count=int(lengths.sum())), lengths
