"""How fast Hugging Face's Marian model learns in a plain loop: the same text and the same pieces as small.yaml.

    python beside_hugging_face.py --minutes 10 --precision bf16 --out DIR   validation BLEU by time
    python beside_hugging_face.py --updates 600                             validation loss of both after equal tokens

Needs an environment with tx, `transformers>=5,<6` and the Multi30k files in TX_MULTI30K or data/multi30k. Each line
also gives the rate of a matrix product measured at that moment. With --updates both learn from the same batches in the
same order, Adam, its rate and its clipping alike; nothing is timed. scripts/benchmark/all measures how fast training
and translating are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sacrebleu
import torch

from transformer_cli.checkpoints.events import read_events
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.data import batching, corpus, loader
from transformer_cli.machine import DTYPES, product_rate
from transformer_cli.processor import imitates
from transformer_cli.tokenizer import EOS, PAD, Tokenizer, train_tokenizer
from transformer_cli.training.run import train

if TYPE_CHECKING:
    from transformers import MarianMTModel

sys.path.append(str(Path(__file__).with_name("contestants")))
from by_transformers import marian, marian_step

RATE, WARM_UP = 1e-3, 400
"""Of both, where both are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--config", default=str(Path(__file__).with_name("small.yaml")))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="--updates has both")
    parser.add_argument("--updates", type=int, help="of both, whose validation loss is compared; no minutes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = os.environ.get("TX_MULTI30K", "data/multi30k")
    places = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    config = load_config(options.config, [f"data.{key}={folder}/{name}" for key, name in places.items()] + options.set)
    if options.updates:
        compare(config, options.updates)
        return
    learn(config, options)


def compare(config: RunConfig, n_updates: int) -> None:
    """Validation loss, nats a target token without smoothing, after as many updates from the same batches."""
    alike = {
        "optimizer": "adam",
        "learning_rate": RATE,
        "schedule": "inverse-sqrt",
        "warmup_steps": WARM_UP,
        "ema": None,
    }
    alike |= {"betas": [0.9, 0.98], "eps": 1e-9, "clip_norm": 1.0, "max_steps": n_updates, "validate_every": n_updates}
    alike |= {"validation_bleu": False, "best_by": "loss", "accumulation": 1}
    for precision in there():
        with tempfile.TemporaryDirectory() as folder:
            training = config.training.model_copy(update=alike)
            run = Path(folder) / "run"
            train(config.model_copy(update={"training": training, "precision": precision}), run)
            [found] = [event for event in read_events(run) if event["event"] == "validation"]
            tell(who=f"tx {precision}", updates=n_updates, valid_loss=round(found["loss"], 4))
            tokenizer = Tokenizer.load(run / "tokenizer")
        of_marian = marian_loss(config, tokenizer, n_updates, bf16=precision == "bf16")
        tell(who=f"Marian {precision}", updates=n_updates, valid_loss=round(of_marian, 4))


def marian_loss(config: RunConfig, tokenizer: Tokenizer, n_updates: int, *, bf16: bool) -> float:
    """That of the Marian class."""
    texts = {"train": corpus.load_training(config.data), "valid": corpus.load_validation(config.data)}
    ids = {}
    for name, text in texts.items():
        assert text is not None
        sources, targets = tokenizer.encode_source(text.source), tokenizer.encode_target(text.target)
        ids[name] = [(np.array([*one, EOS]), np.array(other)) for one, other in zip(sources, targets, strict=True)]

    def batches(name: str, epoch: int) -> Iterator[loader.Batch]:
        lengths = np.array([(len(source), len(target) + 1) for source, target in ids[name]])
        for rows in batching.plan(lengths, budget=config.training.budget_tokens, seed=config.seed, epoch=epoch):
            yield loader.collate([ids[name][i][0] for i in rows], [ids[name][i][1] for i in rows])

    model, smoothing = marian(config.model, tokenizer.target_size), config.training.label_smoothing
    step = marian_step(model, label_smoothing=smoothing, bf16=bf16, learning_rate=RATE, warmup=WARM_UP)
    for batch in islice((batch for epoch in count() for batch in batches("train", epoch)), n_updates):
        step(batch)
    model.eval()
    loss, n_targets = 0.0, 0
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        for batch in batches("valid", 0):
            mask = (batch.source_BS != PAD).long()
            read = {"input_ids": batch.source_BS, "attention_mask": mask, "decoder_input_ids": batch.target_in_BT}
            logits, targets = model(**read).logits.float().flatten(0, 1), batch.target_out_BT.flatten()
            loss += torch.nn.functional.cross_entropy(logits, targets, ignore_index=PAD, reduction="sum").item()
            n_targets += batch.n_target_tokens
    return loss / n_targets


def learn(config: RunConfig, options: argparse.Namespace) -> None:
    """A plain loop around Marian; greedy validation BLEU after each quarter of the time, validation not counted."""
    training, valid = corpus.load_training(config.data), corpus.load_validation(config.data)
    assert valid is not None
    tokenizer, _ = train_tokenizer(config.tokenizer, training.source, training.target, seed=config.seed)
    source = [[*ids, EOS] for ids in tokenizer.encode_source(training.source)]
    target = [[*ids, EOS] for ids in tokenizer.encode_target(training.target)]
    model, smoothing = marian(config.model, tokenizer.target_size), config.training.label_smoothing
    bf16 = options.precision == "bf16"
    step = marian_step(model, label_smoothing=smoothing, bf16=bf16, learning_rate=RATE, warmup=300)
    seconds, n_steps, next_look = 0.0, 0, options.minutes * 15
    for rows in endless(source, target, tokens=1024):
        start = time.perf_counter()
        step(loader.collate([np.array(source[i]) for i in rows], [np.array(target[i][:-1]) for i in rows]))
        seconds, n_steps = seconds + time.perf_counter() - start, n_steps + 1
        if seconds >= next_look:
            next_look += options.minutes * 15
            translations = generate(model, tokenizer, valid.source)
            bleu = sacrebleu.corpus_bleu(translations, [valid.target]).score
            tell(who=f"Marian {options.precision}", train_s=round(seconds), steps=n_steps, valid_bleu=round(bleu, 2))
        if seconds >= options.minutes * 60:
            break
    if options.out is not None:
        model.save_pretrained(options.out)


@torch.inference_mode()
def generate(model: MarianMTModel, tokenizer: Tokenizer, lines: list[str], batch: int = 64) -> list[str]:
    """Greedy; batches sorted by length."""
    model.eval()
    ids = [[*row, EOS] for row in tokenizer.encode_source(lines)]
    order = sorted(range(len(lines)), key=lambda i: -len(ids[i]))
    translations = [""] * len(lines)
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        width = max(len(ids[i]) for i in rows)
        source = torch.tensor([ids[i] + [PAD] * (width - len(ids[i])) for i in rows])
        out = model.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=1,
            do_sample=False,
            max_new_tokens=100,
            early_stopping=False,
            length_penalty=1.0,
        )
        for i, row in zip(rows, out.tolist(), strict=True):
            end = row.index(EOS) if EOS in row else len(row)
            translations[i] = tokenizer.decode_target([[piece for piece in row[1:end] if piece > EOS]])[0]
    return translations


def endless(source: list[list[int]], target: list[list[int]], *, tokens: int) -> Iterator[list[int]]:
    """Batches of so many target tokens, sorted by length, shuffled, epoch after epoch."""
    chance = random.Random(1)
    while True:
        order = list(range(len(source)))
        chance.shuffle(order)
        order.sort(key=lambda i: (len(target[i]) + chance.random() * 2, len(source[i])))
        batches: list[list[int]] = [[]]
        room = tokens
        for i in order:
            if batches[-1] and room < len(target[i]):
                batches.append([])
                room = tokens
            batches[-1].append(i)
            room -= len(target[i])
        chance.shuffle(batches)
        yield from batches


def there() -> list[str]:
    """The precisions that this processor has products in."""
    return [precision for precision in ("fp32", "bf16") if not imitates(precision, "cpu")]


def tell(**facts: Any) -> None:
    rates = {precision: round(product_rate(DTYPES[precision])) for precision in there()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    print(json.dumps({**facts, "product_gflop_per_s": rates, "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    main()
