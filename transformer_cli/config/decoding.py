"""`decoding:` - how a translation is searched for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import AtHome, Contradiction, NonNegativeInt, PositiveFloat, PositiveInt, Section

PenaltyFamily = Literal["power", "gnmt"]
Reading = Literal["raw", "shifted"]
"""Which row of cross-attention aligns a word."""
MAX_BEAM = 1000
"""Memory grows with the square of the beam."""
MAX_PENALTY = 10
"""Of either sign: far beyond any use, and powers of lengths stay finite."""


SEARCHES = Recipes("searches", {"beam": "decoding.search:beam", "sampling": "decoding.search:sampling"})


class Mbr(Section):
    """Minimum Bayes risk: draw translations, and take the one that agrees most with the others."""

    samples: Annotated[int, Field(ge=2, le=MAX_BEAM)] = 50
    """Translations drawn for each line; more find better ones, and take longer."""
    metric: Literal["chrf", "chrf++", "bleu"] = "chrf"
    """How the agreement of two translations is measured, sentence by sentence."""


class Rerank(Section):
    """A noisy channel: rank what the beam found also by how likely the source is, given each translation."""

    run: AtHome
    """The run or checkpoint that translates back; a model of both directions can be its own. Relative to where the
    command is typed, like `-m`."""
    weight: Annotated[float, Field(gt=0, le=100)] = 0.25
    """Weight of what is added to the score: the mean log-probability of a source piece, given the translation."""


class DecodingConfig(Section):
    """How a translation is found."""

    engine: Literal["auto", "native", "ctranslate2"] = "auto"
    """What computes. native: tx itself. ctranslate2: needs no PyTorch and so starts in a third of the time, and is
    faster on a CPU where there is no `g++`; it needs the extra of that name, keeps its own copy of the weights in the
    run's directory, and its beam search finds a different translation here and there. auto: ctranslate2 where it is
    installed and finds the same (greedy search, in fp32, without constraints), else native."""
    workers: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Processes that share the batches of a command line on a CPU under Linux, each with one thread. auto: as many as
    there are threads, if each gets at least two batches. With the engine ctranslate2 these are threads, under the same
    condition."""
    search: Annotated[str, SEARCHES] = "beam"
    """beam (greedy search with a beam of one), or sampling: draw translations at random, by the run's seed."""
    mbr: Mbr | None = None
    """Minimum Bayes risk (Eikema & Aziz 2020): of the draws take the one with the greatest mean utility, which is its
    score by `metric` against each of the others; of equals the one drawn more often, then the first by its letters. It
    replaces `search`; `temperature`, `top_k` and `top_p` limit what is drawn from, by default nothing."""
    rerank: Rerank | None = None
    """A noisy channel (Yee et al. 2019): what the beam found is ranked anew, with a model that translates back. The
    wider the beam, the more there is to choose from."""
    beam_size: Annotated[int, Field(gt=0, le=MAX_BEAM)] = 5
    """Hypotheses kept per sentence; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] = 1.0
    """Exponent of the length that scores are divided by: 0 disables, below 0 favours short translations."""
    length_penalty_family: PenaltyFamily = "power"
    """power: length^length_penalty. gnmt: ((5 + length) / 6)^length_penalty. The end mark counts."""
    shortlist: Annotated[int, Field(gt=0, le=100)] | None = None
    """Beam search may write only this many target pieces for each source piece, and as many of the most frequent: the
    fewer, the faster, and the more often the translation is a different one. Probabilities, and so scores and `unsure`,
    are those among these pieces. Which they are is learned from the run's training text (a part of it, if it is large)
    when first asked for (IBM's Model 1), and kept in the run. null: all pieces."""
    min_length: NonNegativeInt = 0
    """Fewest pieces of a translation; of each part, if a line is split."""
    max_length: Annotated[int, Field(gt=0, le=100_000)] | None = None
    """Most pieces of a translation, however long its source is; of each part, if a line is split."""
    max_length_factor: Annotated[float, Field(ge=0, le=100)] = 2.0
    """A translation has at most max_length_factor x source pieces + max_length_extra pieces."""
    max_length_extra: Annotated[int, Field(ge=0, le=10_000)] = 10
    """See max_length_factor."""
    no_repeat_ngram: NonNegativeInt = 0
    """No sequence of this many pieces occurs twice in a translation, or in one part of a split line; 0: no limit."""
    banned: list[str] = Field(default=[])
    """Pieces of the target vocabulary that are never written, such as "▁the"; special symbols such as </s> cannot be
    banned."""
    temperature: PositiveFloat = 1.0
    """For sampling: below 1 prefers the likely, above 1 levels all."""
    top_k: NonNegativeInt = 0
    """Sampling draws from this many of the likeliest pieces; 0: from all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sampling draws from the fewest likeliest pieces whose probabilities add up to this share; 1: from all."""
    alignment_layer: PositiveInt | None = None
    """The decoder layer that `tx translate --alignments` reads; when not given, the last but one, and of two the
    last."""
    alignment_reading: Reading = "raw"
    """raw: align a word by the row that it comes out of; shifted: by the row that it goes into (Chen et al. 2020)."""
    batch_size: PositiveInt = 64
    """Sentences translated together, at most."""
    budget_tokens: PositiveInt = 8192
    """Padded source tokens translated together, at most, so that long sentences do not take too much memory; a single
    sentence may exceed it."""
    long: Literal["split", "refuse"] = "split"
    """split: a line of more than max_source_length pieces is split at sentence ends, translated in parts and joined
    again. refuse: its translation is empty, and the command ends with exit code 3."""
    max_source_sentences: PositiveInt | None = None
    """A line of more sentences is translated sentence by sentence and joined again, because a model drops some of those
    that it never saw together. When not given, as many as one line in a hundred of the training text has."""
    max_source_length: Annotated[int, Field(ge=2, le=10**12)] | None = None
    """Most source pieces, end mark included, that are translated at once; data.max_length when not given, and never
    more than the model has positions."""

    @property
    def draws(self) -> bool:
        """Whether translations are drawn, by the numbers of their lines."""
        return self.mbr is not None or self.search == "sampling"

    @property
    def n_paths(self) -> int:
        """In how many ways a sentence is translated at once, where one translation is asked for."""
        if self.mbr is not None:
            return self.mbr.samples
        return 1 if self.draws else self.beam_size


def searches_that_clash(decoding: DecodingConfig) -> Iterator[Contradiction]:
    """Of several ways to choose a translation, those that do not go together."""
    if decoding.rerank is None:
        return
    words = "decoding.rerank chooses from what a beam finds: "
    if decoding.mbr is not None:
        yield Contradiction.of(f"{words}with decoding.mbr there is none", "decoding.rerank", "decoding.mbr")
    elif decoding.search == "sampling":
        yield Contradiction.of(f"{words}sampling has none", "decoding.rerank", "decoding.search")
    elif decoding.beam_size == 1:
        yield Contradiction.of(f"{words}a beam of 1 finds only one", "decoding.rerank", "decoding.beam_size")
