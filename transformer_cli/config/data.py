"""`data:` - which sentences to learn from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from pydantic import Field

from transformer_cli.config.names import NOT_UTF8, shorten, why_impossible
from transformer_cli.config.section import (
    NAME_IN_WORDS,
    PERCENT,
    Called,
    Contradiction,
    NonNegativeInt,
    Path,
    Percentage,
    PositiveInt,
    Section,
    is_name,
    share_of,
)

PHRASEBOOK = "phrasebook"
COMBINATIONS = "phrasebook/combinations"
"""Its second test set, of unseen combinations of words, which comes with the first."""
MOST_HELD_OUT = 0.5
LIKE_SHARE = re.compile(r"(^|/)[-+]?[0-9.,]+ *%$")
"""What nobody calls a text, but a share of one; a path by now, where it is no share that there can be."""
RESERVED = ("train", "valid", "text", "source", "target", "pairs")
"""No names of test sets: other texts are called so, or are told by it."""


class ParallelFiles(Section):
    """Two files that match line by line; `.gz` is read transparently."""

    source: str
    target: str


class InlinePairs(Section):
    """Sentence pairs written into the configuration itself."""

    pairs: Annotated[list[Annotated[list[str], Field(min_length=2, max_length=2)]], Field(min_length=1)]


class PhrasebookConfig(Section):
    """The built-in German-English corpus."""

    n_pairs: Annotated[int, Field(ge=1000, le=200_000)] = 40_000
    """Distinct training pairs."""
    seed: NonNegativeInt = 1
    """Another seed, another draw from the same grammar."""
    reasons: Annotated[float, Field(ge=0, le=0.9)] | None = None
    """Share of the sentences that give a reason, such as `weil sie zu breit war`; null: the grammar's own share, 8%."""


Split = Annotated[str, Called("a prefix such as corpus/train")] | ParallelFiles | InlinePairs


