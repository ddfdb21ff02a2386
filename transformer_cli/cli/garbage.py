"""Python's search for garbage does not go through libraries: what they are made of stays."""

from __future__ import annotations

import gc
from typing import Any

from transformer_cli.cli.pulse import library


def spare_libraries() -> None:
    """From now on. While PyTorch makes its 250,000 objects all that there are would be looked through again and again,
    a tenth of the time that it takes to load, and later for 0.15 s each time."""
    gc.callbacks.append(_spare)


def _spare(phase: str, info: dict[str, Any]) -> None:
    if phase == "start" and library() is not None:
        gc.freeze()
