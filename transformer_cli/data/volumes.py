"""A corpus encoded once for a text and a tokenizer, in volumes: whatever ends that, what is lost is one of them.

A volume is a directory, which is whole or absent; its name holds the hash of all that decides its content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from transformer_cli import files
from transformer_cli.data.binary import EncodedCorpus, damage_of, loaded, write_index, writing
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.encoding import NO_PIECES, Encoder, Stretch, Team
from transformer_cli.data.fingerprints import Numbers, write_fingerprints
from transformer_cli.data.text import as_text
from transformer_cli.environment import processors
from transformer_cli.errors import DataError
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.writing import WordCounter

FORMAT = 2
VOLUME, MOST_VOLUMES = 1_000_000, 100
"""Pairs of the text that a volume is made of; more where there would be too many, whose files are open all the time."""
NAME = r"(-sampled)?-[0-9a-f]{16}(-\d+-of-\d+)?"
"""What stands behind the split in a directory's name; once, what was drawn was kept."""
WORDS, NUMBERS = "words.jsonl", "numbers.npy"
"""What a volume has beside its ids until all are there: its words of either side; its lines, see fingerprints.py."""
SIDES = range(2)
"""Source and target."""


@dataclass(frozen=True)
class Remembered:
    """What a run keeps of its training text, to tell of a test what is new. source, target: how often each word came
    there. numbers: see fingerprints.py, each row in order."""

    source: Mapping[str, int]
    target: Mapping[str, int]
    numbers: Numbers


