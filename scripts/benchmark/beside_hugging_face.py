"""tx beside Hugging Face's Marian model: the same text, the same pieces, the same batches, in one run.

    python beside_hugging_face.py train                                        tokens/s, by turns, as ratios
    python beside_hugging_face.py learn --minutes 10 --out DIR                 a plain loop: validation BLEU by time

Needs an environment with tx, `transformers>=5,<6` and the Multi30k files in TX_MULTI30K or data/multi30k. Tokens are
real ones, source and target, end marks included, padding not. Machines drift, so only ratios of one run mean much;
each line also gives the rate of a matrix product measured at that moment. decoding.py measures translating.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
from transformers import MarianConfig, MarianMTModel

from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.data import batching, binary, corpus, loader
from transformer_cli.machine import product_rate
from transformer_cli.model.build import build_model
from transformer_cli.tokenizer import BOS, EOS, PAD, Tokenizer, train_tokenizer
from transformer_cli.training.loop import Learner, train_step
from transformer_cli.training.optimizers import build_optimizer
from transformer_cli.training.parallel import World

Step = Callable[[loader.Batch], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "learn"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--config", default=str(Path(__file__).with_name("small.yaml")))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="updates per turn (train)")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = os.environ.get("TX_MULTI30K", "data/multi30k")
    places = {"train": "train", "valid": "val"}
    config = load_config(options.config, [f"data.{key}={folder}/{name}" for key, name in places.items()] + options.set)
    {"train": train, "learn": learn}[options.what](config, options)


def train(config: RunConfig, options: argparse.Namespace) -> None:
    """Updates per turn: tx, Marian in fp32, Marian in bf16, and again."""
    tokenizer, encoded, _ = text(config)
    plan = batching.plan(encoded.lengths, budget=config.training.budget_tokens, seed=1, epoch=0)
    some = list(loader.batches(encoded, plan[: options.steps + 2]))
    tokens = sum(b.n_source_tokens + b.n_target_tokens for b in some[2:])
    contestants = {
        "tx bf16": tx_step(config, tokenizer, torch.bfloat16),
        "tx fp32": tx_step(config, tokenizer, torch.float32),
        "Marian bf16": marian_step(marian(config, tokenizer), config, bf16=True),
        "Marian fp32": marian_step(marian(config, tokenizer), config, bf16=False),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(options.rounds):
        for name, step in contestants.items():
            for batch in some[:2]:
                step(batch)
            start = time.perf_counter()
            for batch in some[2:]:
                step(batch)
            rates[name].append(tokens / (time.perf_counter() - start))
            tell(round=number + 1, who=name, tokens_per_s=round(rates[name][-1]))
    best = max(("Marian bf16", "Marian fp32"), key=lambda name: statistics.median(rates[name]))
    for name in ("tx bf16", "tx fp32"):
        ratios = [ours / theirs for ours, theirs in zip(rates[name], rates[best], strict=True)]
        tell(ratio=f"{name} / {best}", median=round(statistics.median(ratios), 2), all=[round(r, 2) for r in ratios])


def learn(config: RunConfig, options: argparse.Namespace) -> None:
    """A plain loop around Marian; greedy validation BLEU after each quarter of the time, validation not counted."""
    tokenizer, _, valid = text(config)
    training = corpus.load_training(config.data)
    source = [[*ids, EOS] for ids in tokenizer.encode_source(training.source)]
    target = [[*ids, EOS] for ids in tokenizer.encode_target(training.target)]
    model = marian(config, tokenizer)
    step = marian_step(model, config, bf16=False, learning_rate=1e-3, warmup=300)
    seconds, n_steps, next_look = 0.0, 0, options.minutes * 15
    for rows in endless(source, target, tokens=1024):
        start = time.perf_counter()
        step(loader.collate([np.array(source[i]) for i in rows], [np.array(target[i][:-1]) for i in rows]))
        seconds, n_steps = seconds + time.perf_counter() - start, n_steps + 1
        if seconds >= next_look:
            next_look += options.minutes * 15
            translations = generate(model, tokenizer, valid.source, beam=1, batch=64, bf16=False)
            bleu = sacrebleu.corpus_bleu(translations, [valid.target]).score
            tell(who="Marian fp32", train_s=round(seconds), steps=n_steps, valid_bleu=round(bleu, 2))
        if seconds >= options.minutes * 60:
            break
    if options.out is not None:
        model.save_pretrained(options.out)


def text(config: RunConfig) -> tuple[Tokenizer, binary.EncodedCorpus, corpus.Corpus]:
    """The tokenizer, the training text as ids, the validation text; kept in runs/benchmark."""
    training, valid = corpus.load_training(config.data), corpus.load_validation(config.data)
    assert valid is not None
    place = Path("runs/benchmark")
    tokenizer, _ = train_tokenizer(config.tokenizer, training.source, training.target, seed=config.seed)
    encoded = binary.encode(training, tokenizer, place, split="train", source_eos=True, max_length=256)
    return tokenizer, encoded, valid


def tx_step(config: RunConfig, tokenizer: Tokenizer, dtype: torch.dtype) -> Step:
    torch.manual_seed(1)
    model = build_model(config.model, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size)
    model.compute_in(dtype, training=True)
    learner = Learner(model, build_optimizer(model, config.training), config.training, 1, World())
    count = iter(range(1, 10**9))
    return lambda batch: void(train_step(learner, [batch], step=next(count)))


def marian(config: RunConfig, tokenizer: Tokenizer) -> MarianMTModel:
    """Marian in tx's shape; its own norm positions, its own sinusoids."""
    torch.manual_seed(1)
    shape = config.model
    settings = MarianConfig(
        vocab_size=tokenizer.target_size,
        d_model=shape.d_model,
        encoder_layers=shape.depths.encoder,
        decoder_layers=shape.depths.decoder,
        encoder_attention_heads=shape.n_heads,
        decoder_attention_heads=shape.n_heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        dropout=shape.dropout,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        max_position_embeddings=256,
        attn_implementation="sdpa",
    )
    return MarianMTModel(settings).train()


def marian_step(
    model: MarianMTModel, config: RunConfig, *, bf16: bool, learning_rate: float = 1e-3, warmup: int = 400
) -> Step:
    """One update of a plain loop: autocast if asked for, fused Adam, torch's own loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=config.training.label_smoothing)
    count = iter(range(1, 10**9))

    def step(batch: loader.Batch) -> None:
        model.train()
        number = next(count)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(number / warmup, (warmup / number) ** 0.5)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = model(
                input_ids=batch.source_BS,
                attention_mask=(batch.source_BS != PAD).long(),
                decoder_input_ids=batch.target_in_BT,
                use_cache=False,
            ).logits
            loss = loss_of(logits.flatten(0, 1), batch.target_out_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


@torch.inference_mode()
def generate(
    model: MarianMTModel, tokenizer: Tokenizer, lines: list[str], *, beam: int, batch: int, bf16: bool
) -> list[str]:
    """`generate` in its best case: batches sorted by length."""
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
            num_beams=beam,
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


def tell(**facts: Any) -> None:
    rates = {name: round(product_rate(dtype)) for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**facts, "product_gflop_per_s": rates, "peak_mib": peak}), flush=True)


def void(_: object) -> None:
    """Let a step return nothing."""


if __name__ == "__main__":
    main()
