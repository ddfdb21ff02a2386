from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.data.batching import plan
from transformer_cli.data.loader import AHEAD, batches, collate, divided
from transformer_cli.tokenizer import BOS, EOS, PAD

sentences = st.lists(st.integers(4, 99), max_size=12)


class ListCorpus:
    """Ids in memory: pair i has i + 1 source pieces and the target [10 + i]."""

    def __init__(self, n: int, *, broken: int | None = None) -> None:
        self.n, self.broken, self.read = n, broken, 0

    def sources(self, indices: Sequence[int]) -> list[np.ndarray]:
        if self.broken in indices:
            raise OSError("the disk is gone")
        self.read += len(indices)
        return [np.full(index + 1, 7, dtype=np.int32) for index in indices]

    def targets(self, indices: Sequence[int]) -> list[np.ndarray]:
        return [np.array([10 + index], dtype=np.int32) for index in indices]


def one_by_one(n: int) -> list[np.ndarray]:
    return [np.array([index]) for index in range(n)]


@given(pairs=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8))
def test_a_batch_holds_its_sentences_and_nothing_but_padding_besides(pairs):
    source, target = zip(*pairs, strict=True)
    batch = collate(
        [np.array(ids, dtype=np.int32) for ids in source], [np.array(ids, dtype=np.int32) for ids in target]
    )

    assert [row[:n].tolist() for row, n in zip(batch.source_BS, batch.source_lengths_B, strict=True)] == list(source)
    assert int((batch.source_BS != PAD).sum()) == batch.n_source_tokens == sum(map(len, source))
    for row_in, row_out, ids in zip(batch.target_in_BT, batch.target_out_BT, target, strict=True):
        padding = [PAD] * (max(map(len, target)) - len(ids))
        assert row_in.tolist() == [BOS, *ids, *padding]
        assert row_out.tolist() == [*ids, EOS, *padding]
    assert int((batch.target_out_BT != PAD).sum()) == batch.n_target_tokens
    assert {batch.source_BS.dtype, batch.target_in_BT.dtype, batch.target_out_BT.dtype} == {torch.int64}


@given(pairs=st.lists(st.tuples(sentences, sentences), max_size=8), n=st.integers(1, 10))
def test_a_divided_batch_is_one_of_each_part_of_its_sentences(pairs, n):
    def collated(some):
        return collate([source for source, _ in some], [target for _, target in some])

    whole = replace(collated(pairs), indices=tuple(range(len(pairs))))
    parts = divided(whole, n)
    assert len(parts) == max(1, min(n, len(pairs)))
    sizes = [len(part.indices) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert [index for part in parts for index in part.indices] == list(range(len(pairs)))
    for part in parts:
        expected = vars(collated([pairs[index] for index in part.indices]))
        for name, value in vars(part).items():
            if name != "indices":
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[name]))


def test_an_empty_batch_has_no_rows():
    batch = collate([], [])
    assert batch.source_BS.shape[0] == batch.target_in_BT.shape[0] == batch.n_target_tokens == 0


def test_batches_come_in_the_order_of_the_plan():
    lengths = np.array([[index + 1, 2] for index in range(30)])
    epoch = plan(lengths, budget=60, seed=3, epoch=2)
    seen = [(batch.target_out_BT[:, 0] - 10).tolist() for batch in batches(ListCorpus(30), epoch)]
    assert seen == [batch.tolist() for batch in epoch]


@pytest.mark.parametrize("start", [0, 1, 19, 20, 25])
def test_starting_at_a_batch_gives_what_was_left(start):
    everything = [batch.target_out_BT.tolist() for batch in batches(ListCorpus(20), one_by_one(20))]
    rest = [batch.target_out_BT.tolist() for batch in batches(ListCorpus(20), one_by_one(20), start=start)]
    assert rest == everything[start:]


def test_an_error_of_the_background_is_raised_after_the_batches_before_it():
    stream = batches(ListCorpus(9, broken=5), one_by_one(9))
    assert [int(next(stream).target_out_BT[0, 0]) - 10 for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


def test_stopping_early_ends_the_background_thread():
    before = {*threading.enumerate()}
    corpus = ListCorpus(1000)
    stream = batches(corpus, one_by_one(1000))
    next(stream)
    stream.close()
    assert {*threading.enumerate()} <= before  # others may end meanwhile
    assert corpus.read <= AHEAD + 3


def test_stopping_early_waits_for_no_batch_that_nobody_wants():
    """A tenth of a second was waited for room, in which a signal's error would be lost."""
    streams = [batches(ListCorpus(1000), one_by_one(1000)) for _ in range(8)]
    for stream in streams:
        next(stream)
    time.sleep(0.05)  # all are full
    begin = time.monotonic()
    for stream in streams:
        stream.close()
        time.sleep(0.05)
    assert time.monotonic() - begin < 0.4 + 0.2


def test_no_thread_is_left_when_all_batches_were_read():
    before = {*threading.enumerate()}
    assert len(list(batches(ListCorpus(3), one_by_one(3)))) == 3
    assert {*threading.enumerate()} <= before  # others may end meanwhile
