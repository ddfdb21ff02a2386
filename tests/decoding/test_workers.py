"""Processes that share batches: what they find, and that none is left whatever happens."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from conftest import PAIRS

from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.translator import Translator
from transformer_cli.decoding.workers import Found, _Left, spread, worth
from transformer_cli.errors import DivergedError, ResourceError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere one process translates")
SOURCES = [source for source, _ in PAIRS]


def children() -> set[str]:
    """Of this process; other tests may have left some that are still of use."""
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def found_for(number: int) -> Found:
    return [[Hypothesis((number, 7), -number / 3, truncated=number % 2 == 0), Hypothesis((), -0.1)]]


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_every_batch_is_found_once_and_to_the_bit(workers: int) -> None:
    found = list(spread(found_for, 7, workers=workers))
    assert sorted(found) == [(number, found_for(number)) for number in range(7)]


def test_processes_that_ask_at_the_same_moment_take_other_batches() -> None:
    """Linux let both read the same one: of 100,000, two processes took thousands twice."""
    n = 100_000
    left = _Left(n)
    taken, into = os.pipe()
    begin, gate = os.pipe()
    processes = []
    for _ in range(2):
        processes.append(os.fork())
        if processes[-1] == 0:
            try:
                os.close(gate)
                os.read(begin, 1)  # until all are there
                numbers = list(left)
                os.write(into, f"{len(numbers)} {sum(numbers)}\n".encode())
            finally:
                os._exit(0)
    for end in (gate, begin, into):
        os.close(end)
    assert [os.waitpid(process, 0)[1] for process in processes] == [0, 0]
    with open(taken) as file:
        counts, sums = zip(*(map(int, line.split()) for line in file), strict=True)
    left.close()
    assert (sum(counts), sum(sums)) == (n, sum(range(n)))
    assert min(counts) > 0


def test_whoever_is_free_takes_the_next_batch(tmp_path: Path) -> None:
    """The first batch takes until all others are done, so another process does them."""

    def work(number: int) -> Found:
        deadline = time.monotonic() + 30
        while number == 0 and len(list(tmp_path.iterdir())) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        (tmp_path / str(number)).touch()
        return [[Hypothesis((os.getpid(), os.getppid()), 0.0)]]

    found = {number: several[0][0].ids for number, several in spread(work, 7, workers=2)}
    assert {parent for _, parent in found.values()} == {os.getpid()}
    first, *others = (process for _, (process, _) in sorted(found.items()))
    assert len({first, os.getpid(), *others}) == 3
    assert first not in others


def broken(number: int) -> NoReturn:
    raise DivergedError("line 12: no numbers", hint="another checkpoint")


def buggy(number: int) -> NoReturn:
    raise KeyError("nobody")


def needy(number: int) -> NoReturn:
    raise MemoryError


def killed(number: int) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.parametrize(
    ("work", "kind", "message"),
    [
        (broken, DivergedError, "line 12: no numbers"),
        (needy, ResourceError, "a process that translated failed: MemoryError: "),
        (killed, ResourceError, "a process that translated was ended by SIGKILL"),
    ],
)
def test_what_one_of_them_fails_by_ends_all_with_its_message(work, kind, message) -> None:
    def sometimes(number: int) -> Found:
        return work(number) if number == 3 else found_for(number)

    with pytest.raises(kind) as failure:
        list(spread(sometimes, 400, workers=2))
    assert failure.value.message == message
    assert failure.value.hint


def test_a_bug_in_one_of_them_is_one_here_with_its_place() -> None:
    """It was told to be memory, perhaps, with an exit code of its own."""
    with pytest.raises(RuntimeError, match="a process that translated failed: KeyError: 'nobody'") as failure:
        list(spread(buggy, 3, workers=2))
    assert "in buggy" in str(failure.value.__cause__)


def test_the_first_batch_that_fails_is_told_whoever_fails_first() -> None:
    """As one process would come to it; what is not begun by then is left."""

    def work(number: int) -> Found:
        time.sleep(0.5 if number == 0 else 0)
        if number < 2:
            raise DivergedError(f"batch {number}")
        return found_for(number)

    found = []
    with pytest.raises(DivergedError, match="batch 0"):
        found.extend(spread(work, 9, workers=2))
    assert found == []


def test_once_one_fails_nobody_begins_another_batch() -> None:
    def work(number: int) -> Found:
        if number == 0:
            raise DivergedError("batch 0")
        time.sleep(0.01)
        return found_for(number)

    found = []
    with pytest.raises(DivergedError, match="batch 0"):
        found.extend(spread(work, 400, workers=2))
    assert len(found) < 200


@pytest.mark.parametrize("fails", ["fork", "pipe"])
def test_where_no_process_can_be_started_it_says_so_and_what_to_do(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], getattr(os, fails)

    def failing(*args: object) -> object:
        calls.append(args)
        if len(calls) == 3:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(*args)

    monkeypatch.setattr(os, fails, failing)
    with pytest.raises(ResourceError) as failure:
        list(spread(lambda number: time.sleep(60) or [], 9, workers=4))
    assert failure.value.message == "no process can be started to translate: Resource temporarily unavailable"
    assert failure.value.hint == "decoding.workers=1 translates in one process"


def test_none_is_left_where_the_one_that_forked_them_is_killed(tmp_path: Path) -> None:
    """Each of their answers fills a pipe; one that held the end that is read from would wait for ever."""

    def work(number: int) -> Found:
        (tmp_path / str(os.getpid())).touch()
        return [[Hypothesis(tuple(range(50_000)), 0.0)]]

    if (process := os.fork()) == 0:
        try:
            listening = spread(work, 1000, workers=3)  # held: who lets go of it ends them in good order
            next(listening)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    begun = [path.name for path in tmp_path.iterdir()]
    assert begun
    end = time.monotonic() + 30
    while any(is_alive(name) for name in begun) and time.monotonic() < end:
        time.sleep(0.05)
    left = [name for name in begun if is_alive(name)]
    for name in left:
        os.kill(int(name), signal.SIGKILL)
    assert not left


def is_alive(process: str) -> bool:
    """And no ghost, which nobody may have waited for."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_the_forking_process_left_to_be_cleared_away_is_left_to_it() -> None:
    """An engine that is garbage waits for its threads, which no other process has."""

    class Engine:
        def __init__(self) -> None:
            self.owner, self.myself = os.getpid(), self

        def __del__(self) -> None:
            if os.getpid() != self.owner:
                os._exit(9)

    def work(number: int) -> Found:
        gc.collect()
        return []

    gc.disable()
    try:
        Engine()
        assert sorted(spread(work, 2, workers=2)) == [(0, []), (1, [])]
    finally:
        gc.enable()


