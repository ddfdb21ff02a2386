"""What is in a checkpoint, how it gets to the disk and back.

    runs/NAME/checkpoints/step-00001200/
        model.safetensors  optimizer.safetensors  state.json
        manifest.json      size and sha256 of each, and the settings that change what weights mean; then its own

A checkpoint is written aside and renamed once it is whole; after that no file of it is ever changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
from torch import Tensor

from transformer_cli import __version__
from transformer_cli.checkpoints.find import (
    CHECKPOINTS,
    MANIFEST,
    POINTERS,
    RUNS,
    WEIGHTS,
    find_checkpoint,
    list_checkpoints,
    pointed,
    run_of,
    step_name,
    step_of,
    whole_run_of,
)
from transformer_cli.checkpoints.record import read_record
from transformer_cli.checkpoints.tensors import assign_weights, from_bytes, to_bytes
from transformer_cli.config.accounting import MOVED
from transformer_cli.config.data import DataConfig
from transformer_cli.config.model import TABLES, ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.errors import ModelError
from transformer_cli.files import (
    atomic_directory,
    create_file,
    json_text,
    parse_json,
    read_bytes,
    remove,
    sealed,
    shown,
    sweep,
    unsealed,
    write_text,
)
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import Tokenizer

__all__ = [
    "Checkpoint",
    "OpenedRun",
    "check_belongs",
    "find_checkpoint",
    "list_checkpoints",
    "load_checkpoint",
    "mark_latest",
    "open_run",
    "point",
    "pointed",
    "prune",
    "save_checkpoint",
]

FORMAT = 2
READABLE = (1, 2)
"""Format 1 had no `data` in its manifest."""
_Name = Literal["model.safetensors", "optimizer.safetensors", "state.json"]
MODEL: _Name = WEIGHTS
OPTIMIZER: _Name = "optimizer.safetensors"
STATE: _Name = "state.json"


class DataSettings(pydantic.BaseModel):
    """What of `data:` changes what weights mean."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    source: str
    target: str
    source_eos: bool
    max_length: int

    @classmethod
    def of(cls, config: DataConfig) -> DataSettings:
        return cls(**{name: getattr(config, name) for name in cls.model_fields})


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory, verified."""

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
class OpenedRun:
    """A trained model with all that belongs to it, ready to translate."""

    path: Path
    checkpoint: Path
    config: RunConfig
    tokenizer: Tokenizer
    model: Transformer
    record: dict[str, Any]
    """What run.json says; {} where there is none."""


def save_checkpoint(
    run_dir: str | Path,
    *,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    config: RunConfig,
    tokenizer: str,
) -> Path:
    """Write `checkpoints/step-...`, make `last` name it, and return its path.

    model: see `tensors.weights`. state: whatever JSON can hold. tokenizer: its fingerprint.
    A complete checkpoint of that step is kept as it is: whoever continues a run comes to the same bits.
    Raises DivergedError for NaN or infinity, ResourceError where the disk refuses; either way what was saved before
    is untouched.
    """
    contents: dict[_Name, bytes] = {
        MODEL: to_bytes(model),
        OPTIMIZER: to_bytes(optimizer),
        STATE: json_text(dict(state)).encode("utf-8"),
    }
    folder = Path(run_dir) / CHECKPOINTS
    path = folder / step_name(step)
    sweep(run_dir)
    sweep(folder)
    if not _is_intact(path):
        remove(path)
        with atomic_directory(path) as aside:
            for name, data in contents.items():
                _write(aside / name, data)
            files = {
                name: _File(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in contents.items()
            }
            manifest = _Manifest(
                step=step, tokenizer=tokenizer, model=config.model, data=DataSettings.of(config.data), files=files
            )
            _write(aside / MANIFEST, sealed(manifest.model_dump(mode="json")))
    point(run_dir, "last", step)
    return path


def load_checkpoint(path: str | Path, *, with_optimizer: bool) -> Checkpoint:
    """Read and verify a checkpoint; ModelError names the file that is missing or damaged, and what to do."""
    path = Path(path)
    manifest = _read_manifest(path)
    weights = _tensors(path / MODEL, _read_verified(path, MODEL, manifest))
    moments = _tensors(path / OPTIMIZER, _read_verified(path, OPTIMIZER, manifest)) if with_optimizer else None
    state = parse_json(_read_verified(path, STATE, manifest).decode("utf-8"), path / STATE, error=ModelError)
    return Checkpoint(
        path=path,
        step=manifest.step,
        model=weights,
        optimizer=moments,
        state=state,
        config=manifest.model,
        data=manifest.data,
        tokenizer=manifest.tokenizer,
    )


def open_run(checkpoint: str | Path) -> OpenedRun:
    """The run of a checkpoint: its configuration, its tokenizer, and the model with its weights, on the CPU in fp32.

    Raises ModelError where something is missing, damaged, or not what the checkpoint was trained with.
    """
    checkpoint = Path(checkpoint)
    loaded = load_checkpoint(checkpoint, with_optimizer=False)
    run_dir = whole_run_of(checkpoint)
    config = load_config(run_dir / "config.yaml")
    tokenizer = Tokenizer.load(run_dir / "tokenizer")
    check_belongs(loaded, config, tokenizer)
    origin = shown(checkpoint / MODEL)
    if not _could_hold(config.model, loaded.model):
        raise ModelError(f"{origin} is smaller than the model of its configuration", hint=_way_out(checkpoint))
    model = build_model(
        config.model, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size, device="meta"
    )
    assign_weights(model, loaded.model, origin=origin)
    return OpenedRun(
        path=run_dir,
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        model=model.eval(),
        record=read_record(run_dir),
    )


def check_belongs(checkpoint: Checkpoint, config: RunConfig, tokenizer: Tokenizer) -> None:
    """ModelError unless it was trained with these settings and this tokenizer: equal sizes prove nothing."""
    run_dir = run_of(checkpoint.path)
    if tokenizer.fingerprint != checkpoint.tokenizer:
        raise ModelError(
            f"{shown(run_dir / 'tokenizer')} is not the tokenizer that {shown(checkpoint.path)} was trained with",
            hint="restore the run's tokenizer directory from where the run was trained",
        )
    sections: dict[str, tuple[pydantic.BaseModel, pydantic.BaseModel | None]] = {
        "model": (config.model, checkpoint.config),
        "data": (DataSettings.of(config.data), checkpoint.data),
    }
    differences = [
        f"  {section}.{key}: {ours} (trained: {getattr(theirs, key)})"
        for section, (now, theirs) in sections.items()
        for key, ours in now
        if theirs is not None and ours != getattr(theirs, key)
    ]
    if differences:
        raise ModelError(
            f"{shown(run_dir / 'config.yaml')} is not what {shown(checkpoint.path)} was trained with:\n"
            + "\n".join(differences),
            hint="restore those settings; with others it is another run",
        )


def point(run_dir: str | Path, pointer: str, step: int) -> None:
    """Make `best` or `last` name a checkpoint."""
    assert pointer in POINTERS
    write_text(Path(run_dir) / pointer, step_name(step) + "\n")


def mark_latest(run_dir: str | Path, *, runs_dir: str | Path = RUNS) -> None:
    """Make `runs/latest` name this run, by its path from there."""
    write_text(Path(runs_dir) / "latest", os.path.relpath(run_dir, runs_dir) + "\n")


def prune(run_dir: str | Path, keep: set[int]) -> list[int]:
    """Delete the complete checkpoints whose step is not in `keep`, and return those steps.

    Never what `best` or `last` names, nor the newest, nor anything that `save_checkpoint` did not write.
    """
    checkpoints = list_checkpoints(run_dir)
    kept = {step_name(step) for step in keep} | {path.name for path in checkpoints[-1:]}
    kept |= {path.name for pointer in POINTERS if (path := pointed(run_dir, pointer)) is not None}
    removed = [path for path in checkpoints if path.name not in kept and not path.is_symlink()]
    for path in removed:
        remove(path)
    return [step for path in removed if (step := step_of(path.name)) is not None]


class _File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str


class _Manifest(pydantic.BaseModel):
    """The contents of manifest.json; nothing in it is a path."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    tx: str = __version__
    step: int
    tokenizer: str
    model: ModelConfig
    data: DataSettings | None = None
    files: dict[_Name, _File]

    @pydantic.field_validator("model", mode="before")
    @classmethod
    def _without_what_is_only_counted(cls, model: Any) -> Any:
        """It once was part of every sealed model, though it never says anything of a trained one."""
        return {key: value for key, value in model.items() if key not in MOVED} if isinstance(model, dict) else model


