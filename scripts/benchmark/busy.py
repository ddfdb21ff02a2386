"""How fast tx is beside processes that never rest, under several policies of waiting, by turns.

    TX_MULTI30K=data/multi30k python scripts/benchmark/busy.py --run runs/small

One line of JSON for each work and number of neighbours: tokens/s (training) or lines/s (translating, start included) of
each round, the median, and how much that is of the median without neighbours. A neighbour is an endless loop in Python.
`libgomp` waits as that does where nobody says anything: it spins for some milliseconds. In `tx` the program decides.

To measure on a machine that others use, too, let all of this come before them, as `chrt` would not: real-time processes
do not share a core as others do. On Linux, as root:

    setsid -w bash -c 'echo -20 > /proc/self/autogroup; exec nice -n -20 python scripts/benchmark/busy.py ...'
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

POLICIES = {
    "libgomp": {"GOMP_SPINCOUNT": "300000"},  # what it takes where nothing is set
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 3000": {"GOMP_SPINCOUNT": "3000"},
    "spin 500": {"GOMP_SPINCOUNT": "500"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "tx": {},
}
HEEDED = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"}
PRESETS = {"tiny": "tiny.yaml", "small": str(Path(__file__).resolve().with_name("small.yaml"))}
TX = [sys.executable, "-m", "transformer_cli"]
LONG = [f"--set=training.{setting}" for setting in ("max_steps=1000000", "validate_every=1000000", "log_every=1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=[*PRESETS, "translate"], default=[*PRESETS, "translate"])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=["libgomp", "tx"])
    parser.add_argument("--neighbours", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of updates, per measurement")
    parser.add_argument("--lines", type=int, default=500, help="of the test set, to translate")
    parser.add_argument("--run", help="a trained run, for `translate`")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # no neighbour is left behind
    if "translate" in options.work and options.run is None:
        parser.error("`translate` needs a trained run: --run")
    text = Path(os.environ.get("TX_MULTI30K", "data/multi30k")).resolve()
    os.environ["TX_MULTI30K"] = str(text)
    run = Path(options.run).resolve() if options.run else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for work in options.work:
            compare(work, options, text, run)


def compare(work: str, options: argparse.Namespace, text: Path, run: Path | None) -> None:
    """All policies and neighbours by turns."""
    if work in PRESETS:
        begin(work)
    else:
        lines = (text / "test_2016_flickr.de").read_text(encoding="utf-8").split("\n")[: options.lines]
        Path("lines.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for policy in options.policies:
            environment = {name: value for name, value in os.environ.items() if name not in HEEDED}
            environment |= POLICIES[policy]
            if work in PRESETS:
                found = training_rates(work, environment, options.neighbours, options.seconds)
            else:
                found = translating_rates(str(run), environment, options.neighbours, options.lines)
            for neighbours, rate in zip(options.neighbours, found, strict=True):
                rates.setdefault((policy, neighbours), []).append(rate)
                print(f"{work}, {policy}, beside {neighbours}: {rate:,.1f}/s", file=sys.stderr, flush=True)
    for (policy, neighbours), found in rates.items():
        facts = {"work": work, "policy": policy, "neighbours": neighbours, "rates": [round(rate, 1) for rate in found]}
        facts["median"] = round(statistics.median(found), 1)
        if alone := rates.get((policy, 0)):
            facts["of_alone"] = round(statistics.median(found) / statistics.median(alone), 2)
        print(json.dumps(facts), flush=True)


@contextmanager
def beside(neighbours: int) -> Iterator[None]:
    """That many processes that are never idle."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def begin(work: str) -> None:
    """A run with its tokenizer and its encoded text, and no update."""
    run = Path(f"{work}-begun")
    with training(work, run, dict(os.environ)):
        pass
    for name in ("checkpoints", "metrics.jsonl", "best", "last"):
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)


def training_rates(work: str, environment: dict[str, str], neighbours: list[int], seconds: float) -> list[float]:
    """Real tokens per second, source and target, beside so many processes: one training, they come and go."""
    run = Path(work)
    shutil.copytree(f"{work}-begun", run)
    rates = []
    with training(work, run, environment):
        time.sleep(2)  # the first updates meet new shapes
        for number in neighbours:
            with beside(number):
                time.sleep(0.5)
                before = len(events(run))
                time.sleep(seconds)
                found = events(run)[max(before - 1, 0) :]
            spans = [b["elapsed_s"] - a["elapsed_s"] for a, b in pairwise(found)]
            tokens = [event["tokens_per_s"] * span for event, span in zip(found[1:], spans, strict=True)]
            rates.append(sum(tokens) / sum(spans) if spans else 0.0)  # an update may take longer than that
    shutil.rmtree(run)
    return rates


@contextmanager
def training(work: str, run: Path, environment: dict[str, str]) -> Iterator[None]:
    """A training that has made its first update, and is ended at once in the end."""
    text = Path(os.environ.get("TX_MULTI30K", "data/multi30k"))
    places = [
        f"--set=data.{key}={text}/{name}"
        for key, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))
    ]
    command = [*TX, "train", "-q", "-c", PRESETS[work], f"--run-dir={run}", *LONG, *places * (work == "small")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            while not events(run):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.05)
            yield
        finally:
            process.kill()


def events(run: Path) -> list[dict[str, float]]:
    """One for each update so far."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.exists() else []
    return [json.loads(line) for line in lines]


def translating_rates(run: str, environment: dict[str, str], neighbours: list[int], lines: int) -> list[float]:
    """Lines per second of one command beside so many processes, from its start to its end."""
    command = [*TX, "translate", "-q", "-m", run, "-i", "lines.de", "-o", "lines.en"]
    rates = []
    for number in neighbours:
        with beside(number):
            start = time.perf_counter()
            subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
            rates.append(lines / (time.perf_counter() - start))
    return rates


if __name__ == "__main__":
    main()
