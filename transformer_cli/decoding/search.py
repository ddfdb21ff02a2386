"""One door to every search, under whatever constraints are asked for.

B sentences, S source length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from transformer_cli.config.decoding import MAX_BEAM, MAX_PENALTY, SEARCHES, DecodingConfig
from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.candidates import Symbols
from transformer_cli.decoding.constraints import Constraint, ForcedPrefix, MinLength, NoRepeat
from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.hypothesis import PER_TOKEN, Hypothesis, LengthPenalty
from transformer_cli.decoding.sampling import Sampling, sample
from transformer_cli.decoding.stepper import S, Stepper
from transformer_cli.errors import UsageError

FROM_ALL = Sampling(seed=1)


@dataclass(frozen=True)
class SearchOptions:
    """How to search, for all sentences of a call. Raises UsageError for what cannot be.

    search: the recipe. beam_size: 1 is greedy. n_best: hypotheses per sentence; draws of `sampling`, which has no beam.
    min_length: pieces, end mark not counted. no_repeat_ngram: 0 lets all repeat.
    """

    search: str = "beam"
    beam_size: int = 5
    n_best: int = 1
    penalty: LengthPenalty = PER_TOKEN
    min_length: int = 0
    no_repeat_ngram: int = 0
    sampling: Sampling = FROM_ALL

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MAX_BEAM:
            raise UsageError(f"a beam of {self.beam_size:,} is not between 1 and {MAX_BEAM:,}")
        if self.search != "sampling" and not 1 <= self.n_best <= self.beam_size:
            raise UsageError(
                f"{self.n_best:,} translations per line were asked of a beam of {self.beam_size}",
                hint="a beam holds as many as its size: raise --beam-size, or lower --n-best",
            )
        if not 1 <= self.n_best <= MAX_BEAM:
            raise UsageError(f"{self.n_best:,} translations per line were to be drawn, not 1 to {MAX_BEAM:,}")
        if not abs(self.penalty.alpha) <= MAX_PENALTY:
            raise UsageError(
                f"a length penalty of {self.penalty.alpha} is not between -{MAX_PENALTY} and {MAX_PENALTY}"
            )

    @staticmethod
    def of(
        config: DecodingConfig,
        *,
        seed: int,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        search: str | None = None,
        n_best: int = 1,
    ) -> SearchOptions:
        """What the configuration says, but for what is given here. seed: what sampling draws by.

        Raises UsageError also for a beam_size that is given where samples are drawn.
        """
        search = config.search if search is None else search
        if search == "sampling" and beam_size is not None:
            raise UsageError(
                f"a beam of {beam_size:,} was asked for, but translations are drawn: sampling has no beam",
                hint="without --beam-size they are drawn; without sampling they are searched for",
            )
        sampling = Sampling(seed, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        return SearchOptions(
            search=search,
            beam_size=config.beam_size if beam_size is None else beam_size,
            n_best=n_best,
            penalty=LengthPenalty(
                config.length_penalty if length_penalty is None else length_penalty, config.length_penalty_family
            ),
            min_length=config.min_length,
            no_repeat_ngram=config.no_repeat_ngram,
            sampling=sampling,
        )


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
    """The n_best hypotheses of each sentence, best first; of sampling, in the order in which they were drawn.

    limits: most pieces per sentence, end mark not counted; a prefix always fits, and the least length gives way.
    lines: each sentence's number in the input, which sampling draws by. prefixes: the ids that each sentence's
    translation begins with, possibly none; nothing that is banned is in them. Raises NotFinite.
    """
    if prefixes is not None:
        limits = [max(limit, len(prefix)) for limit, prefix in zip(limits, prefixes, strict=True)]
    constraints: list[Constraint] = []
    if options.min_length:
        constraints.append(MinLength([min(options.min_length, limit) for limit in limits], eos=symbols.eos))
    if options.no_repeat_ngram:
        constraints.append(NoRepeat(options.no_repeat_ngram))
    if prefixes is not None and any(prefixes):
        constraints.append(ForcedPrefix(prefixes))
    task = Task(limits, symbols, options, lines, constraints)
    how: Search[S] = SEARCHES.load(options.search)
    return how(stepper, source_BS, source_lengths_B, task)


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
    """As many draws as there are to be hypotheses."""
    return sample(
        stepper,
        source_BS,
        source_lengths_B,
        limits=task.limits,
        symbols=task.symbols,
        sampling=task.options.sampling,
        lines=task.lines,
        constraints=task.constraints,
        n_draws=task.options.n_best,
    )
