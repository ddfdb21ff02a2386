"""What a checkpoint says of itself, and whether it still is that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from transformer_cli import __version__
from transformer_cli.checkpoints.find import (
    BEFORE,
    CHECKPOINTS,
    MANIFEST,
    WEIGHTS,
    list_checkpoints,
    run_of,
    step_name,
    step_of,
)
from transformer_cli.config.data import DataConfig
from transformer_cli.config.former import COUNTED
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.names import typed
from transformer_cli.errors import ModelError
from transformer_cli.files import parse_json, read_bytes, remove, rename, sha256, shown, unreadable
from transformer_cli.sealing import unsealed
from transformer_cli.trouble import missing

FORMAT = 2
WITH_PARENTS = 3
READABLE = (1, 2, 3)
"""Format 1 had no `data` in its manifest; 3 has the parents of a mean."""
Name = Literal["model.safetensors", "optimizer.safetensors", "state.json"]
MODEL: Name = WEIGHTS
OPTIMIZER: Name = "optimizer.safetensors"
STATE: Name = "state.json"
OWES = "owes_validation"
"""Of a state: whether the validation of that step is still to come."""
FILES = r"(model|optimizer)\.safetensors|(state|manifest)\.json"
"""A pattern of the names of all that is in a checkpoint."""


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


class DamagedError(ModelError):
    """A checkpoint is not what was saved: unlike one that only cannot be read now, it will be of no use again."""

    def __init__(self, message: str, *, checkpoint: Path) -> None:
        super().__init__(message, hint=way_out(checkpoint))
        self.checkpoint = checkpoint


class File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str


class Parent(pydantic.BaseModel):
    """A checkpoint that a mean was made of: its run's name, its step, and the sha256 of its weights."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    run: str
    step: int
    sha256: str


class Manifest(pydantic.BaseModel):
    """The contents of manifest.json; nothing in it is a path."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    tx: str = __version__
    step: int
    tokenizer: str
    model: ModelConfig
    data: DataSettings | None = None
    files: dict[Name, File]
    parents: tuple[Parent, ...] = ()

    @pydantic.field_validator("model", mode="before")
    @classmethod
    def _without_what_is_only_counted(cls, model: Any) -> Any:
        """It once was part of every sealed model, though it never says anything of a trained one."""
        return {key: value for key, value in model.items() if key not in COUNTED} if isinstance(model, dict) else model

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude=set() if self.parents else {"parents"})


def read_manifest(checkpoint: Path) -> Manifest:
    path = checkpoint / MANIFEST
    fields = unsealed(_read(path))
    if fields is None:
        raise damaged(path)
    if fields.get("format") not in READABLE:
        version = str(fields.get("tx"))[:40]
        raise ModelError(
            f"{shown(checkpoint)} was written by tx {version!r} in format {str(fields.get('format'))[:40]}; this is tx"
            f" {__version__}, which reads formats {READABLE[0]} to {READABLE[-1]}",
            hint="use a newer tx",
        )
    try:
        manifest = Manifest.model_validate_json(json.dumps(fields, allow_nan=False))
    except ValueError as failure:
        raise damaged(path) from failure
    named = step_of(checkpoint.resolve().name)
    if named is not None and named != manifest.step:
        raise ModelError(
            f"{shown(checkpoint)} holds step {manifest.step}",
            hint=f"somebody renamed it: give it its name back, {step_name(manifest.step)}",
        )
    return manifest


def verified(checkpoint: Path, name: Name, manifest: Manifest) -> Path:
    """A file that is what the manifest says, without more of it in memory than a piece at a time."""
    path = checkpoint / name
    _check_there(path)
    entry = manifest.files.get(name)
    if entry is None or _size(path) != entry.bytes or _sha256(path) != entry.sha256:
        raise damaged(path)
    return path


def put_back(run_dir: Path) -> None:
    """Give a checkpoint its name again whose successor did not get it; delete one whose successor did."""
    for before in sorted((run_dir / CHECKPOINTS).glob(f"{BEFORE}*")):
        path = before.with_name(before.name.removeprefix(BEFORE))
        if step_of(before.name) is None or not before.is_dir() or before.is_symlink():
            continue  # somebody else's
        if path.is_dir():
            remove_only(before, FILES)
        else:
            rename(before, path)


def read_state(checkpoint: Path, manifest: Manifest) -> dict[str, Any]:
    """What training says of itself there."""
    path = verified(checkpoint, STATE, manifest)
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError as failure:
        raise damaged(path) from failure
    state = parse_json(text, path, error=ModelError)
    if not isinstance(state, dict):
        raise damaged(path)
    return state


class Validated(pydantic.BaseModel):
    """What the validations came to whose checkpoints were kept, by step: a score, of which more is better, and a
    loss."""

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)

    scores: dict[Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]{0,17}$")], float] = {}
    losses: dict[Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]{0,17}$")], float] = {}


def read_validated(checkpoint: Path) -> Validated:
    """The scores and losses of validations that it has; ModelError where no run can have such."""
    state = read_state(checkpoint, read_manifest(checkpoint))
    try:
        return Validated.model_validate(state)
    except pydantic.ValidationError as failure:
        wrong = ", ".join(f"{'.'.join(map(str, one['loc']))} {one['input']!r:.60}" for one in failure.errors()[:5])
        raise ModelError(
            f"{shown(checkpoint / STATE)} has values that no run can have: {wrong}", hint=way_out(checkpoint)
        ) from None


def _read(path: Path) -> bytes:
    _check_there(path)
    return read_bytes(path, error=ModelError, hint=way_out(path.parent))


def _check_there(path: Path) -> None:
    if not path.is_file():
        found = "is not a file" if path.exists() else missing(path)
        raise DamagedError(f"{shown(path)} {found}", checkpoint=path.parent)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as failure:
        raise unreadable(path, failure, error=ModelError, hint=way_out(path.parent)) from failure


def _sha256(path: Path) -> str:
    return sha256(path, error=ModelError, hint=way_out(path.parent))


def damaged(path: Path) -> DamagedError:
    return DamagedError(f"{shown(path)} is damaged: its content is not what was saved", checkpoint=path.parent)


def way_out(checkpoint: Path) -> str:
    """What to do without this checkpoint."""
    others = [path for path in list_checkpoints(run_of(checkpoint)) if path.name != checkpoint.resolve().name]
    if not others:
        return "restore the directory from a copy; the run has no other checkpoint"
    return f"use another checkpoint of this run, for example -m {typed(others[-1])}"


def remove_only(directory: Path, names: str) -> None:
    """Delete what has such a name (a pattern) in a directory, and the directory itself if nothing else is there."""
    inside = sorted(directory.iterdir())
    ours = [path for path in inside if re.fullmatch(names, path.name)]
    for path in ours if len(ours) < len(inside) else [directory]:
        remove(path)
