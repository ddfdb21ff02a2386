"""A corpus as ids, all of it by this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.volumes import Remembered, Volumes
from transformer_cli.tokenizer import Tokenizer


def encode(
    corpus: Corpus,
    tokenizer: Tokenizer,
    directory: str | Path,
    *,
    remember: Callable[[Remembered], None] | None = None,
    warn: Callable[[str], None] = lambda line: None,
    progress: Callable[[int], object] = lambda n: None,
    **options: Any,
) -> EncodedCorpus:
    """What Volumes does, with its options. remember: is told of the words and lines, if they are encoded now."""
    volumes = Volumes(corpus, tokenizer, directory, **options, remembers=remember is not None)
    for _ in volumes.make(volumes.missing(warn), progress):
        pass
    if remember is not None:
        volumes.remember(remember)
    return volumes.open()
