"""How tensors' memory is kept, and in which pages it lies, as Linux says of a process of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli import heap

IS_GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PAGES = """
import resource, sys
from transformer_cli import heap

def used():
    for number in range(20):
        blocks = [b"x" * (12 << 20) for _ in range(4)]
        del blocks

if "keeps" in sys.argv:
    heap.keep()
used()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
used()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Pages that the system gives to a process that uses and frees the same 48 MiB twenty times, 12,288 pages each time."""


@pytest.mark.skipif(not IS_GLIBC, reason="this is of glibc's memory")
@pytest.mark.parametrize(
    ("said", "own", "is_kept"),
    [("keeps", {}, True), ("", {}, False), ("keeps", {"MALLOC_TRIM_THRESHOLD_": "0"}, False)],
)
def test_what_is_freed_is_kept_for_what_comes_next_unless_the_user_wants_otherwise(said, own, is_kept):
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PAGES, said], env=unset | own, check=True, stdout=subprocess.PIPE, text=True
    )
    assert (int(done.stdout) < 1000) is is_kept


def test_what_was_taken_at_most_is_known_when_it_is_given_back():
    """Also where this process was larger itself."""
    code = "from transformer_cli import heap; a = heap.most_taken(); b'x' * (300 << 20); print(heap.most_taken() - a)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert 270 << 20 < int(done.stdout) < 330 << 20


ADVISED = """
import resource, sys
from pathlib import Path
from transformer_cli import heap

def advised():
    '''MiB of the heap that Linux is asked to put into large pages.'''
    size, found = 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_heap = line.endswith("[heap]")
        elif line.startswith("Size:"):
            size = int(line.split()[1])
        elif line.startswith("VmFlags:") and is_heap and "hg" in line.split():
            found += size // 1024
    return found

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
"""

GROWTH = """
heap.keep()
blocks = []
for more in (120, 120, 0):
    blocks += [bytes(1 << 20) for _ in range(more)]
    heap.enlarge_pages()
    print(advised())
"""

ROOM = """
if "limited" in sys.argv:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
heap.keep()
free = [bytes(20 << 20) for _ in range(3)]  # what the heap has, and nobody uses
del free
before = resident()
heap.make_room(int(sys.argv[1]) << 20)
room = advised()
print(room, resident() - before)
heap.make_room(int(sys.argv[1]) << 20)  # as by the next training in the same process
print(advised() - room)
"""


def of_process(program: str, *arguments: str, own: dict[str, str] | None = None) -> list[int]:
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", ADVISED + program, *arguments]
    done = subprocess.run(command, env=unset | (own or {}), check=True, stdout=subprocess.PIPE, text=True)
    return [int(word) for word in done.stdout.split()]


of_large_pages = pytest.mark.skipif(
    not IS_GLIBC or not LARGE_PAGES.exists(), reason="this is of glibc and of Linux' large pages"
)


@of_large_pages
@pytest.mark.parametrize(("own", "is_advised"), [({}, True), ({"MALLOC_TOP_PAD_": "0"}, False)])
def test_what_the_heap_has_grown_by_lies_in_large_pages_unless_the_user_wants_otherwise(own, is_advised):
    first, second, third = of_process(GROWTH, own=own)
    if is_advised:
        assert 100 <= first < second == third
    else:
        assert first == second == third == 0


@of_large_pages
@pytest.mark.parametrize(("weights", "room"), [(10, 512 + 5 * 10), (100, 512 + 5 * 100), (10_000, 2046)])
def test_room_for_training_is_reserved_in_large_pages_and_takes_no_memory_before_it_is_used(weights, room):
    reserved, taken, more = of_process(ROOM, str(weights))
    assert room <= reserved < room + 100
    assert taken <= 16
    assert more == 0


@of_large_pages
def test_nothing_is_reserved_where_a_process_may_not_have_what_it_likes():
    assert of_process(ROOM, "10", "limited") == [0, pytest.approx(0, abs=2), 0]


class Stuck:
    """glibc where the heap cannot grow, so that all memory comes from elsewhere."""

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.most = 0

    def sbrk(self, n: int) -> int:
        return 4096

    def mallopt(self, option: int, value: int) -> int:
        return 1

    def malloc(self, n: int) -> int:
        assert self.most < 1000, "no end"
        self.most += 1
        self.taken.add(self.most)
        return self.most

    def free(self, block: int) -> None:
        self.taken.remove(block)


def test_room_is_not_asked_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    monkeypatch.setattr(heap, "_heap", stuck)
    monkeypatch.setattr(heap, "_room", 0)
    monkeypatch.setattr(heap, "_end", 4096)
    heap.make_room(1)
    assert stuck.most > 0
    assert not stuck.taken
