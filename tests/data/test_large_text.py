"""A tenth of a million pairs, from files to the plan of an epoch: what is in memory is numbers."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from encoded import encode

from transformer_cli.config.data import DataConfig, PhrasebookConfig
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data import batching, encoding, volumes
from transformer_cli.data.corpus import load_training
from transformer_cli.data.sampled import Draw, SampledCorpus
from transformer_cli.data.volumes import Volumes
from transformer_cli.tokenizer import EOS, Tokenizer, train_tokenizer

N_PAIRS = int(os.environ.get("TX_PAIRS", "100000"))


def written(folder: Path) -> tuple[DataConfig, Tokenizer]:
    """So many pairs in files, and a tokenizer of them."""
    book = load_training(DataConfig(phrasebook=PhrasebookConfig(n_pairs=5_000)))
    for side, language in ((book.source, "de"), (book.target, "en")):
        lines = (f"{line} {side[number % 4_999]}\n" for number in range(N_PAIRS // 5_000) for line in side)
        (folder / f"train.{language}").write_text("".join(lines), encoding="utf-8")
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=500), book.source[:500], book.target[:500], seed=1)
    return DataConfig(train=str(folder / "train"), valid="x"), tokenizer


def test_a_hundred_thousand_pairs_are_prepared_in_forty_bytes_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lists of strings they took 471 bytes each, and 561 more as lists of ids."""
    monkeypatch.setattr(volumes, "VOLUME", 10_000)
    monkeypatch.setattr(batching, "PART", 1_000)
    monkeypatch.setattr(encoding, "CHUNK", 512)  # so that what is in memory at a time is little beside that
    config, tokenizer = written(tmp_path)
    kept: list[tuple[int, ...]] = []
    tracemalloc.start()
    try:
        text = load_training(config)
        options = {"split": "train", "source_eos": True, "max_length": 200}
        options["remember"] = lambda found: kept.append(found.numbers.shape)
        found = encode(text, tokenizer, tmp_path, **options)
        plan = batching.plan(found.lengths, budget=4096, seed=1, epoch=0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) == len(found) == sum(map(len, plan)) == N_PAIRS
    at_hand = 5_000_000  # words and their pieces, a block of lines, a volume: as much of twice as many pairs
    assert most < 40 * N_PAIRS + at_hand
    some = np.random.default_rng(1).integers(0, N_PAIRS, 200).tolist()
    assert [ids.tolist() for ids in found.sources(some)] == [
        [*ids, EOS] for ids in tokenizer.encode_source([text.source[i] for i in some])
    ]
    assert [ids.tolist() for ids in found.targets(some)] == tokenizer.encode_target([text.target[i] for i in some])
    assert kept == [(2, N_PAIRS)]


@pytest.mark.parametrize(("rate", "n_bytes"), [(0.0, 44), (0.1, 48)])
def test_an_epoch_is_planned_with_so_many_bytes_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float, n_bytes: int
) -> None:
    """16 for where lines begin, 4 for places, 4 for lengths, as many again where subwords are drawn, the rest for the
    plan; of ten million pairs each of them is 10 MB."""
    monkeypatch.setattr(volumes, "VOLUME", 10_000)
    monkeypatch.setattr(batching, "PART", 1_000)
    config, tokenizer = written(tmp_path)
    options = {"split": "train", "source_eos": True, "max_length": 200}
    encode(load_training(config), tokenizer, tmp_path, **options)

    def planned() -> int:
        tracemalloc.start()
        try:
            text = load_training(config)
            found = Volumes(text, tokenizer, tmp_path, **options).open()
            tracemalloc.reset_peak()
            drawn = SampledCorpus(found, text, tokenizer, Draw(rate, 1, 0), max_length=200) if rate else found
            plan = batching.plan(drawn.lengths, budget=4096, seed=1, epoch=0)
            assert sum(map(len, plan)) == N_PAIRS
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    planned()  # what it takes the first time is modules and words
    assert planned() < n_bytes * N_PAIRS
