"""Measurements by turns: each a process of its own, beside what the machine's products and its other processes did."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

Facts = dict[str, Any]
Products = Callable[[], dict[str, float]]
LIMIT_S = 900.0
"""A turn that takes longer has failed."""
GAUGED = frozenset({"fp32", "bf16"})
"""What the gauge measures, where the processor has it."""
GAUGE = """
import json, sys
from transformer_cli.machine import DTYPES, product_rate
from transformer_cli.processor import imitates
there = [name for name in ("fp32", "bf16") if not imitates(name, "cpu")]
for line in sys.stdin:
    print(json.dumps({name: round(product_rate(DTYPES[name], seconds=0.2), 1) for name in there}), flush=True)
"""


class FailedError(Exception):
    """A contestant has no figure, and this is why."""


@dataclass(frozen=True)
class Turn:
    """What one process said and took. foreign: the share of the machine's processors that others had meanwhile; None
    where the system does not say. products: GFLOP/s just before."""

    facts: Facts
    wall_s: float
    cpu_s: float
    peak_mib: int
    foreign: float | None
    products: dict[str, float] = field(default_factory=dict)


@dataclass
class Results:
    """Of one contest. load: shares of the processors that others had just before and after each round that counts."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    thrown: list[str] = field(default_factory=list)
    load: list[tuple[float | None, float | None]] = field(default_factory=list)


def by_turns(
    commands: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    most_foreign: float,
    measure: Callable[[Sequence[str]], Turn],
    load: Callable[[], float | None],
    tell: Callable[[str], None],
) -> Results:
    """Everybody once, and again. A round in which others had more of the processors, or just before or after it, is
    over at once, counts for nobody, and is begun anew, as often as there are rounds; who fails once is out."""
    results = Results(turns={name: [] for name in commands})
    while len(results.load) < rounds and len(results.thrown) < rounds:
        before, this_round = load(), {}
        disturbed = _disturbed(before, most_foreign, "before it")
        for name, command in commands.items():
            if name in results.failed or disturbed:
                continue
            try:
                turn = this_round[name] = measure(command)
            except FailedError as failure:
                results.failed[name] = str(failure)
                tell(f"{name}: {failure}")
                continue
            tell(f"round {len(results.load) + 1}, {name}: {turn.wall_s:.1f} s")
            disturbed = _disturbed(turn.foreign, most_foreign, f"beside {name}")
        after = None if disturbed else load()
        if disturbed := disturbed or _disturbed(after, most_foreign, "after it"):
            results.thrown.append(disturbed)
            tell(f"round thrown away: {disturbed}")
            continue
        for name, turn in this_round.items():
            results.turns[name].append(turn)
        results.load.append((before, after))
    return results


def _disturbed(foreign: float | None, most: float, when: str) -> str:
    """Why a round does not count, if it does not."""
    is_too_much = foreign is not None and foreign > most
    return f"others had {100 * foreign:.0f} % of the processors {when}" if is_too_much else ""


def run(command: Sequence[str], products: dict[str, float], *, environment: Mapping[str, str] | None = None) -> Turn:
    """One turn: the command in a folder of its own; the last line that it prints, if it is JSON, is what it says.
    FailedError where it ends badly or not in time. No peak is less than what this process itself has in memory."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        tempfile.TemporaryFile("w+", encoding="utf-8") as complained,
    ):
        start, busy, own = time.perf_counter(), busy_s(), time.process_time()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            start_new_session=True,
        )
        code, usage, late = _wait(process)
        wall_s, busy_after = time.perf_counter() - start, busy_s()
        cpu_s = usage.ru_utime + usage.ru_stime
        if code:
            said = last_line(complained, but="hint:")
            reason = f"not over after {LIMIT_S:.0f} s" if late else said or f"exit code {code}"
            raise FailedError(reason)
        line = last_line(said)
    foreign = None
    if busy is not None and busy_after is not None:
        foreign = share(busy_after - busy - cpu_s - (time.process_time() - own), wall_s)
    facts = json.loads(line) if line.startswith("{") else {}
    peak_mib = usage.ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    return Turn(facts, round(wall_s, 3), round(cpu_s, 2), peak_mib, foreign, products)


def share(seconds: float, wall_s: float) -> float:
    """Of all processors; Linux counts in hundredths of a second, so that a short while can seem to have more."""
    return round(min(1.0, max(0.0, seconds) / wall_s / (os.cpu_count() or 1)), 3)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage, bool]:
    """How it ended, what it and those that it waited for took, and whether it had to be ended."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(LIMIT_S, end)
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        end()
        raise
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage, late.is_set()


def last_line(file: IO[str], *, but: str | None = None) -> str:
    """That says anything. but: how one begins that does not count."""
    file.seek(0)
    lines = (line.strip() for line in reversed(file.read().split("\n")))
    return next((line for line in lines if line and not (but and line.startswith(but))), "")


def busy_s() -> float | None:
    """Seconds that the processors worked so far, for whomever, the host's other guests included; None where no
    /proc/stat says it."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def load(seconds: float = 1.0) -> float | None:
    """The share of the processors that others have, while we wait."""
    before = busy_s()
    time.sleep(seconds)
    after = busy_s()
    return None if before is None or after is None else share(after - before, seconds)


@contextlib.contextmanager
def gauge(threads: int) -> Iterator[Products]:
    """What says how fast products of matrices are now: a process that has torch, so that nobody else needs it."""
    with subprocess.Popen(
        [sys.executable, "-c", GAUGE],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answered = process.stdin, process.stdout

        def products() -> dict[str, float]:
            print(file=asked, flush=True)
            return dict(json.loads(answered.readline()))

        try:
            yield products
        finally:
            asked.close()


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least, most."""
    return statistics.median(values), min(values), max(values)