def test_whoever_stops_listening_ends_them() -> None:
    def endless(number: int) -> Found:
        while number == 1:
            signal.pause()
        return found_for(number)

    listening = spread(endless, 2, workers=2)
    assert next(listening) == (0, found_for(0))
    listening.close()


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translator_with_several_says_the_same_to_the_bit(trained_run: Path, beam_size: int) -> None:
    run = open_run(find_checkpoint(str(trained_run)))
    config = run.config.decoding.model_copy(update={"batch_size": 2, "beam_size": beam_size})
    lines = [*SOURCES, "", " ".join(SOURCES), *reversed(SOURCES)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone, several = (
            Translator(run.model, run.tokenizer, config, source_eos=True, max_length=20, workers=workers)
            for workers in (1, 3)
        )
        done: list[int] = []
        assert several.translate_all(lines, n_best=beam_size, progress=done.append) == alone.translate_all(
            lines, n_best=beam_size
        )
    finally:
        torch.set_num_threads(threads)
    assert sum(done) == len(lines)


def test_processes_are_as_many_as_threads_where_each_has_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [worth("auto", n) for n in (0, 1, 3, 4, 6, 100)] == [1, 1, 1, 2, 3, 4]
    assert [worth(3, n) for n in (0, 1, 2, 100)] == [1, 1, 2, 3]
    monkeypatch.setattr("sys.platform", "darwin")
    assert worth(3, 100) == 1
