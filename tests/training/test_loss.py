"""The loss against torch's own cross-entropy over whole logits, in value and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiling import WRITTEN_OUT_OR_COMPILED, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformer_cli.config.model import ModelConfig
from transformer_cli.data.loader import collate, divided
from transformer_cli.model import compiled_products
from transformer_cli.model.build import build_model
from transformer_cli.tokenizer import PAD
from transformer_cli.training import loss as loss_module
from transformer_cli.training.loss import cross_entropy, disagreement, least
from transformer_cli.training.objective import loss_of


@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(5, 30),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_value_and_gradients_equal_torchs(
    n: int, d: int, vocab: int, smoothing: float, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, n, d, dtype=torch.float64, generator=generator).requires_grad_()
    weight = (3 * torch.randn(vocab, d, dtype=torch.float64, generator=generator)).requires_grad_()
    targets = torch.randint(0, vocab, (2, n), generator=generator)  # id 0, padding, among them
    bias = torch.randn(vocab, dtype=torch.float64, generator=generator).requires_grad_()
    learned = [hidden, weight, bias][: 2 + biased]
    total = cross_entropy(hidden, weight, targets, bias_V=bias if biased else None, smoothing=smoothing)
    ours = [total.detach(), *torch.autograd.grad(total * 0.7, learned)]
    reference = F.cross_entropy(
        (hidden @ weight.T + biased * bias).flatten(0, 1),
        targets.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    for mine, theirs in zip(ours, [reference.detach(), *torch.autograd.grad(reference * 0.7, learned)], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@needs_compiler
@settings(max_examples=60)
@given(st.data())
def test_compiled_value_and_gradients_are_torchs(data: st.DataObject) -> None:
    """Whatever the width of a row, in one piece or in several, whether or not the projection has a bias, is a table and
    learns, and whether there is one reading or two that are to agree."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    n, d, vocab = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(2, 70))
    dtype, smoothing = draw(st.sampled_from([torch.float32, torch.bfloat16])), draw(st.sampled_from([0.0, 0.1, 0.4]))
    biased, is_table, learns = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    scale, by_ours = draw(st.sampled_from([0.1, 1.0, 10.0])), draw(st.booleans())
    # What smoothing has to do with: the mean of all vectors. Of large logits bf16 would leave too little.
    all_alike = draw(st.sampled_from([0.0, 2.0])) / d if scale < 10 else 0.0
    hidden, weight = torch.randn(n, d).to(dtype), (scale * torch.randn(vocab, d) / d**0.5 + all_alike).to(dtype)
    hidden += 2 * bool(all_alike)
    bias, targets = torch.randn(vocab).to(dtype) if biased else None, torch.randint(0, vocab, (n,))
    if apart := draw(st.sampled_from([0.0, 2.5])) if scale < 10 else 0.0:
        hidden = torch.cat([hidden, (hidden + torch.randn(n, d) / 4).to(dtype)])
        targets = torch.randint(1, vocab, (n,)).repeat(2)
    made = []
    for compiled, kind in ((True, dtype), (False, torch.float64), (False, dtype)):
        # As in a model, whose weights stay in fp32.
        held = kind if kind == torch.float64 else torch.float32
        states, matrix = hidden.to(kind).requires_grad_(), weight.to(held).requires_grad_(learns)
        own = None if bias is None else bias.to(held).requires_grad_(learns)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled_products, "by_pairs", lambda kind: by_ours and kind == torch.bfloat16)
            patch.setattr(loss_module, "PIECE_ELEMENTS", draw(st.sampled_from([1, 10**6])) if compiled else 10**6)
            options: dict[str, Any] = {"smoothing": smoothing, "is_table": is_table, "apart": apart}
            total = cross_entropy(states, matrix, targets, bias_V=own, compiled=compiled, **options)
        learned = [leaf for leaf in (states, matrix, own) if leaf is not None and leaf.requires_grad]
        made.append([total.detach(), *torch.autograd.grad(total * 0.7, learned)])
    off = 2**-7 if dtype == torch.bfloat16 else 1e-5
    for ours, true, theirs in zip(*made, strict=True):
        # What two readings differ by may be less than how logits are rounded.
        rounded = 2 * (theirs - true).abs().max().item() if apart else 0.0
        atol = 4 * off * max(1.0, true.abs().max().item()) + rounded
        torch.testing.assert_close(ours.double(), true, rtol=2 * off, atol=atol)


