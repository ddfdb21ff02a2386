"""Sublayers in their residuals by one call, beside the same steps one by one: every bit is the same."""

from __future__ import annotations

import copy
import random
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from compiling import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformer_cli import heap
from transformer_cli.config.model import ModelConfig
from transformer_cli.data.loader import Batch, collate
from transformer_cli.model import compiled_products, sublayers, transformer
from transformer_cli.model.blocks import Dropout, LayerNorm, Residual, RMSNorm
from transformer_cli.model.build import build_model
from transformer_cli.model.compiled_products import MOST
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.objective import loss_of

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def _by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bf16 are our own on any processor."""
    for module in (compiled_products, transformer):
        monkeypatch.setattr(module, "by_pairs", lambda dtype: dtype == torch.bfloat16)


def built(config: ModelConfig, *, at_once: bool = True) -> Transformer:
    torch.manual_seed(7)
    model = build_model(config, source_vocab=40, target_vocab=40).train()
    for parameter in model.parameters():  # biases begin at zero
        torch.nn.init.normal_(parameter, std=0.3)
    model.compute_in(torch.bfloat16, training=True).use_compiled()
    for module in model.modules():
        if isinstance(module, Residual | LayerNorm | RMSNorm) and not at_once:
            module.at_once = None
    return model


def sentences(draw: random.Random, n: int, longest: int) -> Batch:
    sides = [[[draw.randrange(4, 40) for _ in range(draw.randint(0, longest))] for _ in range(n)] for _ in range(2)]
    return collate([[*side, 3] for side in sides[0]], sides[1])


def learned(model: Transformer, batch: Batch) -> list[Tensor | None]:
    """Its loss and all gradients, of which there are two times as many as of one batch."""
    torch.manual_seed(11)  # dropout draws from it
    losses = [loss_of(model, batch, smoothing=0.1) for _ in range(2)]
    sum(losses, torch.zeros(())).backward()  # type: ignore[no-untyped-call]
    return [losses[0].detach(), losses[1].detach(), *(parameter.grad for parameter in model.parameters())]


def number_at_once(model: Transformer) -> int:
    return sum(isinstance(module, Residual) and module.at_once is not None for module in model.modules())


def same(ours: list[Tensor | None], others: list[Tensor | None]) -> bool:
    pairs = zip(ours, others, strict=True)
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@pytest.mark.parametrize("threads", [1, 16])
def test_rooms_are_large_enough_for_every_product_of_a_sublayer(threads: int) -> None:
    """Of widths between which what a thread lays out of a product does not grow evenly."""
    config = ModelConfig(d_model=512, n_heads=8, d_ff=1536, n_layers=1, dropout=0.1)
    batch, before = sentences(random.Random(3), 24, 58), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert same(learned(built(config), batch), learned(built(config, at_once=False), batch))
    finally:
        torch.set_num_threads(before)


@settings(max_examples=40)
@given(st.data())
def test_they_are_as_one_by_one(data: st.DataObject) -> None:
    """There and back, whatever the model, of whichever part of it learns."""
    draw = data.draw
    n_heads = draw(st.sampled_from([1, 2, 4]))
    config = ModelConfig(
        d_model=draw(st.sampled_from([32, 48, 80])),
        n_heads=n_heads,
        d_head=draw(st.sampled_from([16, 32])),
        n_kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if n_heads % n == 0])),
        d_ff=draw(st.sampled_from([48, 160])),
        n_layers=draw(st.sampled_from([1, 2, 4])),
        dropout=draw(st.sampled_from([0.0, 1e-6, 0.2])),
        attention_dropout=draw(st.sampled_from([0.0, 0.2])),
        activation_dropout=draw(st.sampled_from([0.0, 0.2])),
        norm=draw(st.sampled_from(["layer-norm", "rms-norm"])),
        norm_position=draw(st.sampled_from(["pre", "post"])),
        bias=draw(st.booleans()),
    )
    ours, other = built(config), built(config, at_once=False)
    assert number_at_once(ours) == 5 * config.depths.encoder
    assert number_at_once(other) == 0
    chance = random.Random(draw(st.integers(0, 10**6)))
    for one, another in zip(ours.parameters(), other.parameters(), strict=True):
        one.requires_grad_(chance.random() < 0.8)
        another.requires_grad_(one.requires_grad)
    ours.target_embedding.table.weight.requires_grad_(True)
    other.target_embedding.table.weight.requires_grad_(True)
    batch = sentences(chance, draw(st.integers(1, 6)), draw(st.sampled_from([1, 9, 40])))
    assert same(learned(ours, batch), learned(other, batch))
    ours.eval(), other.eval()
    with torch.no_grad():
        assert torch.equal(loss_of(ours, batch, smoothing=0.0), loss_of(other, batch, smoothing=0.0))


@pytest.mark.parametrize(("n_layers", "together", "calls"), [(2, 3, 1), (5, 3, 2), (5, 2, 3)])
def test_some_layers_are_one_call_there_and_one_back(
    n_layers: int, together: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=n_layers, dropout=0.2)
    model, batch = built(config), sentences(random.Random(1), 3, 9)
    model.encoder.together = model.decoder.together = together
    called, run = Counter[str](), sublayers.run
    monkeypatch.setattr(sublayers, "run", lambda name, *given: (called.update([name]), run(name, *given)))
    found = learned(model, batch)
    assert called == {"sublayers": 4 * calls, "sublayers_back": 4 * calls}  # of two stacks and two losses
    expected = learned(built(config, at_once=False), batch)
    assert same(found, expected)


def test_layers_may_be_called_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then keys and values of the memory are there before, and cross-attention is no part of a call."""
    config = ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=2, dropout=0.2)
    model, batch = built(config), sentences(random.Random(1), 3, 9)
    model.encoder.together = model.decoder.together = 1
    called, run = Counter[str](), sublayers.run
    monkeypatch.setattr(sublayers, "run", lambda name, *given: (called.update([name]), run(name, *given)))
    found = learned(model, batch)
    assert called == {"sublayers": 16, "sublayers_back": 16}  # of two losses, encoder 2 + 1, decoder 2 * 2 + 1
    assert same(found, learned(built(config, at_once=False), batch))


