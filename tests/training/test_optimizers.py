"""Optimisers of our own against others' or against equations, and that their memory is whole wherever it goes."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiling import needs_compiler
from conftest import PAIRS
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import codes, start
from torch import nn

from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.checkpoints.tensors import as_held, weights
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.training import OPTIMIZERS, TrainingConfig
from transformer_cli.errors import ModelError
from transformer_cli.model import products
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.training import muon
from transformer_cli.training.moving_average import average_of
from transformer_cli.training.muon import orthogonal
from transformer_cli.training.optimizers import (
    MOMENTS,
    Adam,
    AdamW,
    DecoupledOnePass,
    OnePass,
    build_optimizer,
    load_state_tensors,
    state_tensors,
)
from transformer_cli.training.parallel import joined
from transformer_cli.training.run import train
from transformer_cli.training.sharding import shard


def options(**changes: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, **changes})


def a_model(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 24, "n_layers": 1, "tied": "none", **changes}
    return build_model(ModelConfig(**shape), source_vocab=11, target_vocab=13)


def draw_gradients(model: nn.Module, step: int) -> None:
    for number, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            drawn = torch.Generator().manual_seed(100 * step + number)
            parameter.grad = torch.randn(parameter.shape, generator=drawn)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, *, rate: float = 0.01) -> None:
    draw_gradients(model, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.own))
def test_none_waits_for_a_compiler_that_nobody_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own would import it; that takes as long as to import torch, and 70 MiB."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    model = a_model()
    optimizer = build_optimizer(model, options(optimizer=name))
    take_step(model, optimizer, 1)
    assert all(p.grad_fn is None and p.requires_grad for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@needs_compiler
@settings(max_examples=40)
@given(st.data())
def test_adam_in_one_pass_is_pytorchs_and_what_follows_the_weights_follows_them(data: st.DataObject) -> None:
    """Of tensors of any size, some of which have a gradient, an average and a copy, and some not."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    ours, theirs = draw(st.sampled_from([(OnePass, Adam), (DecoupledOnePass, AdamW)]))
    sizes = draw(st.lists(st.sampled_from([(1,), (7,), (16,), (33, 65), (130, 300)]), min_size=1, max_size=5))
    scale, share, decay = (draw(st.sampled_from(some)) for some in ([1.0, 0.3], [0.0, 0.25, 1.0], [0.0, 0.1]))
    mine = [nn.Parameter(torch.randn(size)) for size in sizes]
    other = [nn.Parameter(p.detach().clone()) for p in mine]
    eps = 1e-4 if decay else 1e-9  # where a gradient and the decay cancel, rounding decides about the sign
    numbers: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.98), "eps": eps, "fused": True}
    one, two = (
        kind([{"params": some, "weight_decay": decay}], **numbers) for kind, some in ((ours, mine), (theirs, other))
    )
    averages = {p: torch.randn_like(p) for p in mine if draw(st.booleans())}
    followed = {p: average.clone() for p, average in averages.items()}
    copies = {p: torch.empty_like(p, dtype=torch.bfloat16).requires_grad_() for p in mine if draw(st.booleans())}
    one.follow(averages=averages, copies=copies)
    for _ in range(3):
        for p, q in zip(mine, other, strict=True):
            p.grad = torch.randn_like(p) if draw(st.booleans()) else None
            q.grad = None if p.grad is None else p.grad * scale
            if p in copies and p.grad is not None and draw(st.booleans()):  # as what is computed in bf16 leaves it
                copies[p].grad = p.grad.bfloat16()
                p.grad, q.grad = None, copies[p].grad.float() * scale
        held = nn.utils.get_total_norm([q.grad.double() / scale for q in other if q.grad is not None])
        assert one.length().item() == pytest.approx(float(held), rel=2e-6)
        one.scale, one.share = scale, share
        one.step()
        two.step()
        one.zero_grad()
        assert all(p.grad is None for p in (*mine, *copies.values()))
        for p, average in followed.items():
            average.lerp_(p.detach(), share)
    for p, q in zip(mine, other, strict=True):
        torch.testing.assert_close(p, q)
        assert all(torch.equal(copies[p], p.detach().bfloat16()) for _ in [p] if p in copies)
        for name, moment in two.state[q].items():
            torch.testing.assert_close(one.state[p][name], moment)
    for p, average in averages.items():
        torch.testing.assert_close(average, followed[p])


