"""run.json: what a run keeps of itself - its text, the choices made for it, its scores."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformer_cli import __version__, files
from transformer_cli.errors import ModelError


def read_record(run_dir: Path) -> dict[str, Any]:
    """The content of run.json, {} where there is none; ModelError where it is damaged."""
    path = run_dir / "run.json"
    if not path.exists():
        return {}
    hint = "restore it from a copy; without it the run goes on, but its choices are made anew"
    record = files.read_json(path, error=ModelError, hint=hint)
    if not is_record(record):
        raise ModelError(f"{files.shown(path)} is damaged: it does not describe a run", hint=hint)
    return record


def is_record(value: Any) -> bool:
    """Whether all that is read again has the right shape."""
    if not isinstance(value, dict):
        return False
    data = value.get("data", {})
    texts = data.values() if isinstance(data, dict) else [None]
    return all(isinstance(text, dict) and "sha256" in text for text in texts) and all(
        isinstance(value.get(key, {}), dict) for key in ("machine", "scores")
    )


def versions() -> dict[str, str]:
    """What the bits of a run depend on besides its configuration, its text and the machine."""
    packages = {name: version(name) for name in ("torch", "sentencepiece", "sacrebleu")}
    return {"tx": __version__, "python": platform.python_version(), **packages}
