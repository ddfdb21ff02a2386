"""What a buffer writes into: a descriptor, by calls that may be refused."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

FULLY = getattr(fcntl, "F_FULLFSYNC", None)
"""What macOS has to be asked, for `fsync` there leaves what was written in the disk's own memory: a power cut takes it,
and may leave what was written later."""


class Descriptor(io.RawIOBase):
    """A file being written."""

    def __init__(self, descriptor: int, write: Callable[[memoryview], int], close: Callable[[], None]) -> None:
        """write: takes what it can, and returns how much that is. close: is called once."""
        self.descriptor = descriptor
        self.abandoned = False
        """Whether what is still to be written is forgotten."""
        self._write, self._close = write, close

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self.descriptor, offset, whence)

    def write(self, data: Any) -> int:
        return len(data) if self.abandoned else self._write(memoryview(data))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._close()


def flush(descriptor: int) -> None:
    """Until the disk has what was written, and keeps it without power."""
    if FULLY is not None:
        with suppress(OSError):  # a file system that knows only the other, as a server's; that says what fails, too
            fcntl.fcntl(descriptor, FULLY)
            return
    os.fsync(descriptor)
