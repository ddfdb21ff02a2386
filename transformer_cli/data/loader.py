"""From a plan to tensors: sentences of one batch side by side, padded, made ahead in the background.

B batch, S source length, T target length
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_cli.data.mixture import Ids
from transformer_cli.threads import Companion
from transformer_cli.tokenizer import BOS, EOS, PAD

AHEAD = 4
"""Batches that wait ready; they are small beside what the model needs for one."""


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as teacher forcing wants them: the decoder reads `target_in` and predicts `target_out`."""

    source_BS: Tensor
    """int64, PAD behind each sentence."""
    source_lengths_B: Tensor
    """int64, end marks included."""
    target_in_BT: Tensor
    """int64: BOS, then the sentence, then PAD."""
    target_out_BT: Tensor
    """int64: the sentence, then EOS, then PAD."""
    target_lengths_B: Tensor
    """int64, the mark included."""
    n_source_tokens: int
    """Without padding."""
    n_target_tokens: int
    """Without padding, end marks included: what the loss is divided by."""
    indices: tuple[int, ...] = ()
    """Which of a corpus they are, where they are of one."""


class Encoded(Protocol):
    """A corpus as ids."""

    def sources(self, indices: Sequence[int]) -> Sequence[Ids]:
        """Source ids, as the encoder reads them: with the end mark, if it wants one."""
        ...

    def targets(self, indices: Sequence[int]) -> Sequence[Ids]:
        """Target ids, without marks."""
        ...


def batches(corpus: Encoded, plan: Sequence[npt.NDArray[np.integer]], *, start: int = 0) -> Generator[Batch]:
    """The batches of a plan from the one numbered `start` on, each collated while the ones before it are used.

    An error of the background is raised here, where its batch would have come. Closing the iterator, or dropping it,
    ends the background thread.
    """
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=AHEAD)

    def put(item: Batch | BaseException | None, stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work(stopped: threading.Event) -> None:
        try:
            for indices in plan[start:]:
                if stopped.is_set():
                    return
                numbers = tuple(map(int, indices))
                batch = collate(corpus.sources(numbers), corpus.targets(numbers))
                put(replace(batch, indices=numbers), stopped)
            put(None, stopped)
        except BaseException as failure:
            put(failure, stopped)

    thread = Companion(work, name="batches")
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        thread.over.set()
        while not ready.empty():  # whoever waits for room has it, and is not waited for
            ready.get_nowait()
        thread.end()


def collate(source: Sequence[Ids], target: Sequence[Ids]) -> Batch:
    """Sentence pairs side by side, padded to one rectangle per side.

    source: ids as the encoder reads them; target: ids without marks.
    """
    source_BS, source_lengths_B = padded(source)
    target_in_BT, target_lengths_B = padded(target, first=BOS)
    target_out_BT, _ = padded(target, last=EOS)
    return Batch(
        source_BS=source_BS,
        source_lengths_B=source_lengths_B,
        target_in_BT=target_in_BT,
        target_out_BT=target_out_BT,
        target_lengths_B=target_lengths_B,
        n_source_tokens=int(source_lengths_B.sum()),
        n_target_tokens=int(target_lengths_B.sum()),
    )


def divided(batch: Batch, n: int) -> list[Batch]:
    """The same sentences in n batches, or in as many as there are sentences; each padded to its own longest."""
    n_rows = batch.source_lengths_B.numel()
    n = min(n, n_rows)
    if n < 2:
        return [batch]
    return [_rows(batch, slice(n_rows * part // n, n_rows * (part + 1) // n)) for part in range(n)]


def _rows(batch: Batch, rows: slice) -> Batch:
    source_lengths_B, target_lengths_B = batch.source_lengths_B[rows], batch.target_lengths_B[rows]
    S, T = max(int(source_lengths_B.max()), 1), int(target_lengths_B.max())
    return Batch(
        source_BS=batch.source_BS[rows, :S],
        source_lengths_B=source_lengths_B,
        target_in_BT=batch.target_in_BT[rows, :T],
        target_out_BT=batch.target_out_BT[rows, :T],
        target_lengths_B=target_lengths_B,
        n_source_tokens=int(source_lengths_B.sum()),
        n_target_tokens=int(target_lengths_B.sum()),
        indices=batch.indices[rows],
    )


def padded(rows: Sequence[Ids], *, first: int | None = None, last: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows of one length (B, T), PAD behind each, and their real lengths (B); both int64, on the CPU. T is at least 1:
    without end marks all sources may be without a piece.

    first, last: a mark in front of each row, or behind it.
    """
    before, marks = int(first is not None), int(first is not None) + int(last is not None)
    lengths_B = np.array([len(row) + marks for row in rows], dtype=np.int64)
    padded_BT = np.full((len(rows), lengths_B.max(initial=max(marks, 1))), PAD, dtype=np.int64)
    if first is not None:
        padded_BT[:, 0] = first
    for index, row in enumerate(rows):
        padded_BT[index, before : before + len(row)] = row
        if last is not None:
            padded_BT[index, before + len(row)] = last
    return torch.from_numpy(padded_BT), torch.from_numpy(lengths_B)
