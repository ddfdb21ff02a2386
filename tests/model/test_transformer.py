"""The model against torch's own layers, and against what must not matter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.config.model import POSITIONS, Depths, ModelConfig
from transformer_cli.model import masks
from transformer_cli.model.attention import MultiHeadAttention, SelfAttention
from transformer_cli.model.build import build_model
from transformer_cli.model.layout import Rows
from transformer_cli.model.positions import Rotary, sinusoids
from transformer_cli.model.transformer import DecoderLayer, EncoderLayer, Transformer

VOCAB = 40
EXACT: dict[str, float] = {"rtol": 0, "atol": 1e-10}  # fp64


def tiny(**options: Any) -> Transformer:
    torch.manual_seed(options.pop("seed", 0))
    shape: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2, **options}
    model = build_model(ModelConfig(**shape), source_vocab=VOCAB, target_vocab=VOCAB).double().eval()
    for parameter in model.parameters():  # biases and norms away from their trivial start
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def ids(batch: int, length: int, *, seed: int = 1) -> Tensor:
    return torch.randint(4, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def lengths(*values: int) -> Tensor:
    return torch.tensor(values)


def logits(model: Transformer, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
    return model.project(model(source, source_lengths, target))


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    if isinstance(ours, SelfAttention):
        weight, bias = ours.query_key_value.weight, ours.query_key_value.bias
    else:
        weight = torch.cat((ours.query.weight, ours.key_value.weight))
        bias = torch.cat((ours.query.bias, ours.key_value.bias))
    theirs.in_proj_weight.data.copy_(weight)
    theirs.in_proj_bias.data.copy_(bias)
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: Any) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())
    for number, residual in enumerate(ours.residuals, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_encoder_and_decoder_layers_equal_torchs_own(norm_position: str, activation: str, fused: bool) -> None:
    model = tiny(norm_position=norm_position, activation=activation)
    model.use_attention(fused=fused)
    options: dict[str, Any] = {
        "d_model": 16,
        "nhead": 2,
        "dim_feedforward": 24,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": norm_position == "pre",
        "dtype": torch.float64,
    }
    source, target = torch.randn(3, 7, 16, dtype=torch.float64), torch.randn(3, 5, 16, dtype=torch.float64)
    real = lengths(7, 4, 5)
    hidden_keys = torch.arange(7) >= real[:, None]
    padding_bias = masks.as_bias(masks.padding(real, 7), like=source)
    causal_bias = masks.as_bias(masks.causal(5, source.device), like=source)

    encoder_layer = model.encoder.layers[0]
    reference = nn.TransformerEncoderLayer(**options).train()  # train: torch's slow, exact path
    copy_layer(encoder_layer, reference)
    ours, theirs = (
        encoder_layer(source, padding_bias, Rows(source.size(1))),
        reference(source, src_key_padding_mask=hidden_keys),
    )
    for row, length in enumerate(real):
        torch.testing.assert_close(ours[row, :length], theirs[row, :length], **EXACT)

    decoder_layer = model.decoder.layers[0]
    reference = nn.TransformerDecoderLayer(**options).train()
    copy_layer(decoder_layer, reference)
    remembered = decoder_layer.cross_attention.remember(source, Rows(source.size(1)))
    ours = decoder_layer(target, remembered, causal_bias, padding_bias, Rows(target.size(1)))
    theirs = reference(
        target,
        source,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
        memory_key_padding_mask=hidden_keys.double().masked_fill(hidden_keys, -math.inf),
    )
    torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_whole_model_equals_torchs_transformer(norm_position: str) -> None:
    model = tiny(norm_position=norm_position, final_norm=True, n_layers=Depths(encoder=2, decoder=3))
    reference = nn.Transformer(
        16, 2, 2, 3, 24, dropout=0.0, batch_first=True, norm_first=norm_position == "pre", dtype=torch.float64
    )
    for ours, theirs in zip(model.encoder.layers, reference.encoder.layers, strict=True):
        copy_layer(ours, theirs)
    for ours, theirs in zip(model.decoder.layers, reference.decoder.layers, strict=True):
        copy_layer(ours, theirs)
    reference.encoder.norm.load_state_dict(model.encoder.norm.state_dict())
    reference.decoder.norm.load_state_dict(model.decoder.norm.state_dict())
    source, target = ids(3, 6), ids(3, 5, seed=2)
    table = model.target_embedding.table.weight * math.sqrt(16)
    embedded = [table[tokens] + sinusoids(tokens.size(1), 16) for tokens in (source, target)]
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    torch.testing.assert_close(
        model(source, lengths(6, 6, 6), target), reference(*embedded, tgt_mask=mask, tgt_is_causal=True), **EXACT
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("positions", POSITIONS.own)
def test_padding_and_partners_do_not_change_a_sentences_logits(positions: str, fused: bool) -> None:
    model = tiny(positions=positions)
    model.use_attention(fused=fused)
    source, target = ids(1, 4), ids(1, 5, seed=2)
    alone = logits(model, source, lengths(4), target)
    partner_source, partner_target = ids(1, 9, seed=3), ids(1, 8, seed=4)
    sources = torch.cat((nn.functional.pad(source, (0, 5)), partner_source))
    targets = torch.cat((nn.functional.pad(target, (0, 3)), partner_target))
    together = logits(model, sources, lengths(4, 9), targets)
    torch.testing.assert_close(together[:1, :5], alone, **EXACT)


@pytest.mark.parametrize("positions", POSITIONS.own)
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_a_future_token_cannot_move_a_past_logit(positions: str, activation: str) -> None:
    model = tiny(positions=positions, activation=activation, norm="rms-norm")
    source, target = ids(2, 6), ids(2, 7, seed=2)
    before = logits(model, source, lengths(6, 6), target)
    for t in range(1, 7):
        changed = target.clone()
        changed[:, t] = 4 + (changed[:, t] - 3) % (VOCAB - 4)
        after = logits(model, source, lengths(6, 6), changed)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t], after[:, t])


@pytest.mark.parametrize("fused", [False, True])
def test_a_row_in_which_everything_is_masked_yields_numbers(fused: bool) -> None:
    model = tiny()
    model.use_attention(fused=fused)
    target = ids(2, 3)
    out = logits(model, torch.zeros(2, 4, dtype=torch.int64), lengths(0, 4), target)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_hidden_keys_get_a_weight_of_exactly_zero() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        scores = torch.randn(1, 1, 4, 6, dtype=dtype) * 50
        hidden = masks.as_bias(masks.padding(lengths(2), 6), like=scores)
        weights = (scores + hidden).softmax(-1)
        assert (weights[..., 2:] == 0).all()
        torch.testing.assert_close(weights.sum(-1).float(), torch.ones(1, 1, 4), atol=1e-2, rtol=0)


@pytest.mark.parametrize(("tied", "n_tables"), [("all", 1), ("embeddings", 2), ("decoder", 2), ("none", 3)])
def test_tying_shares_one_table_three_two_or_no_ways(tied: str, n_tables: int) -> None:
    model = tiny(tied=tied)
    source, target, output = (
        model.source_embedding.table.weight,
        model.target_embedding.table.weight,
        model.output.weight,
    )
    assert (source is target, target is output) == (tied in ("all", "embeddings"), tied in ("all", "decoder"))
    assert len([p for p in model.parameters() if p.shape == (VOCAB, 16)]) == n_tables


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("d_head", [None, 5])
def test_every_parameter_gets_a_gradient(d_head: int | None, bias: bool, fused: bool) -> None:
    model = tiny(d_head=d_head, bias=bias, activation="swiglu", positions="learned", tied="none").train()
    model.use_attention(fused=fused)
    logits(model, ids(2, 5), lengths(5, 3), ids(2, 4, seed=2)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_both_attention_paths_agree_in_output_and_gradient() -> None:
    model, gradients, outputs = tiny(), [], []
    for fused in (False, True):
        model.use_attention(fused=fused)
        model.zero_grad()
        out = logits(model, ids(2, 5), lengths(5, 3), ids(2, 4, seed=2))
        out.square().sum().backward()
        outputs.append(out)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(outputs[0], outputs[1], **EXACT)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-9)


def test_rotary_scores_depend_on_distance_alone() -> None:
    rotary = Rotary(ModelConfig(d_model=16, n_heads=2), "decoder")
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind(0)

    def score(i: int, j: int) -> Tensor:
        return (rotary.rotate(query, offset=i) * rotary.rotate(key, offset=j)).sum()

    for shift in (1, 10, 100):
        torch.testing.assert_close(score(3 + shift, 1 + shift), score(3, 1), **EXACT)
    assert not torch.isclose(score(3, 1), score(4, 1))


def test_sinusoids_are_a_linear_function_of_their_neighbours() -> None:
    """PE(pos + k) is a fixed rotation of PE(pos), the reason that section 3.5 gives for them."""
    table, k = sinusoids(50, 12), 7
    frequency = 10000.0 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
    sin, cos = table[:-k, 0::2], table[:-k, 1::2]
    torch.testing.assert_close(
        table[k:, 0::2], sin * torch.cos(k * frequency) + cos * torch.sin(k * frequency), **EXACT
    )


def test_in_bf16_the_weights_stay_fp32_and_the_logits_stay_close() -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig(d_model=64, n_heads=4, d_ff=128, n_layers=2), source_vocab=50, target_vocab=50)
    model.eval()
    source, target = ids(2, 6), ids(2, 5, seed=2)
    exact = logits(model, source, lengths(6, 4), target)
    model.compute_in(torch.bfloat16, training=True)
    rough = logits(model, source, lengths(6, 4), target)
    assert rough.dtype == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    torch.testing.assert_close(rough.float(), exact, atol=0.05 * exact.abs().max().item(), rtol=0)
    cast_once = model.compute_in(torch.bfloat16, training=False)
    torch.testing.assert_close(logits(cast_once, source, lengths(6, 4), target), rough, rtol=0, atol=0)


def test_what_a_sublayer_adds_begins_smaller_by_the_root_of_how_many_there_are() -> None:
    """The largest of thousands of numbers that are drawn evenly is nearly their bound, Xavier's; two sublayers in a
    layer of the encoder, three in one of the decoder."""
    torch.manual_seed(0)
    layers = {"encoder": 2, "decoder": 3}
    config = ModelConfig(d_model=64, n_heads=4, d_ff=128, n_layers=Depths(**layers))
    model = build_model(config, source_vocab=VOCAB, target_vocab=VOCAB)
    n_sublayers = {"encoder": 2 * layers["encoder"], "decoder": 3 * layers["decoder"]}
    added = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            stack, last = name.partition(".")[0], name.rpartition(".")[2]
            adds = last in ("output", "down")
            for block in module.weight.split({"query_key_value": 64, "key_value": 64}.get(last, len(module.weight))):
                bound = math.sqrt(6 / sum(block.shape)) / (math.sqrt(n_sublayers[stack]) if adds else 1)
                assert 0.99 * bound < block.abs().max() <= bound * (1 + 1e-6), name
            added += adds
    assert added == sum(n_sublayers.values())
