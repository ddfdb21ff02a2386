"""The gradient of attention that is written out by hand, against PyTorch's own and against finite differences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_cli.config.model import ModelConfig
from transformer_cli.model import attention, masks
from transformer_cli.model.attention import MultiHeadAttention


def attend(n_heads: int, n_kv_heads: int, dropout: float = 0.0) -> torch.nn.Module:
    shape = ModelConfig(
        d_model=8, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=3, d_ff=8, n_layers=1, attention_dropout=dropout
    )
    return MultiHeadAttention(shape).attend.train()


def vectors(n_heads: int, n_kv_heads: int) -> tuple[Tensor, ...]:
    torch.manual_seed(n_heads + n_kv_heads)
    heads = ((n_heads, 5), (n_kv_heads, 6), (n_kv_heads, 6))
    return tuple(torch.randn(2, n, length, 3, dtype=torch.float64, requires_grad=True) for n, length in heads)


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("hidden", [False, True], ids=["all seen", "some hidden"])
def test_it_is_that_of_torchs_attention(n_heads: int, n_kv_heads: int, hidden: bool) -> None:
    """Relative biases are learned, so theirs is compared, too."""
    query, key, value = vectors(n_heads, n_kv_heads)
    relation = torch.randn(n_heads, 5, 6, dtype=torch.float64, requires_grad=True)
    bias = relation[None] + masks.as_bias(masks.padding(torch.tensor([6, 4]), 6), like=query) if hidden else relation
    wanted = torch.randn(2, n_heads, 5, 3, dtype=torch.float64)
    learned = (query, key, value, relation)
    ours = torch.autograd.grad((attend(n_heads, n_kv_heads)(query, key, value, bias) * wanted).sum(), learned)
    bias = relation[None] + masks.as_bias(masks.padding(torch.tensor([6, 4]), 6), like=query) if hidden else relation
    theirs = F.scaled_dot_product_attention(query, key, value, bias.expand(2, -1, -1, -1), enable_gqa=True)
    torch.testing.assert_close(ours, torch.autograd.grad((theirs * wanted).sum(), learned), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("products", [False, True])
def test_in_bf16_it_is_as_close_as_bf16_lets_it_be(
    n_heads: int, n_kv_heads: int, products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By products of bf16, wherever a processor has them fast, each result is rounded at most four times on its way."""
    monkeypatch.setattr(attention, "has_bf16_products", lambda x: products and x.dtype == torch.bfloat16)
    rounded = [vector.detach().bfloat16() for vector in vectors(n_heads, n_kv_heads)]
    wanted = torch.randn(2, n_heads, 5, 3).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        learned = [vector.to(dtype).requires_grad_() for vector in rounded]
        out = attend(n_heads, n_kv_heads)(
            *learned, masks.as_bias(masks.padding(torch.tensor([6, 4]), 6), like=learned[0])
        )
        found.append([out, *torch.autograd.grad((out * wanted.to(dtype)).sum(), learned)])
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), exact, rtol=4 * 2**-9, atol=4 * 2**-9 * exact.abs().max().item())


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(2, 2), (4, 2)])
def test_with_dropout_it_is_that_of_finite_differences(n_heads: int, n_kv_heads: int) -> None:
    attention = attend(n_heads, n_kv_heads, dropout=0.4)

    def same_draw(*inputs: Tensor) -> Tensor:
        torch.manual_seed(5)
        out: Tensor = attention(*inputs, None)
        return out

    assert torch.autograd.gradcheck(same_draw, vectors(n_heads, n_kv_heads))
