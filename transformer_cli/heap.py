"""The memory that tensors take: kept when they free it, and in large pages, as far as the system lets a process choose.

Neither is done over what the user has set for glibc.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
LARGE_PAGE = 2 * 1024 * 1024
LARGEST_KEPT, GROWS_BY, MOST_AT_ONCE = 16 * LARGE_PAGE, 32 * LARGE_PAGE, 2**31 - LARGE_PAGE
MOST_BLOCKS = 64
BESIDE_WEIGHTS, FOR_A_BATCH = 5, 256 * LARGE_PAGE
"""Gradients, two moments, an average and, in bf16, copies; and, of what a batch takes, what small ones do."""

_heap: Any = None
_end = _room = 0


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
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _heap, _end = libc, -(-libc.sbrk(0) // LARGE_PAGE) * LARGE_PAGE


def most_taken() -> int:
    """Bytes that this process had at a time at most, until now: on Linux without what it was before it became this
    program, which getrusage counts, too."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"))):
        return 1024 * int(found[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def make_room(weights: int) -> None:
    """Let the heap reserve in one go about what training takes, or as much as glibc can: there pages are large from the
    start. Where a process may not reserve what it likes, the heap grows as it has to. weights: bytes of all."""
    global _room
    room = min(BESIDE_WEIGHTS * weights + FOR_A_BATCH, MOST_AT_ONCE)
    if _heap is None or room <= _room or is_limited():
        return
    _room, end, blocks = room, _heap.sbrk(0), list[int]()
    _heap.mallopt(M_TOP_PAD, room)
    # What is free already comes first; and a heap that cannot grow never does.
    while _heap.sbrk(0) == end and len(blocks) < MOST_BLOCKS and (block := _heap.malloc(LARGEST_KEPT // 2)):
        blocks.append(block)
    for block in blocks:
        _heap.free(block)
    _heap.mallopt(M_TOP_PAD, GROWS_BY)
    enlarge_pages()


def is_limited() -> bool:
    """Whether the user limits how much memory a process may reserve (`ulimit -v`, `-d`)."""
    try:
        import resource  # not on Windows
    except ImportError:
        return False
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits)


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
