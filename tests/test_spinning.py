"""Threads that wait sleep beside others who compute, and spin again when those are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli import environment, spinning
from transformer_cli.machine import Machine
from transformer_cli.spinning import CROWDED, EVERY_S, LONGEST_S, SHORTEST_S, Courtesy, in_line_s

IN_LINE, ALONE = 2 * CROWDED * EVERY_S, 0.0
HASTE = SimpleNamespace(wait=lambda seconds: False)
"""What is never over, and waits for nothing."""


def said(courtesy: Courtesy, waits: list[float]) -> list[bool]:
    return [courtesy.saw(waited, EVERY_S) for waited in waits]


def test_threads_sleep_as_soon_as_others_are_there_and_spin_once_they_have_been_gone_for_a_while():
    while_ = round(SHORTEST_S / EVERY_S)
    courtesy = Courtesy()
    assert said(courtesy, [ALONE] * 20 * while_ + [IN_LINE]) == [False] * 20 * while_ + [True]
    assert said(courtesy, [ALONE] * while_) == [True] * (while_ - 1) + [False]


def test_spinning_that_was_too_early_is_tried_after_twice_as_long_within_limits():
    courtesy, tries = Courtesy(), []
    for _ in range(8):
        assert courtesy.saw(IN_LINE, EVERY_S)
        tries.append(EVERY_S)
        while courtesy.saw(ALONE, EVERY_S):
            tries[-1] += EVERY_S
    expected = [min(SHORTEST_S * 2**n, LONGEST_S) for n in range(1, 9)]
    assert tries == expected
    said(courtesy, [ALONE] * round(2 * LONGEST_S / EVERY_S))
    assert courtesy.saw(IN_LINE, EVERY_S)
    assert courtesy.patience_s == SHORTEST_S


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 2)), max_size=200))
def test_whoever_stands_in_line_is_never_spun_at(looks):
    courtesy = Courtesy()
    for waited, seconds in looks:
        asleep = courtesy.saw(waited, seconds)
        assert asleep or waited <= CROWDED * seconds


A_CROWD = """
import os, time, torch
from transformer_cli.environment import processors
from transformer_cli.spinning import Crowd

def become(threads):
    deadline = time.monotonic() + 60
    while (now := len(os.listdir("/proc/self/task"))) != threads and time.monotonic() < deadline:
        time.sleep(0.01)
    print(now == threads, now, threads)

