"""A directory for a while."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_cli.files import aside, writing


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """An empty directory where the system has room for such; deleted when the block ends, and by every signal."""
    with aside(Path(tempfile.gettempdir(), "tx")) as folder:
        with writing(folder):
            folder.mkdir(mode=0o700)
        yield folder
