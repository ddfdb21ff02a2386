"""Dropout that draws its own bits: its statistics, its gradient, and its silence in evaluation."""

from __future__ import annotations

import pytest
import torch

from transformer_cli.model.blocks import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 1_000_001
    out = Dropout(p).train()(torch.ones(n, dtype=dtype))
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / n) ** 0.5 + 2**-17  # five standard deviations
    kept = out[out != 0].unique()
    assert kept.numel() == 1
    assert kept.item() == pytest.approx(1 / (1 - p), rel=2**-8 if dtype == torch.bfloat16 else 1e-3)


def test_neighbouring_elements_are_dropped_independently() -> None:
    torch.manual_seed(1)
    kept = (Dropout(0.5).train()(torch.ones(400_000)) != 0).double()
    for distance in (1, 2, 3, 4, 8):
        correlation = ((kept[:-distance] - 0.5) * (kept[distance:] - 0.5)).mean().item() * 4
        assert abs(correlation) < 5 / 400_000**0.5


def test_gradient_passes_where_values_pass() -> None:
    torch.manual_seed(2)
    x = torch.randn(50, 7, requires_grad=True)
    residual = torch.randn(50, 7, requires_grad=True)
    out = Dropout(0.4).train().add(residual, x)
    out.sum().backward()
    scale = ((out - residual) / x).detach()
    torch.testing.assert_close(x.grad, scale)
    assert (scale.round(decimals=3).unique().numel()) == 2
    torch.testing.assert_close(residual.grad, torch.ones(50, 7))


def test_evaluation_and_p_zero_leave_everything_as_it_is() -> None:
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_a_probability_next_to_one_is_a_probability() -> None:
    """Of 0.999999 the nearest multiple of 2^-16 is 1, and the scale was divided by 0."""
    torch.manual_seed(4)
    out = Dropout(0.999999).train()(torch.ones(2**20))
    assert out.isfinite().all()
    assert 0.0 < out.mean() < 3.0


def test_the_same_seed_draws_the_same_mask() -> None:
    outs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outs.append(Dropout(0.5).train()(torch.ones(1000)))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
