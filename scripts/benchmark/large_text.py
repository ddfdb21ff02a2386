"""What a text of millions of pairs costs until the first update, beside SentencePiece's own encoder.

    TX_MULTI30K=data/multi30k python scripts/benchmark/large_text.py --pairs 1000000
    python scripts/benchmark/large_text.py --pairs 1000000 --sampling 0.1
    python scripts/benchmark/large_text.py --plan 10000000

The pairs are made of Multi30k's: the first half of one and the second half of another, no two alike. One line of JSON:
seconds in which SentencePiece encodes both sides on all cores, lists of ids and nothing else, before and after tx does,
told from the first million pairs;
seconds of `tx tokenize`; seconds from the start of `tx train` until the text is prepared - read, checked, hashed,
encoded, its words and lines remembered, on the disk - and, started again, until the first update; the most memory
(VmHWM) of any process of tx, of training until its update 100, beside 1 GiB and 40 bytes a pair; bytes of the text, of
its ids and of what is remembered of it; seconds and bytes a pair of planning an epoch. With --sampling subwords are
drawn at that rate; with --processes so many train, of which the largest counts; with --plan an epoch is planned and
nothing else, of lengths that are drawn. For Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece

from transformer_cli.data import batching
from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.fingerprints import LINES
from transformer_cli.evaluation.words import WORD_COUNTS

TX = [sys.executable, "-m", "transformer_cli"]
LANGUAGES = ("de", "en")
NUMBER = re.compile(r"-(\d+)-of-")
"""Of a volume."""
UPDATES = 100
"""Of training, while its memory is watched."""
MOST_LINES = 1_000_000
"""Of a side that SentencePiece encodes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--plan", type=int, metavar="PAIRS", help="plan an epoch of so many pairs, and nothing else")
    parser.add_argument("--sampling", type=float, default=0.0, metavar="RATE", help="tokenizer.sampling")
    parser.add_argument("--processes", type=int, default=1, help="that train")
    parser.add_argument("--folder", type=Path, help="for the text, 135 bytes a pair, and its ids, about as much")
    options = parser.parse_args()
    if options.plan:
        print(json.dumps({"pairs": options.plan, **planned(drawn(options.plan))}))
        return
    multi30k = Path(os.environ.get("TX_MULTI30K", "data/multi30k")).resolve()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for language in LANGUAGES:
            make(multi30k / f"train.{language}", folder / f"train.{language}", options.pairs)
        run = folder / "run"
        command = ["-c", "tiny.yaml", "--run-dir", str(run), "--set", f"data.train={folder / 'train'}"]
        command += ["--set", f"data.valid={multi30k / 'val'}", "--set", "tokenizer.vocab_size=8000"]
        command += ["--set", "training.max_steps=1000000", "--set", "training.log_every=1"]
        command += ["--set", f"tokenizer.sampling={options.sampling}"]
        tokenizing = watched([*TX, "tokenize", *command], lambda: False)
        before = sentencepiece_alone(run, folder, options.pairs)
        command += ["--processes", str(options.processes)]
        preparing = watched([*TX, "train", *command], lambda: (run / LINES).exists())
        after = sentencepiece_alone(run, folder, options.pairs)
        beginning = watched([*TX, "train", *command], lambda: n_updates(run / "metrics.jsonl") > 0)
        (run / "metrics.jsonl").unlink()
        training = watched([*TX, "train", *command], lambda: n_updates(run / "metrics.jsonl") >= UPDATES)
        volumes = sorted((run / "data").glob("train-*"), key=lambda place: list(map(int, NUMBER.findall(place.name))))
        planning = planned(EncodedCorpus(volumes).lengths)
        n_bytes = {
            "text": sum((folder / f"train.{language}").stat().st_size for language in LANGUAGES),
            "ids": sum(path.stat().st_size for volume in volumes for path in volume.iterdir()),
            "remembered": sum((run / name).stat().st_size for name in (LINES, WORD_COUNTS)),
        }
    found = {
        "pairs": options.pairs,
        "sampling": options.sampling,
        "processes": options.processes,
        "cores": len(os.sched_getaffinity(0)),
        "sentencepiece_s": [before, after],
        "tokenizer_s": tokenizing[0],
        "prepared_s": preparing[0],
        "prepared_by_sentencepiece": round(preparing[0] / ((before + after) / 2), 2),
        "first_update_s": beginning[0],
        "bytes": n_bytes,
        **planning,
        "peak_mib": {
            "tokenizer": tokenizing[1],
            "preparing": preparing[1],
            "training": training[1],
            "allowed": round(1024 + 40 * options.pairs / 2**20),
        },
    }
    print(json.dumps(found))