@needs_compiler
@settings(max_examples=15)
@given(scale=st.sampled_from([1.0, 0.3]), in_bf16=st.booleans(), seed=st.integers(0, 10**6))
def test_muon_in_one_pass_is_the_usual_one(scale: float, in_bf16: bool, seed: int) -> None:
    """Averages and copies follow matrices that it turned as they follow all else; what has no gradient stays."""
    torch.manual_seed(seed)
    sizes = {True: [(48, 16), (16, 16), (20, 40)], False: [(7,), (33, 16)]}
    mine = {hidden: [nn.Parameter(torch.randn(size)) for size in some] for hidden, some in sizes.items()}
    other = {hidden: [nn.Parameter(p.detach().clone()) for p in some] for hidden, some in mine.items()}
    numbers: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
    one, two = (
        kind(
            [
                {"params": some, "hidden": hidden, "rows": [[16, 16, 16] if len(p) == 48 else None for p in some]}
                | {"weight_decay": 0.1, "dtype": None}
                for hidden, some in all_of.items()
            ],
            **numbers,
        )
        for kind, all_of in ((muon.OnePassMuon, mine), (muon.Muon, other))
    )
    pairs = [pair for hidden in sizes for pair in zip(mine[hidden], other[hidden], strict=True)]
    averages = {p: torch.randn_like(p) for p, _ in pairs}
    followed = {p: average.clone() for p, average in averages.items()}
    copies = {p: torch.empty_like(p, dtype=torch.bfloat16).requires_grad_() for p in mine[True]}
    one.follow(averages=averages, copies=copies)
    for step in range(3):
        for p, q in pairs[step % 2 :]:  # the first has no gradient once
            q.grad = torch.randn_like(q)
            if in_bf16 and p in copies:
                copies[p].grad = q.grad.bfloat16()
                q.grad = copies[p].grad.float()
            else:
                p.grad = q.grad.clone()
        held = nn.utils.get_total_norm([q.grad for _, q in pairs if q.grad is not None])
        assert one.length().item() == pytest.approx(float(held), rel=1e-5)
        versions = [p._version for p in copies]
        one.scale, one.share = scale, 0.25
        for _, q in pairs:
            q.grad = None if q.grad is None else q.grad * scale
        one.step()
        two.step()
        assert [p._version for p in copies] == versions  # whoever made the copies would make them anew
        one.zero_grad()
        two.zero_grad()
        for p, average in followed.items():
            average.lerp_(p.detach(), 0.25)
    for p, q in pairs:
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(averages[p], followed[p])
        assert p not in copies or torch.equal(copies[p], p.detach().bfloat16())
        for name, moment in two.state[q].items():
            torch.testing.assert_close(one.state[p][name], moment)


@needs_compiler
def test_a_copy_of_adam_in_one_pass_changes_no_weight_of_the_other() -> None:
    parameter = nn.Parameter(torch.ones(3))
    one = OnePass([{"params": [parameter], "weight_decay": 0.0}], lr=0.1, fused=True)
    average = torch.zeros(3)
    one.follow(averages={parameter: average})
    parameter.grad = torch.ones(3)
    one.step()
    before = parameter.detach().clone(), *(state.clone() for state in one.state[parameter].values())
    other = copy.deepcopy(one)
    [copied] = other.param_groups[0]["params"]
    copied.grad = torch.ones(3)
    other.share = 1.0
    other.step()
    assert not torch.equal(copied, parameter)
    assert all(torch.equal(a, b) for a, b in zip(before, (parameter, *one.state[parameter].values()), strict=True))
    assert not average.any()


