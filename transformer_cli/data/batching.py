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
Ranks = npt.NDArray[np.uint64]

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
    order, longest = _order(lengths, chance)
    batches = _cut(order, longest, budget)
    del longest  # and the keys with it
    for part in _parts(0 if rows is None else len(rows)):  # in place: what was cut are views
        order[part] = rows.take(order[part])  # type: ignore[union-attr]
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


def _order(lengths: npt.NDArray[np.integer], chance: np.random.Generator) -> tuple[Indices, Indices]:
    """All sentences, sorted so that neighbours fit on both sides, equal lengths in random order; and the longer side of
    each of them.

    What is sorted is one number a sentence, in place: its lengths in the upper bits, its place among the shuffled in
    the lower ones. So is what becomes of it, its longer side and the sentence.
    """
    shuffled = np.arange(len(lengths), dtype=np.int32)
    chance.shuffle(shuffled)
    (sources, source_ranks), (targets, target_ranks) = _ranks(lengths[:, 0]), _ranks(lengths[:, 1])
    n_sources, n_bits = np.uint64(max(len(sources), 1)), np.uint64(len(lengths).bit_length())
    keys = np.empty(len(lengths), dtype=np.uint64)
    for part in _parts(len(lengths)):
        own = lengths.take(shuffled[part], axis=0)  # each is far from the one before it: looked up once
        source, target = source_ranks[own[:, 0]], target_ranks[own[:, 1]]
        place = np.arange(part.start, part.stop, dtype=np.uint64)
        keys[part] = (target * n_sources + _turned(source, target, n_sources)) << n_bits | place
    keys.sort()
    found = keys.view(np.int32).reshape(-1, 2)
    for part in _parts(len(lengths)):
        target, source = np.divmod(keys[part] >> n_bits, n_sources)
        place = keys[part] & ((np.uint64(1) << n_bits) - np.uint64(1))
        found[part, 0] = shuffled.take(place.view(np.int64))  # older NumPy takes no unsigned places
        found[part, 1] = np.maximum(sources[_turned(source, target, n_sources)], targets[target])
    del shuffled
    return found[:, 0].copy(), found[:, 1]


def _turned(source: Ranks, target: Ranks, n_sources: np.uint64) -> Ranks:
    """Upwards for every other target length, else downwards; the other way round it is the same."""
    return np.where(target % 2 == 0, source, n_sources - np.uint64(1) - source)


def _ranks(lengths: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.integer], Ranks]:
    """The lengths that occur, in order, and for each length its place among them."""
    occurs = np.zeros(int(lengths.max(initial=0)) + 1, dtype=np.uint64)
    occurs[lengths] = 1
    return np.flatnonzero(occurs).astype(lengths.dtype), np.cumsum(occurs) - occurs


def _parts(n: int) -> Iterator[slice]:
    """Places from 0 to n, so many at a time that what is computed for them takes no room."""
    return (slice(start, min(start + PART, n)) for start in range(0, n, PART))


def _cut(order: Indices, longest: Indices, budget: int) -> list[Indices]:
    """Cut the sorted sentences into batches, each before it would exceed the budget."""
    batches = []
    counted = np.arange(1, min(budget, len(order)) + 1)
    start = 0
    while start < len(order):
        # No batch has more sentences than its first one alone would allow.
        window = longest[start : start + budget // max(1, int(longest[start]))]
        padded = np.maximum.accumulate(window) * counted[: len(window)]
        size = int(padded.searchsorted(budget, side="right"))
        batches.append(order[start : start + size])
        start += size
    return batches


def _fill_up(batches: list[Indices], world: int) -> None:
    """Split the largest batches, where they are, until the ranks can share them evenly."""
    while len(batches) % world:
        largest = max(range(len(batches)), key=lambda index: len(batches[index]))
        half = (len(batches[largest]) + 1) // 2
        batches[largest : largest + 1] = [batches[largest][:half], batches[largest][half:]]
