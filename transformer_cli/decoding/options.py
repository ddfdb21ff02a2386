"""What is asked of a search, and what it says where it cannot go on; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from transformer_cli.config.decoding import MAX_BEAM, MAX_PENALTY, SEARCHES, DecodingConfig, Mbr
from transformer_cli.decoding.hypothesis import PER_TOKEN, LengthPenalty
from transformer_cli.errors import UsageError
from transformer_cli.wording import counted

LINE_BITS = 40
"""Of the number that a line has in what is drawn for it; above these is the place of its part."""


@dataclass(frozen=True)
class Symbols:
    """The ids that mean something to a search; `banned` are never generated. first: the mark that every translation
    begins with, which is certain; None where there is none."""

    bos: int
    eos: int
    banned: tuple[int, ...]
    first: int | None = None


class NotFinite(ArithmeticError):
    """The model gave no probabilities; `row` is the sentence's place in the batch."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the logits of sentence {row} of the batch are not finite")
        self.row = row


@dataclass(frozen=True)
class Sampling:
    """From what is drawn: all tokens, or the likeliest.

    temperature: what log-probabilities are divided by. top_k: so many of the likeliest; 0 is all. top_p: the fewest of
    the likeliest that have this share of the probability (Holtzman et al. 2020); of what temperature and top_k left.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


FROM_ALL = Sampling(seed=1)


@dataclass(frozen=True)
class SearchOptions:
    """How to search, for all sentences of a call. Raises UsageError for what cannot be.

    search: the recipe. beam_size: 1 is greedy. n_best: hypotheses per sentence; draws of `sampling`, which has no beam.
    mbr: what is drawn is ordered by its expected utility, n_best the most that stay.
    min_length: pieces, end mark not counted. no_repeat_ngram: 0 lets all repeat.
    """

    search: str = "beam"
    beam_size: int = 5
    n_best: int = 1
    penalty: LengthPenalty = PER_TOKEN
    min_length: int = 0
    no_repeat_ngram: int = 0
    sampling: Sampling = FROM_ALL
    mbr: Mbr | None = None

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise UsageError(f"there is no search {self.search!r:.60}; there is {', '.join(SEARCHES.names)}")
        for name, number in (("beam_size", self.beam_size), ("n_best", self.n_best)):
            if not isinstance(number, Integral) or isinstance(number, bool):
                raise UsageError(f"{name} is {number!r:.60}; expected a whole number")
            object.__setattr__(self, name, int(number))  # one of NumPy's is as good
        if not isinstance(self.penalty.alpha, Real) or isinstance(self.penalty.alpha, bool):
            raise UsageError(f"the length penalty is {self.penalty.alpha!r:.60}; expected a number")
        if not 1 <= self.beam_size <= MAX_BEAM:
            raise UsageError(f"a beam of {self.beam_size:,} is not between 1 and {MAX_BEAM:,}")
        if self.search != "sampling" and not 1 <= self.n_best <= self.beam_size:
            raise UsageError(
                f"{self.n_best:,} translations per line were asked of a beam of {self.beam_size}",
                hint="a beam holds as many as its size: raise --beam-size, or lower --n-best",
            )
        if not 1 <= self.n_best <= MAX_BEAM:
            raise UsageError(f"{self.n_best:,} translations per line were to be drawn, not 1 to {MAX_BEAM:,}")
        if self.mbr is not None and self.n_best > self.mbr.samples:
            raise UsageError(
                f"{self.n_best:,} translations per line were asked of {counted(self.mbr.samples, 'draws')}",
                hint="raise decoding.mbr.samples, or lower --n-best",
            )
        if not abs(self.penalty.alpha) <= MAX_PENALTY:
            raise UsageError(
                f"a length penalty of {self.penalty.alpha} is not between -{MAX_PENALTY} and {MAX_PENALTY}"
            )

    @property
    def n_draws(self) -> int:
        """Of each sentence, where they are drawn."""
        return self.n_best if self.mbr is None else self.mbr.samples

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
        """What the configuration says, but for what is given here: a search that is leaves out `decoding.mbr`. seed:
        what sampling draws by.

        Raises UsageError also for a beam_size that is given where samples are drawn.
        """
        mbr = config.mbr if search is None else None
        if search == "sampling" and config.rerank is not None:
            raise UsageError(
                "decoding.rerank chooses from what a beam finds, and sampling has no beam",
                hint="leave out --sample, or the other: --set decoding.rerank=null",
            )
        search = "sampling" if mbr is not None else config.search if search is None else search
        if search == "sampling" and beam_size is not None:
            without = "sampling" if mbr is None else "decoding.mbr (--set decoding.mbr=null)"
            raise UsageError(
                f"a beam of {beam_size:,} was asked for, but translations are drawn: sampling has no beam",
                hint=f"without --beam-size they are drawn; without {without} they are searched for",
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
            mbr=mbr,
        )


def in_words(decoding: Mapping[str, Any]) -> str:
    """The search that a record of `decoding:` tells: greedy; beam 5, length penalty 1."""
    if (mbr := decoding.get("mbr")) is not None:
        return f"minimum Bayes risk, {mbr['samples']:,} samples, {mbr['metric']}"
    if decoding["search"] != "beam":
        return str(decoding["search"])
    search = f"beam {decoding['beam_size']:,}, length penalty {decoding['length_penalty']:g}"
    search = "greedy" if decoding["beam_size"] == 1 else search
    by = decoding.get("rerank")
    return search if by is None else f"{search}, ranked by {by['run']} with a weight of {by['weight']:g}"
