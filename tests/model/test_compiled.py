"""Attention, dropout, norms and linear layers in C++ against PyTorch's own and against definitions written out."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiling import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformer_cli.config.model import POSITIONS, ModelConfig, Stack
from transformer_cli.data.loader import collate
from transformer_cli.model import compiled, compiled_products, matmul, transformer
from transformer_cli.model.attention import ScaledDotProductAttention
from transformer_cli.model.blocks import Dropout
from transformer_cli.model.build import build_model
from transformer_cli.model.compiled import NAMES, _Dropped, normed, run, smoothed
from transformer_cli.model.compiled_products import linear, multiplied
from transformer_cli.model.layout import Packed
from transformer_cli.model.positions import Learned, PositionEncoding, Rotary, SinusoidalTable, Waves, sinusoids
from transformer_cli.model.spans import InPlace, Spans, suits
from transformer_cli.processor import computes_bf16
from transformer_cli.training.objective import loss_of

pytestmark = needs_compiler
CPU = torch.device("cpu")
V = 23


def in_place(lengths: list[int]) -> InPlace:
    return InPlace(torch.tensor(lengths), CPU)


def vectors(packed: InPlace, heads: int, d_head: int, *, gap: int = 0) -> Tensor:
    """As a product leaves them: with others beside them, and numbers where there is no token that nobody may read."""
    wide = torch.randn(packed.n_rows, heads * d_head + gap)
    wide[packed.n_real :] = torch.nan
    return wide[:, : heads * d_head].unflatten(1, (heads, d_head))


def by_pytorch(query: Tensor, key: Tensor, value: Tensor, spans: Spans, mask: Tensor | None) -> Tensor:
    """Each sentence alone, in fp64, with matrices of weights."""
    made = torch.zeros_like(query)
    queries, keys = spans.queries.starts.tolist(), spans.keys.starts.tolist()
    sharing = query.size(1) // key.size(1)
    for i, (own, others) in enumerate(zip(zip(queries, queries[1:]), zip(keys, keys[1:]))):  # noqa: B905, RUF007
        here, there = slice(*own), slice(*others)
        q, k, v = query[here], key[there].repeat_interleave(sharing, 1), value[there].repeat_interleave(sharing, 1)
        scores = torch.einsum("thk,shk->hts", q, k) / q.size(2) ** 0.5
        if spans.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask[i, :, : len(k), : len(q)].transpose(1, 2)
        made[here] = torch.einsum("hts,shk->thk", weights, v)
    return made


def results(compute: Any, tensors: list[Tensor], grad: Tensor, n_real: tuple[int, int]) -> list[Tensor]:
    """What comes out for tokens, and the gradients of queries, keys and values."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    made = compute(*leaves)
    made.backward(grad)
    (n, m), tokens = n_real, made[: n_real[0]].detach()
    return [tokens, leaves[0].grad[:n], leaves[1].grad[:m], leaves[2].grad[:m]]


@settings(max_examples=80)
@given(st.data())
def test_it_computes_attention_and_its_gradients(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 99)))
    n = draw(st.integers(1, 6))
    lengths = st.lists(st.one_of(st.integers(0, 20), st.integers(1, 150)), min_size=n, max_size=n).filter(any)
    targets = in_place(draw(lengths))
    causal = draw(st.booleans())
    sources = targets if causal else in_place(draw(lengths))
    spans = Spans(targets, sources, causal=causal)
    shared, sharing, d_head = draw(st.integers(1, 3)), draw(st.integers(1, 3)), 16 * draw(st.integers(1, 6))
    gap = draw(st.sampled_from([0, 5]))
    query, grad = (vectors(targets, shared * sharing, d_head, gap=gap) for _ in range(2))
    key, value = (vectors(sources, shared, d_head, gap=gap) for _ in range(2))
    scale = draw(st.sampled_from([0.1, 1.0, 30.0]))  # weights that are alike, and such that are one
    mask = (torch.rand(spans.mask_shape(shared * sharing)) < 0.8) / 0.8 if draw(st.booleans()) else None

    n_real = targets.n_real, sources.n_real
    tensors = [scale * query, key, value]
    made = results(lambda *leaves: spans.attend(*leaves, mask), tensors, grad, n_real)
    exact = [tensor.double() for tensor in tensors]
    wanted = results(lambda *leaves: by_pytorch(*leaves, spans, mask), exact, grad.double().nan_to_num(), n_real)
    others = results(lambda *leaves: by_pytorch(*leaves, spans, mask), tensors, grad.nan_to_num(), n_real)
    for ours, theirs, true in zip(made, others, wanted, strict=True):
        off, by_others = (ours - true).abs().max(), (theirs - true).abs().max()  # PyTorch's, in fp32
        assert off <= 3 * by_others + 2**-20 * (1 + 4 * scale) * true.abs().max().clamp(min=1.0)  # scores end near 4


@pytest.mark.parametrize("causal", [False, True])
def test_in_bf16_it_is_closer_to_the_truth_than_what_is_written_out(causal: bool) -> None:
    """That rounds weights to bf16, too, before it multiplies with them."""
    torch.manual_seed(1)
    packed, config = in_place([14] * 20 + [15] * 3 + [9]), ModelConfig(d_model=64, n_heads=4, d_ff=8, n_layers=1)
    spans = Spans(packed, packed, causal=causal)
    tensors = [vectors(packed, 4, 16).bfloat16() for _ in range(3)]
    grad = vectors(packed, 4, 16).bfloat16().nan_to_num()
    n_real = packed.n_real, packed.n_real
    truth = results(lambda *x: by_pytorch(*x, spans, None), [x.double() for x in tensors], grad.double(), n_real)
    ours = results(lambda *x: spans.attend(*x, None), tensors, grad, n_real)

    rows, attend = Packed(packed.lengths_B, CPU), ScaledDotProductAttention(config).train()
    hides = torch.zeros(len(packed.lengths_B), 1, rows.length, rows.length)
    hides.masked_fill_(torch.arange(rows.length) >= packed.lengths_B[:, None, None, None], -1e30)
    if causal:
        hides = hides + torch.full((rows.length, rows.length), -1e30).triu(1)

    def written_out(*leaves: Tensor) -> Tensor:
        heads = (rows.heads(x.flatten(1).nan_to_num(), (4,), 16)[0] for x in leaves)
        return rows.merge(attend(*heads, hides.bfloat16())).unflatten(1, (4, 16))

    theirs = results(written_out, tensors, grad, n_real)
    for true, one, other in zip(truth, ours, theirs, strict=True):
        assert (one.double() - true).norm() <= (other.double() - true).norm()
        assert (one.double() - true).norm() < 4e-3 * true.norm()


@pytest.mark.parametrize("dtype", NAMES)
def test_what_is_no_token_is_zero_whatever_lies_there(dtype: torch.dtype) -> None:
    packed = in_place([3, 17])
    leaves = [vectors(packed, 2, 16, gap=3).to(dtype).requires_grad_() for _ in range(3)]
    made = Spans(packed, packed, causal=True).attend(*leaves, None)
    made.backward(torch.ones_like(made))
    for tensor in (made, *(leaf.grad for leaf in leaves)):
        assert not tensor[packed.n_real :].any()
        assert tensor[: packed.n_real].isfinite().all()


@pytest.mark.parametrize("dtype", NAMES)
def test_who_has_nothing_to_see_sees_zeros(dtype: torch.dtype) -> None:
    """A source without an end mark may have no piece at all: what memory held before was taken for what it says."""
    targets, sources = in_place([3, 17, 0]), in_place([0, 2, 0])
    query, key = (vectors(packed, 2, 16).to(dtype).nan_to_num().requires_grad_() for packed in (targets, sources))
    kept = [torch.full((targets.n_rows, 2, 16), torch.nan, dtype=dtype) for _ in range(8)]
    del kept  # as what is made next may find it
    made = Spans(targets, sources).attend(query, key, key, None)
    made.backward(torch.ones_like(made))
    assert not made[:3].any()
    assert not query.grad[:3].any()
    assert made[3:20].any()
    assert key.grad.isfinite().all()


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_not_hidden(dtype: torch.dtype, number: float) -> None:
    """An update that has one is skipped; one that were lost would be learned from."""
    packed = in_place([5, 4])
    query, key, value = (vectors(packed, 2, 16).to(dtype) for _ in range(3))
    value[6, 1, 3] = number
    made = Spans(packed, packed).attend(query, key, value, None)
    assert not made[5:9, 1, 3].isfinite().any()
    assert made[:5].isfinite().all()
    value[6, 1, 3], query[2, 0, 5] = 0, torch.nan
    made = Spans(packed, packed).attend(query, key, value, None)
    assert made[2, 0].isnan().all()
    assert made[[0, 1, *range(3, 9)]].isfinite().all()


@pytest.mark.parametrize("dtype", NAMES)
def test_no_bit_depends_on_how_many_threads_there_are(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    packed = in_place([70, 3, 29, 64, 1])
    tensors = [vectors(packed, 4, 32).to(dtype), *(vectors(packed, 2, 32).to(dtype) for _ in range(2))]
    grad, before, made = vectors(packed, 4, 32).to(dtype), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            spans = Spans(packed, packed, causal=True)
            made.append(results(lambda *x, s=spans: s.attend(*x, None), tensors, grad, (packed.n_real,) * 2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for others in made[1:] for one, other in zip(made[0], others, strict=True))


@settings(max_examples=40)
@given(st.data())
def test_a_model_has_the_hidden_states_and_gradients_of_attention_that_is_written_out(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 9)))
    groups, n = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3, 17]))
    config = ModelConfig(
        d_model=32,
        n_heads=2 * groups,
        n_kv_heads=groups,
        d_head=16,
        d_ff=16,
        n_layers=draw(st.integers(1, 2)),
        dropout=0.0,
        activation="gelu",  # which has no kink that rounding could cross
        norm_position=draw(st.sampled_from(["pre", "post"])),
        norm=draw(st.sampled_from(["layer-norm", "rms-norm"])),
        qk_norm=draw(st.booleans()),
        positions=draw(st.sampled_from(["sinusoidal", "learned", "none", "rotary"])),
        first_position=draw(st.sampled_from([0, 2])),
        max_positions=80,
    )
    model = build_model(config, source_vocab=V, target_vocab=V).train()
    lengths = [torch.tensor(draw(st.lists(st.integers(1, 70), min_size=n, max_size=n))) for _ in range(2)]
    ids = [torch.randint(4, V, (n, int(own.max()))) for own in lengths]
    made = []
    for by_compiler in (False, True):
        model.use_attention(fused=False)
        if by_compiler:
            model.use_compiled()
        source, target = (model.layout(own, CPU) for own in lengths)
        model.zero_grad()
        hidden = model.packed(*ids, source, target)[: target.n_real]
        hidden.pow(3).sum().backward()
        made.append([hidden.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert type(source) is InPlace
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * max(1.0, other.abs().max().item()))


def test_dropout_of_weights_draws_a_factor_for_each() -> None:
    torch.manual_seed(3)
    config = ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1, attention_dropout=0.25)
    packed, attend = in_place([6, 20]), ScaledDotProductAttention(config).train()
    spans, vectors_NHK = Spans(packed, packed), [vectors(packed, 1, 16) for _ in range(3)]
    torch.manual_seed(4)
    dropped = attend(*vectors_NHK, spans)
    torch.manual_seed(4)
    mask = attend.dropout.mask(spans.mask_shape(1), like=dropped)
    assert mask.unique().tolist() == pytest.approx([0, 4 / 3])
    assert torch.equal(dropped, spans.attend(*vectors_NHK, mask))
    assert torch.equal(attend.eval()(*vectors_NHK, spans), spans.attend(*vectors_NHK, None))


class Slower(Rotary):
    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        self.waves = Waves(config.head_width, lambda length, width: sinusoids(9 * length, width)[::9])


@pytest.mark.parametrize("kind", [Rotary, Slower])
def test_rows_are_turned_as_heads_are_whatever_the_angles(kind: type[Rotary]) -> None:
    positions = kind(ModelConfig(d_model=32, n_heads=2, d_ff=8, n_layers=1, first_position=2), "encoder")
    heads_BHTK = torch.randn(3, 2, 7, 16)
    rows_NHK, wanted_NHK = (x.transpose(1, 2).flatten(0, 1) for x in (heads_BHTK, positions.rotate(heads_BHTK)))
    torch.testing.assert_close(positions.rotate_rows(rows_NHK, torch.arange(7).repeat(3), end=7), wanted_NHK)


class OwnTurns(PositionEncoding):
    def rotate(self, x_BHTK: Tensor, *, offset: int = 0) -> Tensor:
        return -x_BHTK


class OwnScores(PositionEncoding):
    def relate(self, queries_T: Tensor, keys_S: Tensor) -> Tensor:
        return torch.zeros(2, len(queries_T), len(keys_S))


class OwnSums(PositionEncoding):
    def add(self, x_BTD: Tensor, *, offset: int = 0) -> Tensor:
        return x_BTD * torch.arange(1, x_BTD.size(1) + 1)[:, None]


class Clamped(Learned):
    """With as many vectors as a short sentence has positions."""

    def add(self, x_BTD: Tensor, *, offset: int = 0) -> Tensor:
        return x_BTD + self.table.weight[torch.arange(x_BTD.size(1)).clamp(max=2)]


class WithGaps(PositionEncoding):
    def vectors(self, end: int, *, like: Tensor) -> Tensor:
        return torch.arange(end, dtype=torch.bfloat16)[:, None].expand(-1, like.size(-1))


class OneForAll(PositionEncoding):
    def vectors(self, end: int, *, like: Tensor) -> Tensor:
        return torch.ones(like.size(-1))


class OneNumber(PositionEncoding):
    def vectors(self, end: int, *, like: Tensor) -> Tensor:
        return torch.arange(end)[:, None] * 0.1


class Elsewhere(PositionEncoding):
    """What is learned is none of its parameters."""

    table = torch.ones(9, 32, requires_grad=True)

    def vectors(self, end: int, *, like: Tensor) -> Tensor:
        return self.table[:end]


KINDS = [OwnSums, Clamped, WithGaps, OneForAll, OneNumber, Elsewhere, Learned, SinusoidalTable, Rotary]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learns", [True, False])
def test_positions_of_any_kind_are_added_as_without(
    kind: type[PositionEncoding], learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    config = ModelConfig(d_model=32, n_heads=2, d_ff=16, n_layers=1, max_positions=3 if kind is Clamped else 9)
    monkeypatch.setattr(type(POSITIONS), "load", lambda self, name: kind)
    model, made = build_model(config, source_vocab=V, target_vocab=V).eval(), []
    lengths, ids_BT = torch.tensor([9, 4]), torch.randint(4, V, (2, 9))
    with torch.set_grad_enabled(learns):
        for by_compiler in (False, True):
            if by_compiler:
                model.use_compiled()
            layouts = [model.layout(lengths, CPU) for _ in range(2)]
            made.append(model.packed(ids_BT, ids_BT, *layouts)[: layouts[0].n_real])
    assert type(layouts[0]) is InPlace
    torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-5)
    if kind is Elsewhere and learns:
        learned = [torch.autograd.grad(hidden.sum(), kind.table)[0] for hidden in made]
        torch.testing.assert_close(*learned, rtol=1e-3, atol=1e-4)


@needs_compiler
def test_a_model_learns_the_same_whoever_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, on any processor; ours has hardly any padding."""
    torch.manual_seed(6)
    config = ModelConfig(d_model=32, n_heads=2, d_ff=64, n_layers=2, dropout=0.0, activation="gelu")
    model = build_model(config, source_vocab=V, target_vocab=V).train().compute_in(torch.bfloat16, training=True)
    lengths, ids_BT, made, rows = torch.tensor([9, 4, 30]), torch.randint(4, V, (3, 30)), [], []
    for by_ours in (False, True):
        for module in (compiled_products, transformer):
            monkeypatch.setattr(module, "by_pairs", lambda dtype, by_ours=by_ours: by_ours)
        model.use_compiled()
        source, target = (model.layout(lengths, CPU) for _ in range(2))
        model.zero_grad()
        hidden = model.packed(ids_BT, ids_BT, source, target)[: target.n_real]
        hidden.float().pow(2).sum().backward()
        made.append([hidden.detach(), *(p.grad.clone() for p in model.parameters())])
        rows.append(source.n_rows)
    assert rows == [80, 48]
    for one, other in zip(*made, strict=True):
        assert (one - other).float().norm() <= 0.03 * other.float().norm()


@pytest.mark.parametrize("kind", [OwnTurns, OwnScores])
def test_it_is_for_heads_that_fill_registers_and_positions_that_it_knows(
    kind: type[PositionEncoding], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"d_model": 32, "n_heads": 2, "d_ff": 8, "n_layers": 1}
    assert suits(ModelConfig(**plain))
    assert suits(ModelConfig(**plain, positions="rotary"))
    assert not suits(ModelConfig(**plain | {"n_heads": 4}))
    monkeypatch.setattr(type(POSITIONS), "load", lambda self, name: kind)
    assert not suits(ModelConfig(**plain))
    model = build_model(ModelConfig(**plain), source_vocab=V, target_vocab=V)
    model.use_compiled()
    assert model.layout is Packed


def philox(counter: int, key: int) -> list[int]:
    """Philox4x32-7 as Salmon et al. 2011 define it: four words for a counter."""
    x, k = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(7):
        left, right = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [right >> 32 ^ x[1] ^ k[0], right & 0xFFFFFFFF, left >> 32 ^ x[3] ^ k[1], left & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def sixteen_bits(n: int, key: int) -> list[int]:
    """Of each element: 64 of them have eight counters, first the eight first words, in halves, the lower one before."""
    bits = []
    for chunk in range(-(-n // 64)):
        words = [philox(8 * chunk + i, key) for i in range(8)]
        bits += [half for word in range(4) for own in words for half in (own[word] & 0xFFFF, own[word] >> 16)]
    return bits[:n]


def test_the_generator_is_that_of_the_paper() -> None:
    """Its authors' test vectors, Random123's kat_vectors."""
    assert philox(0, 0) == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


@settings(max_examples=60)
@given(st.data())
def test_dropout_drops_by_philox_and_adds_the_residual(data: st.DataObject) -> None:
    draw = data.draw
    dtype, n = draw(st.sampled_from([*NAMES])), draw(st.integers(1, 300))
    share, seed = draw(st.integers(0, 2**16 - 1)), draw(st.integers(0, 2**64 - 1))
    x, grad, residual = (torch.randn(n).to(dtype) for _ in range(3))
    with_residual = draw(st.booleans())
    leaf, other = x.clone().requires_grad_(), residual.clone().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        made = _Dropped.apply(leaf, other if with_residual else None, seed, share)
    made.backward(grad)
    kept = torch.tensor(sixteen_bits(n, seed)) >= share
    factor = kept * (2**16 / (2**16 - share))
    wanted = x.double() * factor + (residual.double() if with_residual else 0)
    close = {"rtol": 2**-8 if dtype == torch.bfloat16 else 1e-6, "atol": 1e-6}
    torch.testing.assert_close(made.double(), wanted, **close)
    torch.testing.assert_close(leaf.grad.double(), grad.double() * factor, **close)
    assert not with_residual or torch.equal(other.grad, grad)


@pytest.mark.parametrize("dtype", NAMES)
def test_compiled_dropout_is_dropout(dtype: torch.dtype) -> None:
    """Its rate, its scale, its independence; a seed gives it again, and PyTorch's generator gives seeds."""
    subject, n = Dropout(0.3).train(), 1_000_003
    subject.compiled = True
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(subject(torch.ones(n, dtype=dtype)))
    one, same, other = draws
    assert torch.equal(one, same)
    assert not torch.equal(one, subject(torch.ones(n, dtype=dtype)))
    kept = [(draw != 0).double() for draw in (one, other)]
    for draw in kept:
        assert abs(draw.mean().item() - 0.7) < 5 * (0.21 / n) ** 0.5 + 2**-17
    for a, b in [(kept[0], kept[1]), *((kept[0][:-d], kept[0][d:]) for d in (1, 2, 8, 16, 64, 128))]:
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1].item()) < 5 / n**0.5
    assert one[one != 0].unique().tolist() == pytest.approx([1 / 0.7], rel=2**-8)
    assert subject.eval()(one) is one


@settings(max_examples=60)
@given(st.data())
def test_norms_and_their_gradients_are_pytorchs(data: st.DataObject) -> None:
    """To the gradient of what is normalised that of what goes on beside it is added. Working copies are in bf16."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 99)))
    rows, width, dtype = draw(st.integers(1, 100)), 16 * draw(st.integers(1, 9)), draw(st.sampled_from([*NAMES]))
    own = draw(st.sampled_from([torch.float32, dtype]))
    apart, mean = draw(st.sampled_from([0.1, 5.0])), draw(st.sampled_from([0.0, 3.0, 20.0]))
    x = (torch.randn(rows, width) * apart + mean).to(dtype)
    weight, bias = (torch.randn(width).to(own) for _ in range(2))
    grads = [torch.randn(rows, width).to(dtype) for _ in range(2)]
    has_bias, centred, made = draw(st.booleans()), draw(st.booleans()), []
    for exact in (False, True):
        leaves = [t.detach().clone().to(torch.float64 if exact else t.dtype) for t in (x, weight, bias)]
        for leaf in leaves:
            leaf.requires_grad_()
        given_bias = leaves[2] if has_bias else None
        if exact and centred:
            beside, y = leaves[0], F.layer_norm(leaves[0], (width,), leaves[1], given_bias, 1e-5)
        elif exact:
            beside, y = leaves[0], F.rms_norm(leaves[0], (width,), leaves[1], 1e-5) + (leaves[2] if has_bias else 0)
        else:
            beside, y = normed(leaves[0], leaves[1], given_bias, 1e-5, centred=centred)
            assert torch.equal(beside, x)
        torch.autograd.backward([beside, y], [grad.to(y.dtype) for grad in grads])
        made.append([y.detach(), *(leaf.grad for leaf in leaves[: 2 + has_bias])])
    for ours, true in zip(*made, strict=True):
        off = 2**-8 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(ours.double(), true, rtol=2 * off, atol=2 * off * true.abs().max().item())


@settings(max_examples=80)
@given(st.data())
def test_linear_layers_and_their_gradients_are_pytorchs(data: st.DataObject) -> None:
    """Of any number of rows, wide or narrow, so that either side of a product is turned or none; by oneDNN, asked by
    name, and without, and by ours."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 99)))
    rows, dtype = draw(st.integers(1, 200)), draw(st.sampled_from([*NAMES]))
    by_onednn = draw(st.booleans()) and (dtype == torch.float32 or computes_bf16())
    by_ours = draw(st.booleans()) and dtype == torch.bfloat16
    width, inputs = 16 * draw(st.integers(1, 12)), draw(st.one_of(st.integers(1, 40), st.integers(100, 300)))
    has_bias, rectified, learns = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    x, grad, made = torch.randn(rows, inputs).to(dtype), torch.randn(rows, width).to(dtype), []
    weight, bias = (torch.randn(width, inputs) / inputs**0.5).to(dtype), torch.randn(width).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "by_onednn", lambda dtype: by_onednn)
        patch.setattr(compiled_products, "by_pairs", lambda dtype: by_ours)
        patch.setattr(compiled_products, "MOST", draw(st.sampled_from([0, 100, 999])))
        for exact in (False, True):
            leaves = [t.detach().clone().to(torch.float64 if exact else t.dtype) for t in (x, weight, bias)]
            for leaf, learned in zip(leaves, (True, learns, learns), strict=True):
                leaf.requires_grad_(learned)
            given_bias = leaves[2] if has_bias else None
            if exact:
                y = F.linear(leaves[0], leaves[1], given_bias)
                y = y * (made[0][0] > 0) if rectified else y  # of those that are 0 but for rounding, the same ones
            else:
                y = linear(leaves[0], leaves[1], given_bias, rectified=rectified)
            y.backward(grad.to(y.dtype, copy=True))
            made.append([y.detach(), *(leaf.grad for leaf in leaves[: 2 + has_bias] if leaf.requires_grad)])
    for ours, true in zip(*made, strict=True):
        off = 2**-8 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(ours.double(), true, rtol=2 * off, atol=2 * off * true.abs().max().item() + off)


OURS = pytest.mark.parametrize(
    ("dtype", "by_ours"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
)


@OURS
@pytest.mark.parametrize(("width", "inputs"), [(64, 16), (16, 64), (32, 32)])
def test_a_linear_layer_reads_rows_with_gaps(
    width: int, inputs: int, dtype: torch.dtype, by_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_products, "by_pairs", lambda dtype: by_ours)
    wide, weight = torch.randn(9, 2 * inputs).to(dtype), torch.randn(width, inputs).to(dtype)
    made = []
    for x in (wide[:, ::2], wide[:, ::2].contiguous()):
        leaf = weight.clone().requires_grad_()
        y = linear(x, leaf, None, rectified=True)
        y.backward(torch.ones_like(y))
        made.append([y.detach(), leaf.grad])
    for ours, theirs in zip(*made, strict=True):
        torch.testing.assert_close(ours, theirs)


@OURS
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rectified_layer_hides_nothing_that_is_not_finite(
    place: int, dtype: torch.dtype, by_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN makes 0 of what is no number: then a gradient tells it."""
    monkeypatch.setattr(compiled_products, "by_pairs", lambda dtype: by_ours)
    leaves = [torch.randn(shape).to(dtype) for shape in ((9, 64), (16, 64), (16,))]
    leaves[place].view(-1)[5] = torch.nan
    for leaf in leaves:
        leaf.requires_grad_()
    y = linear(*leaves, rectified=True)
    y.backward(torch.ones_like(y))
    assert not all(t.isfinite().all() for t in (y, *(leaf.grad for leaf in leaves)))


def test_without_products_in_bf16_in_onednn_a_linear_layer_is_computed_all_the_same() -> None:
    """As where the processor has AVX2 alone, which is slow, but a run that was told so learns."""
    program = """if True:
        import torch
        from transformer_cli.model import compiled_products
        compiled_products.by_pairs = lambda dtype: False
        linear = compiled_products.linear
        leaves = [torch.randn(size).bfloat16().requires_grad_() for size in ((9, 64), (16, 64), (16,))]
        for rectified in (False, True):
            y = linear(*leaves, rectified=rectified)
            y.backward(torch.ones_like(y))
            wanted = torch.nn.functional.linear(*leaves)
            torch.testing.assert_close(y, wanted.relu() if rectified else wanted)
        assert all(leaf.grad.isfinite().all() for leaf in leaves)
    """
    variables = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True, timeout=60)


@pytest.mark.parametrize("dtype", [*NAMES])
def test_of_a_row_that_ran_away_the_norm_is_no_number(dtype: torch.dtype) -> None:
    """An update that learns from it is left out and counted; from zeros it would learn. Other rows are numbers."""
    x = torch.randn(3, 48).to(dtype)
    x[1] *= 1e30
    leaves = [x.requires_grad_(), torch.ones(48, dtype=dtype, requires_grad=True)]
    y = normed(*leaves, None, 1e-5)[1]
    y.sum().backward()
    for made in (y, leaves[0].grad):
        assert made.isnan().all(1).tolist() == made.isnan().any(1).tolist() == [False, True, False]
    assert leaves[1].grad.isnan().all()


@pytest.mark.parametrize("used", [0, 1])
def test_of_a_norm_and_what_goes_on_beside_it_one_alone_may_be_read(used: int) -> None:
    """After post-norm, and at the end of a stack, nothing goes on beside."""
    torch.manual_seed(5)
    x, weight, grad = torch.randn(7, 16), torch.randn(16), torch.randn(7, 16)
    ours, theirs = [[x.clone().requires_grad_(), weight.clone().requires_grad_()] for _ in range(2)]
    normed(*ours, None, 1e-5)[used].backward(grad)
    (theirs[0] * 1 if used == 0 else F.layer_norm(theirs[0], (16,), theirs[1])).backward(grad)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_threads_change_no_bit_of_the_others() -> None:
    x, weight, before, made = torch.randn(333, 48), torch.randn(48), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            y = _Dropped.apply(normed(*leaves, None, 1e-5)[1], leaves[0], 7, 2000)
            y.backward(x)
            logits = x.clone()
            losses = smoothed(logits, torch.arange(333) % 48, x[:, 0].contiguous(), 0.1)
            sums, place = torch.empty(48), torch.empty(333 * 48)
            run("linear_back", x.dtype, x.clone(), None, None, sums, place, None, 333, 48, threads)
            rounded = x.bfloat16()
            products = [multiplied(rounded, rounded.t()), multiplied(rounded, rounded, by_rows=True)]
            made.append([y.detach(), *(leaf.grad for leaf in leaves), logits, *losses, sums, *products])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for others in made[1:] for one, other in zip(made[0], others, strict=True))


def test_a_tensor_of_another_kind_never_reaches_the_code() -> None:
    """Which would read it, and what lies behind it, as if it were what it takes: a weight in bf16 ended the process."""
    x, narrow = torch.ones(4, 16), torch.ones(16).bfloat16()
    for wrong in (narrow, torch.ones(32)[::2]):
        with pytest.raises(AssertionError, match="norm"):
            run("norm", x.dtype, x, wrong, None, x.clone(), torch.empty(4, 3), 4, 16, 1e-5, True, 1)
    with pytest.raises(ValueError, match="argument"):
        run("norm", x.dtype, x)


def test_both_languages_mean_the_same_struct() -> None:
    """Each field is 8 bytes, in the order of attention.cpp."""
    source = (Path(compiled.__file__).parent / "cpp" / "attention.cpp").read_text(encoding="utf-8")
    body = source.partition("struct Shape {")[2].partition("};")[0]
    declared = [line.partition("//")[0].strip().rstrip(";") for line in body.split("\n")]
    words = " ".join(declared).replace(",", " ").replace("*", " ").split()
    fields = Spans(in_place([1]), in_place([1])).shape._fields_
    assert [word for word in words if word not in ("const", "int64_t", "float")] == [name for name, _ in fields]
    assert {ctypes.sizeof(kind) for _, kind in fields} == {8}


def test_a_table_that_is_embedding_and_output_learns_from_both() -> None:
    """What embeddings gather is added to the output's gradient at the end: without it nothing else would show."""
    batch = collate([[5, 6, 6, 3], [7, 3]], [[8, 9, 9], [5]])
    found = []
    for is_compiled in (True, False):
        torch.manual_seed(3)
        model = build_model(ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=1), source_vocab=12, target_vocab=12)
        if is_compiled:
            model.use_compiled()
        model.eval()
        loss_of(model, batch, smoothing=0.1).backward()
        assert model.output.weight is model.source_embedding.table.weight
        found.append(model.output.weight.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