@dataclass(frozen=True)
class Direction:
    """From one language into another."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"

    @property
    def in_words(self) -> str:
        return f"{self.source} to {self.target}"

    @property
    def reversed(self) -> Direction:
        return Direction(self.target, self.source)


@dataclass(frozen=True)
class Directed:
    """A text, read in one direction. swapped: its two sides have changed places."""

    text: Split
    direction: Direction
    swapped: bool = False


class DirectedText(Section):
    """A text, and between which languages."""

    text: Split
    """A prefix, {source, target} files, {pairs: ...}, or `phrasebook`."""
    source: str | None = None
    """Source language; `data.source` when not given."""
    target: str | None = None
    """Target language; `data.target` when not given."""
    both: bool = False
    """Use both directions: every pair is read once forwards and once backwards."""


class WeightedText(DirectedText):
    """One of several texts to learn from."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """How often an epoch sees its pairs; 2.5: each of them twice, and a half of them, drawn anew, a third time."""
    name: str | None = None
    """Its name in counts."""


Texts = Split | list[DirectedText]
# {source: a, target: b} is two files before it is two texts of these names.
Tests = Annotated[Texts | dict[str, Texts], Field(union_mode="left_to_right")]


class DataConfig(Section):
    """Training, validation and test sentences.

    A split is a prefix (`corpus/train` means `corpus/train.de` and `corpus/train.en`, or the same with `.gz` where
    there is no unpacked file), two explicit files, or pairs written in place. Paths are relative to the file that names
    them.
    """

    train: Split | Annotated[list[WeightedText], Field(min_length=1)] | None = PHRASEBOOK
    """A prefix, {source, target} files, {pairs: [[source, target], ...]}, or `phrasebook`, the built-in corpus. Several
    texts are a list of {text: ..., weight: ..., name: ...}, each with languages of its own (source, target, both) if
    need be. null for an imported model, until it is to be trained further."""
    temperature: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """With several texts: above 1, small ones are seen more often, as if drawn by their sizes to the power of 1 / T."""
    valid: Annotated[
        Percentage | Split | Annotated[list[DirectedText], Field(min_length=1)] | None,
        Field(union_mode="left_to_right"),
    ] = None
    """Like `train`, in every direction that is learned, or in those of a list of {text: ..., source: ..., target: ...}.
    Or a share of the training text such as 1%, held out by a hash of each pair, so that equal pairs stay together in
    both directions. The phrasebook brings its own."""
    test: Tests | None = None
    """Like `valid`, or several by name, such as {2016: corpus/test2016, 2017: corpus/test2017}; the phrasebook brings
    its own two, `test` and `combinations`. Each is scored in every direction."""
    tags: bool = False
    """Begin each source with a tag for the target language: one piece such as `<2en>`, which no text can write. Always
    so where the texts have several target languages."""
    source: str = "de"
    """Source language: the suffix of the source files."""
    target: str = "en"
    """Target language: the suffix of the target files."""
    phrasebook: PhrasebookConfig = PhrasebookConfig()
    """Size and seed of the built-in corpus."""
    source_eos: bool = True
    """End the source with `</s>`."""
    max_length: PositiveInt = 256
    """Pieces of a sentence at most, end mark included; longer training pairs are left out and counted."""

    @property
    def held_out(self) -> float | None:
        """The share of the training text that is validated with; None where `valid` is a text of its own, or none."""
        is_share = isinstance(self.valid, str) and re.fullmatch(PERCENT, self.valid)
        return share_of(str(self.valid)) if is_share else None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Those that are learned, in order."""
        return tuple(dict.fromkeys(one.direction for _, one in self.learned)) or (Direction(self.source, self.target),)

    @property
    def is_directed(self) -> bool:
        """Whether a text has to say in which direction it is."""
        return self.tags or len(self.directions) > 1

    @property
    def tells_directions_by_source(self) -> bool:
        """Whether each language is translated into one alone, so that a source has one translation."""
        return len({one.source for one in self.directions}) == len(self.directions)

    @property
    def tagged(self) -> tuple[str, ...]:
        """The languages whose tag a source can begin with; none where a source begins with its text."""
        languages = sorted({one.target for one in self.directions})
        return tuple(languages) if self.tags or len(languages) > 1 else ()

    @property
    def learned(self) -> list[tuple[WeightedText, Directed]]:
        """The texts to learn from, each in each of its directions."""
        alone = [] if not self.train or isinstance(self.train, list) else [WeightedText(text=self.train)]
        texts = self.train if isinstance(self.train, list) else alone
        return [(text, one) for text in texts for one in self.read(text)]

    @property
    def validated(self) -> list[Directed]:
        """The texts to validate with; none where they are held out of those to learn from, or nobody named any."""
        if self.held_out is not None:
            return []
        return self.in_directions(PHRASEBOOK if self.valid is None and self.is_phrasebook else self.valid)

    @property
    def is_phrasebook(self) -> bool:
        """Whether the phrasebook alone is learned from."""
        return {one.text if isinstance(one.text, str) else "" for _, one in self.learned} == {PHRASEBOOK}

    @property
    def tests(self) -> dict[str, Directed]:
        """The texts to test with by name, in each direction; COMBINATIONS beside each PHRASEBOOK."""
        found: dict[str, Directed] = {}
        for name, text in self._tests().items():
            ones = self.in_directions(text)
            is_told = len(self.directions) > 1 or len(ones) > 1
            found |= {f"{name}/{one.direction}" if is_told else name: one for one in ones}
        return found

    def _tests(self) -> dict[str, Texts]:
        test = PHRASEBOOK if self.test is None and self.is_phrasebook else self.test
        if test == PHRASEBOOK:
            return {"test": PHRASEBOOK, "combinations": COMBINATIONS}
        named = test if isinstance(test, dict) else {} if test is None else {"test": test}
        books = {f"{name}/combinations": COMBINATIONS for name, split in named.items() if split == PHRASEBOOK}
        return {**named, **books}

    def languages_of(self, text: DirectedText) -> tuple[str, str]:
        """Of source and target."""
        source = self.source if text.source is None else text.source
        return source, self.target if text.target is None else text.target

    def read(self, text: DirectedText) -> list[Directed]:
        """In its direction, or both; of files and pairs what is said of them is the first."""
        one = Direction(*self.languages_of(text))
        return [Directed(text.text, one), *([Directed(text.text, one.reversed, swapped=True)] if text.both else [])]

    def in_directions(self, text: Texts | None) -> list[Directed]:
        """As a list says; else in each direction that is learned, if the text has its languages."""
        if text is None or isinstance(text, list):
            return [one for entry in text or () for one in self.read(entry)]
        if isinstance(text, str):
            return [Directed(text, one) for one in self.directions]
        own = Direction(self.source, self.target)
        found = [Directed(text, one, swapped=one != own) for one in self.directions if one in (own, own.reversed)]
        first = self.directions[0]
        return found if self.is_directed else [Directed(text, first, swapped=first == own.reversed)]

    def texts(self) -> Iterator[tuple[Path, DirectedText]]:
        """Every text that is named, by the setting that does."""
        named: list[tuple[Path, Split | Sequence[DirectedText] | None]] = [(("data", "train"), self.train)]
        named += [(("data", "valid"), self.valid)] if self.held_out is None else []
        tests = self.test if isinstance(self.test, dict) else {"": self.test}
        named += [(("data", "test", *filter(None, [name])), split) for name, split in tests.items()]
        for path, split in named:
            if isinstance(split, list):
                yield from (((*path, place, "text"), entry) for place, entry in enumerate(split))
            elif split is not None:
                assert isinstance(split, str | ParallelFiles | InlinePairs)
                yield path, DirectedText(text=split)


