"""`accounting:` - what is only counted, never trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.model import Depths, ModelConfig, Rows, RowsOrNone, Stack
from transformer_cli.config.section import Name, Section

Projection = Literal["query", "key", "value", "output"]
PROJECTIONS: tuple[Projection, ...] = ("query", "key", "value", "output")


class Vocabularies(Section):
    """Separate vocabularies of source and target."""

    source: RowsOrNone
    target: RowsOrNone


class Extra(Section):
    """Parameters of something that tx does not build."""

    name: Name
    """Its name in the table."""
    shape: Annotated[list[Rows], Field(min_length=1, max_length=8)]
    """Shape of its weight, outputs first."""
    bias: bool = False
    """A bias, too: one more number for each output."""
    trainable: bool = True
    """Whether training changes it."""


class AccountingConfig(Section):
    """What `tx count-params` counts, but tx does not train."""

    architecture: Literal["encoder-decoder", "decoder-only", "encoder-only"] = "encoder-decoder"
    """tx trains the first; the others, GPT's and BERT's kind, it only builds and counts."""
    vocab: RowsOrNone | Vocabularies | None = None
    """A vocabulary other than the tokenizer's: a number, or {source, target}; 0 if vectors come from elsewhere."""
    attention_biases: Annotated[list[Projection], Field(min_length=1)] | None = None
    """The projections of attention that have a bias, if only some of them have one."""
    extra: list[Extra] = Field(default_factory=list)
    """Counted, never built: what only some models have, such as {name: pooler, shape: [768, 768], bias: true}."""


class CountedModel(ModelConfig, AccountingConfig):
    """A model, and what of it is only counted."""

    @property
    def sides(self) -> tuple[Stack, ...]:
        """The stacks that the architecture has."""
        only: dict[str, tuple[Stack, ...]] = {"encoder-only": ("encoder",), "decoder-only": ("decoder",)}
        return only.get(self.architecture, super().sides)

    @property
    def depths(self) -> Depths:
        """Encoder and decoder layers, however they were written; 0 for a stack that the architecture lacks."""
        if isinstance(self.n_layers, Depths):
            return self.n_layers
        depths = {side: self.n_layers if side in self.sides else 0 for side in super().sides}
        return Depths.model_validate(depths)

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The projections of attention that have a bias."""
        if self.attention_biases is None:
            return PROJECTIONS if self.biases.attention else ()
        return tuple(name for name in PROJECTIONS if name in self.attention_biases)