@needs_compiler
def test_what_is_not_as_large_as_its_weight_never_reaches_the_code() -> None:
    parameter = nn.Parameter(torch.ones(30))
    for wrong in (torch.ones(()), torch.ones(31)):
        one = OnePass([{"params": [parameter], "weight_decay": 0.0}], lr=0.1, fused=True)
        one.state[parameter] = {"step": torch.ones(()), "exp_avg": wrong, "exp_avg_sq": torch.ones(30)}
        with pytest.raises(AssertionError):
            one.length()


@needs_compiler
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_threads_change_no_bit_of_adam_in_one_pass(dtype: torch.dtype | None) -> None:
    made, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(1)
            parameter = nn.Parameter(torch.randn(100_003))
            parameter.grad = torch.randn(100_003)
            one = OnePass([{"params": [parameter], "weight_decay": 0.1, "dtype": dtype}], lr=0.1, fused=True)
            length = one.length()
            one.step()
            made.append((length, parameter.detach(), *one.state[parameter].values()))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for others in made[1:] for a, b in zip(made[0], others, strict=True))


IN_BF16: dict[str, Any] = {"weight_decay": 0.0, "dtype": torch.bfloat16}


@needs_compiler
@pytest.mark.parametrize("size", [100_003, 7])
def test_moments_in_bf16_are_in_the_mean_those_in_fp32(size: int) -> None:
    """Also where each update changes one by less than bf16 tells apart, of which the nearest would be what it was."""
    mine, other = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))
    numbers: dict[str, Any] = {"lr": 0.01, "betas": (0.99, 0.999), "eps": 1e-8}
    one, two = OnePass([{"params": [mine], **IN_BF16}], **numbers), Adam([{"params": [other]}], fused=True, **numbers)
    for _ in range(400):
        mine.grad = torch.full((size,), 0.37)
        other.grad = mine.grad.clone()
        one.step()
        two.step()
    for name in ("exp_avg", "exp_avg_sq"):
        held, exact = one.state[mine][name], two.state[other][name]
        assert held.dtype == torch.bfloat16
        torch.testing.assert_close(held.float(), exact, rtol=0.25, atol=0)
        if size > 1000:
            assert held.float().mean().item() == pytest.approx(exact[0].item(), rel=1e-3)
            apart = torch.corrcoef(torch.stack([held.float()[:-16], held.float()[16:]]))[0, 1].item()
            assert abs(apart) < 0.02  # each element has bits of its own
    if size > 1000:  # and each moment, too
        both = torch.stack([one.state[mine][name].float() for name in MOMENTS])
        assert abs(torch.corrcoef(both)[0, 1].item()) < 0.02
        assert mine.mean().item() == pytest.approx(other[0].item(), rel=1e-3)
    torch.testing.assert_close(mine, other, rtol=0.1, atol=0)


@needs_compiler
def test_a_step_by_moments_in_bf16_is_by_what_they_are_before_they_are_rounded() -> None:
    torch.manual_seed(0)
    mine = nn.Parameter(torch.randn(1000))
    other = nn.Parameter(mine.detach().clone())
    one, two = (
        OnePass([{"params": [parameter], **IN_BF16, "dtype": dtype}], lr=0.01)
        for parameter, dtype in ((mine, torch.bfloat16), (other, None))
    )
    mine.grad = torch.randn(1000)
    other.grad = mine.grad.clone()
    one.step()
    two.step()
    assert torch.equal(mine, other)


