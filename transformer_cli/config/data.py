"""`data:` - which sentences to learn from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from transformer_cli.config.section import NonNegativeInt, PositiveInt, Section

PHRASEBOOK = "phrasebook"


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


Split = str | ParallelFiles | InlinePairs


class DataConfig(Section):
    """Training, validation and test sentences.

    A split is a prefix (`corpus/train` means `corpus/train.de` and `corpus/train.en`, or the same with `.gz`), two
    explicit files, or pairs written in place. Paths are relative to the file that names them.
    """

    train: Split | None = PHRASEBOOK
    """A prefix, {source, target} files, {pairs: [[source, target], ...]}, or `phrasebook`, the built-in corpus; null
    for a model that was imported, until it is to learn more."""
    valid: Split | None = None
    """Like `train`; the phrasebook brings its own."""
    test: Split | None = None
    """Like `train`; the phrasebook brings its own."""
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
