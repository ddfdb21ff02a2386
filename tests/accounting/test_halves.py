"""An encoder alone and a decoder alone, against torch's own; and what is counted but never built."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.accounting.halves import DecoderOnly, EncoderOnly, build_counted
from transformer_cli.config.accounting import CountedModel, Extra
from transformer_cli.config.run import vocab_sizes
from transformer_cli.config.source import load_config
from transformer_cli.errors import ConfigError
from transformer_cli.model import masks
from transformer_cli.model.positions import sinusoids
from transformer_cli.model.transformer import Embedding, Encoder, Model

VOCAB = 30
EXACT: dict[str, float] = {"rtol": 0, "atol": 1e-10}  # fp64
IDS = torch.randint(4, VOCAB, (3, 7), generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([7, 3, 5])


def tiny(architecture: str, **options: Any) -> Any:
    torch.manual_seed(0)
    shape = {"architecture": architecture, "d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2, **options}
    model = build_counted(CountedModel.model_validate(shape), source_vocab=VOCAB, target_vocab=VOCAB).double().eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def embedded(embedding: Embedding, ids: Tensor) -> Tensor:
    return embedding.table.weight[ids] * math.sqrt(16) + sinusoids(ids.size(1), 16)


def reference(ours: Encoder, *, norm_position: str, norm: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        16, 2, 24, 0.0, batch_first=True, norm_first=norm_position == "pre", dtype=torch.float64
    )
    final = nn.LayerNorm(16, dtype=torch.float64) if norm else None
    theirs = nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False).train()  # train: the exact path
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        other.self_attn.in_proj_weight.data.copy_(mine.self_attention.query_key_value.weight)
        other.self_attn.in_proj_bias.data.copy_(mine.self_attention.query_key_value.bias)
        other.self_attn.out_proj.load_state_dict(mine.self_attention.output.state_dict())
        other.linear1.load_state_dict(mine.feed_forward.up.state_dict())
        other.linear2.load_state_dict(mine.feed_forward.down.state_dict())
        other.norm1.load_state_dict(mine.residuals[0].norm.state_dict())
        other.norm2.load_state_dict(mine.residuals[1].norm.state_dict())
    if final is not None:
        final.load_state_dict(ours.norm.state_dict())
    return theirs


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_an_encoder_alone_equals_torchs(norm_position: str, fused: bool) -> None:
    model = tiny("encoder-only", norm_position=norm_position)
    model.use_attention(fused=fused)
    theirs = reference(model.encoder, norm_position=norm_position, norm=norm_position == "pre")
    hidden = torch.arange(7) >= LENGTHS[:, None]
    expected = theirs(embedded(model.source_embedding, IDS), src_key_padding_mask=hidden)
    ours = model(IDS, LENGTHS)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(ours[row, :length], expected[row, :length], **EXACT)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("tied", ["all", "none"])
def test_a_decoder_alone_equals_torchs_layers_under_a_causal_mask(tied: str, norm_position: str, fused: bool) -> None:
    model = tiny("decoder-only", norm_position=norm_position, tied=tied)
    model.use_attention(fused=fused)
    theirs = reference(model.decoder, norm_position=norm_position, norm=norm_position == "pre")
    expected = theirs(embedded(model.target_embedding, IDS), mask=~masks.causal(7, IDS.device), is_causal=True)
    torch.testing.assert_close(model(IDS), expected, **EXACT)
    output = model.target_embedding.table.weight if tied == "all" else model.output.weight
    torch.testing.assert_close(model.project(expected), expected @ output.T, **EXACT)


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-table", "learned", "rotary", "none"])
def test_a_decoder_alone_sees_its_past_and_never_its_future(positions: str) -> None:
    model = tiny("decoder-only", positions=positions, n_kv_heads=1, activation="geglu", norm="rms-norm", bias=False)
    before = model(IDS)
    for t in range(1, 7):
        changed = IDS.clone()
        changed[:, t] = 4 + (changed[:, t] - 3) % (VOCAB - 4)
        after = model(changed)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t], after[:, t])


@pytest.mark.parametrize("architecture", ["encoder-only", "decoder-only"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_half_a_model_holds_nothing_of_the_other_half_and_learns_with_all_it_has(
    architecture: str, positions: str
) -> None:
    model = tiny(architecture, positions=positions, tied="none" if architecture == "decoder-only" else "all")
    side, other = ("encoder", "decoder") if architecture == "encoder-only" else ("decoder", "encoder")
    names = dict(model.named_parameters())
    assert not any(name.startswith(other) or "cross" in name for name in names)
    assert sum(f"{side}.layers.1" in name for name in names) == 12  # two blocks of two matrices, two norms; biases
    out = model(IDS, LENGTHS) if architecture == "encoder-only" else model.project(model(IDS))
    out.square().sum().backward()
    assert [name for name, p in names.items() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("preset", "kind", "parameters"),
    [
        ("gpt3", DecoderOnly, 174_604_259_328),
        ("gpt2", DecoderOnly, 124_439_808),
        ("llama-3-8b", DecoderOnly, 8_030_261_248),
    ],
)
def test_a_known_model_has_its_parameters_and_takes_no_memory(preset: str, kind: type[Model], parameters: int) -> None:
    config = load_config(preset)
    source, target = vocab_sizes(config)
    model = build_counted(config.counted, source_vocab=source, target_vocab=target, device="meta")
    assert type(model) is kind
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_bert_without_what_is_only_counted_is_an_encoder() -> None:
    config = load_config("bert-base").counted.model_copy(update={"extra": []})
    model = build_counted(config, source_vocab=30_522, target_vocab=30_522, device="meta")
    assert type(model) is EncoderOnly
    pooler, segments_and_norm = 768 * 768 + 768, 4 * 768
    assert sum(p.numel() for p in model.parameters()) == 109_482_240 - pooler - segments_and_norm


@pytest.mark.parametrize(
    ("options", "vocab", "named"),
    [
        ({"extra": [Extra(name="pooler", shape=[3])]}, 9, "accounting.extra"),
        ({"attention_biases": ["query"]}, 9, "accounting.attention_biases"),
        ({}, 0, "a vocabulary of 0 pieces"),
    ],
)
def test_what_is_only_counted_is_not_built(options: dict[str, Any], vocab: int, named: str) -> None:
    with pytest.raises(ConfigError, match=f"never built: {named}$"):
        build_counted(CountedModel(**options), source_vocab=vocab, target_vocab=9, device="meta")
