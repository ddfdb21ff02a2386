"""Which sentences go through the model together: a pure plan of one epoch, by token budget.

A batch is padded to its longest sentence on either side, and padding is computed like text. So sentences are sorted by
target length and, within one target length, by source length - upwards and downwards in turns, so that where the next
target length begins its neighbours fit on the source side, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from transformer_cli.errors import DataError

Indices = npt.NDArray[np.int64]


def plan(
    lengths: npt.NDArray[np.integer],
    *,
    budget: int,
    seed: int,
    epoch: int,
    rank: int = 0,
    world: int = 1,
) -> list[Indices]:
    """The batches of one epoch for one process, in the order in which they are used.

    lengths: (N, 2), pieces of source and target, end marks included. budget: sentences x longest source and sentences x
    longest target stay within it. seed, epoch: all that chance depends on, so an epoch resumes at any batch.
    Over all ranks every sentence is in one batch, and every rank has as many batches, of about the same length at the
    same position; only where there are fewer batches' worth of sentences than ranks is one empty.
    Raises DataError for a sentence that alone exceeds the budget.
    """
    lengths = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    _check_budget(lengths, budget)
    chance = np.random.default_rng([seed, epoch])
    batches = _cut(_order(lengths, chance), lengths, budget)
    _fill_up(batches, world)
    # Neighbours in the sorted order are one step of all ranks: nobody waits long for the others.
    steps = [batches[first : first + world] for first in range(0, len(batches), world)]
    return [steps[index][rank] for index in chance.permutation(len(steps))]


def padding_share(lengths: npt.NDArray[np.integer], batches: list[Indices]) -> float:
    """Share of the computed source and target tokens that are padding."""
    computed = sum(len(batch) * int(lengths[batch].max(axis=0).sum()) for batch in batches if len(batch))
    real = sum(int(lengths[batch].sum()) for batch in batches)
    return 1 - real / computed if computed else 0.0


def _check_budget(lengths: Indices, budget: int) -> None:
    if len(lengths) and int(lengths.max()) > budget:
        index = int(lengths.max(axis=1).argmax())
        raise DataError(
            f"pair {index + 1:,} has {int(lengths[index].max()):,} pieces, more than a batch may hold ({budget:,})",
            hint="raise training.budget_tokens, or lower data.max_length to leave such pairs out",
        )


def _order(lengths: Indices, chance: np.random.Generator) -> Indices:
    """All sentences, sorted so that neighbours fit on both sides; equal lengths in random order."""
    shuffled = chance.permutation(len(lengths))
    source, target = lengths[shuffled, 0], lengths[shuffled, 1]
    _, turn = np.unique(target, return_inverse=True)
    return shuffled[np.lexsort((np.where(turn % 2 == 0, source, -source), target))]


def _cut(order: Indices, lengths: Indices, budget: int) -> list[Indices]:
    """Cut the sorted sentences into batches, each before it would exceed the budget."""
    longest_side = lengths[order].max(axis=1)
    batches = []
    start = 0
    while start < len(order):
        # No batch has more sentences than its first one alone would allow.
        window = longest_side[start : start + budget // max(1, int(longest_side[start]))]
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
