"""Translating the Multi30k test set: tx, by itself and by its other engine, beside Hugging Face, CTranslate2 and ONNX
Runtime, all with the weights of one tx run, as `tx export` writes them.

    python decoding.py --run RUN [--beams 1 5] [--batches 64 1] [--lines 1000] [--rounds 3]

Needs an environment with tx, its extras and the Multi30k files in TX_MULTI30K or data/multi30k. The others read text
with the tokenizer that the export wrote and search by their own beams, with at most LONGEST pieces; ONNX Runtime has no
search, and steps for tx's, on one thread.

Every figure is a process of its own: seconds from text to text once the model is loaded, and peak memory of the whole
process. Everybody gets the same batches, sorted by length (batch 1: a call per sentence). Contestants take turns, and
ratios are taken within a round, for machines drift. `same` counts the lines that are those of tx in fp32.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTESTANTS = [
    "tx fp32",
    "tx bf16",
    "tx-by-engine fp32",
    "transformers fp32",
    "transformers bf16",
    "ctranslate2 fp32",
    "ctranslate2 int8",
    "onnxruntime fp32",
    "onnxruntime int8",
]
LONGEST = 100

Translate = Callable[[list[str]], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 1])
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--who", nargs="+", default=CONTESTANTS, choices=CONTESTANTS)
    parser.add_argument("--exports", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(options)
        return
    with tempfile.TemporaryDirectory() as place:
        options.exports = place
        for one in options.who:
            export(options.run, one, Path(place))
        for beam in options.beams:
            for batch in options.batches:
                compare(options, beam=beam, batch=batch)


def export(run: str, who: str, place: Path) -> None:
    """What this contestant opens: written, and compared by `tx export` itself, in a process of its own."""
    toolkit, precision = who.split()
    name = {"transformers": "hugging-face", "ctranslate2": "ctranslate2", "onnxruntime": "onnx"}.get(toolkit)
    if name and not (place / exported(who)).exists():
        # CTranslate2 has no bf16 on a CPU; its int8 rounds what multiplies, and adds in fp32.
        rounded = ["--quantization", "int8"] if precision == "int8" else []
        command = ["transformer_cli", "export", name, "-m", run, "-o", str(place / exported(who)), "--quiet", *rounded]
        subprocess.run([sys.executable, "-m", *command], stdout=subprocess.DEVNULL, check=True)


def exported(who: str) -> str:
    """The folder; transformers in bf16 rounds the weights of fp32 itself."""
    return who.replace(" bf16", " fp32").replace(" ", "-")


def compare(options: argparse.Namespace, *, beam: int, batch: int) -> None:
    """All contestants by turns, then how many times as fast tx's faster precision is."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options.who}
    for _ in range(options.rounds):
        for name in options.who:
            arguments = ["--alone", "--run", options.run, "--who", name, "--beams", str(beam), "--batches", str(batch)]
            arguments += ["--lines", str(options.lines), "--threads", str(options.threads)]
            arguments += ["--exports", options.exports]
            done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, text=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    ours = next((results[name][0]["translations"] for name in options.who if name == "tx fp32"), None)
    for name, runs in results.items():
        translations = runs[0].pop("translations")
        facts: dict[str, Any] = {"beam": beam, "batch": batch, "lines": len(translations), "who": name}
        facts["sentences_per_s"] = round(len(translations) / statistics.median(run["seconds"] for run in runs), 1)
        facts |= {"seconds": [run["seconds"] for run in runs], "peak_mib": max(run["peak_mib"] for run in runs)}
        if ours is not None:
            facts["same"] = sum(a == b for a, b in zip(ours, translations, strict=True))
        print(json.dumps(facts | {"bleu": runs[0]["bleu"]}), flush=True)
    seconds = {name: [run["seconds"] for run in runs] for name, runs in results.items()}
    for mine in (name for name in seconds if name.startswith("tx")):
        for theirs in (name for name in seconds if not name.startswith("tx")):
            ratios = [b / a for a, b in zip(seconds[mine], seconds[theirs], strict=True)]
            ratio = {"ratio": f"{mine} / {theirs}", "median": round(statistics.median(ratios), 2)}
            print(json.dumps({"beam": beam, "batch": batch, **ratio, "all": [round(r, 2) for r in ratios]}), flush=True)


