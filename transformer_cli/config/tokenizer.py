"""`tokenizer:` - how text is cut into pieces (SentencePiece)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.section import Probability, Section

VocabSize = Annotated[int, Field(gt=4, le=10**7)]


BYTE_VOCAB = 4 + 256 + 1
"""The specials, all bytes, and the mark of a blank."""


class SideVocabSizes(Section):
    """One vocabulary size per side, for tokenizers that are not joint."""

    source: VocabSize
    target: VocabSize


class SideModels(Section):
    """One existing SentencePiece model per side."""

    source: str
    target: str


class TokenizerConfig(Section):
    """SentencePiece; the specials are `<pad> <unk> <s> </s>`, ids 0 to 3."""

    kind: Literal["bpe", "unigram", "word", "char", "byte"] = "bpe"
    """How the pieces are found: byte-pair encoding, a unigram language model, or whole words, characters or UTF-8
    bytes."""
    vocab_size: VocabSize | SideVocabSizes = 8000
    """Pieces, specials included: a number, or {source, target}. Fitted, with a message, where the text is too small.
    With kind char, the most frequent characters; with kind byte always 261, and the tags of `data.tags`."""
    joint: bool = True
    """One model for both sides; false trains one per side."""
    model: str | SideModels | None = None
    """An existing SentencePiece model (or {source, target}) to use instead of training one."""
    extend: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Pieces, at most, to learn from the text and add to the tokenizer of `training.init_from`; the vector of each
    starts as the mean of the pieces that it was cut into."""
    normalization: Literal["nfkc", "identity"] = "nfkc"
    """nfkc: Unicode NFKC with SentencePiece's whitespace rules; identity: the text as it is."""
    byte_fallback: bool = False
    """Spell characters outside the vocabulary as UTF-8 bytes instead of `<unk>`."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0
    """Share of the characters of the training text that get a piece of their own; SentencePiece accepts 0.98 or
    more."""
    sampling: Probability = 0.0
    """BPE-dropout (Provilkov et al. 2020): the probability of skipping a merge in training; for unigram, the alpha of
    its sampling. 0: off."""

    @property
    def given(self) -> tuple[str, ...]:
        """The files of an existing model, or of both, source first; none where one is to be trained."""
        if self.model is None:
            return ()
        return (self.model.source, self.model.target) if isinstance(self.model, SideModels) else (self.model,)

    def asked(self, n_tags: int) -> tuple[int, int]:
        """Pieces of source and target, at most. n_tags: sources begin with one of so many (`data.tags`)."""
        if self.kind == "byte":
            return BYTE_VOCAB + n_tags, BYTE_VOCAB + n_tags * self.joint
        sizes = self.vocab_size
        return (sizes.source, sizes.target) if isinstance(sizes, SideVocabSizes) else (sizes, sizes)
