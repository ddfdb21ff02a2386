"""How fast `tx serve` answers many clients, beside `tx translate -i FILE`, by turns; and that each gets his own answer.

    python scripts/benchmark/serving.py --run runs/tiny --text lines.de [--clients 50] [--lines 1000] [--rounds 3]

One line of JSON for each contestant: sentences/s of each round, the median, how much that is of the command's in the
same round (median of ratios), processor seconds of a thousand sentences, which neighbours change less; and of the
service the median and the 99th percentile of seconds from a question to its answer, and how many answers were lost, or
not the command's for that line; those are shown on stderr.

The command's time is that of the whole file less that of one line, so that its start does not count; `one process` is
without `decoding.workers`, which a service has not. A client sends a sentence, waits for its translation, and sends the
next. `beside strangers`: while others hold as many connections without ever finishing a request, and send garbage and
bodies that are too large. Clients are threads of one process, on the same machine as the service.
For Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

TX = [sys.executable, "-m", "transformer_cli"]
JSON = {"Content-Type": "application/json"}
LATENCIES = {"p50_s": 0.5, "p99_s": 0.99}


@dataclass
class Found:
    """Of one contestant: rates and processor seconds by round; of the service, seconds of each answer, too."""

    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    n_lost: int = 0
    n_other: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options = parser.parse_args()
    lines = Path(options.text).read_text(encoding="utf-8").split("\n")[: options.lines]
    lines = [line for line in lines if line.strip()]
    settings = ["-q", "-m", options.run, *(f"--set={setting}" for setting in options.settings)]
    found = {name: Found() for name in ("command", "command, one process", "service", "service beside strangers")}
    with tempfile.TemporaryDirectory() as folder, serving(settings) as (address, process):
        expected = command(lines, settings, Path(folder), Found())
        ask(address, process, lines[:100], options.clients, expected, Found())  # the first ones meet new shapes
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            command(lines, settings, Path(folder), found["command"])
            command(lines, [*settings, "--set=decoding.workers=1"], Path(folder), found["command, one process"])
            ask(address, process, lines, options.clients, expected, found["service"])
            with strangers(address, options.clients):
                ask(address, process, lines, options.clients, expected, found["service beside strangers"])
    for name, one in found.items():
        print(json.dumps({"who": name, **facts(one, found["command"], len(lines))}), flush=True)


def facts(one: Found, command: Found, n_lines: int) -> dict[str, object]:
    ratios = [rate / other for rate, other in zip(one.rates, command.rates, strict=True)]
    said: dict[str, object] = {"sentences_per_s": [round(rate, 1) for rate in one.rates]}
    said |= {"median": round(statistics.median(one.rates), 1), "of_command": round(statistics.median(ratios), 2)}
    said |= {"cpu_s_per_1000": [round(seconds / n_lines * 1000, 2) for seconds in one.cpu_s]}
    if one.seconds:
        ordered = sorted(one.seconds)
        said |= {name: round(ordered[int(share * (len(ordered) - 1))], 3) for name, share in LATENCIES.items()}
        said |= {"answers": len(ordered), "lost": one.n_lost, "not_the_commands": one.n_other}
    return said


def command(lines: list[str], settings: list[str], folder: Path, found: Found) -> list[str]:
    """What `tx translate` makes of the lines."""
    (folder / "all").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "one").write_text(f"{lines[0]}\n", encoding="utf-8")
    seconds, cpu_s = {}, {}
    for name in ("one", "all"):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        arguments = ["translate", "-i", str(folder / name), "-o", str(folder / "out"), *settings]
        subprocess.run([*TX, *arguments], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds[name] = time.perf_counter() - start
        cpu_s[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found.rates.append((len(lines) - 1) / (seconds["all"] - seconds["one"]))
    found.cpu_s.append(cpu_s["all"] - cpu_s["one"])
    return (folder / "out").read_text(encoding="utf-8").split("\n")[:-1]


@contextlib.contextmanager
def serving(settings: list[str]) -> Iterator[tuple[str, int]]:
    """Host and port of a service, and the number of its process."""
    arguments = [*TX, "serve", "--json", "--port", "0", "--set=serving.deadline_s=300", *settings]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield urlsplit(json.loads(process.stdout.readline())["address"]).netloc, process.pid
        finally:
            process.terminate()


def processor_seconds(process: int) -> float:
    """That a process has used so far, as Linux says."""
    words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def ask(address: str, process: int, lines: list[str], clients: int, expected: list[str], found: Found) -> None:
    """Every line, by so many clients at a time."""
    numbers = itertools.count()
    lock = threading.Lock()

    def client(_: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=300)
        while (number := next(numbers)) < len(lines):
            start = time.perf_counter()
            connection.request("POST", "/translate", json.dumps({"texts": [lines[number]]}), JSON)
            answer = connection.getresponse()
            body = answer.read()
            seconds = time.perf_counter() - start
            with lock:
                found.seconds.append(seconds)
                if answer.status != 200:
                    found.n_lost += 1
                elif (other := json.loads(body)["translations"][0]["translation"]) != expected[number]:
                    found.n_other += 1
                    told = {"line": number + 1, "command": expected[number], "service": other}
                    print(json.dumps(told, ensure_ascii=False), file=sys.stderr)
        connection.close()

    start, before = time.perf_counter(), processor_seconds(process)
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    found.rates.append(len(lines) / (time.perf_counter() - start))
    found.cpu_s.append(processor_seconds(process) - before)


@contextlib.contextmanager
def strangers(address: str, n: int) -> Iterator[None]:
    """While within: as many connections that finish no request, opened anew when they are closed, and one that sends
    garbage and bodies that are too large."""
    host, _, port = address.partition(":")
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as connection:
                while not over.wait(0.5):
                    connection.sendall(b"GET / HTTP/1.1\r\nX: y" if connection.fileno() % 2 else b"P")

    def rude() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as connection:
                connection.sendall(b"\x16\x03\x01\x00\xff" * 50 + b"\r\n\r\n")
            with contextlib.suppress(OSError, http.client.HTTPException):
                other = http.client.HTTPConnection(address, timeout=5)
                other.request("POST", "/translate", b" " * 1_000_000, JSON)
                other.getresponse().read()
                other.close()

    threads = [threading.Thread(target=work) for work in [slow] * n + [rude]]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
