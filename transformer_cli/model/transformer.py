"""Sections 3, 3.1 and 3.4: the encoder-decoder Transformer.

B batch, S source length, T target length, D d_model, V vocabulary, N packed tokens (layout.py)

Masks travel as lengths and are made in masks.py. Padding (id 0) has the zero vector as its embedding and is hidden
from every query; on the target side the causal mask already hides it, for it comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_cli.config.model import ModelConfig
from transformer_cli.model import masks
from transformer_cli.model.attention import CrossAttention, Memory, ScaledDotProductAttention, SelfAttention, Unread
from transformer_cli.model.blocks import NORMS, RESIDUALS, Dropout, LayerNorm, Linear, Residual, RMSNorm, feed_forward
from transformer_cli.model.compiled import GRAIN, TiedTable, embedded
from transformer_cli.model.compiled_products import by_pairs, linear
from transformer_cli.model.layout import Layout, Packed, PackedWhole, Rows
from transformer_cli.model.positions import PositionEncoding, positions_for
from transformer_cli.model.spans import Dense, Hiding, InPlace, Spans, suits
from transformer_cli.model.sublayers import Step, at_once, norm_at_once, passed

TOGETHER = 3
"""Layers that compiled code computes by one call. On the way back the gradients of all are there before any activations
of theirs are gone: of six layers of base that was 43 MiB more."""


class Model(nn.Module):
    """What does not depend on the architecture: how to compute, and from ids to vectors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = Dropout(config.dropout)
        self.dtype: torch.dtype | None = None
        self.layout: type[Packed] = Packed
        self.compiled = False

    def use_attention(self, *, fused: bool) -> None:
        """Choose the path of every attention: PyTorch's fused kernel, or written out; and how tokens come to it."""
        self.layout = PackedWhole if fused else Packed
        for module in self.modules():
            if isinstance(module, ScaledDotProductAttention):
                module.fused = fused

    def use_compiled(self) -> None:
        """Let embeddings, dropout, norms, linear layers, attention to packed tokens and the loss be those of cpp/, as
        far as it suits the model: one that learns, on a CPU, in a precision that the code has."""
        self.compiled = True
        d_model = self.config.d_model
        for module in self.modules():
            if isinstance(module, Dropout):
                module.compiled = True
            elif isinstance(module, LayerNorm | RMSNorm):
                module.compiled = module.normalized_shape == (d_model,) and d_model % GRAIN == 0
            elif isinstance(module, Linear) and module.out_features % GRAIN == 0:
                module.product = linear
        for module in self.modules():
            if isinstance(module, Encoder | Decoder):
                module.together = TOGETHER
                if isinstance(module.norm, LayerNorm | RMSNorm):
                    module.norm.at_once = norm_at_once(module.norm)
            if isinstance(module, EncoderLayer | DecoderLayer):
                for residual, sublayer in zip(module.residuals, module.sublayers, strict=True):
                    assert isinstance(residual, Residual)
                    residual.at_once = at_once(residual, sublayer)
        if suits(self.config):
            products = {module.product for module in self.modules() if isinstance(module, Linear)}
            is_ours = self.dtype is not None and by_pairs(self.dtype) and products == {linear}
            self.layout = Dense if is_ours else InPlace

    def compute_in(self, dtype: torch.dtype, *, training: bool) -> Self:
        """Let activations and products have this dtype. Weights stay as they are for an optimiser, and on a CPU for
        what translating computes in fp32 (prepared.py); elsewhere (training false) matrices are cast once, for good."""
        self.dtype = dtype
        if not training and next(self.parameters()).device.type != "cpu":
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    module.to(dtype)
        return self

    def _embed(
        self,
        embedding: Embedding,
        positions: PositionEncoding,
        ids_BT: Tensor,
        layout: Packed | None = None,
        tied: TiedTable | None = None,
    ) -> Tensor:
        if isinstance(layout, InPlace):
            own = tied if self.output is embedding.table else None
            x_ND = self._embed_in_place(embedding, positions, ids_BT, layout, own)
            if x_ND is not None:
                return self.dropout(x_ND)
        x_BTD = self._cast(positions.add(embedding(ids_BT)))
        return self.dropout(x_BTD if layout is None else layout.pack(x_BTD))

    def _embed_in_place(
        self,
        embedding: Embedding,
        positions: PositionEncoding,
        ids_BT: Tensor,
        layout: InPlace,
        tied: TiedTable | None,
    ) -> Tensor | None:
        """The same by compiled code, unless positions are more than vectors that are added, or learned."""
        is_learned = any(parameter.requires_grad for parameter in positions.parameters())
        if is_learned or type(positions).add is not PositionEncoding.add or self.config.d_model % GRAIN:
            return None
        table_VD: Tensor = embedding.table.weight
        places_TD = positions.vectors(ids_BT.size(1), like=table_VD)
        if places_TD is not None and places_TD.requires_grad:
            return None
        if places_TD is not None:  # any that could be added
            places_TD = places_TD.float().expand(ids_BT.size(1), self.config.d_model).contiguous()
        dtype = table_VD.dtype if self.dtype is None else self.dtype
        read = layout.ids(ids_BT), places_TD, layout.positions_N
        return embedded(tied or table_VD, *read, scale=embedding.scale, dtype=dtype)

    def _cast(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else x.to(self.dtype)

    def _padding_bias(self, lengths_B: Tensor, length: int, *, like: Tensor) -> Tensor | None:
        mask = masks.padding(lengths_B, length)
        return None if mask is None else masks.as_bias(mask, like=like)

    def _causal_bias(self, stack: Encoder | Decoder, length: int, *, like: Tensor) -> Tensor | None:
        """None where the attention of the stack hides the future by itself."""
        return None if stack.hides_future else masks.as_bias(masks.causal(length, like.device), like=like)


class Transformer(Model):
    """Figure 1: an encoder reads the source, a decoder writes the target, one token after the other."""

    def __init__(self, config: ModelConfig, *, source_vocab: int, target_vocab: int) -> None:
        super().__init__(config)
        self.target_embedding = Embedding(target_vocab, config)
        self.source_embedding = self.target_embedding
        if config.tied not in ("all", "embeddings"):
            self.source_embedding = Embedding(source_vocab, config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output: nn.Embedding | nn.Linear = self.target_embedding.table
        if config.tied not in ("all", "decoder"):
            self.output = nn.Linear(config.d_model, target_vocab, bias=False)
        self.output_bias = output_bias(config, target_vocab)

    def forward(self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """Teacher forcing: all target positions at once, each seeing its past. Returns hidden states (B, T, D).

        source_BS: ids, padded with 0. source_lengths_B: on the CPU. target_BT: ids that start with bos.
        """
        memory_BSD, source = self.encode(source_BS, source_lengths_B), Rows(source_BS.size(1))
        x_BTD = self._embed(self.target_embedding, self.decoder.positions, target_BT)
        target = Rows(target_BT.size(1))
        causal = self._causal_bias(self.decoder, target.length, like=x_BTD)
        padding = self._padding_bias(source_lengths_B, source.length, like=x_BTD)
        return self.decoder(x_BTD, self.decoder.remember(memory_BSD, source), causal, padding, target)

    def packed(
        self,
        source_BS: Tensor,
        target_BT: Tensor,
        source: Packed,
        target: Packed,
        tied: TiedTable | None = None,
    ) -> Tensor:
        """The same without computing on padding: the hidden states of the target's tokens, packed, (N, D). tied: the
        output table, if the loss is given it so, too."""
        x_ND = self._embed(self.source_embedding, self.encoder.positions, source_BS, source, tied)
        within_source, within_target, padding = self._hiding(source, target, like=x_ND)
        memory_ND = self.encoder(x_ND, within_source, source)
        x_ND = self._embed(self.target_embedding, self.decoder.positions, target_BT, target, tied)
        return self.decoder(x_ND, self.decoder.remember(memory_ND, source), within_target, padding, target)

    def _hiding(self, source: Packed, target: Packed, *, like: Tensor) -> tuple[Hiding, Hiding, Hiding]:
        """What hides keys of the source from itself, of the target from itself, and of the source from the target."""
        if isinstance(source, InPlace) and isinstance(target, InPlace):
            return Spans(source, source), Spans(target, target, causal=True), Spans(target, source)
        padding = self._padding_bias(source.lengths_B, source.length, like=like)
        return padding, self._causal_bias(self.decoder, target.length, like=like), padding

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Tensor:
        """The memory (B, S, D); what lies beyond a sentence's length is without meaning."""
        x_BSD, layout = self._embed(self.source_embedding, self.encoder.positions, source_BS), Rows(source_BS.size(1))
        return self.encoder(x_BSD, self._padding_bias(source_lengths_B, layout.length, like=x_BSD), layout)

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the target vocabulary: (..., D) to (..., V)."""
        bias = None if self.output_bias is None else self.output_bias.to(hidden.dtype)
        return F.linear(hidden, self.output.weight.to(hidden.dtype), bias)


class Embedding(nn.Module):
    """Section 3.4: a vector per piece, times sqrt(D); that of padding is the zero vector and stays it."""

    def __init__(self, vocab: int, config: ModelConfig) -> None:
        super().__init__()
        # Initialised in build.py; PyTorch's own draw would cost a second on the meta device.
        self.table = nn.Embedding.from_pretrained(torch.empty(vocab, config.d_model), freeze=False, padding_idx=0)
        self.scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.table(ids)
        return vectors if self.scale == 1.0 else vectors * self.scale


def output_bias(config: ModelConfig, vocab: int) -> nn.Parameter | None:
    """A number for each piece, added to its logit, where the model has such."""
    return nn.Parameter(torch.empty(vocab)) if config.output_bias else None


class Encoder(nn.Module):
    """A stack of layers and, where the config says so, a final norm."""

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        """causal: each position sees itself and those before it, as in a decoder that has no source."""
        super().__init__()
        self.positions = positions_for(config, "encoder")
        layers = (EncoderLayer(config, self.positions, causal=causal) for _ in range(config.depths.encoder))
        self.layers = nn.ModuleList(layers)
        self.norm = NORMS[config.norm](config) if config.ends_in_norm else nn.Identity()
        self.together = 1
        """Layers that may be computed as one; if that is 1, each is called by itself."""

    @property
    def hides_future(self) -> bool:
        return _hides_future(self.layers)

    def forward(self, x: Tensor, bias: Hiding, layout: Layout) -> Tensor:
        """x: as the layout has it, and so is what comes out. bias: what hides keys, added to scores (masks.as_bias)."""
        if not isinstance(bias, Spans):
            bias = self.positions.bias(bias, *_places(layout, x), like=x)
        return _through(self, x, [(bias, layout)] * len(self.layers))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in its residual."""

    def __init__(self, config: ModelConfig, positions: PositionEncoding, *, causal: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, causal=causal)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(RESIDUALS[config.norm_position](config) for _ in range(2))

    @property
    def sublayers(self) -> tuple[nn.Module, ...]:
        """In the order of their residuals."""
        return self.self_attention, self.feed_forward

    def forward(self, x: Tensor, bias: Hiding, layout: Layout) -> Tensor:
        return passed(x, self.steps(bias, layout))

    def steps(self, bias: Hiding, layout: Layout) -> list[Step]:
        """Its sublayers, each with its residual and what else it takes."""
        around_attention, around_feed_forward = self.residuals
        return [(around_attention, self.self_attention, bias, layout), (around_feed_forward, self.feed_forward)]


class Decoder(nn.Module):
    """Like the encoder, with cross-attention to its output in each layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = positions_for(config, "decoder")
        self.layers = nn.ModuleList(DecoderLayer(config, self.positions) for _ in range(config.depths.decoder))
        self.norm = NORMS[config.norm](config) if config.ends_in_norm else nn.Identity()
        self.together = 1
        """Layers that may be computed as one; if that is 1, each is called by itself."""

    @property
    def hides_future(self) -> bool:
        return _hides_future(self.layers)

    def remember(self, memory: Tensor, layout: Layout) -> Sequence[Memory]:
        """Each layer's keys and values of the memory, each (B, G, S, K); or what compiled code makes them of later."""
        if self.together > 1:
            return [Unread(memory.contiguous(), layout)] * len(self.layers)
        return [layer.cross_attention.remember(memory, layout) for layer in self.layers]  # type: ignore[union-attr, operator]

    def forward(
        self,
        x: Tensor,
        memory: Sequence[Memory],
        bias: Hiding,
        memory_bias: Hiding,
        layout: Layout,
    ) -> Tensor:
        """x: as the layout has it, and so is what comes out. memory: what `remember` made of it. bias, memory_bias:
        what hides keys of the target and of the source, added to scores (masks.as_bias)."""
        if not isinstance(bias, Spans):
            bias = self.positions.bias(bias, *_places(layout, x), like=x)
        return _through(self, x, [(keys_values, bias, memory_bias, layout) for keys_values in memory])


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each in its residual."""

    def __init__(self, config: ModelConfig, positions: PositionEncoding) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, causal=True)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(RESIDUALS[config.norm_position](config) for _ in range(3))

    @property
    def sublayers(self) -> tuple[nn.Module, ...]:
        return self.self_attention, self.cross_attention, self.feed_forward

    def forward(self, x: Tensor, memory: Memory, bias: Hiding, memory_bias: Hiding, layout: Layout) -> Tensor:
        return passed(x, self.steps(memory, bias, memory_bias, layout))

    def steps(self, memory: Memory, bias: Hiding, memory_bias: Hiding, layout: Layout) -> list[Step]:
        """As an encoder layer's."""
        around_self, around_cross, around_feed_forward = self.residuals
        return [
            (around_self, self.self_attention, bias, layout),
            (around_cross, self.cross_attention, memory, memory_bias, layout),
            (around_feed_forward, self.feed_forward),
        ]


def _through(stack: Encoder | Decoder, x: Tensor, others: Sequence[Sequence[Any]]) -> Tensor:
    """All layers, one after the other, and the final norm. others: what each layer takes beside x."""
    layers: list[Any] = list(zip(stack.layers, others, strict=True))
    if stack.together == 1:
        for layer, own in layers:
            x = layer(x, *own)
        return passed(x, [(stack.norm,)])
    for first in range(0, len(layers), stack.together):
        steps = [step for layer, own in layers[first : first + stack.together] for step in layer.steps(*own)]
        x = passed(x, steps if first + stack.together < len(layers) else [*steps, (stack.norm,)])
    return x


def _hides_future(layers: nn.ModuleList) -> bool:
    """Whether self-attention hides the future without a mask, in all of these layers."""
    return all(layer.self_attention.attend.hides_future for layer in layers)  # type: ignore[union-attr]


def _places(layout: Layout, x: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of queries and keys where all are there at once."""
    positions_T = torch.arange(layout.length, device=x.device)
    return positions_T, positions_T
