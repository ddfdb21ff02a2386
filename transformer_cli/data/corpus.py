"""Parallel text, line for line: read, checked, and every line that was touched or left out counted by reason."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli import files
from transformer_cli.config.data import (
    COMBINATIONS,
    PHRASEBOOK,
    DataConfig,
    Directed,
    Direction,
    InlinePairs,
    ParallelFiles,
    PhrasebookConfig,
    WeightedText,
)
from transformer_cli.config.names import typed
from transformer_cli.data.lines import Lines, check_line
from transformer_cli.data.stream import read_lines
from transformer_cli.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformer_cli.data.mixture import Part
    from transformer_cli.data.phrasebook import Phrasebook
    from transformer_cli.data.text import Open, Places

TABLES = ".tsv", ".csv", ".json", ".jsonl", ".xlsx", ".parquet", ".tmx"
"""How files are called that have both sides."""
EMPTY = EMPTY_SOURCE, EMPTY_TARGET, EMPTY_BOTH = "empty source", "empty target", "both sides empty"
"""Why a pair is not learned from."""


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs: `source[i]` and `target[i]` say the same."""

    source: Sequence[str]
    target: Sequence[str]
    counts: dict[str, int] = field(default_factory=dict)
    """What happened to which number of lines or pairs, by reason; nothing happens that isn't counted here."""
    known_sha256: str | None = None
    """Where it was found out while the text was read."""
    parts: tuple[Part, ...] = ()
    """The texts that it is made of, one after the other, where they are several or have to say their direction."""

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def sha256(self) -> str:
        """Of the text: equal for equal pairs in equal order, wherever they came from."""
        from transformer_cli.data.text import as_text, update

        if self.known_sha256 is not None:
            return self.known_sha256
        digest = hashlib.sha256()
        for side in (self.source, self.target):  # both have as many lines, so the middle tells them apart
            update(digest, as_text(side))
        return digest.hexdigest()

    def without(self, left_out: Places, counts: Mapping[str, int]) -> Corpus:
        """All but the pairs at these places, in order; counts: why they are not there."""
        from transformer_cli.data.text import as_text

        fewer = self.of_each_part(left_out)
        parts = tuple(
            replace(part, pairs=part.pairs - n, left_out=part.left_out + n)
            for part, n in zip(self.parts, fewer, strict=True)
        )
        source, target = (as_text(side).without(left_out) for side in (self.source, self.target))
        return Corpus(source, target, dict(Counter(self.counts) + Counter(counts)), parts=parts)

    def of_each_part(self, places: Places) -> list[int]:
        """How many of these places, which are in order, each part has."""
        import numpy as np

        ends = np.cumsum([0, *(part.pairs for part in self.parts)])
        return np.diff(np.searchsorted(places, ends)).tolist()

    def sample(self, n: int) -> Corpus:
        """So many pairs from all over the text, in memory, of its parts in their shares; all of it where it has no
        more."""
        import numpy as np

        if len(self) <= n:
            return self
        places = np.linspace(0, len(self) - 1, n).astype(np.int64)
        of_each = zip(self.parts, self.of_each_part(places), strict=True)
        parts = tuple(replace(part, pairs=pairs) for part, pairs in of_each)
        source, target = ([side[place] for place in places.tolist()] for side in (self.source, self.target))
        return Corpus(source, target, parts=parts)

    def as_json(self) -> dict[str, Any]:
        """What run.json keeps of a text, to know it again."""
        parts = {"parts": [part.as_json() for part in self.parts]} if self.parts else {}
        return {"pairs": len(self), "sha256": self.sha256, "counts": self.counts, **parts}


def load_training(data: DataConfig) -> Corpus:
    """The pairs to learn from; those with an empty side are left out and counted.

    Raises DataError: what cannot be read, does not match line by line, or leaves nothing to learn from.
    """
    return _used(data)["train"]


def load_both(data: DataConfig) -> tuple[Corpus, Corpus | None]:
    """What `load_training` and `load_validation` give, each text read once."""
    used = _used(data)
    return used["train"], used["valid"] if "valid" in used else load_validation(data)


def load_all(data: DataConfig, unpacked: Mapping[Path, Open | None] | None = None) -> dict[str, Corpus]:
    """Every text by name - train, valid, test and what else there is to test with - as it is, what is left or held
    out of it included, and with its direction where texts have to say theirs. unpacked: what files of the training text
    are unpacked to, where that is there already."""
    from transformer_cli.data.mixture import Part

    train, valid = _training(data, unpacked or {}), None if data.held_out is not None else load_validation(data)
    tests = load_tests(data)
    for name, way in data.tests.items() if data.is_directed else ():
        tests[name] = replace(tests[name], parts=(Part(name, len(tests[name]), 1.0, way.direction),))
    return {"train": train} | ({} if valid is None else {"valid": valid}) | tests


