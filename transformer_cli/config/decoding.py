"""`decoding:` - how a translation is searched for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import Contradiction, NonNegativeInt, PositiveFloat, PositiveInt, Section

PenaltyFamily = Literal["power", "gnmt"]
Reading = Literal["raw", "shifted"]
"""Which row of cross-attention aligns a word."""
MAX_BEAM = 1000
"""Memory grows with the square of the beam."""
MAX_PENALTY = 10
"""Of either sign: far beyond any use, and powers of lengths stay finite."""


SEARCHES = Recipes("searches", {"beam": "decoding.search:beam", "sampling": "decoding.search:sampling"})


class Mbr(Section):
    """Minimum Bayes risk: draw translations, and take the one that says most of what the others say."""

    samples: Annotated[int, Field(ge=2, le=MAX_BEAM)] = 50
    """Translations drawn of each line; more find better ones, and take longer."""
    metric: Literal["chrf", "chrf++", "bleu"] = "chrf"
    """What tells how much of one another translation says, sentence by sentence."""


class Rerank(Section):
    """A noisy channel: of what a beam found, the translation that also lets its source be expected."""

    run: Annotated[str, Field(min_length=1, max_length=4096)]
    """The run, or checkpoint, that translates back; a model of both directions can be its own."""
    weight: Annotated[float, Field(gt=0, le=100)] = 0.25
    """Of the mean log-probability of a source piece, its translation given, which is added to the score."""


class DecodingConfig(Section):
    """How a translation is found."""

    engine: Literal["auto", "native", "ctranslate2"] = "auto"
    """What computes: native is PyTorch. ctranslate2 is faster on a CPU and starts in no time, needs the extra of that
    name, and keeps the weights as it has them in the run's directory; its beam search finds other translations here
    and there. auto takes it where it is installed and finds the same: greedy search, in fp32, without constraints."""
    workers: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Processes that share batches on a CPU under Linux, each with one thread, from the command line. auto: as many as
    there are threads, where each gets two batches at least. Of the engine ctranslate2: threads, where all get that."""
    search: Annotated[str, SEARCHES] = "beam"
    """Beam search, greedy with a beam of one; or sampling: draw translations at random, by the run's seed."""
    mbr: Mbr | None = None
    """Minimum Bayes risk (Eikema & Aziz 2020): of so many draws, the one with the greatest mean utility, which is its
    score by `metric` against each of the others; of equals the one drawn more often, then the first by its letters. It
    takes the place of `search`; `temperature`, `top_k` and `top_p` say from what is drawn, all of it by default."""
    rerank: Rerank | None = None
    """A noisy channel (Yee et al. 2019): whatever the beam found is ranked anew, with a model that translates back. The
    wider the beam, the more there is to choose from."""
    beam_size: Annotated[int, Field(gt=0, le=MAX_BEAM)] = 5
    """Hypotheses kept per sentence; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] = 1.0
    """Scores are divided by a power of the length, and this is the exponent: 0 disables, below 0 favours the short."""
    length_penalty_family: PenaltyFamily = "power"
    """power: length^length_penalty. gnmt: ((5 + length) / 6)^length_penalty. The end mark is counted."""
    shortlist: Annotated[int, Field(gt=0, le=100)] | None = None
    """For each source piece so many target pieces, and as many of the most frequent, are all that beam search may
    write: the fewer, the faster, and the more often another translation. Probabilities, and so scores and what is
    `unsure`, are those among them. Which they are is learned from the run's training text, of a large one from a part,
    when first asked for (IBM's Model 1), and kept in the run. null: all pieces."""
    min_length: NonNegativeInt = 0
    """Pieces that a translation has at least; of a line that is split, each part."""
    max_length: Annotated[int, Field(gt=0, le=100_000)] | None = None
    """Pieces that a translation has at most, however long its source is; of a line that is split, each part."""
    max_length_factor: Annotated[float, Field(ge=0, le=100)] = 2.0
    """A translation has at most factor x source pieces + extra pieces."""
    max_length_extra: Annotated[int, Field(ge=0, le=10_000)] = 10
    """The extra pieces of that limit."""
    no_repeat_ngram: NonNegativeInt = 0
    """No run of so many pieces comes twice in a translation, of a split line in a part of it; 0 lets all repeat."""
    banned: list[str] = Field(default=[])
    """Pieces of the target vocabulary that are never written, such as "▁the"; marks such as </s> cannot be banned."""
    temperature: PositiveFloat = 1.0
    """Of sampling: below 1 prefers the likely, above 1 levels all."""
    top_k: NonNegativeInt = 0
    """Sampling draws from so many of the likeliest pieces; 0 is all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sampling draws from the fewest likeliest pieces that have this share of the probability together; 1 is all."""
    alignment_layer: PositiveInt | None = None
    """The decoder layer that `tx translate --alignments` reads; the last but one when not given, of two the last."""
    alignment_reading: Reading = "raw"
    """raw: a word is aligned by the row that it comes out of; shifted: by the row that it goes into (Chen et al.)."""
    batch_size: PositiveInt = 64
    """Sentences translated together, at most."""
    budget_tokens: PositiveInt = 8192
    """Padded source tokens translated together, at most, so that long sentences keep to memory; one always may."""
    long: Literal["split", "refuse"] = "split"
    """A line of more than max_source_length pieces is split at sentence ends, translated in parts and joined again; or
    it is refused: its translation is empty, and the command ends with exit code 3."""
    max_source_sentences: PositiveInt | None = None
    """A line of more sentences is translated sentence by sentence, and joined again; when not given, as many as one
    line in a hundred of the training text has, for a model drops some of those that it never saw together."""
    max_source_length: Annotated[int, Field(ge=2, le=10**12)] | None = None
    """Source pieces, end mark included, that are translated at once; data.max_length when not given, in no case more
    than the model has positions."""

    @property
    def draws(self) -> bool:
        """Whether translations are drawn, by the numbers of their lines."""
        return self.mbr is not None or self.search == "sampling"


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
        yield Contradiction.of(f"{words}one of 1 finds no two", "decoding.rerank", "decoding.beam_size")
