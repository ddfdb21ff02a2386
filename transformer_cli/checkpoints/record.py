"""What a run keeps of itself: config.yaml, and run.json - its text, the choices made for it, its scores."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from transformer_cli import __version__, files
from transformer_cli.config.names import shorten
from transformer_cli.config.run import RunConfig
from transformer_cli.config.section import NonNegativeInt, PositiveInt
from transformer_cli.config.source import load_with_places
from transformer_cli.errors import ConfigError, ModelError

START, END = "---", "..."
"""YAML's own marks, as `dump_config` writes them: a file that begins with the one and lacks the other was cut."""
SECTIONS = ("tokenizer", "data", "model", "training", "decoding", "evaluation")
"""What every run's configuration has, that of a former tx too, which wrote no marks."""
UNTRAINED = {"average": "a mean of checkpoints", "imported": "another toolkit's model"}
"""What run.json has of a run whose weights are not those of its training."""


def read_config(run_dir: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The run's own configuration, with overrides on top; ModelError where it is damaged.

    What somebody changed in it is believed where it is a setting; but tx wrote it, whole and without a mistake.
    Raises ConfigError for the overrides.
    """
    written = _written(run_dir / "config.yaml")
    return load_with_places(run_dir / "config.yaml", overrides, of_run=True)[0] if overrides else written


def _written(path: Path) -> RunConfig:
    text = files.read_text(path, error=ModelError)
    lines = [line.rstrip() for line in text.split("\n")]
    said = [line for line in lines if line.strip() and not line.startswith("#")]  # an editor's marks, anybody's remarks
    if said and said[0] == START and said[-1] != END:
        raise _damaged(path, f"it ends before its last line, {END}")
    try:
        config, tree = load_with_places(path, of_run=True)
    except ConfigError as failure:
        raise _damaged(path, failure.message) from failure
    if lacking := [section for section in SECTIONS if tree.child(section) is None]:
        raise _damaged(path, f"it has no {', '.join(lacking)}")
    return config


def _damaged(path: Path, wrong: str) -> ModelError:
    return ModelError(
        f"{files.shown(path)} is damaged: {wrong}",
        hint="mend that, or restore it from a copy; or delete it, and the same `tx train` writes it anew",
    )


def read_record(run_dir: Path) -> dict[str, Any]:
    """The content of run.json, {} where there is none; ModelError where it is damaged."""
    path = run_dir / "run.json"
    if not path.exists():
        return {}
    hint = "restore it from a copy; without it the run goes on, but its choices are made anew"
    record = files.read_json(path, error=ModelError, hint=hint)
    if where := damage(record):
        raise ModelError(f"{files.shown(path)} is damaged: it does not describe a run ({shorten(where)})", hint=hint)
    return record


class _Read(BaseModel):
    """What is read again; what else there is, is for people."""

    model_config = ConfigDict(strict=True)


class _Part(_Read):
    pairs: NonNegativeInt
    weight: float


class _Text(_Read):
    sha256: str
    parts: list[_Part] = []
    usual_sentences: NonNegativeInt = 0


class _Score(_Read):
    name: str
    value: float


class _Evaluated(_Read):
    scores: list[_Score]


class _Record(_Read):
    data: dict[str, _Text] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    scores: dict[str, _Evaluated] = {}
    processes: PositiveInt = 1
    seed: int = 0
    parameters: int = 0
    elapsed_s: float = 0.0
    init_from: dict[str, Any] = {}
    changed: dict[str, dict[str, Any]] = {}
    """By the update before which a setting was changed that says how fast the rate falls: what it was until then."""


def is_record(value: Any) -> bool:
    """Whether all that is read again has the right shape."""
    return not damage(value)


def damage(value: Any) -> str:
    """What of a record does not have the right shape: where; empty where all has."""
    try:
        _Record.model_validate(value)
    except ValidationError as failure:
        return ", ".join(dict.fromkeys(".".join(map(str, one["loc"])) or "all of it" for one in failure.errors()))
    return ""


def versions() -> dict[str, str]:
    """What the bits of a run depend on besides its configuration, its text and the machine."""
    packages = {name: _version(name) for name in ("torch", "numpy", "sentencepiece", "sacrebleu")}
    return {"tx": __version__, "python": platform.python_version(), **packages}


_version = functools.cache(version)
"""Each time anew it would be looked for in a long text."""


def other_versions(then: Mapping[str, str]) -> str:
    """What is another one here than it was then, in words; empty where nothing is."""
    here = versions()
    return "; ".join(f"{name} {was} then, {here.get(name)} now" for name, was in then.items() if here.get(name) != was)
