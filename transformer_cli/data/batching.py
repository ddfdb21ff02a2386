"""Which sentences go through the model together: a pure plan of one epoch, by token budget.

A batch is padded to its longest sentence on either side, and padding is computed like text. So sentences are sorted by
target length and, within one target length, by source length - upwards and downwards in turns, so that where the next
target length begins its neighbours fit on the source side, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from transformer_cli.errors import DataError

Indices = npt.NDArray[np.integer]

PART = 1 << 16
"""Sentences whose keys are computed at a time."""


def plan(
    lengths: npt.NDArray[np.integer],
    *,
    budget: int,
    seed: int,
    epoch: int,
    rank: int = 0,
    world: int = 1,
    rows: Indices | None = None,
) -> list[Indices]:
    """The batches of one epoch for one process, in the order in which they are used.

    lengths: (N, 2), pieces of source and target, end marks included. budget: sentences x longest source and sentences x
    longest target stay within it. seed, epoch: all that chance depends on, so an epoch resumes at any batch.
    rows: the numbers that the sentences have; when not given, they are counted from 0.
    Over all ranks every sentence is in one batch, and every rank has as many batches, of about the same length at the
    same position; only where there are fewer batches' worth of sentences than ranks is one empty.
    Raises DataError for a sentence that alone exceeds the budget.
    """
    return [step[rank] for step in _steps(lengths, rows, budget=budget, seed=seed, epoch=epoch, world=world)]


def left_over(
    lengths: npt.NDArray[np.integer], world: int, n_batches: int, *, budget: int, seed: int, epoch: int
) -> Indices:
    """The sentences that are still to be used once so many processes used so many batches each of a plan of these. A
    plan of the lengths of what is left is one of the rest of the epoch."""
    steps = _steps(lengths, None, budget=budget, seed=seed, epoch=epoch, world=world)
    is_left = np.ones(len(lengths), dtype=bool)
    for batch in chain.from_iterable(steps[:n_batches]):
        is_left[batch] = False
    del steps  # before what is left takes as much memory
    return np.flatnonzero(is_left).astype(np.int32)


def plan_of_rest(
    lengths: npt.NDArray[np.integer],
    shares: Sequence[tuple[int, int]],
    *,
    budget: int,
    seed: int,
    epoch: int,
    rank: int,
    world: int,
) -> list[Indices]:
    """A plan of what is left of an epoch: of all of it, where there are no shares. shares: processes that were so many
    used so many batches each, one number of them after the other."""
    rows: Indices | None = None
    for share in shares:
        left = left_over(lengths, *share, budget=budget, seed=seed, epoch=epoch)
        rows, lengths = left if rows is None else rows[left], lengths[left]
    return plan(lengths, budget=budget, seed=seed, epoch=epoch, rank=rank, world=world, rows=rows)


def _steps(
    lengths: npt.NDArray[np.integer], rows: Indices | None, *, budget: int, seed: int, epoch: int, world: int
) -> list[list[Indices]]:
    """The batches of one epoch, those that all ranks use at a time together, in the order in which they are used."""
    lengths = np.asarray(lengths).reshape(-1, 2)
    _check_budget(lengths, budget)
    chance = np.random.default_rng([seed, epoch])
    order = _order(lengths, chance)
    batches = _cut(order, lengths, budget)
    for part in _parts(0 if rows is None else len(rows)):  # in place: what was cut are views
        order[part] = rows[order[part]]  # type: ignore[index]
    _fill_up(batches, world)
    # Neighbours in the sorted order are one step: nobody waits long for the others.
    steps = [batches[first : first + world] for first in range(0, len(batches), world)]
    return [steps[index] for index in chance.permutation(len(steps))]


def _check_budget(lengths: npt.NDArray[np.integer], budget: int) -> None:
    if lengths.max(initial=0) > budget:
        index = int(lengths.argmax()) // 2
        raise DataError(
            f"pair {index + 1:,} has {int(lengths[index].max()):,} pieces, more than a batch may hold ({budget:,})",
            hint="raise training.budget_tokens, or lower data.max_length to leave such pairs out",
        )


def _order(lengths: npt.NDArray[np.integer], chance: np.random.Generator) -> Indices:
    """All sentences, sorted so that neighbours fit on both sides; equal lengths in random order.

    What is sorted is one number a sentence, in place: its lengths in the upper bits, its place among the shuffled in
    the lower ones. So is what becomes of it, the sentence.
    """
    shuffled = np.arange(len(lengths), dtype=np.int32)
    chance.shuffle(shuffled)
    (source, n_sources), (target, _) = _ranks(lengths[:, 0]), _ranks(lengths[:, 1])
    n_bits = len(lengths).bit_length()
    keys = np.empty(len(lengths), dtype=np.uint64)
    for part in _parts(len(lengths)):
        own = lengths[shuffled[part]]  # each is far from the one before it: looked up once
        sources, targets = source[own[:, 0]], target[own[:, 1]]
        turned = np.where(targets % 2 == 0, sources, n_sources - 1 - sources)
        keys[part] = (targets * n_sources + turned) << n_bits | np.arange(part.start, part.stop)
    keys.sort()
    for part in _parts(len(lengths)):
        keys[part] = shuffled[(keys[part] & np.uint64((1 << n_bits) - 1)).astype(np.int64)]
    del shuffled
    return keys.astype(np.int32)


def _ranks(lengths: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], int]:
    """For each length its place among those that occur, and how many do."""
    occurs = np.zeros(int(lengths.max(initial=0)) + 1, dtype=np.int64)
    occurs[lengths] = 1
    return np.cumsum(occurs) - 1, int(occurs.sum())


def _parts(n: int) -> Iterator[slice]:
    """Places from 0 to n, so many at a time that what is computed for them takes no room."""
    return (slice(start, min(start + PART, n)) for start in range(0, n, PART))


def _cut(order: Indices, lengths: npt.NDArray[np.integer], budget: int) -> list[Indices]:
    """Cut the sorted sentences into batches, each before it would exceed the budget."""
    batches = []
    start = first = 0
    longest = np.empty(0, dtype=np.int64)  # side of each sentence from `first` on
    while start < len(order):
        if len(longest) - (start - first) < min(budget, len(order) - start):
            own = lengths[order[start : start + budget + PART]]
            first, longest = start, np.maximum(own[:, 0], own[:, 1]).astype(np.int64)
        # No batch has more sentences than its first one alone would allow.
        most = budget // max(1, int(longest[start - first]))
        window = longest[start - first : start - first + most]
        padded = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        size = int(np.searchsorted(padded, budget, side="right"))
        batches.append(order[start : start + size])
        start += size
    return batches


def _fill_up(batches: list[Indices], world: int) -> None:
    """Split the largest batches, where they are, until the ranks can share them evenly."""
    while len(batches) % world:
        largest = max(range(len(batches)), key=lambda index: len(batches[index]))
        half = (len(batches[largest]) + 1) // 2
        batches[largest : largest + 1] = [batches[largest][:half], batches[largest][half:]]