@needs_compiler
@settings(max_examples=20)
@given(st.data())
def test_by_one_call_they_are_the_same_bits_of_any_number_of_threads_and_wherever_they_lie(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    n, d, vocab = draw(st.integers(1, 90)), draw(st.integers(20, 40)), draw(st.integers(2, 300) | st.just(2100))
    hidden, targets = torch.randn(n, d).bfloat16(), torch.randint(0, vocab, (n,))
    weight, bias = torch.randn(vocab, d) / d**0.5, torch.randn(vocab) if draw(st.booleans()) else None
    kind, piece = draw(st.sampled_from([torch.float32, torch.bfloat16])), draw(st.sampled_from([1, 10**6]))
    wanted = draw(st.tuples(*[st.booleans()] * 3))
    if apart := draw(st.sampled_from([0.0, 2.5])):
        hidden, targets = torch.randn(2 * n, d).bfloat16(), torch.randint(1, vocab, (n,)).repeat(2)
    options: dict[str, Any] = {"smoothing": 0.1, "is_table": True, "apart": apart, "compiled": True}
    given = [None if x is None else x.to(own) for x, own in ((hidden, hidden.dtype), (weight, kind), (bias, kind))]

    def found(threads: int, form: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaves = [None if x is None else form(x).requires_grad_(needs) for x, needs in zip(given, wanted, strict=True)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled_products, "by_pairs", lambda kind: kind == torch.bfloat16)
            patch.setattr(loss_module, "PIECE_ELEMENTS", piece)
            torch.set_num_threads(threads)
            total = cross_entropy(*leaves[:2], targets, bias_V=leaves[2], **options)
        learned = [x for x in leaves if x is not None and x.requires_grad]
        return [total.detach(), *(torch.autograd.grad(total, learned) if learned else [])]

    before = torch.get_num_threads()
    try:
        first = found(1, Tensor.clone)
        # PyTorch sums the columns of a weight in bf16, in another order where they lie in another.
        lies_anyhow = kind == torch.float32
        other = found(2, lambda x: x.t().contiguous().t() if lies_anyhow and x.dim() == 2 else x.clone())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*both) for both in zip(first, other, strict=True))


@needs_compiler
def test_a_second_way_back_is_as_the_first_or_none() -> None:
    """Of a loss whose gradients were changed in their place."""
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss = cross_entropy(hidden, weight, torch.tensor([1, 2, 3]))
    loss.backward(retain_graph=True)
    first = [hidden.grad.clone(), weight.grad.clone()]
    loss.backward(retain_graph=True)
    assert all(torch.equal(now, 2 * then) for now, then in zip([hidden.grad, weight.grad], first, strict=True))
    config = ModelConfig(d_model=32, n_heads=2, d_ff=16, n_layers=1)
    model = build_model(config, source_vocab=20, target_vocab=20).train()
    model.use_compiled()
    tied = loss_of(model, collate([[5, 6]], [[7]]), smoothing=0.1)
    tied.backward(retain_graph=True)
    for changed in (loss * 0.5, tied):
        changed.backward(retain_graph=True) if changed is not tied else None
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            changed.backward()


