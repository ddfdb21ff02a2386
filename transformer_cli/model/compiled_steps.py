"""Steps of a search by cpp/steps.cpp: the whole is one call, or all that is between two products.

B sentences, S source length, G heads of keys and values, K d_head, R rows (beams or positions of all sentences, and
what products want behind them), D d_model, V vocabulary, E positions before an end, X any features
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle

import torch
from torch import Tensor, get_num_threads, nn

from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.blocks import LayerNorm, PreNorm, RMSNorm
from transformer_cli.model.compiled import GRAIN, is_soon_in_bf16, panel_width, run
from transformer_cli.model.forms import HALVES, CrossLayer, Form
from transformer_cli.model.matmul import by_onednn
from transformer_cli.model.positions import ROTATIONS, PositionEncoding, Rotary
from transformer_cli.model.products import CODES, Matrix, Panels, Product
from transformer_cli.model.steps import Steps
from transformer_cli.model.transformer import Decoder, Encoder, Transformer

FEW, FEW_ROUNDED, ANY = 64, 12, sys.maxsize
"""Rows whose step is sooner done by Panels: in fp32, and rounded; and where nothing else is sooner."""
WIDEST = 64
"""Columns of a panel where it is made for AVX-512."""
FEW_POSITIONS = 32
"""The same of a source, at least."""


def most_rows(*, rounds: bool) -> int:
    """Rows that Panels are best for: not more where MKL multiplies in fp32, or oneDNN with AMX in bf16."""
    if rounds:
        return ANY if is_soon_in_bf16() else FEW_ROUNDED
    return ANY if by_onednn(torch.float32) and panel_width() == WIDEST else FEW


def suits(model: Transformer) -> bool:
    """Whether it can be stepped so: in fp32, or for products in bf16; rows and heads fill registers, and scores are of
    queries and keys alone."""
    config, weight = model.config, model.output.weight
    positions = model.encoder.positions, model.decoder.positions
    dtype = model.dtype or weight.dtype
    return (
        weight.device.type == "cpu"
        and all(parameter.dtype == torch.float32 for parameter in model.parameters())
        and dtype in (torch.float32, *HALVES)
        and not any(one.relates for one in positions)
        and (config.norm_position == "pre" or not config.ends_in_norm)
        and all(type(one).rotate in ROTATIONS for one in positions)
        and config.head_width % GRAIN == config.d_model % GRAIN == 0
    )


class CompiledForm(Form):
    """Rows stay in fp32. Products of the decoder take `between`, and give it, unless they are Panels."""

    grain = GRAIN

    def __init__(self, model: Transformer, dtype: torch.dtype, *, few: bool = False) -> None:
        super().__init__(model, dtype, few=few, compiled=True)
        self.folds = False  # a single sentence is read as others are
        self.between = torch.bfloat16 if self.rounds else torch.float32
        self.joints = list(_joints(model.decoder, [self.between]))
        self.encoder_joints = list(_joints(model.encoder, [torch.float32, self.between]))
        layers = [*self.encoder, *self.decoder]
        attentions = [layer.self_attention for layer in layers] + [layer.cross_attention for layer in self.decoder]
        self.norms: dict[MultiHeadAttention, HeadNorms] = {one: HeadNorms(one) for one in attentions}

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> Steps:
        state = super().start(source_BS, source_lengths_B)
        state.compiled = True
        return state

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Tensor:
        x_RD = self.embed(self.source, self.encoder_positions.add, source_BS)
        length = source_BS.size(1)
        waves_SX = _waves(self.encoder_positions, length)
        shape = self._shape(source_lengths_B, length, rows=source_BS.numel(), padded=len(x_RD), waves=_place(waves_SX))
        at, context_RX = ctypes.addressof(shape), x_RD.new_empty(len(x_RD), self.n_heads * self.d_head)
        joints, added_RD = iter(self.encoder_joints), None
        for layer in self.encoder:
            heads_RX = layer.query_key_value(next(joints)(x_RD, added_RD))
            run("attend_within", torch.float32, at, self._norms(layer.self_attention), heads_RX, context_RX)
            added_RD = layer.down(layer.inner(next(joints)(x_RD, layer.output(context_RX))))
        return next(joints)(x_RD, added_RD)

    def _remember(
        self,
        layer: CrossLayer,
        memory_RD: Tensor,
        length: int,
        lengths_B: Tensor,
        keys_BGKS: Tensor,
        values_BGSK: Tensor,
    ) -> None:
        shape, key_value_RX = self._shape(lengths_B, keys_BGKS.size(3)), layer.remember(memory_RD)
        places = ctypes.addressof(shape), self._norms(layer.cross_attention)
        run("remember", torch.float32, *places, key_value_RX, keys_BGKS, values_BGSK, length)

    def _norms(self, attention: MultiHeadAttention) -> int:
        return ctypes.addressof(self.norms[attention].at)

    def step(self, tokens_R: Tensor, state: Steps) -> Tensor:
        n = len(tokens_R)
        x_RD, shape = self._begun(tokens_R, state)
        at, keys, values = ctypes.addressof(shape), *state.past_PLBGNK
        context_RX = x_RD.new_empty(len(x_RD), self.n_heads * self.d_head, dtype=self.between)
        joints, added_RD = iter(self.joints), None
        for number, layer in enumerate(self.decoder):
            heads_RX = layer.query_key_value(next(joints)(x_RD, added_RD))
            norms, past = self._norms(layer.self_attention), (keys[number], values[number])
            run("attend_past", self.between, at, norms, heads_RX, *past, context_RX)
            query_RX = layer.query(next(joints)(x_RD, layer.output(context_RX)))
            memory = state.memory_keys_LBGKS[number], state.memory_values_LBGSK[number]
            run("attend_source", self.between, at, self._norms(layer.cross_attention), query_RX, *memory, context_RX)
            added_RD = layer.down(layer.inner(next(joints)(x_RD, layer.cross_output(context_RX))))
        logits_RV = self._projection(state)(next(joints)(x_RD, added_RD))
        state.exact = self._exact(x_RD[:n], state.only_U)
        return logits_RV if len(logits_RV) == n else logits_RV[:n]

    def _begun(self, tokens_R: Tensor, state: Steps) -> tuple[Tensor, _Step]:
        """Rows as the first layer is given them, and what is the same for all layers."""
        add = partial(self.decoder_positions.add, offset=state.position)
        x_RD = self.embed(self.target, add, tokens_R.view(-1, 1))
        waves_EX = _waves(self.decoder_positions, state.position + 1)
        state.make_room()
        return x_RD, self._shape(
            state.lengths_B,
            state.memory_keys_LBGKS.size(4),
            rows=len(tokens_R),
            padded=len(x_RD),
            places=state.taken_BW.size(1),
            keys=state.end,
            room=state.past_PLBGNK.size(4),
            start=state.start,
            hidden_room=state.hidden_BWN.size(2),
            place_of=_place(state.places_R, torch.int64),
            hidden=_place(state.hidden_BWN) if state.end > state.position else None,
            waves=None if waves_EX is None else _place(waves_EX[-1]),
        )

    def _shape(self, lengths_B: Tensor, source: int, **others: int | None) -> _Step:
        """source: positions of a sentence, as they lie in memory."""
        return _Step(
            sentences=len(lengths_B),
            heads=self.n_groups,
            sharing=self.n_heads // self.n_groups,
            features=self.d_head,
            source=source,
            lengths=_place(lengths_B, torch.int64),
            threads=get_num_threads(),
            **others,
        )


class OneCall(CompiledForm):
    """All products are by Panels, and a step is one call. Among however many rows, the bits of each are the same."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        super().__init__(model, dtype, few=True)
        layers = []
        for number, layer in enumerate(self.decoder):
            joints = [joint.at for joint in self.joints[3 * number : 3 * number + 3]]
            attention = layer.query_key_value, layer.output, layer.query, layer.cross_output
            matrices = [_matrix(product) for product in (*attention, layer.up, layer.gate, layer.down)]
            norms = [self.norms[attention].at for attention in (layer.self_attention, layer.cross_attention)]
            layers.append(_Layer((_Joint * 3)(*joints), *norms, *matrices))
        self.layers = (_Layer * len(layers))(*layers)
        inner = max(layer.up.outputs for layer in layers)
        activation = CODES[model.decoder.layers[0].feed_forward.activation]  # type: ignore[union-attr,index]
        width, queries = model.config.d_model, self.n_heads * self.d_head
        self.all = _Layers(ctypes.addressof(self.layers), len(layers), width, inner, activation, self.joints[-1].at)
        heads = queries + 2 * self.n_groups * self.d_head
        self.room = (heads + width) + (queries + inner + width)  # of a row, in the order of steps.cpp

    def step(self, tokens_R: Tensor, state: Steps) -> Tensor:
        x_RD, shape = self._begun(tokens_R, state)
        project = self._projection(state)
        assert isinstance(project, Panels)
        logits_RV = x_RD.new_empty(len(x_RD), project.matrix.outputs)
        memory = state.memory_keys_LBGKS, state.memory_values_LBGSK
        places = [ctypes.addressof(one) for one in (shape, self.all, project.matrix)]
        room = x_RD.new_empty(len(x_RD) * self.room)
        run("step", self.between, *places, x_RD, *state.past_PLBGNK, *memory, logits_RV, room)
        state.exact = self._exact(x_RD, state.only_U)
        return logits_RV


