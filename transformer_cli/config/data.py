"""`data:` - which sentences to learn from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated

from pydantic import Field

from transformer_cli.config.names import why_impossible
from transformer_cli.config.section import PERCENT, Contradiction, NonNegativeInt, Path, PositiveInt, Section, share_of

PHRASEBOOK = "phrasebook"
COMBINATIONS = "phrasebook/combinations"
"""Its second test set, of unseen combinations of words, which comes with the first."""
MOST_HELD_OUT = 0.5
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
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
    """Share of the sentences that give a reason, as `weil sie zu breit war`; null: as often as the grammar does, 8%."""


Split = str | ParallelFiles | InlinePairs
# {source: a, target: b} is two files before it is two texts of these names.
Tests = Annotated[Split | dict[str, Split], Field(union_mode="left_to_right")]


class WeightedText(Section):
    """One of several texts to learn from."""

    text: Split
    """A prefix, {source, target} files, {pairs: ...}, or `phrasebook`."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """How often an epoch sees its pairs; 2.5: each of them twice, and a half of them, drawn anew, once more."""
    name: str | None = None
    """What counts call it."""


class DataConfig(Section):
    """Training, validation and test sentences.

    A split is a prefix (`corpus/train` means `corpus/train.de` and `corpus/train.en`, or the same with `.gz`), two
    explicit files, or pairs written in place. Paths are relative to the file that names them.
    """

    train: Split | list[WeightedText] | None = PHRASEBOOK
    """A prefix, {source, target} files, {pairs: [[source, target], ...]}, or `phrasebook`, the built-in corpus; several
    as a list of {text: ..., weight: ..., name: ...}; null for a model that was imported, until it is to learn more."""
    temperature: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Of several texts: above 1, small ones are seen more often, as if drawn by their sizes to the power of 1 / T."""
    valid: Split | None = None
    """Like `train`, or a share of it such as 1%, held out by a hash of each pair, so that equal pairs stay together;
    the phrasebook brings its own."""
    test: Tests | None = None
    """Like `train`, or several by name, as {2016: corpus/test2016, 2017: corpus/test2017}; the phrasebook brings its
    own two, `test` and `combinations`."""
    source: str = "de"
    """Language translated from: the suffix of the source files."""
    target: str = "en"
    """Language translated into: the suffix of the target files."""
    phrasebook: PhrasebookConfig = PhrasebookConfig()
    """Size and seed of the built-in corpus."""
    source_eos: bool = True
    """End the source with `</s>`."""
    max_length: PositiveInt = 256
    """Pieces, end mark included; longer training pairs are left out and counted."""

    @property
    def held_out(self) -> float | None:
        """The share of the training text that is validated with; None where `valid` is a text of its own, or none."""
        is_share = isinstance(self.valid, str) and re.fullmatch(PERCENT, self.valid)
        return share_of(str(self.valid)) if is_share else None

    @property
    def tests(self) -> dict[str, Split]:
        """The texts to test with by name; COMBINATIONS beside each PHRASEBOOK."""
        test = PHRASEBOOK if self.test is None and self.train == PHRASEBOOK else self.test
        if test == PHRASEBOOK:
            return {"test": PHRASEBOOK, "combinations": COMBINATIONS}
        named = test if isinstance(test, dict) else {} if test is None else {"test": test}
        books = {f"{name}/combinations": COMBINATIONS for name, split in named.items() if split == PHRASEBOOK}
        return {**named, **books}

    def texts(self) -> Iterator[tuple[Path, Split]]:
        """Every text that is named, by the setting that does."""
        if isinstance(self.train, list):
            yield from ((("data", "train", place, "text"), one.text) for place, one in enumerate(self.train))
        elif self.train is not None:
            yield ("data", "train"), self.train
        if self.valid is not None and self.held_out is None:
            yield ("data", "valid"), self.valid
        if isinstance(self.test, dict):
            yield from ((("data", "test", name), split) for name, split in self.test.items())
        elif self.test is not None:
            yield ("data", "test"), self.test


def texts_that_clash(data: DataConfig) -> Iterator[Contradiction]:
    """What of the texts does not go together."""
    if data.train == PHRASEBOOK:
        if {data.source, data.target} != {"de", "en"}:
            yield Contradiction.of(
                f"the phrasebook is German-English: source and target are de and en in either order, "
                f"not {data.source} and {data.target}",
                "data.source",
                "data.target",
                "data.train",
            )
    else:
        if data.valid is None and data.train is not None:
            words = "sentences to learn from need others to validate with: add data.valid, a text or a share such as 1%"
            yield Contradiction.of(words, "data.train")
        for path, text in data.texts():
            if text == PHRASEBOOK and path[1] != "train":
                words = f"the phrasebook's {path[1]} sentences go with its own train sentences only"
                yield Contradiction(words, (path, ("data", "train")))
    for name in data.test if isinstance(data.test, dict) else ():
        if name in RESERVED or not NAME.fullmatch(name):
            words = "letters, digits, `.`, `_` and `-`, a letter or digit first, 100 at most"
            words = f"expected the name of a test set, {words}; not {', '.join(RESERVED)}"
            yield Contradiction(words, (("data", "test", name),))
    shares = [path for path, text in data.texts() if isinstance(text, str) and text.endswith("%")]
    if data.held_out is not None and not 0 < data.held_out <= MOST_HELD_OUT:
        shares.append(("data", "valid"))
    for path in shares:
        words = f"data.valid can be a share of the training text above 0% and up to {MOST_HELD_OUT:.0%}, such as 1%"
        yield Contradiction(words, (path,))
    has_prefix = any(isinstance(text, str) and text != PHRASEBOOK for _, text in data.texts())
    if has_prefix and data.source == data.target:
        yield Contradiction.of(
            f"source and target are both {data.source}: the two sides would be the same file",
            "data.target",
            "data.source",
        )
    for side in ("source", "target"):
        language = getattr(data, side)
        if not language or "/" in language or any(char.isspace() for char in language):
            yield Contradiction.of("a language is the last part of a file name, such as de", f"data.{side}")
    for path, text in data.texts():
        if isinstance(text, str) and text != PHRASEBOOK:
            # Of a prefix that is empty, the file would have a name.
            names = [text and f"{text}.{language}" for language in (data.source, data.target)]
            yield from impossible(names, path)
        elif isinstance(text, ParallelFiles):
            yield from impossible([text.source], (*path, "source"))
            yield from impossible([text.target], (*path, "target"))


def impossible(names: Sequence[str], path: Path) -> Iterator[Contradiction]:
    """At most one: a name that no file can have."""
    reasons = filter(None, map(why_impossible, names))
    yield from (Contradiction(f"the file's name {reason}", (path,)) for reason in islice(reasons, 1))
