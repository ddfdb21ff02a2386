"""A corpus as ids, all of it by this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.volumes import Remembered, Volumes
from transformer_cli.tokenizer import Tokenizer


def encode(
    corpus: Corpus,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    split: str,
    source_eos: bool,
    max_length: int | None = None,
    remember: Callable[[Remembered], None] | None = None,
    warn: Callable[[str], None] = lambda line: None,
    progress: Callable[[int], object] = lambda n: None,
) -> EncodedCorpus:
    """The corpus as ids, out of `directory` as far as it was encoded before, else encoded and put there: what Volumes
    does, all of it by this process. remember: is told of the words and lines of the text, if it is encoded now.
    """
    volumes = Volumes(
        corpus,
        tokenizer,
        directory,
        split=split,
        source_eos=source_eos,
        max_length=max_length,
        remembers=remember is not None,
    )
    for _ in volumes.make(volumes.missing(warn), progress):
        pass
    if remember is not None:
        volumes.remember(remember)
    return volumes.open()
