"""`model:` - the shape of the Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import Probability, Section

# Far above any known model, and still small enough that every matrix has a size PyTorch can name.
Width = Annotated[int, Field(gt=0, le=10**6)]
Heads = Annotated[int, Field(gt=0, le=10**5)]
Layers = Annotated[int, Field(gt=0, le=1000)]
LayersOrNone = Annotated[int, Field(ge=0, le=1000)]
Rows = Annotated[int, Field(gt=0, le=10**9)]
RowsOrNone = Annotated[int, Field(ge=0, le=10**9)]

Stack = Literal["encoder", "decoder"]
POSITIONS = Recipes(
    "positions",
    {
        "sinusoidal": "model.positions:Sinusoidal",
        "sinusoidal-halves": "model.positions:SinusoidalHalves",
        "sinusoidal-table": "model.positions:SinusoidalTable",
        "learned": "model.positions:Learned",
        "rotary": "model.positions:Rotary",
        "none": "model.positions:PositionEncoding",
    },
)
Position = Annotated[str, POSITIONS]
TABLES: tuple[Position, ...] = ("sinusoidal-table", "learned")
"""The positions that have as many rows as `max_positions` says."""
UNLIMITED = POSITIONS.own.keys() - set(TABLES)
"""Those to which it says nothing; to others' it may."""


class Depths(Section):
    """Separate depths of encoder and decoder."""

    encoder: LayersOrNone
    decoder: LayersOrNone


class SidePositions(Section):
    """Separate positions of encoder and decoder."""

    encoder: Position
    decoder: Position


class SideMaxPositions(Section):
    """Separate tables of encoder and decoder."""

    encoder: Rows
    decoder: Rows


class Biases(Section):
    """Which parts have biases."""

    attention: bool = True
    """The projections of attention."""
    feed_forward: bool = True
    """The feed-forward network."""
    norm: bool = True
    """LayerNorm's; RMSNorm has none."""


