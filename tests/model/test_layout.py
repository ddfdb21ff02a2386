"""Packed tokens against rows of sentences: the same hidden states, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_cli.config.model import ModelConfig
from transformer_cli.model.build import build_model
from transformer_cli.model.layout import Packed, PackedWhole, Rows
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.loss import cross_entropy

V = 23


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    groups = draw(st.sampled_from([1, 2]))
    return ModelConfig(
        d_model=8,
        n_heads=2 * groups,
        n_kv_heads=groups,
        d_head=4,
        d_ff=8,
        n_layers=draw(st.integers(1, 2)),
        dropout=0.0,
        norm_position=draw(st.sampled_from(["pre", "post"])),
        positions=draw(st.sampled_from(["sinusoidal", "learned", "rotary", "none"])),
        max_positions=64,
        tied=draw(st.sampled_from(["all", "none"])),
    )


def lengths(draw: st.DrawFn, n: int) -> torch.Tensor:
    """Some as long as each other, so that nothing is padded."""
    longest = draw(st.integers(1, 20))
    if draw(st.booleans()):
        return torch.full((n,), longest)
    return torch.tensor(draw(st.lists(st.integers(1, longest), min_size=n, max_size=n)))


def ids(lengths_B: torch.Tensor) -> torch.Tensor:
    there = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    return torch.randint(4, V, there.shape) * there


@settings(max_examples=60)
@given(st.data())
def test_packed_tokens_have_the_hidden_states_and_gradients_of_rows(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 9)))
    n = data.draw(st.sampled_from([1, 2, 3, 5, 8, 17, 37]))  # empty ones come behind the last two
    model = build_model(data.draw(models()), source_vocab=V, target_vocab=V).double().train()
    model.use_attention(fused=data.draw(st.booleans()))
    layout = data.draw(st.sampled_from([Packed, PackedWhole]))
    sources_B, targets_B = lengths(data.draw, n), lengths(data.draw, n)
    source_BS, target_BT, wanted_BT = ids(sources_B), ids(targets_B), ids(targets_B)

    rows = model(source_BS, sources_B, target_BT)
    gradients_of_rows = gradients(model, rows, wanted_BT)
    source, target = layout(sources_B, source_BS.device), layout(targets_B, source_BS.device)
    packed = model.packed(source_BS, target_BT, source, target)
    gradients_of_packed = gradients(model, packed, target.ids(wanted_BT))

    torch.testing.assert_close(packed[: target.n_real], rows[wanted_BT != 0], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(gradients_of_packed, gradients_of_rows, rtol=1e-8, atol=1e-10)


def gradients(model: Transformer, hidden: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    cross_entropy(hidden, model.output.weight, wanted, smoothing=0.1).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class Moves(TorchDispatchMode):
    """Notes the width of what is moved by its place, and whether anything is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: set[int] = set()
        self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index_select.default and args[0].is_floating_point():
            self.widths.add(args[0].size(-1))
        self.copied += func is torch.ops.aten.clone.default
        return found


@pytest.mark.parametrize("fused", [False, True])
def test_fused_attention_takes_heads_where_they_lie_in_tokens_that_are_moved_whole(fused: bool) -> None:
    """There and back: 24 is a query with key and value, 16 the latter two of the source, 8 is one of them, or a token;
    4 is a head."""
    config = ModelConfig(d_model=8, n_heads=2, d_ff=8, n_layers=1, dropout=0.0)
    model = build_model(config, source_vocab=V, target_vocab=V)
    model.use_attention(fused=fused)
    lengths_B = torch.tensor([3, 20, 7])
    ids_BT = ids(lengths_B)
    source, target = model.layout(lengths_B, ids_BT.device), model.layout(lengths_B, ids_BT.device)
    with Moves() as moves:
        model.packed(ids_BT, ids_BT, source, target).sum().backward()
    assert (moves.widths, moves.copied) == (({8, 16, 24}, 0) if fused else ({4, 8}, 0))


@pytest.mark.parametrize("budget", [256, 1024, 4096, 25000])
def test_full_batches_have_few_shapes_and_little_padding(budget: int) -> None:
    sizes = {n: Packed(torch.tensor([n]), torch.device("cpu")).n_rows for n in range(budget * 9 // 10, budget + 1)}
    assert all(n < rows <= n * 1.07 + 64 for n, rows in sizes.items())
    assert len(set(sizes.values())) <= 8


def test_attention_meets_few_numbers_of_sentences_and_few_empty_ones() -> None:
    seen = {n: len(Packed(torch.ones(n, dtype=torch.int64), torch.device("cpu")).lengths_B) for n in range(1, 257)}
    assert all(n <= there <= n * 1.125 for n, there in seen.items())
    assert len(set(seen.values())) <= 16 + 4 * 8


def test_rows_split_into_heads_and_merge_again() -> None:
    x = torch.randn(2, 5, 12)
    query, key = Rows(5).heads(x, (2, 1), 4)
    assert (query.shape, key.shape) == ((2, 2, 5, 4), (2, 1, 5, 4))
    assert torch.equal(Rows(5).merge(torch.cat((query, key), dim=1)), x)
