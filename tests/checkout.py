"""Whether the tests leave the checkout as they found it."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULTS = ("runs", "data")
"""Where `tx` writes. Elsewhere somebody may be at work while the tests run, and only what is new is theirs."""


def contents(folder: Path = REPOSITORY) -> dict[Path, int]:
    """Every file and folder in a folder by its path from there, with the time of the last change of a file.

    Hidden folders and `__pycache__` are left out: they belong to tools.
    """
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        paths = {name: Path(place, name) for name in (*folders, *files)}
        for name, path in paths.items():
            found[path.relative_to(folder)] = path.lstat().st_mtime_ns if name in files else 0
    return found


def left_behind(before: dict[Path, int], after: dict[Path, int]) -> list[Path]:
    """What is new, and which results are others than they were."""
    return sorted(
        path
        for path, changed in after.items()
        if path not in before or (path.parts[0] in RESULTS and changed != before[path])
    )