def make(given: Path, made: Path, n: int) -> None:
    """So many lines, of halves of the given ones; line for line the same halves in either language."""
    lines = [line.split() for line in given.read_text("utf-8").split("\n")[:-1]]
    with made.open("w", encoding="utf-8") as file:
        for index in range(n):
            first, second = lines[index % len(lines)], lines[(index // len(lines) * 7919 + index * 31 + 1) % len(lines)]
            file.write(" ".join(first[: len(first) // 2] + second[len(second) // 2 :]) + "\n")


def sentencepiece_alone(run: Path, folder: Path, n_pairs: int) -> float:
    """Seconds of encoding alone, without the reading; in this process, on all cores."""
    n_lines = 0
    processor = sentencepiece.SentencePieceProcessor(model_file=str(run / "tokenizer" / "spm.model"))
    seconds = 0.0
    for language in LANGUAGES:
        with (folder / f"train.{language}").open(encoding="utf-8") as file:
            some = islice(file, MOST_LINES)
            while lines := [line[:-1] for line in islice(some, 65_536)]:
                n_lines += len(lines)
                start = time.perf_counter()
                processor.encode(lines, out_type=int, num_threads=len(os.sched_getaffinity(0)))
                seconds += time.perf_counter() - start
    return round(seconds * 2 * n_pairs / n_lines, 2)


def planned(lengths: npt.NDArray[np.integer]) -> dict[str, float]:
    """Seconds of planning an epoch, by the clock and of the processor; the most bytes a pair that it takes, and what
    it leaves."""
    start, begin = time.perf_counter(), time.process_time()
    batching.plan(lengths, budget=4096, seed=1, epoch=0)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - begin
    tracemalloc.start()
    plan = batching.plan(lengths, budget=4096, seed=1, epoch=1)
    left, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = {"plan_s": seconds, "plan_cpu_s": cpu_s, "plan_batches": len(plan)}
    found |= {"plan_bytes_a_pair": most / len(lengths), "plan_bytes_a_pair_left": left / len(lengths)}
    return {name: round(value, 2) for name, value in found.items()}


def drawn(n_pairs: int) -> npt.NDArray[np.int32]:
    """Lengths of so many pairs: log-normal, 26 pieces of source on average, a target a fifth longer or shorter."""
    chance = np.random.default_rng(1)
    source = chance.lognormal(3.1, 0.55, n_pairs)
    target = source * chance.lognormal(0, 0.2, n_pairs)
    return np.stack([source, target], axis=1).clip(2, 256).astype(np.int32)


def watched(command: list[str], is_there: Callable[[], bool]) -> tuple[float, int]:
    """Seconds until that is so, or the command has ended, and the most MiB of one of its processes; then it ends."""
    start, peaks = time.perf_counter(), {0: 0}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and not is_there():
            for pid in family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), peak_kib(pid))
            time.sleep(0.05)
        seconds = time.perf_counter() - start
        if process.poll() not in (None, 0):
            sys.exit(process.stderr.read() if process.stderr else "it failed")
    finally:
        process.kill()
        process.communicate()
    return round(seconds, 2), max(peaks.values()) // 1024


def family(pid: int) -> list[int]:
    """It, its children, theirs, and so on."""
    with suppress(OSError):  # it has ended
        children = [
            child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
        ]
        return [pid, *(member for child in children for member in family(int(child)))]
    return []


def peak_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) if "VmHWM:" in status else 0


def n_updates(metrics: Path) -> int:
    return metrics.read_text("utf-8").count('"step"') if metrics.exists() else 0


if __name__ == "__main__":
    main()