@needs_compiler
def test_moments_in_bf16_go_on_from_those_of_a_checkpoint_in_either_precision() -> None:
    """In the same bits where it kept them; of one in fp32 they become the nearest."""
    torch.manual_seed(0)

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(40, 50))

    gradients = [torch.randn(40, 50) for _ in range(4)]

    def gone_on(model: Made, dtype: torch.dtype | None, steps: int, state: dict[str, torch.Tensor] | None) -> Any:
        optimizer = OnePass([{"params": [model.weight], **IN_BF16, "dtype": dtype}], lr=0.01)
        if state is not None:
            load_state_tensors(optimizer, model, state)
        for grad in gradients[:steps] if state is None else gradients[steps:]:
            model.weight.grad = grad.clone()
            optimizer.step()
        return state_tensors(optimizer, model)

    whole, parted, wide = Made(), Made(), Made()
    at_once = gone_on(whole, torch.bfloat16, 4, None)
    in_parts = gone_on(parted, torch.bfloat16, 2, gone_on(parted, torch.bfloat16, 2, None))
    assert torch.equal(whole.weight, parted.weight)
    assert at_once.keys() == in_parts.keys() == {"weight.step", "weight.exp_avg", "weight.exp_avg_sq"}
    assert all(torch.equal(at_once[key], in_parts[key]) for key in at_once)
    assert at_once["weight.exp_avg"].dtype == torch.bfloat16
    in_fp32 = gone_on(wide, None, 2, None)
    assert in_fp32["weight.exp_avg"].dtype == torch.float32
    gone_on(wide, torch.bfloat16, 2, in_fp32)
    torch.testing.assert_close(wide.weight, whole.weight, rtol=1e-3, atol=0)


@needs_compiler
def test_room_for_moments_is_no_memory_of_an_update_and_becomes_theirs() -> None:
    parameter, other = nn.Parameter(torch.ones(30)), nn.Parameter(torch.ones(3))
    one = OnePass([{"params": [parameter, other], "weight_decay": 0.0}], lr=0.1)
    assert [*one.reserve()] == [parameter, other]
    assert not one.state
    room = {name: one._reserved[parameter][name].data_ptr() for name in MOMENTS}
    parameter.grad, other.grad = torch.ones(30), torch.ones(3)
    one.step()
    assert {name: one.state[parameter][name].data_ptr() for name in MOMENTS} == room
    assert [*one.reserve()] == [parameter, other]
    assert {name: one.state[parameter][name].data_ptr() for name in MOMENTS} == room


@needs_compiler
def test_moments_of_a_checkpoint_are_narrow_before_a_batch_is_tried() -> None:
    parameter = nn.Parameter(torch.ones(30))
    one = OnePass([{"params": [parameter], **IN_BF16}], lr=0.1)
    one.state[parameter] = {"step": torch.ones(()), **{name: torch.rand(30) for name in MOMENTS}}
    assert [*one.reserve()] == [parameter]
    assert all(one.state[parameter][name].dtype == torch.bfloat16 for name in MOMENTS)


@needs_compiler
@pytest.mark.parametrize(("name", "kind"), [("adam", OnePass), ("adamw", DecoupledOnePass), ("muon", muon.OnePassMuon)])
def test_compiled_code_updates_weights_that_lie_in_one_piece(name: str, kind: type) -> None:
    model = a_model()
    assert not isinstance(build_optimizer(model, options(optimizer=name)), OnePass)
    model.use_compiled()
    assert type(build_optimizer(model, options(optimizer=name))) is kind
    assert not isinstance(build_optimizer(model.double(), options(optimizer=name)), OnePass)


