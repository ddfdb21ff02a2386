"""The loss against torch's own cross-entropy over whole logits, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.tokenizer import PAD
from transformer_cli.training import loss as loss_module
from transformer_cli.training.loss import cross_entropy


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 9), st.integers(5, 30), st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 10**6)
)
def test_value_and_gradients_equal_torchs(n: int, d: int, vocab: int, smoothing: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, n, d, dtype=torch.float64, generator=generator).requires_grad_()
    weight = (3 * torch.randn(vocab, d, dtype=torch.float64, generator=generator)).requires_grad_()
    targets = torch.randint(0, vocab, (2, n), generator=generator)  # id 0, padding, among them
    total, n_tokens = cross_entropy(hidden, weight, targets, smoothing=smoothing)
    (total * 0.7).backward()
    ours = (total.detach(), hidden.grad, weight.grad)
    hidden.grad = weight.grad = None
    reference = F.cross_entropy(
        (hidden @ weight.T).flatten(0, 1),
        targets.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    (reference * 0.7).backward()
    assert n_tokens == int((targets != PAD).sum())
    for mine, theirs in zip(ours, (reference.detach(), hidden.grad, weight.grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_working_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(37, 6, dtype=torch.float64), torch.randn(11, 6, dtype=torch.float64)
    targets = torch.randint(0, 11, (37,))
    whole, _ = cross_entropy(hidden, weight, targets, smoothing=0.1)
    monkeypatch.setattr(loss_module, "PIECE_ELEMENTS", 33)
    pieces, _ = cross_entropy(hidden, weight, targets, smoothing=0.1)
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=0)


def test_what_padding_holds_moves_neither_loss_nor_gradient() -> None:
    torch.manual_seed(0)
    weight, targets = torch.randn(11, 6), torch.tensor([[5, 7, PAD, PAD]])
    hidden = torch.randn(1, 4, 6)
    other = hidden.clone()
    other[:, 2:] = 100 * torch.randn(1, 2, 6)
    results = []
    for states in (hidden, other):
        states, matrix = states.clone().requires_grad_(), weight.clone().requires_grad_()
        total, _ = cross_entropy(states, matrix, targets, smoothing=0.1)
        total.backward()
        assert states.grad is not None
        assert not states.grad[:, 2:].any()
        results.append((total.detach(), matrix.grad, states.grad[:, :2]))
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)


def test_huge_logits_stay_finite() -> None:
    hidden = torch.full((2, 3), 300.0).requires_grad_()
    weight = torch.tensor([[0.0] * 3, [100.0] * 3, [-100.0] * 3]).requires_grad_()
    total, _ = cross_entropy(hidden, weight, torch.tensor([1, 2]))
    total.backward()
    assert total.item() == pytest.approx(180_000)
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_in_bf16_value_and_gradient_stay_near_those_of_fp64() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 64), torch.randn(500, 64) / 8
    targets = torch.randint(1, 500, (300,))
    exact_hidden, exact_weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    exact, n = cross_entropy(exact_hidden, exact_weight, targets, smoothing=0.1)
    exact.backward()
    rough_hidden, rough_weight = hidden.bfloat16().requires_grad_(), weight.clone().requires_grad_()
    rough, _ = cross_entropy(rough_hidden, rough_weight, targets, smoothing=0.1)
    rough.backward()
    assert rough.dtype == torch.float32
    assert rough.item() / n == pytest.approx(exact.item() / n, rel=2e-3)
    for rough_grad, exact_grad in ((rough_hidden.grad, exact_hidden.grad), (rough_weight.grad, exact_weight.grad)):
        assert rough_grad is not None
        assert exact_grad is not None
        assert F.cosine_similarity(rough_grad.double().flatten(), exact_grad.flatten(), dim=0) > 0.999
