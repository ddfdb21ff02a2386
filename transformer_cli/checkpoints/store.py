"""What is in a checkpoint, how it gets to the disk and back.

    runs/NAME/checkpoints/step-00001200/
        model.safetensors  optimizer.safetensors  state.json
        manifest.json      size and sha256 of each, and the settings that change what weights mean; then its own

A checkpoint is written aside and renamed once it is whole; after that no file of it is ever changed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_cli.checkpoints.find import (
    BEFORE,
    CHECKPOINTS,
    LATEST,
    MANIFEST,
    POINTERS,
    RUNS,
    list_checkpoints,
    pointed,
    step_name,
    step_of,
)
from transformer_cli.checkpoints.known import KnownRun, open_known
from transformer_cli.checkpoints.manifest import (
    FILES,
    FORMAT,
    MODEL,
    OPTIMIZER,
    OWES,
    STATE,
    WITH_PARENTS,
    DamagedError,
    DataSettings,
    Manifest,
    Name,
    Parent,
    damaged,
    put_back,
    read_manifest,
    read_state,
    remove_only,
    verified,
    way_out,
)
from transformer_cli.checkpoints.parts import ALONE, Writers, write_beside, write_file, write_together
from transformer_cli.checkpoints.tensors import Portion, assign_weights, mapped
from transformer_cli.config.model import TABLES, ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.files import (
    atomic_directory,
    json_text,
    rename,
    shown,
    sweep,
    unreadable,
    write_text,
)
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.sealing import sealed


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, verified; its tensors lie in its files and are in memory while they are used."""

    path: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor] | None
    state: dict[str, Any]
    config: ModelConfig
    data: DataSettings | None
    """None for a checkpoint of format 1."""
    tokenizer: str
    """The fingerprint of the tokenizer it was trained with."""


@dataclass(frozen=True)
class OpenedRun(KnownRun):
    """A trained model with all that belongs to it, ready to translate."""

    model: Transformer


def check_vacant(place: Path, *, option: str) -> None:
    """UsageError where something is that a run would be made in place of; an empty directory is nothing. option: by
    which the command is told another place."""
    if place.is_symlink() or (place.exists() and not (place.is_dir() and not any(place.iterdir()))):
        raise UsageError(f"{shown(place)} is there already", hint=f"name another with {option}, or delete this one")
    refuse_here(place, option=option)


def refuse_here(place: Path, *, option: str) -> None:
    """UsageError for the directory that this process is in. What is made aside and takes its place is another one, and
    whoever is in there, such as a shell, would still be in the old one, which is gone. option: as above."""
    if place.exists() and place.samefile("."):
        raise UsageError(f"{shown(place)} is the folder that you are in", hint=f"name a new one with {option}")


def save_checkpoint(
    run_dir: str | Path,
    *,
    step: int,
    model: Portion,
    optimizer: Portion,
    state: Mapping[str, Any],
    config: RunConfig,
    tokenizer: str,
    parents: tuple[Parent, ...] = (),
    writers: Writers = ALONE,
) -> Path:
    """Write `checkpoints/step-...`, make `last` name it, and return its path.

    model: of `tensors.weights`. state: whatever JSON can hold. tokenizer: its fingerprint. parents: those that it is
    the mean of. writers: the processes that hold a part of it each, and call this all; the first of them does all but
    writing the others' parts, and comes back once they have been written, too.
    A complete checkpoint of that step is kept as it is: whoever continues a run comes to the same bits. Only where it
    owes a validation that there has been meanwhile the new one takes its place.
    Raises DivergedError for NaN or infinity, ResourceError where the disk refuses; either way what was saved before
    is untouched.
    """
    portions: dict[Name, Portion] = {MODEL: model, OPTIMIZER: optimizer}
    folder = Path(run_dir) / CHECKPOINTS
    path = folder / step_name(step)
    if writers.rank:
        if made := writers.posted("place"):
            write_beside(path, folder / made, portions, writers)
        return path
    sweep(folder)
    there = _intact(path)
    if there is not None and there.get(OWES, False) <= state.get(OWES, False):
        writers.post("place", "")
    else:
        if path.is_dir() and there is None:
            remove_only(path, FILES)
        with _replacing(path, is_there=there is not None) as place:
            files = write_together(path, place, portions, writers)
            files[STATE] = write_file(place / STATE, json_text(dict(state)).encode("utf-8"), known_as=path / STATE)
            manifest = Manifest(
                format=WITH_PARENTS if parents else FORMAT,
                step=step,
                tokenizer=tokenizer,
                model=config.model,
                data=DataSettings.of(config.data),
                files=files,
                parents=parents,
            )
            write_file(place / MANIFEST, sealed(manifest.as_json()), known_as=path / MANIFEST)
        writers.post("saved")
    point(run_dir, "last", step)
    return path