def is_hidden(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() == 2 and name.startswith(("encoder.layers", "decoder.layers"))


def test_muon_is_torchs_for_the_matrices_of_layers_and_adamw_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = pytest.importorskip("torch.optim._muon")
    newton_schulz = "_zeropower_via_newtonschulz"
    in_fp32 = lambda matrix, coefficients, steps, eps: orthogonal([matrix])[0]  # noqa: E731 - theirs is in bf16
    ours, theirs = a_model(), a_model()
    mine = build_optimizer(ours, options(optimizer="muon"))
    named = dict(theirs.named_parameters())
    hidden = [p for name, p in named.items() if is_hidden(name, p)]
    rows = {"self_attention.query_key_value.weight": 3, "cross_attention.key_value.weight": 2}
    n_in = {name: next((n for ending, n in rows.items() if name.endswith(ending)), 1) for name in named}
    # Each of W^Q, W^K and W^V is a matrix of its own.
    apart = {
        name: [nn.Parameter(one.clone()) for one in p.detach().chunk(n_in[name])]
        for name, p in named.items()
        if is_hidden(name, p)
    }
    output, others = (
        [p for name, p in named.items() if not is_hidden(name, p) and (name == "output.weight") is is_output]
        for is_output in (True, False)
    )
    blocks = [one for several in apart.values() for one in several]
    torchs = torch.optim.Muon(blocks, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(
        [{"params": output, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    monkeypatch.setattr(reference, newton_schulz, in_fp32)
    assert len(hidden) == 2 * 2 + 2 * 2 + 2 + 1
    assert len(blocks) == len(hidden) + 2 * 2 + 1
    for step in range(1, 5):
        take_step(ours, mine, step)
        draw_gradients(theirs, step)
        for name, several in apart.items():
            for one, grad in zip(several, named[name].grad.chunk(len(several)), strict=True):  # type: ignore[union-attr]
                one.grad = grad
        for group in torchs.param_groups:
            group["lr"] = 0.01
        torchs.step()
        take_step(theirs, adamw, step)
    for name, several in apart.items():
        named[name].data.copy_(torch.cat([*several]))
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, named[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16)])
def test_a_matrix_becomes_orthogonal_as_in_torchs_muon(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    [found] = orthogonal([matrix])
    sizes = torch.linalg.svdvals(found)
    assert 0.6 < sizes.min() <= sizes.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    theirs_left, _, theirs_right = torch.linalg.svd(found, full_matrices=False)
    torch.testing.assert_close(theirs_left @ theirs_right, left @ right, rtol=0, atol=1e-3)
    reference = pytest.importorskip("torch.optim._muon")
    theirs = reference._zeropower_via_newtonschulz(matrix, (3.4445, -4.775, 2.0315), 5, 1e-7)
    torch.testing.assert_close(found, theirs.float(), rtol=0, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, None])
def test_matrices_are_turned_in_bf16_where_the_model_is_and_the_processor_has_such_products(
    dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = pytest.importorskip("torch.optim._muon")
    matrix = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    for has_products in (True, False):
        monkeypatch.setattr(products, "has_bf16_instructions", lambda has_products=has_products: has_products)
        [found] = orthogonal([matrix], dtype)
        assert found.dtype == torch.float32
        is_rounded = torch.equal(found, found.bfloat16().float())
        assert is_rounded == (has_products and dtype == torch.bfloat16)
        theirs = reference._zeropower_via_newtonschulz(matrix, (3.4445, -4.775, 2.0315), 5, 1e-7)
        torch.testing.assert_close(found, theirs.float(), rtol=0, atol=0.03)


def test_an_optimizer_knows_what_the_model_computes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(muon, "orthogonal", lambda matrices, dtype: asked.append(dtype) or list(matrices))
    model = a_model()
    take_step(model, build_optimizer(model, options(optimizer="muon")), 1)
    model.compute_in(torch.bfloat16, training=True)
    take_step(model, build_optimizer(model, options(optimizer="muon")), 1)
    assert asked == [None, torch.bfloat16]


@given(shapes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_matrices_that_are_turned_together_are_turned_as_each_alone(shapes: list[tuple[int, int]]) -> None:
    draw = torch.Generator().manual_seed(len(shapes))
    matrices = [torch.randn(shape, generator=draw) for shape in shapes]
    for found, matrix in zip(orthogonal(matrices), matrices, strict=True):
        torch.testing.assert_close(found, orthogonal([matrix])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 300, 10**6])
def test_as_many_as_are_turned_together_the_update_is_the_same(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, alone = a_model(), a_model()
    for model, limit in ((alone, 1), (ours, at_once)):
        monkeypatch.setattr(muon, "AT_ONCE", limit)
        optimizer = build_optimizer(model, options(optimizer="muon"))
        for step in range(1, 4):
            take_step(model, optimizer, step)
    for p, q in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_schedule_free_is_the_papers_algorithm() -> None:
    """Defazio et al. 2024, algorithm 1: gradients at y, steps of z, x the average of z by the squares of the rates."""
    beta1, beta2, decay, eps, rates = 0.9, 0.95, 0.1, 1e-8, [0.01, 0.02, 0.03, 0.03, 0.03]
    model = nn.Linear(3, 4, bias=False)
    optimizer = build_optimizer(model, options(optimizer="schedule-free", schedule="constant"))
    z = x = y = model.weight.detach().numpy().astype(np.float64)
    v, squares = np.zeros_like(z), 0.0
    for t, rate in enumerate(rates, start=1):
        take_step(model, optimizer, t, rate=rate)
        gradient = model.weight.grad.numpy().astype(np.float64)  # type: ignore[union-attr]
        v = beta2 * v + (1 - beta2) * gradient**2
        z = z - rate * gradient / (np.sqrt(v / (1 - beta2**t)) + eps) - rate * decay * y
        squares += rate**2
        x = (1 - rate**2 / squares) * x + rate**2 / squares * z
        y = (1 - beta1) * z + beta1 * x
        average = average_of(model, optimizer, None)
        np.testing.assert_allclose(model.weight.detach(), y, rtol=1e-5, atol=1e-7)
        with average.swapped():
            np.testing.assert_allclose(model.weight.detach(), x, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(model.weight.detach(), y, rtol=1e-5, atol=1e-7)


def settings(**training: Any) -> RunConfig:
    options: dict[str, Any] = {"budget_tokens": 64, "max_steps": 6, "validate_every": 4, "warmup_steps": 3}
    if training["optimizer"] == "schedule-free":
        options["schedule"] = "constant"
    whole = {
        "name": "x",
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "tokenizer": {"vocab_size": 60},
        "data": {"train": {"pairs": PAIRS}, "valid": {"pairs": PAIRS[:3]}, "max_length": 32},
        "model": {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1},
        "training": {**options, **training},
    }
    return RunConfig.model_validate(whole)


@pytest.mark.parametrize("changes", [{}, {"freeze": ["encoder"]}], ids=str)
@pytest.mark.parametrize("optimizer", ["muon", "schedule-free"])
def test_stopped_at_every_update_it_ends_in_the_same_bits(optimizer: str, changes: dict[str, Any]) -> None:
    config = settings(optimizer=optimizer, weight_decay=0.1, checkpoint_every=1, keep_last=9, **changes)
    train(config, Path("straight"))
    for step in range(1, 6):
        part = config.training.model_copy(update={"max_steps": step})
        train(config.model_copy(update={"training": part}), Path("stopped"))
    train(config, Path("stopped"))
    ends = [load_checkpoint(list_checkpoints(run)[-1], with_optimizer=True) for run in ("straight", "stopped")]
    assert ends[0].model.keys() == ends[1].model.keys()
    for one, other in ((ends[0].model, ends[1].model), (ends[0].optimizer, ends[1].optimizer)):
        assert one is not None
        assert other is not None
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_what_a_checkpoint_translates_with_is_what_schedule_free_evaluates() -> None:
    """x, by the sums that its z's come to; y, with which training goes on, is beside it."""
    train(settings(optimizer="schedule-free", checkpoint_every=1, keep_last=9), Path("x"))
    found = [load_checkpoint(path, with_optimizer=True) for path in list_checkpoints("x")]
    name = "decoder.layers.0.feed_forward.up.weight"
    rates = [1, 2, 3, 3, 3, 3]
    average = sum(rate**2 * one.optimizer[f"{name}.z"] for rate, one in zip(rates, found, strict=True))  # type: ignore[index]
    torch.testing.assert_close(found[-1].model[name], average / sum(rate**2 for rate in rates))
    y = found[-1].optimizer[f"average:{name}"]  # type: ignore[index]
    torch.testing.assert_close(y, torch.lerp(found[-1].optimizer[f"{name}.z"], found[-1].model[name], 0.9))  # type: ignore[index]


@pytest.mark.parametrize("optimizer", ["muon", "schedule-free"])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.usefixtures("own_threads")
def test_parts_of_weights_move_as_whole_ones_do(optimizer: str, n: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)  # OpenMP's threads are not there in a process that is forked
    training = options(optimizer=optimizer, schedule="constant", parallel="fsdp")
    alone = a_model()
    reference = build_optimizer(alone, training)
    for step in (1, 2, 3):
        take_step(alone, reference, step)

    def check(rank: int) -> None:
        with joined("cpu") as world:
            ours = a_model()
            sharding = shard(ours, training, world)
            mine = build_optimizer(ours, training)
            for step in (1, 2, 3):
                for number, parameter in enumerate(ours.parameters()):
                    drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * step + number))
                    parameter.grad = as_held(drawn, parameter)
                for group in mine.param_groups:
                    group["lr"] = 0.01
                mine.step()
            for name, tensor in weights(sharding.whole()).items():
                torch.testing.assert_close(tensor, alone.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)
            with average_of(ours, mine, None).swapped(), average_of(alone, reference, None).swapped():
                for name, tensor in weights(sharding.whole()).items():
                    torch.testing.assert_close(tensor, alone.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)

    assert codes(start(n, check, tmp_path), limit_s=60) == [0] * n, (tmp_path / "0").read_text()


@pytest.mark.parametrize("optimizer", ["muon", "schedule-free", "adamw"])
def test_a_memory_that_lacks_a_part_is_refused(optimizer: str) -> None:
    model = a_model()
    mine = build_optimizer(model, options(optimizer=optimizer, schedule="constant"))
    take_step(model, mine, 1)
    kept = {name: tensor.clone() for name, tensor in state_tensors(mine, model).items()}
    for gone in ("encoder.layers.0.feed_forward.up.weight", "encoder.norm.weight"):
        some = next(name for name in kept if name.startswith(gone))
        with pytest.raises(ModelError, match="does not fit the model at"):
            load_state_tensors(mine, model, {name: tensor for name, tensor in kept.items() if name != some})
        others = {name: tensor for name, tensor in kept.items() if not name.startswith(gone)}
        with pytest.raises(ModelError, match="does not fit the model at"):
            load_state_tensors(mine, model, others)


@needs_compiler
def test_a_gradient_that_takes_anothers_place_is_the_one_that_counts() -> None:
    """Between the length and the step, too, for instance in the same memory."""
    one, other = (nn.Parameter(torch.ones(40)) for _ in range(2))
    ours, theirs = OnePass([{"params": [one], "weight_decay": 0.0}], lr=0.1), Adam([other], lr=0.1, fused=True)
    for factor in (1.0, -2.0, 3.0):
        one.grad = torch.full((40,), 7.0)
        assert ours.length() == pytest.approx(7 * 40**0.5)
        one.grad = None
        one.grad, other.grad = torch.full((40,), factor), torch.full((40,), factor)
        ours.step()
        theirs.step()
        torch.testing.assert_close(one, other)
    assert ours.length() == pytest.approx(3 * 40**0.5)
    one.grad.data = torch.full((40,), 5.0)
    assert ours.length() == pytest.approx(5 * 40**0.5)
    one.grad = None
    assert ours.length() == 0