class Joint:
    """A residual connection between two sublayers, with the norm that is there."""

    def __init__(self, norm: nn.Module, dtype: torch.dtype, *, replaces: bool) -> None:
        """dtype: of what goes on. replaces: what is normalised takes the place of the sum, too."""
        weight, bias, eps = None, None, 0.0
        if isinstance(norm, LayerNorm | RMSNorm):
            weight, bias, eps = norm.weight.detach(), None if norm.bias is None else norm.bias.detach(), norm.eps
        self.dtype, self.norm = dtype, (weight, bias)
        self.at = _Joint(_place(weight), _place(bias), eps, replaces, isinstance(norm, LayerNorm))

    def __call__(self, x_RD: Tensor, added_RD: Tensor | None) -> Tensor:
        """Adds to x in place; returns what the next sublayer is given."""
        made_RD = torch.empty_like(x_RD, dtype=self.dtype)
        is_rounded = added_RD is not None and added_RD.dtype == torch.bfloat16
        sizes = *x_RD.shape, is_rounded, get_num_threads()
        run("join", self.dtype, ctypes.addressof(self.at), x_RD, added_RD, made_RD, *sizes)
        return made_RD


class HeadNorms:
    """Those of an attention's queries and keys."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        norms = attention.query_norm, attention.key_norm
        self.joints = [Joint(norm, torch.float32, replaces=False) for norm in norms]
        self.at = _Norms(*(joint.at for joint in self.joints))


def _joints(stack: Encoder | Decoder, dtypes: Sequence[torch.dtype]) -> Iterator[Joint]:
    """Before each sublayer, and behind the last. dtypes: of what is given to them, by turns."""
    residuals = [residual for layer in stack.layers for residual in layer.residuals]  # type: ignore[union-attr]
    is_pre = all(isinstance(residual, PreNorm) for residual in residuals)
    norms = [residual.norm for residual in residuals]
    for norm, dtype in zip(norms if is_pre else [nn.Identity(), *norms[:-1]], cycle(dtypes)):
        yield Joint(norm, dtype, replaces=not is_pre)
    yield Joint(stack.norm if is_pre else norms[-1], dtypes[0], replaces=True)


def _matrix(product: Product | None) -> Matrix:
    """Nothing at all of a gate that there is not."""
    assert product is None or isinstance(product, Panels)
    return Matrix() if product is None else product.matrix


def _waves(positions: PositionEncoding, end: int) -> Tensor | None:
    """What heads are turned by at each position before that; None where nothing is turned."""
    return positions.turns_before(end) if isinstance(positions, Rotary) else None


def _place(x: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
    assert x is None or (x.dtype == dtype and x.is_contiguous()), (x.dtype, x.stride())
    return None if x is None else x.data_ptr()


class _Step(ctypes.Structure):
    """Step in steps.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "padded", "sentences", "places", "heads", "sharing", "features")),
        *((name, ctypes.c_int64) for name in ("keys", "room", "start", "hidden_room", "source")),
        *((name, ctypes.c_void_p) for name in ("place_of", "lengths", "hidden", "waves")),
        ("threads", ctypes.c_int64),
    )


class _Joint(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        ("eps", ctypes.c_float),
        ("replaces", ctypes.c_int32),
        ("centred", ctypes.c_int32),
    )


class _Norms(ctypes.Structure):
    _fields_ = tuple((name, _Joint) for name in ("query", "key"))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("joints", _Joint * 3),
        *((name, _Norms) for name in ("past", "source")),
        *((name, Matrix) for name in ("query_key_value", "output", "query", "cross_output", "up", "gate", "down")),
    )


class _Layers(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("depth", "width", "inner", "activation")),
        ("last", _Joint),
    )