def test_rows_and_widths_may_be_more_than_a_panel_is_laid_out_of_at_a_time() -> None:
    config = ModelConfig(d_model=32, n_heads=2, d_ff=2112, n_layers=1, dropout=0.1, d_head=16)
    batch = sentences(random.Random(5), 90, 60)
    assert MOST > min(batch.n_source_tokens, batch.n_target_tokens) > 2048
    assert same(learned(built(config), batch), learned(built(config, at_once=False), batch))


def test_a_copy_computes_by_its_own_weights() -> None:
    model = built(ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=1))
    layer = copy.deepcopy(model).encoder.layers[0]
    assert layer.residuals[0].at_once.layers[1] is layer.self_attention.query_key_value  # type: ignore[union-attr]


def test_what_is_kept_for_the_way_back_is_kept_by_autograd_alone() -> None:
    """Which lets it go where layers compute again."""
    model = built(ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=2, attention_dropout=0.1))
    made: list[weakref.ref[Tensor]] = []
    for module in model.modules():
        if isinstance(module, Dropout):
            module.mask = lambda *given, kind=module.mask, **named: remembered(kind(*given, **named))  # type: ignore[method-assign]

    def remembered(mask: Tensor | None) -> Tensor | None:
        made.extend([] if mask is None else [weakref.ref(mask)])
        return mask

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda nothing: nothing):
        loss = loss_of(model, sentences(random.Random(1), 3, 9), smoothing=0.1)
    assert loss.requires_grad
    assert len(made) == 6
    assert all(mask() is None for mask in made)


def test_what_is_not_learned_from_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then sublayers are called one by one, and none needs the memory of several."""
    called, run = Counter[str](), sublayers.run
    monkeypatch.setattr(sublayers, "run", lambda name, *given: (called.update([name]), run(name, *given)))
    model = built(ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=2)).eval()
    with torch.no_grad():
        loss_of(model, sentences(random.Random(1), 3, 9), smoothing=0.1)
    assert called == {"sublayers": 12}  # and two norms


def test_no_bit_depends_on_threads() -> None:
    config = ModelConfig(d_model=64, n_heads=4, d_ff=160, n_layers=2, dropout=0.2, activation_dropout=0.1)
    batch, before, found = sentences(random.Random(1), 7, 60), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(learned(built(config), batch))
    finally:
        torch.set_num_threads(before)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_what_is_kept_of_a_large_batch_comes_from_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a call keeps together was more than glibc keeps, of base with 4,096 tokens: the system took and cleared
    it anew in each update."""
    sizes, empty = [], torch.empty

    def watched(*given: Any, **options: Any) -> Tensor:
        made: Tensor = empty(*given, **options)
        sizes.append(made.nbytes)
        return made

    model = built(ModelConfig(d_model=512, n_heads=8, d_ff=2048, n_layers=2))
    batch = sentences(random.Random(4), 64, 60)
    monkeypatch.setattr(torch, "empty", watched)
    loss_of(model, batch, smoothing=0.1)
    assert heap.LARGEST_KEPT / 8 < max(sizes) < heap.LARGEST_KEPT < sum(sizes)


def test_more_rows_than_a_product_of_ours_takes_go_one_by_one() -> None:
    config = ModelConfig(d_model=32, n_heads=2, d_ff=32, n_layers=1, dropout=0.1)
    batch = sentences(random.Random(2), 4 * MOST // 60, 60)
    assert batch.n_source_tokens > MOST
    assert same(learned(built(config), batch), learned(built(config, at_once=False), batch))


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({"activation": "gelu"}, 3),
        ({"activation": "swiglu"}, 3),
        ({"qk_norm": True}, 2),
        ({"positions": "rotary"}, 3),  # cross-attention turns nothing
        ({"d_model": 40, "d_head": 16}, 0),
    ],
)
def test_what_compiled_code_does_not_have_goes_one_by_one(options: dict[str, object], n: int) -> None:
    shape = {"d_model": 32, "n_heads": 2, "d_ff": 32, "n_layers": 1}
    model = built(ModelConfig.model_validate(shape | options))
    assert number_at_once(model) == n
    assert all(grad is not None for grad in learned(model, sentences(random.Random(3), 3, 9)))
