"""A directory for a while."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_cli.errors import ResourceError
from transformer_cli.files import aside, shown, writing
from transformer_cli.trouble import reason_of

ELSEWHERE = "TMPDIR may name another folder"


@contextmanager
def temporary_directory(there: Path | None = None) -> Iterator[Path]:
    """An empty directory where the system has room for such, or in the folder that is named; deleted when the block
    ends, and by every signal.

    Raises ResourceError where there is no such place; one that tells of what did not fit into the system's says that
    there may be others.
    """
    try:
        place = Path(there or tempfile.gettempdir(), "tx")
    except FileNotFoundError as failure:
        raise ResourceError(f"there is no temporary folder: {reason_of(failure)}", hint=ELSEWHERE) from failure
    try:
        with aside(place) as folder:
            with writing(folder):
                folder.mkdir(mode=0o700)
            yield folder
    except ResourceError as failure:
        if there is None and shown(place) in failure.message:
            failure.hint = f"{failure.hint}; {ELSEWHERE}" if failure.hint else ELSEWHERE
        raise


@contextmanager
def name_one() -> Iterator[None]:
    """Whoever asks meanwhile is named a temporary folder, be there none that takes anything: for libraries that ask
    when they are imported, and put nothing there."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = "/tmp"
        try:
            yield
        finally:
            tempfile.tempdir = None  # whoever needs one is told that there is none
    else:
        yield


def check_room(folder: Path, n_bytes: int) -> None:
    """ResourceError where so many bytes do not fit: before a library writes them that does not look whether it can."""
    with writing(folder):
        if shutil.disk_usage(folder).free < n_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
