"""A form of a Transformer for translating: its weights cast and transposed once, its step a short list of products.

It computes what transformer.py computes, without modules, dropout or gradients.

In bf16 on a CPU, products of steps and of feed-forward networks are in bf16; of logits those that decide are computed
once more in fp32 (`Steps.exact`). All else is in fp32: rows between products, attention, what attention makes of the
source, on which all else depends, steps of few rows without compiled code, and everything where the processor has no
such products.

B batch, S source length, D d_model, H heads, G heads of keys and values, K d_head, L layers, V vocabulary, W places for
beams, R rows (the beams of all sentences, or all positions), N cached keys, J heads of keys of all sentences (B * G), T
positions or beams, P keys or values (2), U ids whose logits are wanted, X any features
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from transformer_cli.model import masks
from transformer_cli.model.blocks import GatedFeedForward, PreNorm, Residual
from transformer_cli.model.folded import LONGEST, Folded
from transformer_cli.model.products import Product, can_pack, product_of
from transformer_cli.model.steps import LEAST_KEYS, Exact, Steps
from transformer_cli.model.transformer import DecoderLayer, Embedding, EncoderLayer, Transformer

HALVES = (torch.bfloat16, torch.float16)
OnRows = Callable[[Tensor], Tensor]
"""From rows to rows."""
ProductOf = Callable[[nn.Linear], Product]


class Form:
    """The weights laid out, and what is done with them; rows are in `dtype`."""

    grain = 1
    """Keys of the memory are a multiple of it."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, model: Transformer, dtype: torch.dtype, *, few: bool = False, compiled: bool = False) -> None:
        """few: for few rows. compiled: their products are by code of ours."""
        config = model.config
        on_cpu = model.output.weight.device.type == "cpu"
        self.dtype = torch.float32 if on_cpu and dtype in HALVES else dtype
        self.rounds = self.dtype != dtype and can_pack(model.output.weight.new_empty(0, dtype=dtype))
        self.only_for_many = self.rounds or (not few and can_pack(model.output.weight))
        self.has_panels = few and compiled
        product = partial(product_of, dtype=self.dtype, few=few, compiled=self.has_panels)
        rounded = partial(product, rounds=self.rounds)
        self.n_heads, self.n_groups, self.d_head = config.n_heads, config.kv_heads, config.head_width
        self.source, self.target = model.source_embedding, model.target_embedding
        self.encoder_positions, self.decoder_positions = model.encoder.positions, model.decoder.positions
        self.transforms_heads = config.qk_norm or self.decoder_positions.rotates
        self.relates = self.decoder_positions.relates
        folded = (layer.cross_attention.query.weight.dtype for layer in model.decoder.layers)  # type: ignore[union-attr]
        own = self.n_groups == self.n_heads and all(of_weights == self.dtype for of_weights in folded)
        self.folds = on_cpu and own and not (self.transforms_heads or self.relates)
        self.encoder = [Layer(layer, product, rounded, self.dtype) for layer in model.encoder.layers]  # type: ignore[arg-type]
        self.decoder = [CrossLayer(layer, product, rounded, self.dtype) for layer in model.decoder.layers]  # type: ignore[arg-type]
        stacks = (model.encoder, model.decoder)
        self.encoder_norm, self.decoder_norm = (norm_of(stack.norm, self.dtype) for stack in stacks)
        self.output = partial(rounded, model.output, bias=model.output_bias)
        self.project = self.output()
        self.table_VD = model.output.weight.detach()
        self.bias_V = None if model.output_bias is None else model.output_bias.detach()

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> Steps:
        memory_RD = self.encode(source_BS, source_lengths_B)
        B, S = source_BS.shape
        width = -(-max(S, LEAST_KEYS) // self.grain) * self.grain
        shape = (len(self.decoder), B, self.n_groups)
        keys_LBGKS = memory_RD.new_zeros(*shape, self.d_head, width)
        values_LBGSK = memory_RD.new_zeros(*shape, width, self.d_head)
        for layer, keys_BGKS, values_BGSK in zip(self.decoder, keys_LBGKS, values_LBGSK, strict=True):
            self._remember(layer, memory_RD, S, source_lengths_B, keys_BGKS, values_BGSK)
        mask = masks.padding(source_lengths_B, width)
        bias = None if mask is None else masks.as_bias(mask, like=keys_LBGKS)
        state = Steps(keys_LBGKS, values_LBGSK, bias, source_lengths_B)
        if self.folds and B == 1 and width <= LONGEST:
            hidden_11S = keys_LBGKS.new_zeros(1, 1, 1) if bias is None else bias[0]
            layers = zip(self.decoder, state.memory, strict=True)
            state.folded = [Folded(layer.cross_attention, hidden_11S, *memory) for layer, memory in layers]
        return state

    def _remember(
        self,
        layer: CrossLayer,
        memory_RD: Tensor,
        length: int,
        lengths_B: Tensor,
        keys_BGKS: Tensor,
        values_BGSK: Tensor,
    ) -> None:
        """Write a layer's keys and values of the memory, which has rows of `length` for each sentence."""
        heads_BSXK = self._heads(layer.remember(memory_RD), len(keys_BGKS), length)
        key_BSGK, value_BSGK = heads_BSXK.split(self.n_groups, dim=2)
        keys_BGKS[..., :length] = layer.cross_key_norm(key_BSGK).permute(0, 2, 3, 1)
        values_BGSK[:, :, :length] = value_BSGK.transpose(1, 2)

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Tensor:
        """The memory (R, D), a row for each position and perhaps more."""
        B, S = source_BS.shape
        positions = self.encoder_positions
        x_RD = self.embed(self.source, positions.add, source_BS)
        mask = masks.padding(source_lengths_B, S)
        places_S = torch.arange(S, device=x_RD.device)
        hidden = None if mask is None else masks.as_bias(mask, like=x_RD)
        bias_JTS = self._for_heads(positions.bias(hidden, places_S, places_S, like=x_RD), B, S, like=x_RD)
        for layer in self.encoder:
            around_attention, around_feed_forward = layer.residuals
            heads_BXSK = self._heads(layer.query_key_value(around_attention.enter(x_RD)), B, S).transpose(1, 2)
            query, key, value = heads_BXSK.split((self.n_heads, self.n_groups, self.n_groups), dim=1)
            query_BHSK = positions.rotate(layer.query_norm(query))
            key_BGKS = positions.rotate(layer.key_norm(key)).transpose(2, 3)
            keys_JKS, values_JSK = key_BGKS.flatten(0, 1), value.flatten(0, 1)
            context_RX = self._as_rows(self.attend(query_BHSK, keys_JKS, values_JSK, bias_JTS))
            x_RD = around_attention.leave(layer.output.onto(x_RD, context_RX))
            x_RD = around_feed_forward.leave(layer.down.onto(x_RD, layer.inner(around_feed_forward.enter(x_RD))))
        return self.encoder_norm(x_RD)

    def step(self, tokens_R: Tensor, state: Steps) -> Tensor:
        n = len(tokens_R)
        alone = state.folded and state.places_R is None and self.project.rows(n) == n
        x_RD = self.decoder_norm((self._step_alone if alone else self._step)(tokens_R, state))
        logits_RV = self._projection(state)(x_RD)
        state.exact = self._exact(x_RD[:n], state.only_U)
        return logits_RV if logits_RV.size(0) == n else logits_RV[:n]

    def _exact(self, x_RD: Tensor, only_U: Tensor | None) -> Exact | None:
        return Exact(x_RD, self.table_VD, self.bias_V, only_U) if self.rounds else None

    def _step_alone(self, tokens_W: Tensor, state: Steps) -> Tensor:
        """The same with less to do, for all beams of a single sentence."""
        W, H = len(tokens_W), self.n_heads
        x_WD = self.embed(self.target, partial(self.decoder_positions.add, offset=state.position), tokens_W.view(-1, 1))
        bias = state.advance()
        bias_1WN = x_WD.new_zeros(1, 1, 1) if bias is None else bias[0]
        for number, (layer, folded) in enumerate(zip(self.decoder, state.folded, strict=True)):
            around_self, around_cross, around_feed_forward = layer.residuals
            heads_WXK = layer.query_key_value(around_self.enter(x_WD)).to(self.dtype).view(W, 3 * H, -1)
            query_WHK, key_value_WXK = heads_WXK.split_with_sizes((H, 2 * H), 1)
            keys_HKN, values_HNK = state.append(number, key_value_WXK)
            scores_HWN = torch.baddbmm(bias_1WN, query_WHK.transpose(0, 1), keys_HKN, alpha=self.d_head**-0.5)
            context_HWK = torch.bmm(scores_HWN.softmax(-1), values_HNK)
            x_WD = around_self.leave(layer.output.onto(x_WD, context_HWK.transpose(0, 1).reshape(W, -1)))
            x_WD = around_cross.leave(folded.onto(x_WD, around_cross.enter(x_WD)))
            x_WD = around_feed_forward.leave(layer.down.onto(x_WD, layer.inner(around_feed_forward.enter(x_WD))))
        return x_WD

    def _step(self, tokens_R: Tensor, state: Steps) -> Tensor:
        B, W = state.taken_BW.shape
        positions, position, H = self.decoder_positions, state.position, self.n_heads
        x_RD = self.embed(self.target, partial(positions.add, offset=position), tokens_R.view(-1, 1))
        bias, like = state.advance(), state.past_PLBGNK
        if self.relates:
            bias = positions.bias(bias, *state.positions(), like=like)
        bias_JTN = self._for_heads(bias, B, W, like=like)
        bias_JTS = self._for_heads(state.memory_bias, B, W, like=like)
        for number, layer in enumerate(self.decoder):
            around_self, around_cross, around_feed_forward = layer.residuals
            heads_BWXK = self._heads(state.spread(layer.query_key_value(around_self.enter(x_RD))), B, W)
            query_BWHK, key_value_BWXK = heads_BWXK.split((H, 2 * self.n_groups), dim=2)
            if self.transforms_heads:
                query_BWHK, key_value_BWXK = self._transformed(layer, query_BWHK, key_value_BWXK, position)
            past = state.append(number, key_value_BWXK)
            context_BWHK = self.attend(query_BWHK.transpose(1, 2), *past, bias_JTN)
            context_RX = self._as_rows(context_BWHK, state.places_R)
            x_RD = around_self.leave(layer.output.onto(x_RD, context_RX))
            query_BWHK = self._heads(state.spread(layer.query(around_cross.enter(x_RD))), B, W)
            query_BHWK = layer.cross_query_norm(query_BWHK).transpose(1, 2)
            context_BWHK = self.attend(query_BHWK, *state.memory[number], bias_JTS)
            context_RX = self._as_rows(context_BWHK, state.places_R)
            x_RD = around_cross.leave(layer.cross_output.onto(x_RD, context_RX))
            x_RD = around_feed_forward.leave(layer.down.onto(x_RD, layer.inner(around_feed_forward.enter(x_RD))))
        return x_RD

    def embed(self, embedding: Embedding, add: OnRows, ids_BT: Tensor) -> Tensor:
        """Rows to which sublayers are added in place: what was looked up, not the table itself."""
        return self._as_rows(add(embedding(ids_BT)))

    def attend(self, query_BHTK: Tensor, keys_JKN: Tensor, values_JNK: Tensor, bias_JTN: Tensor) -> Tensor:
        """softmax(Q K^T / sqrt(d_k) + bias) V for T positions or beams; returns (B, T, H, K).

        The queries of a group stand below each other. bias: broadcastable to (B * G, H / G * T, N).
        """
        B, H, T, K = query_BHTK.shape
        query_JTK = query_BHTK.reshape(keys_JKN.size(0), -1, K)
        scores_JTN = torch.baddbmm(bias_JTN, query_JTK, keys_JKN, alpha=K**-0.5)
        context_JTK = torch.bmm(scores_JTN.softmax(-1), values_JNK)
        return context_JTK.view(B, H, T, K).transpose(1, 2)

    def _for_heads(self, bias: Tensor | None, n_sentences: int, n_queries: int, *, like: Tensor) -> Tensor:
        """What `attend` adds to scores, of what is broadcastable to (B, H, T, N), once for all layers."""
        if bias is None:
            return like.new_zeros(1, 1, 1)
        of_keys_alone = bias.size(1) == bias.size(2) == 1
        H, T = (self.n_groups, 1) if of_keys_alone else (self.n_heads, n_queries)
        return bias.expand(n_sentences, H, T, -1).reshape(n_sentences * self.n_groups, -1, bias.size(3))

    def _projection(self, state: Steps) -> Product:
        """To the logits that are wanted. In fp32 by W^T: oneDNN would compile for each number of them."""
        if state.only_U is None:
            return self.project
        kind = self.rounds, self.has_panels
        if kind not in state.products:
            few = self.has_panels or (self.dtype == torch.float32 and not self.rounds)
            state.products[kind] = self.output(only=state.only_U, few=few)
        return state.products[kind]

    def _as_rows(self, x_BTX: Tensor, chosen_R: Tensor | None = None) -> Tensor:
        """In the dtype of products, (R, ...), of all or of the chosen ones of B * T, with as many rows of zeros behind
        them as products want."""
        n = x_BTX.shape[:2].numel() if chosen_R is None else len(chosen_R)
        if chosen_R is None and x_BTX.dtype == self.dtype and self.project.rows(n) == n:
            return x_BTX.reshape(n, -1)
        rows = x_BTX.new_empty(self.project.rows(n), *x_BTX.shape[2:], dtype=self.dtype)
        if chosen_R is None:
            rows[:n].view(x_BTX.shape).copy_(x_BTX)
        else:
            every = torch.empty_like(x_BTX, dtype=self.dtype, memory_format=torch.contiguous_format).copy_(x_BTX)
            torch.index_select(every.flatten(0, 1), 0, chosen_R, out=rows[:n])
        rows[n:].zero_()
        return rows.flatten(1)

    def _heads(self, x_RX: Tensor, n_sentences: int, length: int) -> Tensor:
        """Rows to (B, T, heads, K)."""
        n = n_sentences * length
        return (x_RX if x_RX.size(0) == n else x_RX[:n]).to(self.dtype).view(n_sentences, length, -1, self.d_head)

    def _transformed(
        self, layer: Layer, query_BWHK: Tensor, key_value_BWXK: Tensor, position: int
    ) -> tuple[Tensor, Tensor]:
        """Queries, and keys and values, normalised and rotated. Beams are no positions: each one is rotated alone,
        by the position that all of them are at."""
        key_BWGK, value_BWGK = key_value_BWXK.chunk(2, dim=2)
        rotate = partial(self.decoder_positions.rotate, offset=position)
        query, key = layer.query_norm(query_BWHK), layer.key_norm(key_BWGK)
        query, key = (rotate(part.flatten(0, 1).unsqueeze(2)).view(part.shape) for part in (query, key))
        return query, torch.cat((key, value_BWGK), dim=2)


class Around:
    """A residual connection: what is done to what enters its sublayer, and to the sum that leaves it."""

    def __init__(self, residual: Residual, dtype: torch.dtype) -> None:
        norm = norm_of(residual.norm, dtype)
        self.enter: OnRows = norm if isinstance(residual, PreNorm) else _same
        self.leave: OnRows = _same if isinstance(residual, PreNorm) else norm


class Layer:
    """Self-attention and feed-forward, each by products of its own kind."""

    def __init__(
        self, layer: EncoderLayer | DecoderLayer, attention: ProductOf, feed_forward: ProductOf, dtype: torch.dtype
    ) -> None:
        self.residuals = [Around(residual, dtype) for residual in layer.residuals]  # type: ignore[arg-type]
        self.self_attention = layer.self_attention
        self.query_key_value = attention(layer.self_attention.query_key_value)
        self.query_norm = norm_of(layer.self_attention.query_norm, dtype)
        self.key_norm = norm_of(layer.self_attention.key_norm, dtype)
        self.output = attention(layer.self_attention.output)
        self.up = feed_forward(layer.feed_forward.up)
        gated = layer.feed_forward if isinstance(layer.feed_forward, GatedFeedForward) else None
        self.gate = None if gated is None else feed_forward(gated.gate)
        self.inner: OnRows = partial(self.up.activated, activation=layer.feed_forward.activation, gate=self.gate)
        self.down = feed_forward(layer.feed_forward.down)


class CrossLayer(Layer):
    """The same with cross-attention between the two."""

    def __init__(self, layer: DecoderLayer, product: ProductOf, rounded: ProductOf, dtype: torch.dtype) -> None:
        super().__init__(layer, rounded, rounded, dtype)
        self.cross_attention = layer.cross_attention
        self.query = rounded(layer.cross_attention.query)
        self.remember = product(layer.cross_attention.key_value)
        self.cross_query_norm = norm_of(layer.cross_attention.query_norm, dtype)
        self.cross_key_norm = norm_of(layer.cross_attention.key_norm, dtype)
        self.cross_output = rounded(layer.cross_attention.output)


def norm_of(module: nn.Module, dtype: torch.dtype) -> OnRows:
    """What a norm does, without the module."""
    if isinstance(module, nn.LayerNorm):
        bias = None if module.bias is None else module.bias.to(dtype)
        shape, weight = module.normalized_shape, module.weight.to(dtype)
        return lambda x: torch.layer_norm(x, shape, weight, bias, module.eps)
    if isinstance(module, nn.RMSNorm):
        shape, weight = module.normalized_shape, module.weight.to(dtype)
        return lambda x: torch.rms_norm(x, shape, weight, module.eps)
    assert isinstance(module, nn.Identity)
    return _same


def _same(x: Tensor) -> Tensor:
    return x