def test_working_in_pieces_changes_neither_loss_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(size, dtype=torch.float64).requires_grad_() for size in ((37, 6), (11, 6), 11))
    targets = torch.randint(0, 11, (37,))

    def found() -> list[torch.Tensor]:
        total = cross_entropy(hidden, weight, targets, bias_V=bias, smoothing=0.1)
        return [total.detach(), *torch.autograd.grad(total, [hidden, weight, bias])]

    whole = found()
    monkeypatch.setattr(loss_module, "PIECE_ELEMENTS", 33)
    torch.testing.assert_close(found(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
def test_what_padding_holds_moves_neither_loss_nor_gradient(compiled: bool) -> None:
    torch.manual_seed(0)
    weight, targets = torch.randn(11, 6), torch.tensor([[5, 7, PAD, PAD]])
    hidden = torch.randn(1, 4, 6)
    other = hidden.clone()
    other[:, 2:] = 100 * torch.randn(1, 2, 6)
    results = []
    for states in (hidden, other):
        states, matrix = states.clone().requires_grad_(), weight.clone().requires_grad_()
        total = cross_entropy(states, matrix, targets, smoothing=0.1, compiled=compiled)
        total.backward()
        assert states.grad is not None
        assert not states.grad[:, 2:].any()
        results.append((total.detach(), matrix.grad, states.grad[:, :2]))
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
def test_huge_logits_stay_finite(compiled: bool) -> None:
    hidden = torch.full((2, 3), 300.0).requires_grad_()
    weight = torch.tensor([[0.0] * 3, [100.0] * 3, [-100.0] * 3]).requires_grad_()
    total = cross_entropy(hidden, weight, torch.tensor([1, 2]), compiled=compiled)
    total.backward()
    assert total.item() == pytest.approx(180_000)
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_not_hidden(number: float, compiled: bool) -> None:
    """In a hidden state it is in all logits of a row."""
    hidden = torch.randn(5, 3)
    hidden[2, 1] = number
    total = cross_entropy(hidden, torch.randn(20, 3), torch.tensor([1, 2, 3, 4, 5]), smoothing=0.1, compiled=compiled)
    assert not total.isfinite()


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_whose_exponentials_no_number_holds_leave_the_others_as_they_are(
    dtype: torch.dtype, compiled: bool
) -> None:
    """Of huge logits and of tiny ones, of a target among them and of one that is far from all."""
    torch.manual_seed(0)
    vocab, width = 40, 16
    weight = torch.cat((torch.randn(vocab, width - 1), torch.ones(vocab, 1)), 1).to(dtype)
    hidden = torch.randn(9, width)
    hidden[:, -1] = 0.0
    usual = hidden.to(dtype)
    hidden[1, -1], hidden[4, -1] = 200.0, -200.0  # moves all logits of a row
    hidden[7] = 100 * weight[3]
    targets = torch.tensor([5, 6, 7, PAD, 9, 10, 11, 12, 13])

    def ours(states: Tensor, matrix: Tensor) -> Tensor:
        return cross_entropy(states, matrix, targets, smoothing=0.1, compiled=compiled)

    def torchs(states: Tensor, matrix: Tensor) -> Tensor:
        logits = (states @ matrix.T).to(torch.promote_types(states.dtype, torch.float32))
        return F.cross_entropy(logits, targets, ignore_index=PAD, label_smoothing=0.1, reduction="sum")

    def found(loss: Callable[[Tensor, Tensor], Tensor], states: Tensor, dtype: torch.dtype = dtype) -> list[Tensor]:
        learned = [one.to(dtype).requires_grad_() for one in (states, weight)]
        total = loss(*learned)
        return [total.detach(), *torch.autograd.grad(total, learned)]

    states = hidden.to(dtype)
    for mine, theirs, right in zip(
        found(ours, states), found(torchs, states), found(torchs, states, torch.float64), strict=True
    ):
        assert (mine - right).norm() < 1.2 * (theirs - right).norm() + 1e-3 * right.norm()
    rest = [0, 2, 3, 5, 6, 8]
    assert torch.equal(found(ours, states)[1][rest], found(ours, usual)[1][rest])


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("sure", [1 / 500, 0.3, 0.94, 0.999])
def test_in_bf16_the_gradient_is_as_near_to_fp64_as_torchs_however_sure_the_model_is(
    sure: float, smoothing: float, compiled: bool
) -> None:
    """The target's own part of the gradient was once taken from the softmax in bf16, where the two cancel: at a
    probability of 0.94 a twenty-fifth of the gradient was noise."""
    torch.manual_seed(0)
    vocab, width = 500, 64
    targets = torch.randint(1, vocab, (300,))
    weight = F.normalize(torch.randn(vocab, width)) * 8
    # Along its target's row a hidden state is as long as gives the target about that share of the probability.
    logit = torch.tensor(sure * (vocab - 1) / (1 - sure)).log()
    hidden = (weight[targets] / 64 * logit + torch.randn(300, width) / 100).bfloat16()

    def gradients(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        states, matrix = hidden.to(dtype).requires_grad_(), weight.bfloat16().to(dtype).requires_grad_()
        total = loss(states, matrix)
        return total.detach(), [one.double() for one in torch.autograd.grad(total, (states, matrix))]

    def torchs(states: Tensor, matrix: Tensor) -> Tensor:
        logits = (states @ matrix.T).to(torch.promote_types(states.dtype, torch.float32))
        return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")

    exact, exact_gradients = gradients(torchs, torch.float64)
    _, torchs_gradients = gradients(torchs, torch.bfloat16)
    total, ours = gradients(
        lambda *to: cross_entropy(*to, targets, smoothing=smoothing, compiled=compiled), torch.bfloat16
    )
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact.item(), rel=5e-3)
    for mine, theirs, right in zip(ours, torchs_gradients, exact_gradients, strict=True):
        assert (mine - right).norm() <= 1.2 * (theirs - right).norm() + 0.002 * right.norm()


@pytest.mark.parametrize("vocab", [20, 90_000])
@pytest.mark.parametrize("frequent", [False, True], ids=["all targets", "one target"])
def test_in_fp16_nothing_overflows_where_torchs_would(vocab: int, frequent: bool) -> None:
    """Of a model that knows nothing yet, the exponentials of a row come to as much as there are pieces; and of a piece
    that is the target in thousands of rows, the gradients of all are summed. fp16 ends at 65,504."""
    torch.manual_seed(0)
    n, width = (15_000, 4) if vocab < 100 else (8, 4)
    targets = torch.full((n,), 7) if frequent else torch.randint(1, vocab, (n,))
    hidden = 8 + torch.randn(n, width)
    matrix = torch.randn(vocab, width) * 1e-3

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        states, weight = hidden.to(dtype).requires_grad_(), matrix.clone().requires_grad_()
        total = cross_entropy(states, weight, targets, smoothing=0.1)
        return [total.detach(), *torch.autograd.grad(total, (states, weight), torch.tensor(2.0))]

    for ours, exact in zip(gradients(torch.float16), gradients(torch.float64), strict=True):
        assert (ours - exact).norm() < 3e-3 * exact.norm()


def test_in_fp16_the_scale_of_the_loss_may_be_more_than_fp16_holds() -> None:
    torch.manual_seed(0)
    hidden, matrix, targets = torch.randn(6, 64), torch.randn(40, 64) / 1000, torch.randint(1, 40, (6,))

    def gradient(dtype: torch.dtype) -> Tensor:
        states = hidden.half().to(dtype).requires_grad_()
        total = cross_entropy(states, matrix.half().float(), targets)
        return torch.autograd.grad(total, states, torch.tensor(2.0**20))[0]

    exact = gradient(torch.float64)
    assert (gradient(torch.float16) - exact).norm() < 3e-3 * exact.norm()


@pytest.mark.usefixtures("countable")
@pytest.mark.parametrize("without_gradient", [torch.no_grad, torch.inference_mode])
def test_without_gradients_only_the_logits_are_computed(without_gradient: Callable[[], Any]) -> None:
    """Validation once computed the gradients, too, and threw them away."""
    hidden, weight = torch.randn(50, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    with without_gradient(), FlopCounterMode(display=False) as counter:
        cross_entropy(hidden, weight, torch.ones(50, dtype=torch.long))
    assert counter.get_total_flops() == 2 * 50 * 8 * 30


def _learned(hidden: Tensor, weight: Tensor) -> Tensor:
    return cross_entropy(hidden, weight, torch.ones(50, dtype=torch.long), smoothing=0.1, is_table=True)


def _agreed(hidden: Tensor, weight: Tensor) -> Tensor:
    return disagreement(hidden[:25], hidden[25:], weight, is_table=True)


@pytest.mark.usefixtures("countable")
@pytest.mark.parametrize("loss", [_learned, _agreed])
def test_a_frozen_projection_has_no_gradient_and_no_product_for_one(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 8, requires_grad=True), torch.randn(30, 8)
    (expected,) = torch.autograd.grad(loss(hidden, weight.clone().requires_grad_()), [hidden])
    with FlopCounterMode(display=False) as counter:
        loss(hidden, weight).backward()  # type: ignore[no-untyped-call]
    assert counter.get_total_flops() == 2 * (2 * 50 * 8 * 30)
    torch.testing.assert_close(hidden.grad, expected, rtol=0, atol=0)


@given(st.floats(0.0, 0.9), st.integers(2, 50), st.integers(0, 2**31))
def test_no_logits_have_less_than_the_least_loss_and_the_targets_own_have_that(
    smoothing: float, n_vocab: int, seed: int
) -> None:
    expected = least(n_vocab=n_vocab, smoothing=smoothing)
    target = torch.tensor([0])
    own = torch.full((1, n_vocab), smoothing / n_vocab, dtype=torch.double)
    own[0, 0] += 1 - smoothing
    own.clamp_(min=1e-300)
    assert F.cross_entropy(own.log(), target, label_smoothing=smoothing).item() == pytest.approx(expected, abs=1e-9)
    others = torch.randn(100, n_vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.double) * 5
    losses = F.cross_entropy(others, target.expand(100), label_smoothing=smoothing, reduction="none")
    assert losses.min().item() >= expected - 1e-9


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("piece_elements", [1, 10**6])
def test_two_predictions_disagree_by_torchs_divergence_both_ways(
    biased: bool, piece_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same gradients, but for the table's vector of padding, which stays zero."""
    monkeypatch.setattr(loss_module, "PIECE_ELEMENTS", piece_elements)
    draw = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()

    one, other, weight, bias = leaf(5, 3), leaf(5, 3), leaf(7, 3), leaf(7) if biased else None
    leaves = [weight, one, other, *([] if bias is None else [bias])]
    log_p, log_q = (F.linear(x, weight, bias).log_softmax(-1) for x in (one, other))
    expected = F.kl_div(log_p, log_q, log_target=True, reduction="sum")
    expected = expected + F.kl_div(log_q, log_p, log_target=True, reduction="sum")
    theirs = torch.autograd.grad(expected, leaves)
    for is_table in (False, True):
        found = disagreement(one, other, weight, bias_V=bias, is_table=is_table)
        torch.testing.assert_close(found, expected)
        ours = torch.autograd.grad(found, leaves)
        torch.testing.assert_close(ours[0][is_table:], theirs[0][is_table:])
        assert bool(ours[0][PAD].any()) is not is_table
        torch.testing.assert_close(ours[1:], theirs[1:])
    assert disagreement(one, one, weight).item() == 0
    assert disagreement(one[:0], other[:0], weight).item() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocab", "sure", "rows"), [(400, 0.25, 70), (32_000, 0.02, 100), (20, 0.25, 5000)])
def test_in_half_precision_two_predictions_disagree_as_near_to_fp64_as_torchs(
    vocab: int, sure: float, rows: int, dtype: torch.dtype
) -> None:
    """Also of a model that knows nothing yet, whose gradients of 32,000 pieces are less than fp16 holds."""
    torch.manual_seed(0)
    one, weight = torch.randn(rows, 32).to(dtype), (torch.randn(vocab, 32) * sure).to(dtype)
    other = (one + torch.randn(rows, 32) / 4).to(dtype)

    def torchs(one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
        wide = torch.promote_types(one.dtype, torch.float32)
        log_p, log_q = (F.linear(x, weight.to(x.dtype)).log_softmax(-1, dtype=wide) for x in (one, other))
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()

    def found(by: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [one.to(dtype), other.to(dtype), weight.to(torch.promote_types(dtype, torch.float32))]
        total = by(*[leaf.requires_grad_() for leaf in leaves])
        return [total.detach(), *torch.autograd.grad(total, leaves, torch.tensor(64.0, dtype=total.dtype))]

    with torch.no_grad():
        assert not disagreement(one, other, weight.float().requires_grad_()).requires_grad
    every = zip(found(disagreement, dtype), found(torchs, dtype), found(torchs, torch.float64), strict=True)
    for ours, theirs, exact in every:
        assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm() + 1e-4 * exact.norm()


@pytest.mark.parametrize("compiled", WRITTEN_OUT_OR_COMPILED)
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_sources_without_a_piece_have_a_loss_alone_or_beside_others(positions: str, compiled: bool) -> None:
    """Without an end mark (data.source_eos) all of a batch to validate with may be such."""
    torch.manual_seed(1)
    config = ModelConfig(d_model=32, n_heads=2, d_ff=16, n_layers=1, positions=positions, dropout=0.0)
    model = build_model(config, source_vocab=20, target_vocab=20).train()
    if compiled:
        model.use_compiled()
    beside, alone = collate([[], [], [5, 6]], [[7, 8], [9], [7]]), collate([[], []], [[7, 8], [9]])
    losses = [loss_of(model, part, smoothing=0.1).item() for part in (beside, *divided(beside, 3), alone)]
    assert losses[0] == pytest.approx(sum(losses[1:4]), rel=1e-5)
    assert losses[4] == pytest.approx(losses[1] + losses[2], rel=1e-5)