def load_validation(data: DataConfig) -> Corpus | None:
    """The pairs to validate with, all of them; None where the configuration names none, DataError where it has none."""
    if data.held_out is not None:
        return _used(data)["valid"]
    from transformer_cli.data.mixture import joined

    ways = data.validated
    if not ways:
        return None
    corpus = joined(_loaded([("valid", way) for way in ways], data), ways if data.is_directed else [])
    if not len(corpus):
        raise DataError(
            "the validation text has no pair to validate with", hint="look at the files that `data.valid` names"
        )
    return corpus


def load_tests(data: DataConfig) -> dict[str, Corpus]:
    """The test sets by name, every pair kept; the phrasebook has a second one, of unseen combinations of words."""
    setting = "test.{}" if isinstance(data.test, dict) else "test"
    found = _loaded([(setting.format(name), way) for name, way in data.tests.items()], data)
    return dict(zip(data.tests, found, strict=True))


def parallel(source: str | Path, target: str | Path) -> Corpus:
    """Two files as a corpus; one may be both sides. Raises DataError where they do not match line by line."""
    read = read_parallel([str(source), str(target)])
    left, right = read[str(source)], read[str(target)]
    return Corpus(left.lines, right.lines, total((left.counts, right.counts)))


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Their sum; those of a text that is read twice, as in both directions, once."""
    return dict(sum(map(Counter, {id(one): one for one in counts}.values()), Counter()))


def read_parallel(paths: Iterable[str]) -> dict[str, Lines]:
    """Files that match line by line, each read once, or DataError with the counts of the first two that do not."""
    from transformer_cli.data.shifts import unequal  # brings NumPy

    read: dict[str, Lines] = {}
    for path in paths:
        if path not in read:
            read[path] = read_lines(path)
            first = next(iter(read))
            if len(read[first].lines) != len(read[path].lines):
                raise unequal(Path(first), Path(path), read[first].lines, read[path].lines)
    return read


def training_texts(data: DataConfig) -> list[tuple[WeightedText, Directed]]:
    """Where the pairs to learn from are; ConfigError where a configuration has none."""
    if data.train is None:
        raise ConfigError("there is no text to learn from: data.train is null", hint="name one: data.train=PREFIX")
    return data.learned


def _used(data: DataConfig) -> dict[str, Corpus]:
    from transformer_cli.data.used import as_used

    return as_used({"train": _training(data, {})}, data)


def _training(data: DataConfig, unpacked: Mapping[Path, Open | None]) -> Corpus:
    """The training text as it is, read where it lies; hashed on the way, all sources first. A file that comes again, as
    where a text is read in both directions, is looked through once."""
    from transformer_cli.data.mixture import parts_of
    from transformer_cli.data.shifts import unequal
    from transformer_cli.data.text import FileText, JoinedText, ListedText, Text, update  # all of them bring NumPy

    texts = training_texts(data)
    paths = [side_files(way) for _, way in texts]
    listed = {place: _listed(way, data, "train") for place, (_, way) in enumerate(texts) if paths[place] is None}
    digest, read = hashlib.sha256(), dict[Path, FileText]()
    sides: list[list[Text]] = [[], []]
    for side, found in enumerate(sides):
        for place, files_of_it in enumerate(paths):
            if files_of_it is not None:
                path = files_of_it[side]
                if path in read:
                    update(digest, read[path])
                else:
                    read[path] = FileText(path, digest, unpacked.get(path))
                found.append(read[path])
            else:
                found.append(ListedText((listed[place].source, listed[place].target)[side]))
                update(digest, found[-1])
    for source, target, files_of_it in zip(*sides, paths, strict=True):
        if len(source) != len(target):
            assert files_of_it is not None
            raise unequal(files_of_it[0], files_of_it[1], source, target)
    left, right = (found[0] if len(found) == 1 else JoinedText(found) for found in sides)
    counts = total(text.counts for side in sides for text in side)
    parts = parts_of(texts, [len(text) for text in sides[0]], is_directed=data.is_directed)
    has_parts = isinstance(data.train, list) or data.is_directed
    return Corpus(left, right, counts, digest.hexdigest(), parts if has_parts else ())


def _loaded(ways: Iterable[tuple[str, Directed]], data: DataConfig) -> list[Corpus]:
    """In memory; two files that are read in both directions are read once. ways: each with the name of its setting,
    without its section."""
    read: dict[tuple[Path, Path], Corpus] = {}
    found = []
    for name, way in ways:
        if (sides := side_files(way)) is None:
            found.append(_listed(way, data, name))
            continue
        if sides not in read:
            read[sides] = corpus = parallel(*sides)
            read[sides[::-1]] = replace(corpus, source=corpus.target, target=corpus.source)
        found.append(read[sides])
    return found


def _listed(way: Directed, data: DataConfig, name: str) -> Corpus:
    """A text that is in no files. name: as above."""
    if isinstance(way.text, InlinePairs):
        found = _inline(way.text.pairs, name)
        return Corpus(found.target, found.source) if way.swapped else found
    return _phrasebook(way, data, "test_combinations" if way.text == COMBINATIONS else name.partition(".")[0])


def side_files(way: Directed) -> tuple[Path, Path] | None:
    """The two files of a text; None for one that is in no files."""
    text, direction = way.text, way.direction
    if isinstance(text, ParallelFiles):
        source, target = Path(text.source), Path(text.target)
        return (target, source) if way.swapped else (source, target)
    if isinstance(text, InlinePairs) or text in (PHRASEBOOK, COMBINATIONS):
        return None
    if direction.source == direction.target:
        raise ConfigError(
            f"source and target are both `{direction.source}`, so {text}.{direction.source} would be both sides",
            hint="name the two files: {source: FILE, target: FILE}",
        )
    return _side_file(text, direction.source, direction), _side_file(text, direction.target, direction)


def _side_file(prefix: str, language: str, direction: Direction) -> Path:
    """The file of one side: `prefix.de`, or the same with `.gz`. direction: that of both."""
    path = Path(f"{prefix}.{language}")
    compressed = Path(f"{prefix}.{language}.gz")
    # pathlib's own questions raise where a folder may not be entered, which is said of what is opened there.
    is_there, is_compressed = map(os.path.exists, (path, compressed))
    if is_there or not is_compressed:
        named = (Path(f"{prefix}{suffix}") for suffix in ("", *TABLES))
        if not is_there and (file := next(filter(os.path.isfile, named), None)):
            raise DataError(
                f"{files.shown(path)} does not exist, nor does it with .gz",
                hint=f"{files.shown(file)} is a file: {_parted(file, direction)}",
            )
        return path
    return compressed


def _parted(path: Path, direction: Direction) -> str:
    """How one file that was named becomes the two that are read."""
    sides = [path.with_suffix(f".{language}") for language in (direction.source, direction.target)]
    if path.suffix not in TABLES or path in sides:
        return "name it without its language, or name both files as {source: FILE, target: FILE}"
    table, *names = (typed(one) for one in (path, *sides))
    program = ", by the program in docs/how-do-i.md" if path.suffix == ".csv" else ""
    cut = "; ".join(f"cut -f{column} {table} > {name}" for column, name in enumerate(names, start=1))
    how = (
        f"`{cut}` makes them, of a table without headings"
        if path.suffix == ".tsv"
        else f"put what it has into {' and '.join(names)}{program}"
    )
    return (
        f"parallel text is two files of as many lines, one for each language: {how}, then name {path.with_suffix('')}"
    )


def _inline(pairs: Sequence[Sequence[str]], name: str) -> Corpus:
    for number, pair in enumerate(pairs, start=1):
        for text in pair:
            check_line(text, place=f"data.{name}, pair {number}")
    return Corpus([source for source, _ in pairs], [target for _, target in pairs])


def _phrasebook(way: Directed, data: DataConfig, name: str) -> Corpus:
    """name: the field of Phrasebook."""
    from transformer_cli.data.phrasebook.pairs import styled

    direction = way.direction
    if {direction.source, direction.target} != {"de", "en"}:
        raise ConfigError(
            f"the phrasebook knows de and en, not {direction.source} and {direction.target}",
            hint="data.source and data.target are the languages; data.train names a text of your own",
        )
    pairs = getattr(_book(data.phrasebook), name)
    source, target = styled(pairs, source=direction.source, seed=data.phrasebook.seed)
    return Corpus(source, target)


@lru_cache(maxsize=1)
def _book(config: PhrasebookConfig) -> Phrasebook:
    """The phrasebook, made once for all of its splits."""
    from transformer_cli.data.phrasebook.pairs import phrasebook  # not before somebody wants it: the lexicon is large

    return phrasebook(**config.model_dump())


def why_empty(source: str, target: str) -> str | None:
    """Which of its sides lack text; None where both have some."""
    if source.strip():
        return None if target.strip() else EMPTY_TARGET
    return EMPTY_SOURCE if target.strip() else EMPTY_BOTH
