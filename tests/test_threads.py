"""Whatever works in the background, the program ends as it would have without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_cli import threads
from transformer_cli.threads import Companion

COMPUTE = """
import torch
from transformer_cli.threads import Companion

def compute(over):
    while not over.is_set():
        torch.zeros(8).add_(1)

for _ in range(4):
    Companion(compute, name="computing").start()
"""

LEAVE_BATCHES = """
import numpy as np
import torch
from transformer_cli.data.loader import batches

class Slow:
    def sources(self, indices):
        for _ in range(300_000):
            torch.zeros(8).add_(1)
        return [[4, 5, 6, 3] for _ in indices]
    def targets(self, indices):
        return [[4, 5, 6] for _ in indices]

made = batches(Slow(), [np.arange(2)] * 3)
next(made)
"""

GATHER = """
import itertools
import torch
from transformer_cli import spinning

torch.set_num_threads(2)
spinning.EVERY_S = 0.0
looks = itertools.accumulate(itertools.cycle([0, 1]))  # threads stand in line every other time: a crowd comes and goes
spinning.in_line_s = lambda: next(looks)
spinning.Courtesy.saw = lambda self, in_line, seconds: in_line > 0
spinning._watch(2)
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    script = "import sys, time\n" + code + "\ntime.sleep(0.2)\nprint('done', flush=True)\nsys.exit(7)\n"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("code", [COMPUTE, LEAVE_BATCHES, GATHER], ids=["compute", "batches", "crowd"])
def test_a_program_ends_as_it_wants_to_while_threads_are_at_work(code):
    found = ended(code)
    assert (found.returncode, found.stdout, found.stderr) == (7, "done\n", "")


def test_threads_that_begin_others_are_ended_with_them():
    inner = []

    def outer(over):
        over.wait()
        inner.append(Companion(lambda over: over.wait(), name="inner"))
        inner[0].start()

    thread = Companion(outer, name="outer")
    thread.start()
    threads._end()
    assert not thread.is_alive()
    assert not inner[0].is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_does_not_wait_for_threads_that_are_not_there():
    thread = Companion(lambda over: over.wait(), name="waiting")
    thread.start()
    process = os.fork()
    if process == 0:
        threads._end()
        os._exit(5)
    deadline, found = time.monotonic() + 30, (0, 0)
    while found[0] == 0 and time.monotonic() < deadline:
        found = os.waitpid(process, os.WNOHANG)
        time.sleep(0.01)
    thread.end()
    if found[0] == 0:
        os.kill(process, 9)
        os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(found[1]) == 5


def test_no_other_thread_outlives_the_program_in_library_code():
    """pulse has none; the watch of several processes ends them itself, with everything."""
    allowed = {"threads.py", "cli/pulse.py", "training/watching.py"}
    package = Path(threads.__file__).parent
    found = {p.relative_to(package).as_posix() for p in package.rglob("*.py") if "daemon=True" in p.read_text("utf-8")}
    assert found == allowed
