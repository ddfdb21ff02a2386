"""A trained run but for its weights: its configuration, its tokenizer, what training says of it; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import pydantic

from transformer_cli.checkpoints.find import run_of, whole_run_of
from transformer_cli.checkpoints.manifest import DataSettings, Manifest, read_manifest, read_state
from transformer_cli.checkpoints.record import read_config, read_record
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError
from transformer_cli.files import shown
from transformer_cli.tokenizer import Tokenizer, wanted

Place = TypeVar("Place")
Made = TypeVar("Made")


@dataclass(frozen=True)
class KnownRun:
    """What is known of a run and one of its checkpoints before the weights are read."""

    path: Path
    checkpoint: Path
    config: RunConfig
    tokenizer: Tokenizer
    record: dict[str, Any]
    """What run.json says; {} where there is none."""
    state: dict[str, Any]
    """What training says in the checkpoint."""
    manifest: Manifest

    @property
    def name(self) -> str:
        """What its directory is called, wherever the path to it begins; fit to be shown."""
        return shown(self.path.resolve().name)

    @property
    def checkpoint_name(self) -> str:
        """Such as `step-00000400`, wherever the path to it begins."""
        return self.checkpoint.resolve().name

    @property
    def title(self) -> str:
        """Whose weights these are, in a few words."""
        return f"{self.name}, {self.checkpoint_name}"

    @property
    def targets(self) -> tuple[str, ...]:
        """The languages that it translates into."""
        return tuple(self.tokenizer.tags) or (self.config.data.directions[0].target,)

    @property
    def usual_target(self) -> str | None:
        """The only one that its own text is in: what it began with may know others. None: there are several."""
        learned = {one.target for one in self.config.data.directions}
        return learned.pop() if len(learned) == 1 else None

    def towards(self, language: str | None) -> Self:
        """The same for sources that are to be translated into this language; None: the usual one. UsageError, naming
        all, where that cannot be."""
        return replace(self, tokenizer=self.tokenizer.towards(self.into(language)))

    def into(self, language: str | None) -> str:
        """The language that is meant; UsageError as above."""
        return wanted(language, self.targets, self.usual_target)

    @property
    def languages(self) -> str:
        """In words, those that it learned to translate."""
        return ", ".join(one.in_words for one in self.config.data.directions)

    def languages_into(self, target: str | None) -> tuple[str, str]:
        """Of a source and of its translation into this language, None for the only one; "" for one of several."""
        learned = [one for one in self.config.data.directions if target in (None, one.target)]
        sources = {one.source for one in learned}
        targets = {one.target for one in learned} if target is None else {target}
        source, into = (one.pop() if len(one) == 1 else "" for one in (sources, targets))
        return source, into


def open_found(find: Callable[[], Place], opened: Callable[[Place], Made]) -> Made:
    """Open the checkpoint, or those, that `find` finds: the next, where training saved better ones and deleted them
    meanwhile."""
    place = find()
    while True:
        try:
            return opened(place)
        except ModelError:
            before, place = place, find()
            if place == before:
                raise


def open_known(checkpoint: str | Path) -> KnownRun:
    """The run of a checkpoint: its configuration and its tokenizer.

    Raises ModelError where something is missing, damaged, or not what the checkpoint was trained with.
    """
    checkpoint = Path(checkpoint)
    manifest = read_manifest(checkpoint)
    run_dir = whole_run_of(checkpoint)
    config = read_config(run_dir)
    tokenizer = Tokenizer.load(run_dir / "tokenizer")
    check_belongs(checkpoint, manifest, config, tokenizer)
    return KnownRun(
        path=run_dir,
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        record=read_record(run_dir),
        state=read_state(checkpoint, manifest),
        manifest=manifest,
    )


def check_belongs(checkpoint: Path, manifest: Manifest, config: RunConfig, tokenizer: Tokenizer) -> None:
    """ModelError unless it was trained with these settings and this tokenizer: equal sizes prove nothing."""
    run_dir = run_of(checkpoint)
    if tokenizer.fingerprint != manifest.tokenizer:
        raise ModelError(
            f"{shown(run_dir / 'tokenizer')} is not the tokenizer that {shown(checkpoint)} was trained with",
            hint="restore the run's tokenizer directory from where the run was trained",
        )
    check_settings(checkpoint, manifest, config)


def check_settings(checkpoint: Path, manifest: Manifest, config: RunConfig, seed: int | None = None) -> None:
    """ModelError unless it was trained with these settings. seed: the one that it was trained with, if that matters."""
    run_dir = run_of(checkpoint)
    sections: dict[str, tuple[pydantic.BaseModel, pydantic.BaseModel | None]] = {
        "model": (config.model.settled, manifest.model.settled),
        "data": (DataSettings.of(config.data), manifest.data),
    }
    differences = [
        f"  {section}.{key}: {ours} (trained: {getattr(theirs, key)})"
        for section, (now, theirs) in sections.items()
        for key, ours in now
        if theirs is not None and ours != getattr(theirs, key)
    ]
    if seed not in (None, config.seed):
        differences.append(f"  seed: {config.seed} (trained: {seed})")
    if differences:
        raise ModelError(
            f"{shown(run_dir / 'config.yaml')} is not what {shown(checkpoint)} was trained with:\n"
            + "\n".join(differences),
            hint="restore those settings; with others it is another run",
        )
