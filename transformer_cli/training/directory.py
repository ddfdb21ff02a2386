"""A run's directory: whose it is, and what may change when it continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import UsageError
from transformer_cli.training.reporting import METRICS

MAY_DIFFER = {
    "name",
    "device",
    "data.train",
    "data.valid",
    "data.test",
    "training.max_steps",
    "training.max_epochs",
    "training.stop_loss",
    "training.patience",
    "training.log_every",
    "training.keep_best",
    "training.keep_last",
}
"""What may change when a run continues: its length, logging, retention, device, and where the same text lies."""


def check_same(saved: RunConfig, now: RunConfig, run_dir: Path) -> None:
    """UsageError, naming every key, where a run would continue under another configuration."""
    before, after = flat(saved.model_dump()), flat(now.model_dump())
    keys = [key for key in before | after if not any(key == free or key.startswith(f"{free}.") for free in MAY_DIFFER)]
    differences = [
        f"  {key}: {before.get(key)} in the run, {after.get(key)} now"
        for key in keys
        if before.get(key) != after.get(key)
    ]
    if differences:
        raise UsageError(
            f"{files.shown(run_dir)} is a run with another configuration:\n" + "\n".join(differences),
            hint="give the new run another name (--set name=... or --run-dir), or start this one anew with --overwrite",
        )


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one mapping of dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def discard(run_dir: Path) -> None:
    """Delete what a run consists of, and nothing else that may lie there."""
    for name in ("config.yaml", "run.json", METRICS, "tokenizer", "data", "checkpoints", "best", "last"):
        files.remove(run_dir / name)