def alone(options: argparse.Namespace) -> None:
    """One contestant, one line of JSON."""
    from sacrebleu import corpus_bleu

    [who] = options.who
    toolkit, precision = who.split()
    folder = Path(os.environ.get("TX_MULTI30K", "data/multi30k"))
    source, reference = (
        (folder / f"test_2016_flickr.{side}").read_text().split("\n")[: options.lines] for side in ("de", "en")
    )
    place = Path(options.exports) / exported(who)
    translate = TOOLKITS[toolkit](options.run, place, precision, options.beams[0], options.threads)
    translate(source[:2])
    size = options.batches[0]
    order = sorted(range(len(source)), key=lambda i: -len(source[i]))
    translations = [""] * len(source)
    start = time.perf_counter()
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        for i, text in zip(rows, translate([source[i] for i in rows]), strict=True):
            translations[i] = text
    seconds = round(time.perf_counter() - start, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    bleu = round(corpus_bleu(translations, [reference]).score, 2)
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "bleu": bleu, "translations": translations}))


def with_tx(run: str, place: Path, precision: str, beam: int, threads: int) -> Translate:
    import torch

    import transformer_cli

    translator = transformer_cli.load(run, precision=precision)
    torch.set_num_threads(threads)  # whatever the run was trained with
    return lambda lines: translator.translate(lines, beam_size=beam)


def with_engine(run: str, place: Path, precision: str, beam: int, threads: int) -> Translate:
    from transformer_cli import engines
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.known import open_known
    from transformer_cli.loading import settings_of

    known = open_known(find_checkpoint(run))
    translator = engines.engine_of(known, settings_of(known, [f"threads={threads}"]), tell=lambda message: None)
    return lambda lines: translator.translate(lines, beam_size=beam)


def with_transformers(run: str, place: Path, precision: str, beam: int, threads: int) -> Translate:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer, model = AutoTokenizer.from_pretrained(place), AutoModelForSeq2SeqLM.from_pretrained(place)
    if precision == "bf16":
        model = model.bfloat16()

    @torch.inference_mode()
    def translate(lines: list[str]) -> list[str]:
        batch = tokenizer(lines, return_tensors="pt", padding=True)
        made = model.generate(**batch, num_beams=beam, do_sample=False, max_length=LONGEST + 1)
        return list(tokenizer.batch_decode(made, skip_special_tokens=True))

    return translate


def with_ctranslate2(run: str, place: Path, precision: str, beam: int, threads: int) -> Translate:
    import ctranslate2
    from sentencepiece import SentencePieceProcessor

    model = ctranslate2.Translator(str(place), device="cpu", intra_threads=threads)
    if (rounded := "int8" in model.compute_type) != (precision == "int8"):
        raise SystemExit(f"CTranslate2 computes in {model.compute_type} here, {'' if rounded else 'not '}in int8")
    names = sorted(path.name for path in place.glob("*.model"))
    source, target = (SentencePieceProcessor(model_file=str(place / name)) for name in (names[0], names[-1]))

    def translate(lines: list[str]) -> list[str]:
        pieces = source.encode(lines, out_type=str)
        options = {"beam_size": beam, "max_decoding_length": LONGEST, "disable_unk": True}
        return [target.decode(one.hypotheses[0]) for one in model.translate_batch(pieces, **options)]

    return translate


def with_onnxruntime(run: str, place: Path, precision: str, beam: int, threads: int) -> Translate:
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.store import open_run
    from transformer_cli.export.formats import FORMATS

    engine = FORMATS.load("onnx")().open(open_run(find_checkpoint(run)), place)

    def translate(lines: list[str]) -> list[str]:
        found = engine.beam(engine.encode(lines), limit=LONGEST, beam_size=beam, length_penalty=1.0)
        return list(engine.decode([one.ids for one in found]))

    return translate


TOOLKITS: dict[str, Callable[[str, Path, str, int, int], Translate]] = {
    "tx": with_tx,
    "tx-by-engine": with_engine,
    "transformers": with_transformers,
    "ctranslate2": with_ctranslate2,
    "onnxruntime": with_onnxruntime,
}


if __name__ == "__main__":
    main()
