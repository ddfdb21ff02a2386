"""No command is silent for long on a terminal, and nothing but its words goes anywhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_live import on_a_terminal

from transformer_cli.cli.pulse import Pulse

PREPARED = """
import sys, time
from transformer_cli.cli import app, console, pulse
pulse.PATIENCE_S, pulse.PERIOD_S = 0.05, 0.01
console.open_streams()
if console.has_cursor():
    console.pulse.start()
"""
GONE = "\r\x1b[K"


def command(body: str) -> list[str]:
    """A program that begins as tx does, and then does what the body says."""
    return [sys.executable, "-c", f"{PREPARED}{body}"]


def test_who_waits_reads_what_for_and_for_how_long_until_there_is_something_to_read() -> None:
    body = "with console.pulse.doing('drawing'): time.sleep(0.4)\nconsole.result('the end')\napp.leave(0)"
    code, seen = on_a_terminal(command(body))
    signs, _, end = seen.rpartition(GONE)
    assert (code, end) == (0, "the end\r\n")
    assert len(set(re.findall("[◐◓◑◒] drawing  0:00", signs))) == 4


@pytest.mark.parametrize("body", ["time.sleep(0.4)", "console.be_quiet(); time.sleep(0.4)"])
def test_a_pipe_and_who_asked_for_quiet_get_nothing(body: str) -> None:
    piped = subprocess.run(command(body), capture_output=True, check=True)
    assert piped.stdout + piped.stderr == b""
    is_quiet = "quiet" in body
    assert ("working" in on_a_terminal(command(body))[1]) is not is_quiet
    assert on_a_terminal(command(body), TERM="dumb") == (0, "")


@pytest.mark.parametrize(
    "body",
    [
        "with console.pulse.paused(): impatient()",
        "sys.stdout.write('half a line')\nsys.stdout.flush(); impatient()",
        "import threading, os; ours, theirs = os.pipe(); os.dup2(ours, 0)\n"
        "def typing():\n    while not console.pulse._n_pauses: time.sleep(0.01)\n"
        "    impatient(); os.write(theirs, b'typed')\n"
        "threading.Thread(target=typing).start(); sys.stdin.read(1)",
    ],
    ids=["paused", "within a line", "typing"],
)
def test_there_is_no_sign_where_it_would_be_in_somebodys_way(body: str) -> None:
    """While a bar is drawn, behind words that have no end yet, and where a person types; what comes before and after
    may take as long as it likes."""
    patient = PREPARED.replace("PATIENCE_S, pulse.PERIOD_S = 0.05", "PATIENCE_S, pulse.PERIOD_S = 60")
    patient += "def impatient():\n    pulse.PATIENCE_S = 0.05; time.sleep(0.4); pulse.PATIENCE_S = 60\n"
    assert "working" not in on_a_terminal([sys.executable, "-c", f"{patient}{body}\napp.leave(0)"])[1]
    seen = on_a_terminal([sys.executable, "-c", f"{patient}impatient()\napp.leave(0)"])[1]
    assert "working" in seen, "it would have come"


@pytest.mark.parametrize(("name", "title"), [("torch", "PyTorch"), ("matplotlib", "Matplotlib")])
def test_what_is_imported_has_a_name_whoever_asks_for_it(name: str, title: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("import time; time.sleep(0.4)", encoding="utf-8")
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    assert f"loading {title}  0:00" in on_a_terminal(command(f"import {name}\napp.leave(0)"), PYTHONPATH=path)[1]


def test_whoever_is_forked_can_speak() -> None:
    """Even where the sign was being drawn at that moment, by somebody who is not there any more."""
    body = "import os, signal, threading\nlock, is_held = console.pulse._lock, threading.Event()\n"
    body += "def draw():\n    with lock: is_held.set(); time.sleep(0.3)\n"
    body += "threading.Thread(target=draw).start(); is_held.wait()\nif os.fork() == 0:\n"
    body += "    signal.alarm(5); console.say('from the child'); os._exit(0)\n"
    body += "app.leave(os.waitstatus_to_exitcode(os.wait()[1]) != 0)"
    code, seen = on_a_terminal(command(body))
    assert code == 0
    assert "from the child\r\n" in seen


def test_every_command_has_one_from_its_start(tmp_path: Path) -> None:
    body = "sys.argv = ['tx', 'runs']; app.main = lambda arguments: time.sleep(0.4) or 0; app.run()"
    unprepared = PREPARED.partition("console.open_streams")[0]
    assert "working" in on_a_terminal([sys.executable, "-c", unprepared + body])[1]


def test_the_end_waits_for_nothing_but_what_was_asked_for() -> None:
    body = "import atexit; atexit.register(print, 'told')\nclass Slow:\n    def __del__(self): print('freed')\n"
    body += "kept = Slow(); print('half', end=' '); app.leave(3)"
    ended = subprocess.run(command(body), capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, b"half told\n")


def test_a_terminal_that_takes_nothing_right_now_costs_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, data: (_ for _ in ()).throw(BlockingIOError()))
    one = Pulse(lambda: True, lambda: 80)
    one._is_shown = True
    one.hush(b"a word")
    assert not one._is_shown
