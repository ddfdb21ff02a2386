"""How often the training text has a word: kept in the run, so that a test can be told what is new."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import is_normalized

from transformer_cli import files
from transformer_cli.errors import ModelError
from transformer_cli.writing import WordCounter, words

WORD_COUNTS = "words.tsv.gz"
"""In a run directory: word, times in the source, times in the target; the most frequent first."""
CHUNK = 4096
"""Lines that are cut into words at a time, and words that are written."""


@dataclass(frozen=True)
class WordCounts:
    """How often each word stands in either side of the training text."""

    source: Mapping[str, int]
    target: Mapping[str, int]

    def with_those(self, other: WordCounts) -> WordCounts:
        """Of both texts."""
        return WordCounts(Counter(self.source) + Counter(other.source), Counter(self.target) + Counter(other.target))


def count_words(source: Sequence[str], target: Sequence[str]) -> WordCounts:
    """Of a parallel text."""
    return WordCounts(_count(source), _count(target))


def save_word_counts(run_dir: Path, counts: WordCounts) -> None:
    """Keep them in a run; ResourceError where the disk refuses."""
    source, target = counts.source, counts.target
    every = sorted(source.keys() | target.keys())
    every.sort(key=lambda word: -source.get(word, 0) - target.get(word, 0))
    with (
        files.atomic_file(run_dir / WORD_COUNTS) as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
    ):
        for start in range(0, len(every), CHUNK):
            rows = (f"{word}\t{source.get(word, 0)}\t{target.get(word, 0)}\n" for word in every[start : start + CHUNK])
            packed.write("".join(rows).encode("utf-8"))


def load_word_counts(run_dir: Path) -> WordCounts | None:
    """What a run keeps, None where it keeps none; ModelError where that is damaged."""
    path = run_dir / WORD_COUNTS
    if not path.exists():
        return None
    source: dict[str, int] = {}
    target: dict[str, int] = {}
    data = files.read_bytes(path, error=ModelError)
    try:
        if not data:
            raise EOFError("it is empty")
        for row in io.TextIOWrapper(gzip.GzipFile(fileobj=io.BytesIO(data)), encoding="utf-8", newline="\n"):
            word, n_source, n_target = row.split("\t")
            for one in (word,) if is_normalized("NFKC", word) else words(word):  # they once stood there as in the text
                if int(n_source):
                    source[one] = source.get(one, 0) + int(n_source)
                if int(n_target):
                    target[one] = target.get(one, 0) + int(n_target)
    except (EOFError, zlib.error, OSError, ValueError):
        raise ModelError(
            f"{files.shown(path)} is damaged: it is not the compressed table of words that was written",
            hint="delete it; where `tx train` made the run, the same command makes it again",
        ) from None
    return WordCounts(source, target)


def _count(lines: Sequence[str]) -> Counter[str]:
    counter = WordCounter()
    for start in range(0, len(lines), CHUNK):
        counter.add("\n".join(lines[start : start + CHUNK]))
    return counter.counts()