def _read_manifest(checkpoint: Path) -> _Manifest:
    path = checkpoint / MANIFEST
    fields = unsealed(read_bytes(path, error=ModelError, hint=_way_out(checkpoint)))
    if fields is None:
        raise _damaged(path)
    if fields.get("format") not in READABLE:
        version = str(fields.get("tx"))[:40]
        raise ModelError(
            f"{shown(checkpoint)} was written by tx {version!r} in format {str(fields.get('format'))[:40]}; this is tx"
            f" {__version__}, which reads formats {READABLE[0]} to {READABLE[-1]}",
            hint="use a newer tx",
        )
    try:
        manifest = _Manifest.model_validate_json(json.dumps(fields, allow_nan=False))
    except pydantic.ValidationError as failure:
        raise _damaged(path) from failure
    named = step_of(checkpoint.resolve().name)
    if named is not None and named != manifest.step:
        raise ModelError(
            f"{shown(checkpoint)} holds step {manifest.step}",
            hint=f"somebody renamed it: give it its name back, {step_name(manifest.step)}",
        )
    return manifest


def _read_verified(checkpoint: Path, name: _Name, manifest: _Manifest) -> bytes:
    path = checkpoint / name
    data = read_bytes(path, error=ModelError, hint=_way_out(checkpoint))
    entry = manifest.files.get(name)
    if entry is None or len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _damaged(path)
    return data


def _is_intact(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint, with_optimizer=True)
    except ModelError:
        return False
    return True


def _tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    try:
        return from_bytes(data)
    except ValueError as failure:
        raise _damaged(path) from failure


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{shown(path)} is damaged: its content is not what was saved", hint=_way_out(path.parent))


def _way_out(checkpoint: Path) -> str:
    """What to do without this checkpoint."""
    others = [path for path in list_checkpoints(run_of(checkpoint)) if path.name != checkpoint.resolve().name]
    if not others:
        return "restore the directory from a copy, or train again with --overwrite"
    return f"use another checkpoint of this run, for example -m {shown(others[-1])}"


def _write(path: Path, data: bytes) -> None:
    with create_file(path) as file:
        file.write(data)


def _could_hold(config: ModelConfig, tensors: Mapping[str, Tensor]) -> bool:
    """Whether so many tensors and numbers are enough: asked before anything of the configured size is made."""
    n_numbers = sum(tensor.numel() for tensor in tensors.values())
    rows = [config.max_positions_of(side) for side in config.sides if config.positions_of(side) in TABLES]
    widest = max(config.d_ff, config.n_heads * config.head_width, *rows)
    return config.depths.encoder + config.depths.decoder <= len(tensors) and config.d_model * widest <= n_numbers