torch.set_num_threads(2)
torch.zeros(2 << 15).add_(1)  # the team that computes
before, crowd = len(os.listdir("/proc/self/task")), Crowd(2)
crowd.gather()
crowd.gather()
# libgomp counts the two that compute, and one more for each team that idles: its other thread.
become(before + 2 * (processors() - 1))
crowd.leave()
become(before)
"""
"""A process of its own: whoever runs the tests begins and ends threads meanwhile, too."""


@pytest.mark.skipif(not environment.tells_who_waits(), reason="this system does not tell")
def test_a_crowd_is_more_threads_than_processors_and_goes_when_it_is_to():
    done = subprocess.run([sys.executable, "-c", A_CROWD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["True", "True"], done.stdout


@pytest.mark.skipif(not environment.tells_who_waits(), reason="this system does not tell")
def test_beside_a_process_on_the_same_processor_threads_stand_in_line():
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{one}])\nwhile True: pass"
    allowed = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-IS", "-c", code]) as neighbour:
        try:
            os.sched_setaffinity(0, [one])
            before, deadline = in_line_s(), time.monotonic() + 20
            while in_line_s() < before + 0.2 and time.monotonic() < deadline:
                sum(range(10_000))
            assert in_line_s() >= before + 0.2
        finally:
            os.sched_setaffinity(0, allowed)
            neighbour.kill()


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"])
def test_nothing_is_done_where_the_user_has_said_how_to_wait(monkeypatch, name):
    for other in environment.WAITING:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "300")
    environment.prepare()
    assert not environment.spins_by_default()
    monkeypatch.delenv(name)
    environment.prepare()
    assert environment.spins_by_default() == environment.tells_who_waits()


def test_a_thread_that_ends_while_it_is_looked_at_counts_no_more(monkeypatch, tmp_path):
    """Between being opened and read it is `No such process`."""
    for task, said in (("1", "5 2000000000 7"), ("2", "")):
        (tmp_path / task).mkdir()
        (tmp_path / task / "schedstat").write_text(said, encoding="utf-8")
    (tmp_path / "3").mkdir()
    read = Path.read_text

    def ending(path: Path, encoding: str) -> str:
        if path.parent.name == "2":
            raise ProcessLookupError
        return read(path, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", ending)
    monkeypatch.setattr(spinning, "TASKS", tmp_path)
    assert in_line_s() == 2.0


def test_where_nobody_can_look_or_no_thread_can_be_started_all_stays_as_it_is(monkeypatch):
    """The process may be out of files or threads, for which it is not this thread to end with words."""
    looks, gathered = iter([OSError(24, "Too many open files"), 0.0, 5.0]), []

    def look():
        found = next(looks)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(spinning, "in_line_s", look)
    monkeypatch.setattr(spinning.Courtesy, "saw", lambda self, waited, seconds: waited > 0)
    crowd = spinning.Crowd(2)
    monkeypatch.setattr(crowd, "leave", lambda: gathered.append("left"))
    monkeypatch.setattr(threading.Thread, "start", lambda self: gathered.append("start") or refuse())
    with pytest.raises((StopIteration, RuntimeError)):
        spinning._look(crowd, HASTE)
    assert gathered[0] == "left"
    assert set(gathered[1:]) == {"start"}
    spinning.Crowd.leave(crowd)  # nobody is waited for who never came


def test_where_threads_are_limited_none_are_taken_that_others_may_need(monkeypatch):
    """libgomp ends the process where it can start none."""
    tries, started = [], []
    start = threading.Thread.start

    def alive() -> int:
        return sum(thread.is_alive() for thread in started)

    def limited(self):
        tries.append(self.name)
        if alive() >= 4:
            refuse()
        start(self)
        started.append(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    crowd = spinning.Crowd(2)
    try:
        crowd.gather()
        assert started
        assert "idle" not in tries
        n_tries = len(tries)
        crowd.gather()
        assert len(tries) == n_tries  # to try takes some, too, for a moment
    finally:
        crowd.leave()
    assert alive() == 0


def refuse():
    raise RuntimeError("can't start new thread")


def test_the_crowd_gathers_while_threads_stand_in_line_and_leaves_afterwards(monkeypatch):
    waits = iter([0.0, 1.0, 2.0, *[2.0] * 40])
    seconds, done = iter(range(100)), []

    class Seen:
        gather, leave = (lambda self: done.append("gather")), (lambda self: done.append("leave"))

    monkeypatch.setattr(spinning, "in_line_s", lambda: next(waits))
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(spinning, "time", clock)
    with pytest.raises((StopIteration, RuntimeError)):
        spinning._look(Seen(), HASTE)
    assert done[:3] == ["leave", "gather", "gather"]
    assert done[3:] == ["gather"] * (len(done) - 3 - done[3:].count("leave")) + ["leave"] * done[3:].count("leave")
    assert done[-1] == "leave"


@pytest.mark.parametrize(
    ("threads", "processors", "by_default", "tells", "limited", "watched"),
    [
        (2, 2, True, True, False, [2]),
        (1, 2, True, True, False, []),
        (2, 4, True, True, False, []),
        (2, 2, False, True, False, []),
        (2, 2, True, False, False, []),
        (2, 2, True, True, True, []),
    ],
)
def test_who_trains_or_translates_with_most_processors_is_watched(
    monkeypatch, threads, processors, by_default, tells, limited, watched
):
    started = []
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(spinning, "_watch", started.append)
    monkeypatch.setattr(spinning, "processors", lambda: processors)
    monkeypatch.setattr(spinning, "spins_by_default", lambda: by_default)
    monkeypatch.setattr(spinning, "tells_who_waits", lambda: tells)
    monkeypatch.setattr(spinning, "is_limited", lambda: limited)
    Machine("cpu", "fp32", "written-out", threads, "").use()
    assert started == watched


@pytest.mark.parametrize(("said", "tells"), [("5 3 1", True), ("0 0 0", False), ("", False), (None, False)])
def test_a_system_that_does_not_count_does_not_tell(monkeypatch, tmp_path, said, tells):
    place = tmp_path / "schedstat"
    if said is not None:
        place.write_text(said, encoding="utf-8")
    monkeypatch.setattr(environment, "OWN_TIMES", str(place))
    assert environment.tells_who_waits() is tells
