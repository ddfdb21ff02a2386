"""The memory that tensors take: kept when they free it, and in large pages, as far as the system lets a process choose.

Neither is done over what the user has set for glibc.
"""

from __future__ import annotations

import os
import sys
from typing import Any

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
LARGE_PAGE = 2 * 1024 * 1024
GROWS_BY, LARGEST_KEPT = 32 * LARGE_PAGE, 32 * 1024 * 1024

_heap: Any = None
_end = 0


def keep() -> None:
    """Let glibc keep what tensors free for those that come next: to return it to the system after an update and to
    take it again, page by page and each one cleared, is a tenth of training.

    What is larger than `LARGEST_KEPT`, the most that glibc allows, is returned all the same.
    """
    global _heap, _end
    is_set = "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ)
    if sys.platform != "linux" or is_set or _heap is not None:
        return
    import ctypes

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    libc.mallopt(M_TRIM_THRESHOLD, -1)
    libc.mallopt(M_TOP_PAD, GROWS_BY)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _heap, _end = libc, -(-libc.sbrk(0) // LARGE_PAGE) * LARGE_PAGE


def enlarge_pages() -> None:
    """Let what the heap has grown by since the last time lie in pages of 2 MiB, in place of 4 KiB: a processor finds
    its way to them sooner. Where it has not grown, that takes microseconds.

    Linux before 6.1 does so only with what is not in use yet, and in the course of minutes.
    """
    global _end
    if _heap is None or (end := _heap.sbrk(0)) <= _end:
        return
    begin, _end = _end // LARGE_PAGE * LARGE_PAGE, end
    for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
        _heap.madvise(begin, end - begin, advice)