class Volumes:
    """The volumes of a text, by number: those that are there, and those that are still to be made."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        directory: str | Path,
        *,
        split: str,
        source_eos: bool,
        max_length: int | None = None,
        remembers: bool = False,
    ) -> None:
        """split: names the directories. source_eos: whether a source ends in EOS. max_length: for training; pairs with
        more pieces on a side, end marks included, or with none, are left out and counted. None keeps every pair.
        remembers: what is encoded now leaves word of its words and lines.
        """
        self.corpus, self.tokenizer, self.directory, self.split = corpus, tokenizer, Path(directory), split
        self.options: dict[str, Any] = {"source_eos": source_eos, "max_length": max_length}
        self.remembers = remembers
        self.limits = [*range(0, len(corpus), _size(len(corpus))), len(corpus)] if len(corpus) else [0, 0]
        """The places in the text where each begins, and its end."""
        self.decisive = _decisive(corpus, tokenizer, source_eos, max_length)
        name, n = _name(split, self.decisive), len(self.limits) - 1
        names = [name] if n == 1 else [f"{name}-{number + 1}-of-{n}" for number in range(n)]
        self.places = [self.directory / name for name in names]

    def n_pairs(self, numbers: Sequence[int]) -> int:
        """Of the text, in these."""
        return sum(self.limits[number + 1] - self.limits[number] for number in numbers)

    def absent(self) -> list[int]:
        """Those that are not there."""
        there = {path.name for path in self.directory.iterdir()} if self.directory.is_dir() else set()
        return [number for number, place in enumerate(self.places) if place.name not in there]

    def missing(self, warn: Callable[[str], None]) -> list[int]:
        """The same, once what is no longer what was written is deleted, each with a line to warn, and whatever was
        encoded for the same split of another text or tokenizer. Raises ResourceError where the disk refuses."""
        self._delete_others()
        absent = self.absent()
        there = [place for number, place in enumerate(self.places) if number not in absent]
        with ThreadPoolExecutor(processors()) as threads:
            for place, damage in zip(there, threads.map(damage_of, there), strict=True):
                if damage is not None:
                    warn(f"{damage.message}: it is made again from the text")
                    files.remove(place)
        return self.absent()

    def make(self, numbers: Sequence[int], progress: Callable[[int], object]) -> Generator[int, None, None]:
        """Encode these, one after the other; each is there when its number comes. progress: called with the
        number of pairs that are newly done. Raises ResourceError where the disk or the system refuses."""
        if not numbers:
            return
        encoder = Encoder(self.tokenizer, **self.options, remembers=self.remembers)
        with Team(encoder, self.n_pairs(numbers)) as team:
            for number in numbers:
                self._make(number, team, progress)
                yield number

    def remember(self, keep: Callable[[Remembered], None]) -> None:
        """Let the words and lines of the text be kept, if all have word of them; then they have it no longer."""
        if (found := self._remembered()) is not None:
            keep(found)
        for place in self.places:
            for name in (WORDS, NUMBERS):
                files.remove(place / name)

    def open(self) -> EncodedCorpus:
        """All of them as one, which must be there; DataError where no pair is left of those with a longest length."""
        found = EncodedCorpus(self.places)
        if (limit := self.options["max_length"]) is not None and not len(found):
            why = "".join(f", {reason}: {n:,}" for reason, n in found.counts.items())
            is_long = any(reason != NO_PIECES for reason in found.counts)
            to_do = "learn from" if self.split == "train" else "validate with"
            raise DataError(
                f"no sentence pair is left to {to_do}, of {len(self.corpus):,}{why}",
                hint=f"raise data.max_length, {limit}" if is_long else "look at the text: it has no visible characters",
            )
        return found

    def _make(self, number: int, team: Team, progress: Callable[[int], object]) -> None:
        first, end = self.limits[number : number + 2]
        sides = as_text(self.corpus.source), as_text(self.corpus.target)
        stretches = _clipped(_tags(self.corpus, self.tokenizer), first, end)
        numbers = np.empty((2, end - first if self.remembers else 0), dtype=np.uint64)
        with files.atomic_directory(self.places[number]) as aside:
            with writing(aside, first) as writer:
                for block in team.blocks(*sides, stretches):
                    begin = writer.n_seen - first
                    numbers[:, begin : begin + block.numbers.shape[1]] = block.numbers
                    writer.add(block)
                    progress(block.n_pairs)
            if self.remembers:
                _note(aside, map(team.take_words, SIDES), numbers)
            write_index(aside, {**self.decisive, "counts": dict(writer.counts)})

    def _remembered(self) -> Remembered | None:
        if not all(map(_is_noted, self.places)):
            return None
        counters = [WordCounter() for _ in SIDES]
        for side, counter in zip(SIDES, counters, strict=True):
            for place in self.places:
                counter.add_counts(_words(place, side))
        source, target = (counter.counts() for counter in counters)
        numbers = np.empty((2, len(self.corpus)), dtype=np.uint64)
        for place, first, end in zip(self.places, self.limits, self.limits[1:], strict=False):
            numbers[:, first:end] = loaded(place, "numbers")
        numbers.sort()
        return Remembered(source, target, numbers)

    def _delete_others(self) -> None:
        """Delete what was encoded for the same split and is none of these."""
        ours = {place.name for place in self.places}
        own_name = re.compile(re.escape(self.split) + NAME)
        for other in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if other.name not in ours and own_name.fullmatch(other.name):
                files.remove(other)


def encoded_before(directory: Path, split: str) -> EncodedCorpus | None:
    """What was encoded of a split, whatever text that was; None where nothing was, or is no longer what was written."""
    own_name = re.compile(re.escape(split) + NAME)
    places = (
        sorted(place for place in directory.iterdir() if own_name.fullmatch(place.name)) if directory.is_dir() else []
    )
    return EncodedCorpus(places) if places and not any(map(damage_of, places)) else None


def _tags(corpus: Corpus, tokenizer: Tokenizer) -> list[tuple[int, int | None]]:
    """How many pairs of the text begin with which tag, one after the other; none where there are no tags."""
    found = [(part.pairs, part.direction) for part in corpus.parts if part.direction is not None]
    return [(n, tokenizer.tags[direction.target]) for n, direction in found] if found and tokenizer.tags else []


def _clipped(tags: Sequence[tuple[int, int | None]], first: int, end: int) -> list[Stretch]:
    """The stretches of a text between two places. tags: of all of it; none where it has one stretch without."""
    ends = accumulate(n for n, _ in tags)
    stretches = [(last - n, last, tag) for (n, tag), last in zip(tags, ends, strict=True)] or [(first, end, None)]
    clipped = ((max(begin, first), min(last, end), tag) for begin, last, tag in stretches)
    return [stretch for stretch in clipped if stretch[0] < stretch[1]]


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
        **({"volume": _size(len(corpus))} if len(corpus) > VOLUME else {}),
    }


def _size(n_pairs: int) -> int:
    """Pairs of a volume of a text of so many."""
    return max(VOLUME, -(-n_pairs // MOST_VOLUMES))


def _name(split: str, decisive: Mapping[str, Any]) -> str:
    key = hashlib.sha256(json.dumps(decisive, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]
    return f"{split}-{key}"


def _note(directory: Path, words: Iterable[Mapping[str, int]], numbers: Numbers) -> None:
    """Write down what is to be remembered of a volume: its words, a line for each side, and the digests of all that."""
    with files.create_file(directory / NUMBERS) as file:
        write_fingerprints(file, numbers)
    digest = hashlib.sha256()
    with files.create_file(directory / WORDS) as file:
        for counts in words:
            line = json.dumps(counts, ensure_ascii=False, allow_nan=False).encode() + b"\n"
            digest.update(line)
            file.write(line)
        file.write(_digests(digest.hexdigest(), directory))


def _digests(words: str, directory: Path) -> bytes:
    return files.json_line({"words": words, "numbers": files.sha256(directory / NUMBERS)}).encode()


def _is_noted(directory: Path) -> bool:
    """Whether a volume has both what `_note` wrote."""
    if not all((directory / name).is_file() for name in (WORDS, NUMBERS)):
        return False
    lines, end, digests = files.read_bytes(directory / WORDS).rpartition(b"\n")
    return digests == _digests(hashlib.sha256(lines + end).hexdigest(), directory)


def _words(directory: Path, side: int) -> dict[str, int]:
    """Of one side at a time: a text may have millions."""
    words: dict[str, int] = json.loads(files.read_bytes(directory / WORDS).split(b"\n")[side])
    return words
