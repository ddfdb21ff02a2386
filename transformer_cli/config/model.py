"""`model:` - the shape of the Transformer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.section import NonNegativeInt, PositiveInt, Probability, Section

LayerCount = Annotated[int, Field(ge=0, le=10_000)]


class Depths(Section):
    """Separate depths of encoder and decoder."""

    encoder: LayerCount
    decoder: LayerCount


class ModelConfig(Section):
    """The paper's section 3; names are the paper's."""

    architecture: Literal["encoder-decoder"] = "encoder-decoder"
    """What is built."""
    d_model: PositiveInt = 512
    """Width of the residual stream."""
    n_heads: PositiveInt = 8
    """Attention heads per layer."""
    d_ff: PositiveInt = 2048
    """Width inside the feed-forward network."""
    n_layers: Annotated[int, Field(gt=0, le=10_000)] | Depths = 6
    """Layers of encoder and decoder: a number, or {encoder: 12, decoder: 3}."""
    d_head: PositiveInt | None = None
    """Width of a head; d_model / n_heads when not given."""
    norm: Literal["layer-norm", "rms-norm"] = "layer-norm"
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019)."""
    norm_position: Literal["pre", "post"] = "pre"
    """pre: normalise what enters a sublayer (Xiong et al. 2020); post: what leaves it, as in the paper."""
    final_norm: bool | None = None
    """A norm after the last layer; when not given, true for pre and false for post."""
    activation: Literal["relu", "gelu", "silu", "swiglu"] = "relu"
    """Inside the feed-forward network; swiglu (Shazeer 2020) has a third matrix, the gate."""
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    """How order enters: added sinusoids, an added table, rotated queries and keys (Su et al. 2021), or not at all."""
    max_positions: PositiveInt = 1024
    """Rows of the table of `positions: learned`; the others have no limit."""
    first_position: NonNegativeInt = 0
    """The number of the first position."""
    bias: bool = True
    """Biases in the linear layers of attention and feed-forward; the output projection never has one."""
    tied: Literal["all", "decoder", "none"] = "all"
    """One matrix for source embedding, target embedding and output (all), for the last two (decoder), or three."""
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
    def depths(self) -> Depths:
        """Encoder and decoder layers, however they were written."""
        if isinstance(self.n_layers, Depths):
            return self.n_layers
        return Depths(encoder=self.n_layers, decoder=self.n_layers)

    @property
    def ends_in_norm(self) -> bool:
        """Whether a final norm follows the last layer."""
        return self.final_norm if self.final_norm is not None else self.norm_position == "pre"