class ModelConfig(Section):
    """The paper's section 3. Its h is n_heads, its N is n_layers, its d_k and d_v are d_head."""

    in_parts: ClassVar[Mapping[str, Sequence[str]]] = {"bias": ("attention", "feed_forward")}
    d_model: Width = 512
    """Width of the residual stream."""
    n_heads: Heads = 8
    """Attention heads per layer."""
    n_kv_heads: Heads | None = None
    """Heads of keys and values, each shared by several heads of queries (Ainslie et al. 2023); n_heads when not
    given."""
    d_ff: Width = 2048
    """Width inside the feed-forward network."""
    n_layers: Layers | Depths = 6
    """Layers of encoder and decoder: a number, or {encoder: 12, decoder: 3}."""
    d_head: Width | None = None
    """Width of a head; d_model / n_heads when not given."""
    norm: Literal["layer-norm", "rms-norm"] = "layer-norm"
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019)."""
    norm_position: Literal["pre", "post"] = "pre"
    """pre: normalise the input of a sublayer (Xiong et al. 2020); post: normalise after its residual sum, as in the
    paper."""
    final_norm: bool | None = None
    """A norm after the last layer; when not given, true for pre and false for post."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "relu"
    """Inside the feed-forward network; swiglu and geglu (Shazeer 2020) have a third matrix, the gate."""
    positions: Position | SidePositions = "sinusoidal"
    """How the model knows the order of pieces: added sinusoids (sinusoidal), the same as tensor2tensor and M2M100
    arrange them, sines, then cosines (sinusoidal-halves), or from a stored table (sinusoidal-table), an added table
    that is trained (learned), rotated queries and keys (rotary, Su et al. 2021), or not at all (none). One for both
    stacks, or {encoder, decoder}. You can plug in your own (CONTRIBUTING.md, Recipes)."""
    max_positions: Rows | SideMaxPositions = 1024
    """Rows of each stack's table, for learned and sinusoidal-table positions; the others have no limit."""
    first_position: RowsOrNone = 0
    """The number of the first position."""
    bias: bool | Biases = True
    """Biases in attention and feed-forward, or {attention, feed_forward, norm}."""
    output_bias: bool = False
    """A bias for each piece in the output projection, as in Marian's models."""
    tied: Literal["all", "embeddings", "decoder", "none"] = "all"
    """Which matrices are one: source embedding, target embedding and output projection (all), the first two
    (embeddings), the last two (decoder), or none of them (none)."""
    qk_norm: bool = False
    """Divide each head's queries and keys by their root mean square and multiply them by a trained scale, before they
    meet (Henry et al. 2020; Dehghani et al. 2023 use LayerNorm there)."""
    embedding_scale: bool = True
    """Multiply embeddings by sqrt(d_model), as in the paper."""
    dropout: Probability = 0.1
    """On embeddings and on each sublayer's output."""
    attention_dropout: Probability = 0.0
    """On the attention weights."""
    activation_dropout: Probability = 0.0
    """Inside the feed-forward network, after the activation."""

    @property
    def head_width(self) -> int:
        """d_head, given or derived."""
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """n_kv_heads, given or derived."""
        return self.n_kv_heads if self.n_kv_heads is not None else self.n_heads

    @property
    def depths(self) -> Depths:
        """Encoder and decoder layers, however they were written."""
        if isinstance(self.n_layers, Depths):
            return self.n_layers
        return Depths(encoder=self.n_layers, decoder=self.n_layers)

    @property
    def sides(self) -> tuple[Stack, ...]:
        """The stacks."""
        return ("encoder", "decoder")

    @property
    def ends_in_norm(self) -> bool:
        """Whether a final norm follows the last layer."""
        return self.final_norm if self.final_norm is not None else self.norm_position == "pre"

    @property
    def gated(self) -> bool:
        """Whether the feed-forward network has a gate."""
        return self.activation in ("swiglu", "geglu")

    @property
    def biases(self) -> Biases:
        """Which parts have biases, however that was written."""
        if isinstance(self.bias, Biases):
            return self.bias
        return Biases(attention=self.bias, feed_forward=self.bias)

    def positions_of(self, stack: Stack) -> Position:
        """The positions of a stack."""
        return self.positions if isinstance(self.positions, str) else getattr(self.positions, stack)

    def max_positions_of(self, stack: Stack) -> int:
        """The rows that a stack's table has if it has one."""
        return self.max_positions if isinstance(self.max_positions, int) else getattr(self.max_positions, stack)

    @property
    def settled(self) -> Self:
        """The same model in the one spelling that all of its spellings share: what follows from other settings is
        given, what both stacks have alike is said once, and what says nothing to it is as in any other."""
        positions = {side: self.positions_of(side) for side in self.sides}
        rows = {side: self.max_positions_of(side) for side in self.sides if positions[side] not in UNLIMITED}
        default = ModelConfig.model_fields["max_positions"].default
        rows = {side: rows.get(side, next(iter(rows.values()), default)) for side in self.sides}
        # An RMSNorm has no bias.
        biases = self.biases if self.norm == "layer-norm" else self.biases.model_copy(update={"norm": True})
        either = Biases(attention=biases.attention, feed_forward=biases.attention)
        settled = {
            "n_layers": _said_once(dict(self.depths), Depths),
            "positions": _said_once(positions, SidePositions),
            "max_positions": _said_once(rows, SideMaxPositions),
            "bias": biases.attention if biases == either else biases,
            "n_kv_heads": self.kv_heads,
            "d_head": self.head_width,
            "final_norm": self.ends_in_norm,
        }
        return self.model_copy(update=settled)

    def room(self, stack: Stack) -> int | None:
        """How many positions a stack can tell apart; None without limit."""
        return self.max_positions_of(stack) - self.first_position if self.positions_of(stack) in TABLES else None


def _said_once(sides: Mapping[Any, Any], section: type[Section]) -> Any:
    """What each stack has: one value, or where they differ the section that has both."""
    values = [*sides.values()]
    return values[0] if values == values[:1] * len(values) else section(**sides)
