"""One door to every search, under whatever constraints are asked for.

B sentences, S source length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from transformer_cli.config.decoding import SEARCHES
from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.constraints import Constraint, ForcedPrefix, MinLength, NoRepeat
from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import SearchOptions, Symbols
from transformer_cli.decoding.sampling import sample
from transformer_cli.decoding.stepper import Marked, S, Stepper


@dataclass(frozen=True)
class Task:
    """What a search is asked for: a batch of sentences, each with its most pieces (end mark not counted) and its number
    in the input, and what must not be written."""

    limits: Sequence[int]
    symbols: Symbols
    options: SearchOptions
    lines: Sequence[int]
    constraints: Sequence[Constraint]


class Search(Protocol[S]):
    """A recipe: the n_best hypotheses of each sentence, best first, under all constraints. Raises NotFinite."""

    def __call__(
        self, stepper: Stepper[S], source_BS: Tensor, source_lengths_B: Tensor, task: Task
    ) -> list[list[Hypothesis]]: ...


def search(
    stepper: Stepper[S],
    source_BS: Tensor,
    source_lengths_B: Tensor,
    *,
    limits: Sequence[int],
    symbols: Symbols,
    options: SearchOptions,
    lines: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The n_best hypotheses of each sentence, best first; of sampling n_draws, as they were drawn.

    limits: most pieces per sentence, end mark not counted; a prefix always fits, and the least length gives way.
    lines: each sentence's number in the input, which sampling draws by. prefixes: the ids that each sentence's
    translation begins with, possibly none; nothing that is banned is in them. Raises NotFinite.
    """
    if prefixes is not None:
        limits = [max(limit, len(prefix)) for limit, prefix in zip(limits, prefixes, strict=True)]
    constraints = constraints_of(options, limits, symbols)
    if prefixes is not None and any(prefixes):
        constraints.append(ForcedPrefix(prefixes))
    task = Task(limits, symbols, options, lines, constraints)
    how: Search[Any] = SEARCHES.load(options.search)
    begun = stepper if symbols.first is None else Marked(stepper, symbols.first)
    return how(begun, source_BS, source_lengths_B, task)


def constraints_of(options: SearchOptions, limits: Sequence[int], symbols: Symbols) -> list[Constraint]:
    """Those that are asked for, of sentences with these most pieces."""
    constraints: list[Constraint] = []
    if options.min_length:
        least = options.min_length + (symbols.first is not None)
        constraints.append(MinLength([min(least, limit) for limit in limits], eos=symbols.eos))
    if options.no_repeat_ngram:
        constraints.append(NoRepeat(options.no_repeat_ngram))
    return constraints


def beam(stepper: Stepper[S], source_BS: Tensor, source_lengths_B: Tensor, task: Task) -> list[list[Hypothesis]]:
    """Beam search; with a beam of one greedy search, which is the same and faster."""
    batch, options = (source_BS, source_lengths_B), task.options
    if options.beam_size == 1:
        found = greedy_search(stepper, *batch, limits=task.limits, symbols=task.symbols, constraints=task.constraints)
        return [[hypothesis] for hypothesis in found]
    return beam_search(
        stepper,
        *batch,
        limits=task.limits,
        symbols=task.symbols,
        beam_size=options.beam_size,
        penalty=options.penalty,
        n_best=options.n_best,
        constraints=task.constraints,
    )


def sampling(stepper: Stepper[S], source_BS: Tensor, source_lengths_B: Tensor, task: Task) -> list[list[Hypothesis]]:
    """As many draws as there are to be hypotheses, or to be chosen from."""
    return sample(
        stepper,
        source_BS,
        source_lengths_B,
        limits=task.limits,
        symbols=task.symbols,
        sampling=task.options.sampling,
        lines=task.lines,
        constraints=task.constraints,
        n_draws=task.options.n_draws,
    )
