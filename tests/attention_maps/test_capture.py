"""The numbers: what is captured is the attention that the model computes, and nothing else changes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from conftest import PAIRS
from torch.nn.functional import cross_entropy

from transformer_cli.attention_maps.capture import attention_maps, capture
from transformer_cli.attention_maps.saved import as_json, as_npz
from transformer_cli.config.model import ModelConfig
from transformer_cli.errors import DivergedError, UsageError
from transformer_cli.model.attention import ScaledDotProductAttention
from transformer_cli.model.build import build_model
from transformer_cli.python.model import load

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 3], [9, 4, 3, 0, 0, 0]])
LENGTHS = torch.tensor([6, 3])
TARGET = torch.tensor([[2, 5, 6, 7, 8, 9, 10], [2, 9, 4, 11, 12, 13, 14]])
VARIANTS = {
    "plain": {},
    "grouped queries": {"n_kv_heads": 2},
    "rotary, unequal depths": {"positions": "rotary", "n_layers": {"encoder": 1, "decoder": 3}},
    "post-norm, narrow heads": {"norm_position": "post", "d_head": 3, "bias": False},
}


@cache
def model(name="plain", *, dtype=torch.float32, **more):
    torch.manual_seed(0)
    options = {"d_model": 16, "n_heads": 4, "d_ff": 32, "n_layers": 2, "dropout": 0.0, **VARIANTS[name], **more}
    made = build_model(ModelConfig(**options), source_vocab=20, target_vocab=20)
    with torch.no_grad():
        for parameter in made.parameters():  # large enough that attention is far from uniform
            parameter.mul_(3)
    return made.to(dtype)


@torch.inference_mode()
def captured(made, source=SOURCE, lengths=LENGTHS, target=TARGET):
    with capture(made) as weights:
        made(source, lengths, target)
    return weights


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_sum_to_one_and_what_is_hidden_is_exactly_zero(name):
    weights = captured(model(name))
    for module, found in weights.items():
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]), rtol=0, atol=1e-5)
        if module.startswith("decoder") and "self" in module:
            assert not found.triu(1).any()
            assert (found[:, :, 0, 0] == 1).all()
        else:
            assert not found[1, :, :, 3:].any()
    depths = model(name).config.depths
    assert len(weights) == depths.encoder + 2 * depths.decoder
    assert {found.shape[1] for found in weights.values()} == {4}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_sentence_in_a_batch_has_the_weights_it_has_alone(name):
    together = captured(model(name, dtype=torch.float64))
    alone = captured(model(name, dtype=torch.float64), SOURCE[1:, :3], LENGTHS[1:], TARGET[1:])
    for module, found in alone.items():
        rows, columns = found.shape[2:]
        torch.testing.assert_close(together[module][1:, :, :rows, :columns], found, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_captured_weights_times_values_are_what_fused_attention_gives(name):
    made = model(name, dtype=torch.float64)
    inputs = {}
    attentions = {name: m for name, m in made.named_modules() if isinstance(m, ScaledDotProductAttention)}
    hooks = [
        m.register_forward_hook(lambda _, given, out, name=name: inputs.__setitem__(name, (given, out)))
        for name, m in attentions.items()
    ]
    made.use_attention(fused=True)
    made(SOURCE, LENGTHS, TARGET)
    for hook in hooks:
        hook.remove()
    for module, weights in captured(made).items():
        (_, _, value, _), fused = inputs[module]
        values = value.repeat_interleave(weights.size(1) // value.size(1), dim=1)
        torch.testing.assert_close(weights @ values, fused, rtol=0, atol=1e-10)
    made.use_attention(fused=False)


@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_a_forced_pass_has_the_weights_that_each_token_was_written_with(name):
    """Those of the last row of what was there when it was."""
    made = model(name, dtype=torch.float64)
    forced = captured(made, SOURCE[:1], LENGTHS[:1], TARGET[:1])
    for t in range(TARGET.size(1)):
        then = captured(made, SOURCE[:1], LENGTHS[:1], TARGET[:1, : t + 1])
        for module, found in then.items():
            if found.size(-2) == t + 1:  # of the decoder
                n_keys = found.size(-1)
                torch.testing.assert_close(found[0, :, t], forced[module][0, :, t, :n_keys], rtol=0, atol=1e-10)
                assert not forced[module][0, :, t, n_keys:].any()


def test_dropout_changes_nothing():
    wild = model("plain", dropout=0.9, attention_dropout=0.9)
    wild.load_state_dict(model().state_dict())
    wild.train()
    for module, found in captured(wild).items():
        torch.testing.assert_close(found, captured(model())[module], rtol=0, atol=0)


def test_capture_leaves_nothing_behind_even_after_an_error():
    made = model()
    made.train()
    made.use_attention(fused=True)
    with pytest.raises(IndexError), capture(made):
        made(SOURCE, LENGTHS, TARGET + 20)
    assert made.training
    for module in made.modules():
        assert not module._forward_hooks
        assert not isinstance(module, ScaledDotProductAttention) or module.fused
    made.eval()
    made.use_attention(fused=False)


@pytest.fixture(scope="module")
def translator(trained_run):
    return load(trained_run)


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[6]])
def test_maps_are_of_the_finished_translation(translator, source, target):
    maps = attention_maps(translator, source)
    assert maps.target.text == target
    assert (maps.origin, len(maps.steps)) == ("beam 5", len(maps.target.pieces) - 1)
    assert [step.best[0][0] for step in maps.steps] == list(maps.target.pieces[1:])  # it knows them by heart
    assert all(len(step.best) == 5 and step.probability == step.best[0][1] for step in maps.steps)
    assert [block.name for block in maps.blocks] == ["encoder 1", "decoder 1", "cross 1"]


def test_a_given_target_is_forced_and_may_be_empty(translator):
    assert attention_maps(translator, "ein bier", target="the dog").rows("cross")[-1].endswith("→ </s>")
    empty = attention_maps(translator, "ein bier", target="")
    assert (empty.rows("cross"), empty.origin, empty.score) == (("<s> → </s>",), "forced", None)


def test_what_looks_like_a_mark_is_text(translator):
    maps = attention_maps(translator, "</s> <pad>", target="<s> a")
    assert sum(maps.source.marks) == 1
    assert sum(maps.target.marks) == 2


def test_padding_is_shown_and_changes_no_weight(translator):
    plain, padded = (attention_maps(translator, "ein bier", target="a beer", pad_to=n) for n in (None, 12))
    assert len(padded.source.pieces) == 12
    for short, long in zip(plain.blocks, padded.blocks, strict=True):
        _, rows, columns = short.weights_HQK.shape
        np.testing.assert_allclose(long.weights_HQK[:, :rows, :columns], short.weights_HQK, atol=1e-6)
        assert not long.weights_HQK[:, ~padded.visible(long.kind)].any()
    with pytest.raises(UsageError, match="more than --pad-to 2"):
        attention_maps(translator, "ein bier", pad_to=2)


def test_the_same_sentence_gives_the_same_bytes(translator):
    first, second = (attention_maps(translator, PAIRS[0][0]) for _ in range(2))
    assert as_npz(first) == as_npz(second)
    assert as_json(first) == as_json(second)


def test_weights_that_are_not_finite_are_the_models_fault(trained_run):
    broken = load(trained_run)
    with torch.no_grad():
        broken.model.encoder.layers[0].self_attention.output.weight[0, 0] = torch.nan
    for target in (None, "a beer"):
        with pytest.raises(DivergedError, match="not finite"):
            attention_maps(broken, "ein bier", target=target)


def test_a_sentence_with_too_many_weights_is_refused_before_they_are_made(translator):
    with pytest.raises(UsageError, match=r"pieces has [\d,]+ weights; at most 100,000,000 are possible"):
        attention_maps(translator, "ein bier", target="a " * 8000)


def test_one_attention_alone_can_be_captured():
    with torch.inference_mode(), capture(model(), only="encoder.layers.1.self_attention.attend") as weights:
        model()(SOURCE, LENGTHS, TARGET)
    assert list(weights) == ["encoder.layers.1.self_attention.attend"]


def test_a_blank_source_and_a_model_in_bf16_are_refused(trained_run, translator):
    with pytest.raises(UsageError, match="the source is empty"):
        attention_maps(translator, " \u3000")
    with pytest.raises(UsageError, match="taken in fp32"):
        attention_maps(load(trained_run, precision="bf16"), "ein bier")


def test_a_model_trained_to_copy_shows_the_diagonal():
    """Of one layer: to write a token it has to look at that very token, in the row that the token comes out of."""
    torch.manual_seed(1)
    options = {"d_model": 32, "n_heads": 2, "d_ff": 32, "n_layers": 1, "dropout": 0.0}
    made = build_model(ModelConfig(**options), source_vocab=24, target_vocab=24)
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    lengths, start = torch.full((64,), 8), torch.full((64, 1), 2)
    for _ in range(150):
        text = torch.randint(4, 24, (64, 8))
        hidden = made(text, lengths, torch.cat((start, text[:, :-1]), dim=1))
        loss = cross_entropy(made.project(hidden).flatten(0, 1), text.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    text = torch.randint(4, 24, (64, 8))
    weights = captured(made, text, lengths, torch.cat((start, text[:, :-1]), dim=1))
    cross = weights["decoder.layers.0.cross_attention.attend"].mean(dim=1)
    assert (cross.argmax(-1) == torch.arange(8)).float().mean() > 0.95
