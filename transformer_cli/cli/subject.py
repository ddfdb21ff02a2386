"""What is counted: a preset, a file, a run or a checkpoint, with the vocabularies that its model has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.checkpoints.find import (
    CHECKPOINTS,
    MANIFEST,
    POINTERS,
    find_checkpoint,
    find_run,
    list_checkpoints,
    whole_run_of,
)
from transformer_cli.checkpoints.record import read_config
from transformer_cli.config.names import typed
from transformer_cli.config.run import RunConfig, vocab_sizes
from transformer_cli.config.source import load_config
from transformer_cli.errors import UsageError

if TYPE_CHECKING:
    from transformer_cli.tokenizer import Tokenizer


@dataclass(frozen=True)
class Subject:
    """A model to count."""

    config: RunConfig
    source_vocab: int
    target_vocab: int
    vocabulary: str
    """Says who: accounting.vocab, tokenizer.vocab_size (a wish), tokenizer (trained), or training.init_from (the run
    that training begins with)."""
    checkpoint: Path | None = None

    @property
    def name(self) -> str:
        return self.config.name or "model"


def find_subject(name: str, overrides: Sequence[str] = ()) -> Subject:
    """The model of a preset, a file, a run (its best checkpoint, if there is one yet), or a checkpoint.

    Raises ConfigError where there is no such thing or it contradicts itself, ModelError for a damaged run, UsageError
    for overrides of a trained model.
    """
    path = Path(name)
    if os.path.isdir(path) and any((path / part).exists() for part in ("config.yaml", CHECKPOINTS, MANIFEST)):
        if overrides:
            raise UsageError(
                f"{name} is trained: --set cannot change it any more",
                hint=f"count its configuration: {typed(find_run(name) / 'config.yaml')}",
            )
        return _counted_as(*_run_of(name))
    config = load_config(name, overrides)
    if config.accounting.vocab is not None:
        return Subject(config, *vocab_sizes(config), "accounting.vocab")
    if (parent := config.training.init_from) is not None and os.path.exists(parent):
        return _as_the_parent(config, parent)
    if config.tokenizer.given:
        return _existing_tokenizer(config)
    return Subject(config, *vocab_sizes(config), "tokenizer.vocab_size")


def _run_of(name: str) -> tuple[Path, Path | None]:
    """The run that is meant, and the checkpoint; None where there is only a tokenizer yet."""
    if _has_only_a_tokenizer(Path(name)):
        return Path(name), None
    checkpoint = find_checkpoint(name)
    return whole_run_of(checkpoint), checkpoint


def _has_only_a_tokenizer(run: Path) -> bool:
    """Whether `tx tokenize` was here, and `tx train` saved nothing yet."""
    saved = list_checkpoints(run) or any((run / pointer).exists() for pointer in POINTERS)
    return (run / "config.yaml").exists() and (run / "tokenizer" / "tokenizer.json").exists() and not saved


def _counted_as(run: Path, checkpoint: Path | None) -> Subject:
    from transformer_cli.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(run / "tokenizer")
    config = read_config(run)
    return Subject(config, tokenizer.source_size, tokenizer.target_size, "tokenizer", checkpoint)


def _existing_tokenizer(config: RunConfig) -> Subject:
    from transformer_cli.tokenizer.tokenizer import read_tokenizer

    return _extended(config, read_tokenizer(*config.tokenizer.given, tags=config.data.tagged), "tokenizer")


def _as_the_parent(config: RunConfig, parent: str) -> Subject:
    from transformer_cli.tokenizer import Tokenizer

    run, _ = _run_of(parent)
    return _extended(config, Tokenizer.load(run / "tokenizer"), "training.init_from")


def _extended(config: RunConfig, tokenizer: Tokenizer, origin: str) -> Subject:
    new = config.tokenizer.extend
    return Subject(config, tokenizer.source_size + new, tokenizer.target_size + new, origin)
