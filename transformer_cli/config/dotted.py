"""Settings by their dotted names: `training.learning_rate`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transformer_cli.config.run import RunConfig


def is_among(key: str, names: Collection[str]) -> bool:
    """Whether a dotted key is one of these settings, or inside of one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def settled(config: RunConfig) -> dict[str, Any]:
    """All settings by dotted name; the model's in one spelling, what each stack has being one of them."""
    model = config.model.settled.model_dump(mode="json")
    others = config.model_dump(mode="json", exclude={"model"})
    return {f"model.{key}": value for key, value in model.items()} | flat(others)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one mapping of dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves
