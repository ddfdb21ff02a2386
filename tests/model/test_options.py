"""What can be chosen about a model: every choice against a reference, and all of them together at random."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig, contradictions
from transformer_cli.model import masks
from transformer_cli.model.attention import MultiHeadAttention, ScaledDotProductAttention, SelfAttention
from transformer_cli.model.blocks import LayerNorm
from transformer_cli.model.build import build_model
from transformer_cli.model.layout import Rows
from transformer_cli.model.positions import sinusoids
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.transformer import Transformer

VOCAB = 30
EXACT: dict[str, float] = {"rtol": 0, "atol": 1e-10}  # fp64
SOURCE = torch.randint(4, VOCAB, (3, 7), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(4, VOCAB, (3, 5), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([7, 3, 5])


def stirred(model: Transformer) -> Transformer:
    """In fp64, biases and norms away from their trivial start."""
    model = model.double().eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def tiny(**options: Any) -> Transformer:
    torch.manual_seed(0)
    shape = {"d_model": 16, "n_heads": 4, "d_ff": 24, "n_layers": 2, **options}
    return stirred(build_model(ModelConfig.model_validate(shape), source_vocab=VOCAB, target_vocab=VOCAB))


def logits(model: Transformer) -> Tensor:
    return model.project(model(SOURCE, LENGTHS, TARGET))


# --- all together -------------------------------------------------------------------------------------------------


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Any encoder-decoder that can be trained, small."""
    kinds = st.sampled_from(["sinusoidal", "sinusoidal-table", "learned", "rotary", "none"])
    sizes = st.integers(1, 3)
    kv_heads = draw(sizes)
    given_head = draw(st.sampled_from([None, 2, 6]))
    n_heads = kv_heads * draw(sizes)
    return ModelConfig.model_validate(
        {
            "d_model": 4 * n_heads if given_head is None else draw(st.sampled_from([6, 10])),
            "n_heads": n_heads,
            "n_kv_heads": draw(st.sampled_from([None, kv_heads])),
            "d_head": given_head,
            "d_ff": draw(st.integers(1, 9)),
            "n_layers": draw(sizes | st.fixed_dictionaries({"encoder": sizes, "decoder": sizes})),
            "norm": draw(st.sampled_from(["layer-norm", "rms-norm"])),
            "norm_position": draw(st.sampled_from(["pre", "post"])),
            "final_norm": draw(st.sampled_from([None, False, True])),
            "activation": draw(st.sampled_from(["relu", "gelu", "silu", "swiglu", "geglu"])),
            "positions": draw(kinds | st.fixed_dictionaries({"encoder": kinds, "decoder": kinds})),
            "max_positions": draw(st.sampled_from([9, {"encoder": 9, "decoder": 7}])),
            "first_position": draw(st.integers(0, 2)),
            "bias": draw(
                st.booleans()
                | st.fixed_dictionaries({"attention": st.booleans()})
                | st.fixed_dictionaries({"feed_forward": st.booleans(), "norm": st.booleans()})
            ),
            "output_bias": draw(st.booleans()),
            "tied": draw(st.sampled_from(["all", "embeddings", "decoder", "none"])),
            "qk_norm": draw(st.booleans()),
            "embedding_scale": draw(st.booleans()),
        }
    )


@settings(max_examples=50)
@given(config=configs())
def test_whatever_is_chosen_a_model_reads_in_one_way_and_learns_with_all_it_has(config: ModelConfig) -> None:
    assert list(contradictions(RunConfig(model=config))) == []
    model = stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB))
    at_once = logits(model)
    model.use_attention(fused=True)
    torch.testing.assert_close(logits(model), at_once, **EXACT)
    alone = model.project(model(SOURCE[1:2, :3], LENGTHS[1:2], TARGET[1:2]))
    torch.testing.assert_close(at_once[1:2], alone, **EXACT)
    at_once.square().sum().backward()
    unused = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()}
    assert unused == {name for name, p in model.named_parameters() if not p.requires_grad}


@settings(max_examples=25)
@given(config=configs())
def test_whatever_is_chosen_every_fresh_number_was_drawn(config: ModelConfig) -> None:
    """Memory that nothing was written to holds NaN here."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        model = build_model(config, source_vocab=VOCAB, target_vocab=VOCAB)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name, p in model.named_parameters() if not p.isfinite().all()] == []
    meta = build_model(config, source_vocab=VOCAB, target_vocab=VOCAB, device="meta")
    shapes = {name: (p.shape, p.requires_grad) for name, p in model.named_parameters()}
    assert {name: (p.shape, p.requires_grad) for name, p in meta.named_parameters()} == shapes
    assert {p.device.type for p in meta.parameters()} == {"meta"}


# --- grouped queries ----------------------------------------------------------------------------------------------


def ungrouped(weight: Tensor, ours: MultiHeadAttention) -> Tensor:
    """W^K or W^V with the rows of each head repeated for every head of queries that shares it."""
    times = ours.width // ours.kv_width
    return weight.unflatten(0, (-1, ours.d_head)).repeat_interleave(times, dim=0).flatten(0, 1)


def reference(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's attention with a copy of keys and values for each head of queries."""
    if isinstance(ours, SelfAttention):
        joined = ours.query_key_value.weight, ours.query_key_value.bias
        parts = [x.split(ours.widths) for x in joined]
    else:
        parts = [
            (query, *both.chunk(2))
            for query, both in (
                (ours.query.weight, ours.key_value.weight),
                (ours.query.bias, ours.key_value.bias),
            )
        ]
    theirs = nn.MultiheadAttention(16, ours.width // ours.d_head, batch_first=True, dtype=torch.float64)
    for into, (query, key, value) in zip((theirs.in_proj_weight, theirs.in_proj_bias), parts, strict=True):
        into.data.copy_(torch.cat((query, ungrouped(key, ours), ungrouped(value, ours))))
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    return theirs


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_grouped_queries_equal_torchs_attention_with_copied_heads(n_kv_heads: int, fused: bool) -> None:
    model = tiny(n_kv_heads=n_kv_heads)
    model.use_attention(fused=fused)
    x, memory = torch.randn(3, 5, 16, dtype=torch.float64), torch.randn(3, 7, 16, dtype=torch.float64)
    layer = model.decoder.layers[0]
    causal = masks.causal(5, x.device)
    ours = layer.self_attention(x, masks.as_bias(causal, like=x), Rows(x.size(1)))
    theirs, _ = reference(layer.self_attention)(x, x, x, attn_mask=~causal)
    torch.testing.assert_close(ours, theirs, **EXACT)
    padding = masks.as_bias(masks.padding(LENGTHS, 7), like=x)
    ours = layer.cross_attention(
        x, layer.cross_attention.remember(memory, Rows(memory.size(1))), padding, Rows(x.size(1))
    )
    hidden = torch.arange(7) >= LENGTHS[:, None]
    theirs, _ = reference(layer.cross_attention)(x, memory, memory, key_padding_mask=hidden)
    torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_normalised_heads_meet_by_their_cosine_times_a_scale(positions: str, fused: bool) -> None:
    """By torch's RMSNorm and attention, before positions turn them; in cross-attention the memory's keys, too."""
    model = tiny(qk_norm=True, n_kv_heads=2, positions=positions)
    model.use_attention(fused=fused)
    x, memory = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
    ours = model.encoder.layers[0].self_attention
    query, key, value = ours.query_key_value(x).unflatten(2, (8, 4)).transpose(1, 2).split((4, 2, 2), dim=1)
    norms = [nn.RMSNorm(4, eps=1e-6, dtype=torch.float64) for _ in range(2)]
    for norm, own in zip(norms, (ours.query_norm, ours.key_norm), strict=True):
        norm.load_state_dict(own.state_dict())
    query, key = (model.encoder.positions.rotate(norm(heads)) for norm, heads in zip(norms, (query, key), strict=True))
    expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours(x, None, Rows(5)), ours.output(expected), **EXACT)
    cross = model.decoder.layers[0].cross_attention
    query = cross.query(x).unflatten(2, (4, 4)).transpose(1, 2)
    key, value = cross.key_value(memory).unflatten(2, (4, 4)).transpose(1, 2).split((2, 2), dim=1)
    for norm, own in zip(norms, (cross.query_norm, cross.key_norm), strict=True):
        norm.load_state_dict(own.state_dict())
    expected = F.scaled_dot_product_attention(norms[0](query), norms[1](key), value, enable_gqa=True)
    found = cross(x, cross.remember(memory, Rows(7)), None, Rows(5))
    torch.testing.assert_close(found, cross.output(expected.transpose(1, 2).flatten(2)), **EXACT)


def test_grouped_queries_written_out_equal_torchs_fused_kernel() -> None:
    attend = tiny(n_kv_heads=2).encoder.layers[0].self_attention.attend
    query, key, value = (torch.randn(3, n, length, 8) for n, length in ((4, 5), (2, 7), (2, 7)))
    bias = torch.randn(3, 1, 5, 7)
    theirs = F.scaled_dot_product_attention(query, key, value, bias, enable_gqa=True)
    torch.testing.assert_close(attend(query, key, value, bias), theirs)


@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_attention_written_out_for_bf16_is_computed_in_fp32(n_kv_heads: int) -> None:
    attend = tiny(n_kv_heads=n_kv_heads).encoder.layers[0].self_attention.attend
    vectors = [torch.randn(3, heads, 7, 8).bfloat16() for heads in (4, n_kv_heads, n_kv_heads)]
    wanted = attend(*(x.float() for x in vectors), None).bfloat16()
    torch.testing.assert_close(attend(*vectors, None), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_the_softmax_gives_one_map_per_head_of_queries(n_kv_heads: int) -> None:
    model, maps = tiny(n_kv_heads=n_kv_heads), []
    for module in model.modules():
        if isinstance(module, ScaledDotProductAttention):
            module.softmax.register_forward_hook(lambda module, args, output: maps.append(output))
    logits(model)
    assert [weights.shape for weights in maps] == [(3, 4, 7, 7)] * 2 + [(3, 4, 5, 5), (3, 4, 5, 7)] * 2
    for weights in maps:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_fresh_shared_keys_are_as_wide_as_their_own_shape_says() -> None:
    torch.manual_seed(0)
    config = ModelConfig(d_model=256, n_heads=8, n_kv_heads=1, d_ff=64, n_layers=1)
    layer = build_model(config, source_vocab=9, target_vocab=9).decoder.layers[0]
    query, key, value = layer.self_attention.query_key_value.weight.split((256, 32, 32))
    remembered = layer.cross_attention.key_value.weight
    for block, rows in ((query, 256), (key, 32), (value, 32), *((half, 32) for half in remembered.chunk(2))):
        limit = (6 / (256 + rows)) ** 0.5
        assert block.abs().max() <= limit
        assert block.std().item() == pytest.approx(limit / 3**0.5, rel=0.03)


# --- positions, biases, tying, gates ------------------------------------------------------------------------------


def test_a_table_of_sinusoids_is_the_sinusoids_and_is_not_trained() -> None:
    options = {"max_positions": {"encoder": 9, "decoder": 6}, "first_position": 1}
    model, without_table = tiny(positions="sinusoidal-table", **options), tiny(positions="sinusoidal", **options)
    tables = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    assert {name: len(p) for name, p in tables.items()} == {
        "encoder.positions.table.weight": 9,
        "decoder.positions.table.weight": 6,
    }
    for table in tables.values():
        torch.testing.assert_close(table, sinusoids(*table.shape), rtol=0, atol=1e-7)  # kept in fp32
    without_table.load_state_dict({name: p for name, p in model.state_dict().items() if name not in tables})
    torch.testing.assert_close(logits(model), logits(without_table), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal-table"])
def test_a_table_ends_where_it_ends(kind: str) -> None:
    model = tiny(positions=kind, max_positions={"encoder": 9, "decoder": 6}, first_position=2)
    model.encode(SOURCE, LENGTHS)
    with pytest.raises(IndexError, match="position 7 of a table of 6"):
        logits(model)
    prepared = Prepared(model)
    state = prepared.start(SOURCE, LENGTHS)
    for _ in range(4):
        prepared.step(TARGET[:, 0], state)
    with pytest.raises(IndexError, match="position 7 of a table of 6"):
        prepared.step(TARGET[:, 0], state)


@pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal-table", "learned", "rotary", "none"])
def test_what_was_first_read_without_gradients_can_be_learned_from(kind: str) -> None:
    """Angles that were kept from inference mode ended the next backward pass."""
    model = tiny(positions=kind)
    with torch.inference_mode():
        expected = logits(model)
    out = logits(model)
    out.sum().backward()
    torch.testing.assert_close(out, expected, **EXACT)


def test_each_stack_has_its_own_positions() -> None:
    model = tiny(positions={"encoder": "learned", "decoder": "rotary"})
    assert [name for name, _ in model.named_parameters() if "positions" in name] == ["encoder.positions.table.weight"]
    both = tiny(positions="learned")
    memory = both.encode(SOURCE, LENGTHS)
    before = logits(both)
    both.decoder.positions.table.weight.data.mul_(-1)
    assert torch.equal(both.encode(SOURCE, LENGTHS), memory)
    assert not torch.allclose(logits(both), before)


@pytest.mark.parametrize(
    ("bias", "biased"),
    [
        (True, {"query_key_value", "query", "key_value", "output", "up", "down", "norm"}),
        (False, {"norm"}),
        ({"attention": False}, {"up", "down", "norm"}),
        ({"feed_forward": False}, {"query_key_value", "query", "key_value", "output", "norm"}),
        ({"norm": False, "feed_forward": False}, {"query_key_value", "query", "key_value", "output"}),
        ({"norm": False}, {"query_key_value", "query", "key_value", "output", "up", "down"}),
    ],
)
def test_biases_are_where_they_were_asked_for_and_zero_ones_change_nothing(bias: Any, biased: Any) -> None:
    model, full = tiny(bias=bias), tiny()
    assert {name.split(".")[-2] for name, _ in model.named_parameters() if name.endswith(".bias")} == biased
    missing = full.load_state_dict(model.state_dict(), strict=False).missing_keys
    for name in missing:
        full.get_parameter(name).data.zero_()
    torch.testing.assert_close(logits(model), logits(full), **EXACT)


def test_a_norm_without_bias_is_torchs() -> None:
    x = torch.randn(5, 16)
    ours = LayerNorm(16, bias=False)
    torch.testing.assert_close(ours(x), F.layer_norm(x, (16,), ours.weight))


@pytest.mark.parametrize(
    ("activation", "gate"),
    [
        ("swiglu", lambda x: x * torch.sigmoid(x)),
        ("geglu", lambda x: x / 2 * (1 + torch.erf(x / 2**0.5))),
    ],
)
def test_a_gated_network_is_its_formula(activation: str, gate: Any) -> None:
    ours = tiny(activation=activation, bias={"feed_forward": False}).encoder.layers[0].feed_forward
    x = torch.randn(3, 16, dtype=torch.float64)
    expected = (gate(x @ ours.gate.weight.T) * (x @ ours.up.weight.T)) @ ours.down.weight.T
    torch.testing.assert_close(ours(x), expected, **EXACT)


def test_tied_embeddings_leave_the_output_to_itself() -> None:
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, n_heads=2, d_ff=8, n_layers=1, tied="embeddings")
    model = build_model(config, source_vocab=VOCAB, target_vocab=VOCAB).eval()
    assert model.source_embedding is model.target_embedding
    before = model.encode(SOURCE, LENGTHS)
    model.output.weight.data.zero_()
    assert torch.equal(model.encode(SOURCE, LENGTHS), before)
    assert not logits(model).any()
    assert model.target_embedding.table.weight[0].eq(0).all()