def load_checkpoint(path: str | Path, *, with_optimizer: bool) -> Checkpoint:
    """Read and verify a checkpoint; ModelError names the file that is missing or damaged, and what to do."""
    path = Path(path)
    manifest = read_manifest(path)
    weights = _tensors(verified(path, MODEL, manifest))
    moments = _tensors(verified(path, OPTIMIZER, manifest)) if with_optimizer else None
    return Checkpoint(
        path=path,
        step=manifest.step,
        model=weights,
        optimizer=moments,
        state=read_state(path, manifest),
        config=manifest.model,
        data=manifest.data,
        tokenizer=manifest.tokenizer,
    )


def open_run(checkpoint: str | Path) -> OpenedRun:
    """The run of a checkpoint, with the model and its weights, on the CPU in fp32.

    Raises ModelError where something is missing, damaged, or not what the checkpoint was trained with.
    """
    known = open_known(checkpoint)
    tensors = _tensors(verified(known.checkpoint, MODEL, known.manifest))
    config, tokenizer, origin = known.config.model, known.tokenizer, shown(known.checkpoint / MODEL)
    if not _could_hold(config, tensors):
        raise ModelError(f"{origin} is smaller than the model of its configuration", hint=way_out(known.checkpoint))
    model = build_model(config, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size, device="meta")
    assign_weights(model, tensors, origin=origin)
    return OpenedRun(**vars(known), model=model.eval())


def point(run_dir: str | Path, pointer: str, step: int) -> None:
    """Make `best` or `last` name a checkpoint."""
    assert pointer in POINTERS
    write_text(Path(run_dir) / pointer, step_name(step) + "\n")


def mark_latest(run_dir: str | Path) -> None:
    """Make `runs/latest` name this run, by its path from there, which `..` leaves by where a link leads."""
    path = Path(run_dir)
    folder, name = (path.parent, path.name) if path.name not in ("", "..") else (path, "")
    there = os.path.relpath(os.path.realpath(folder), os.path.realpath(RUNS))
    write_text(RUNS / LATEST, os.path.normpath(os.path.join(there, name)) + "\n")


def set_aside(checkpoint: Path) -> Path:
    """Give a checkpoint a name under which nobody looks for it, and return its new path."""
    endings = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    names = (checkpoint.with_name(f"damaged-{checkpoint.name}{ending}") for ending in endings)
    aside = next(path for path in names if not os.path.lexists(path))
    rename(checkpoint, aside)
    return aside


def prune(run_dir: str | Path, keep: set[int]) -> list[int]:
    """Delete the complete checkpoints whose step is not in `keep`, and return those steps.

    Never what `best` or `last` names, nor the newest, nor anything that `save_checkpoint` did not write.
    """
    checkpoints = list_checkpoints(run_dir)
    kept = {step_name(step) for step in keep} | {path.name for path in checkpoints[-1:]}
    kept |= {path.name for pointer in POINTERS if (path := pointed(run_dir, pointer)) is not None}
    removed = [path for path in checkpoints if path.name not in kept and not path.is_symlink()]
    for path in removed:
        remove_only(path, FILES)
    return [step for path in removed if (step := step_of(path.name)) is not None]


@contextmanager
def _replacing(path: Path, *, is_there: bool) -> Iterator[Path]:
    """An `atomic_directory`; a checkpoint that is there has its name until all of the new one is on the disk, and again
    where that does not get it."""
    try:
        with atomic_directory(path) as place:
            yield place
            if is_there:
                rename(path, path.with_name(BEFORE + path.name))
    finally:
        if is_there:
            put_back(path.parent.parent)


def _intact(checkpoint: Path) -> dict[str, Any] | None:
    """The state of a whole checkpoint; None where there is none."""
    try:
        return load_checkpoint(checkpoint, with_optimizer=True).state
    except DamagedError:
        return None


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return mapped(path)
    except ValueError as failure:
        raise damaged(path) from failure
    except OSError as failure:
        raise unreadable(path, failure, error=ModelError, hint=way_out(path.parent)) from failure


def _could_hold(config: ModelConfig, tensors: Mapping[str, Tensor]) -> bool:
    """Whether so many tensors and numbers are enough: asked before anything of the configured size is made."""
    n_numbers = sum(tensor.numel() for tensor in tensors.values())
    rows = [config.max_positions_of(side) for side in config.sides if config.positions_of(side) in TABLES]
    widest = max(config.d_ff, config.n_heads * config.head_width, *rows)
    return config.depths.encoder + config.depths.decoder <= len(tensors) and config.d_model * widest <= n_numbers