def texts_that_clash(data: DataConfig) -> Iterator[Contradiction]:
    """What of the texts does not go together."""
    if not data.is_phrasebook:
        if data.valid is None and data.train is not None:
            words = "sentences to learn from need others to validate with: add data.valid, a text or a share such as 1%"
            yield Contradiction.of(words, "data.train", "data.valid")
        for path, entry in data.texts():
            if entry.text == PHRASEBOOK and path[1] != "train":
                words = f"the phrasebook's {path[1]} sentences go with its own train sentences only"
                yield Contradiction(words, (path, ("data", "train")))
    for name in data.test if isinstance(data.test, dict) else ():
        if name in RESERVED or not is_name(name):
            words = f"expected the name of a test set, {NAME_IN_WORDS}; not {', '.join(RESERVED)}"
            yield Contradiction(words, (("data", "test", name),))
    shares = [path for path, entry in data.texts() if isinstance(entry.text, str) and LIKE_SHARE.search(entry.text)]
    if data.held_out is not None and not 0 < data.held_out <= MOST_HELD_OUT:
        shares.append(("data", "valid"))
    for path in shares:
        words = f"data.valid can be a share of the training text above 0% and up to {MOST_HELD_OUT:.0%}, such as 1%"
        if path[:2] != ("data", "valid"):
            words = f"data.{path[1]} cannot be a share of the training text, as data.valid can: name a text"
        yield Contradiction(words, (path,))
    yield from _languages_that_clash(data)
    yield from _directions_that_clash(data)
    for path, entry in data.texts():
        text = entry.text
        if isinstance(text, str) and text != PHRASEBOOK:
            # Of a prefix that is empty, the file would have a name.
            names = [text and f"{text}.{language}" for language in data.languages_of(entry)]
            yield from impossible(names, path)
        elif isinstance(text, ParallelFiles):
            yield from impossible([text.source], (*path, "source"))
            yield from impossible([text.target], (*path, "target"))


def _languages_that_clash(data: DataConfig) -> Iterator[Contradiction]:
    """Names that are none, and texts that are not in them."""
    same: set[tuple[Path, ...]] = set()
    for path, entry in data.texts():
        source, target = data.languages_of(entry)
        said = tuple(
            (*path[:-1], side) if getattr(entry, side) is not None else ("data", side) for side in ("target", "source")
        )
        if entry.text == PHRASEBOOK and {source, target} != {"de", "en"}:
            yield Contradiction(
                f"the phrasebook is German-English: source and target are de and en in either order, "
                f"not {source} and {target}",
                (*reversed(said), path),
            )
        elif source == target and (isinstance(entry.text, str) or entry.both) and said not in same:
            same.add(said)
            yield Contradiction(f"source and target are both {source}: the two sides would be the same file", said)
    sides = ("source", "target")
    named = [((*path[:-1], side), getattr(entry, side)) for path, entry in data.texts() for side in sides]
    named += [(("data", side), getattr(data, side)) for side in sides]
    for path, language in named:
        if language is not None and (not language or "/" in language or any(char.isspace() for char in language)):
            yield Contradiction("a language is the last part of a file name, such as de", (path,))


def _directions_that_clash(data: DataConfig) -> Iterator[Contradiction]:
    """Texts to judge a model by in directions that it does not learn, and those that would not be apart."""
    targets = {one.target for one in data.directions}
    for path, entry in data.texts():
        beyond = {one.direction.target for one in data.read(entry)} - targets
        is_told = path[-1] == "text"  # by a list
        if path[1] != "train" and is_told and beyond:
            words = f"nothing that is learned from is translated into {' and '.join(sorted(beyond))}"
            yield Contradiction(words, (path, ("data", "train")))
        if path[1] != "train" and not is_told and not data.in_directions(entry.text):
            own, learned = Direction(*data.languages_of(entry)), ", ".join(map(str, data.directions))
            words = f"these are taken to be {own} (data.source, data.target), but what is learned is {learned}: say "
            words += "what they are, as [{text: ..., source: ..., target: ...}]"
            yield Contradiction(words, (path, ("data", "train")))
    for name, text in data.test.items() if isinstance(data.test, dict) else [("", data.test)]:
        if isinstance(text, list):
            found = Counter(one.direction for entry in text for one in data.read(entry))
            if twice := [str(one) for one, n in found.items() if n > 1]:
                words = f"two texts are {' and '.join(twice)}: name each of them, as {{NAME: TEXT, NAME: TEXT}}"
                yield Contradiction(words, (("data", "test", *filter(None, [name])),))
    books = {one.direction for _, one in data.learned if one.text == PHRASEBOOK}
    if data.held_out is not None and len(books) > 1:
        words = (
            "the phrasebook writes each source as people type it, so that backwards a pair is another one: held out of "
            "one direction, it would be learned from in the other; it brings sentences of its own (valid: null)"
        )
        yield Contradiction.of(words, "data.valid", "data.train")


def impossible(names: Sequence[str], path: Path) -> Iterator[Contradiction]:
    """At most one: a name that no file can have; where it is the folder's, which nobody wrote, it is told."""
    reasons = ((name, reason) for name in names if (reason := why_impossible(name)))
    for name, reason in islice(reasons, 1):
        said = f": {shorten(name, 200)}" if reason == NOT_UTF8 else ""
        yield Contradiction(f"the file's name {reason}{said}", (path,))
