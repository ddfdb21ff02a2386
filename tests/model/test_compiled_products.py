"""Products in bf16 by cpp/products.cpp, and vectors by cpp/embedding.cpp."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiling import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, get_num_threads

from transformer_cli.config.model import ModelConfig
from transformer_cli.model import transformer
from transformer_cli.model.build import build_model
from transformer_cli.model.compiled import NAMES, embedded, loaded, panel_width, run
from transformer_cli.model.compiled_products import MOST, multiplied
from transformer_cli.model.spans import Dense, InPlace

pytestmark = needs_compiler
CPU = torch.device("cpu")
DEPTHS = st.one_of(st.integers(1, 70), st.integers(2040, 2060), st.integers(4090, 4110))
"""Of products: all inputs at once, and in two or three parts."""


def by_threads(make: Callable[[], Tensor]) -> Tensor:
    """What comes out, in the same bits, of any number of threads."""
    before, made = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            made.append(make())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(made[0], other) for other in made[1:])
    return made[0]


def close(ours: Tensor, true: Tensor, *, of: Tensor, bits: int) -> None:
    """of: what the absolute values of all products of a sum come to."""
    assert ((ours.double() - true).abs() <= 2.0**-bits * true.abs() + 2.0**-16 * of + 1e-30).all()


def scaled(a: Tensor, b: Tensor, scales: Tensor, less: Tensor, *, by_rows: bool = False) -> Tensor:
    """Rows of a b, each times a number of its own and less a row."""
    made = torch.empty(len(a), len(less), dtype=a.dtype)
    room = torch.empty(get_num_threads() * loaded().product_room(*a.shape))
    sizes = *a.shape, len(less), by_rows, False, get_num_threads()
    run("multiply", a.dtype, a, b, None, scales, less, made, room, *sizes)
    return made


def learned(a: Tensor, b: Tensor, total: Tensor | None = None, *, less: Tensor | None = None) -> Tensor:
    """(a b)^T in fp32, added to a total, if there is one, and less that of each row."""
    made = torch.empty(b.size(1), len(a)) if total is None else total.clone()
    room = torch.empty(get_num_threads() * (loaded().product_room(*a.shape) + len(a) * panel_width()))
    run("learn", a.dtype, a, b, less, made, room, *a.shape, b.size(1), total is not None, get_num_threads())
    return made


@settings(max_examples=60)
@given(st.data())
def test_products_are_those_of_exact_numbers(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    rows, inputs, outputs = draw(st.integers(1, 70)), draw(DEPTHS), draw(st.integers(1, 150))
    by_rows = draw(st.booleans())
    a, b = torch.randn(rows, inputs).bfloat16(), torch.randn(inputs, outputs).bfloat16()
    true, of = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    given_b = b.t().contiguous() if by_rows else b
    if draw(st.booleans()):
        scales = torch.randn(rows) * (torch.rand(rows) < 0.8)
        less = torch.randn(outputs)
        ours = by_threads(lambda: scaled(a, given_b, scales, less, by_rows=by_rows))
        share = scales.double()[:, None]
        true, of = share * true - less.double() * (share != 0), share.abs() * of + less.double().abs()
    else:
        bias = torch.randn(outputs).bfloat16() if draw(st.booleans()) else None
        rectified = draw(st.booleans())
        ours = by_threads(lambda: multiplied(a, given_b, bias, by_rows=by_rows, rectified=rectified))
        true = true if bias is None else true + bias.double()
        true = true.relu() if rectified else true
    close(ours, true, of=of, bits=8)


@settings(max_examples=60)
@given(st.data())
def test_what_a_table_learns_is_the_sum_over_rows(data: st.DataObject) -> None:
    """In fp32, whatever else there is, for as many inputs as it takes."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    inputs, rows, outputs = draw(st.integers(1, 70)), draw(DEPTHS), draw(st.integers(1, 150))
    a, b = torch.randn(inputs, rows).bfloat16(), torch.randn(rows, outputs).bfloat16()
    total, less = (torch.randn(*size) if draw(st.booleans()) else None for size in ((outputs, inputs), (inputs,)))
    true, of = (a.double() @ b.double()).t(), (a.double().abs() @ b.double().abs()).t() + 1
    true = true if total is None else true + total.double()
    ours = by_threads(lambda: learned(a, b, total, less=less))
    close(ours, true if less is None else true - less.double(), of=of, bits=20)


def test_threads_that_work_at_once_have_rooms_of_their_own() -> None:
    """And several panels at a time, each of which holds the sums of the first inputs."""
    torch.manual_seed(8)
    a, b = torch.randn(200, 2100).bfloat16(), torch.randn(2100, 1400).bfloat16()
    true, of = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    close(by_threads(lambda: multiplied(a, b)), true, of=of, bits=8)
    close(by_threads(lambda: learned(a, b)).t(), true, of=of, bits=20)


@given(st.integers(1, 5000), st.integers(1, 9000))
def test_more_numbers_never_need_less_room(rows: int, inputs: int) -> None:
    """Several products have one room, which is made for the largest."""
    needed = loaded().product_room(rows, inputs)
    assert needed <= loaded().product_room(rows + 1, inputs)
    assert needed <= loaded().product_room(rows, inputs + 1)


@given(st.integers(0, 10**6))
def test_what_is_behind_the_last_number_is_not_looked_at(seed: int) -> None:
    """Neither of rows nor of columns: what is no number there would be found, for nothing is as large as a product
    with it. And what lies behind the result stays."""
    torch.manual_seed(seed)
    rows, inputs, outputs = (int(torch.randint(1, 140, ())) for _ in range(3))
    a, b = (
        torch.full((rows * inputs + 64,), torch.nan).bfloat16(),
        torch.full((inputs * outputs + 64,), torch.nan).bfloat16(),
    )
    a[: rows * inputs], b[: inputs * outputs] = 1, 1
    made = torch.full((rows * outputs + 64,), torch.nan).bfloat16()
    room = torch.full((get_num_threads() * loaded().product_room(rows, inputs),), torch.nan)
    tensors = a, b, None, None, None, made, room
    for by_rows in (False, True):
        made[:] = torch.nan
        run("multiply", a.dtype, *tensors, rows, inputs, outputs, by_rows, False, get_num_threads())
        assert (made[: rows * outputs] == torch.tensor(inputs).bfloat16()).all()
        assert made[rows * outputs :].isnan().all()


def test_products_of_ours_and_onednns_take_turns() -> None:
    """Both set up the tiles that a processor may have; each finds them as the other has left them."""
    torch.manual_seed(9)
    a, b = torch.randn(37, 100).bfloat16(), torch.randn(100, 70).bfloat16()
    ours, theirs = multiplied(a, b), a @ b
    for _ in range(20):
        assert torch.equal(multiplied(a[:5], b), ours[:5])
        assert torch.equal(a @ b, theirs)
        assert torch.equal(multiplied(a, b), ours)


@pytest.mark.parametrize("place", [0, 1])
def test_of_a_row_that_is_scaled_by_nothing_nothing_is_left(place: int) -> None:
    """Not even what is no number; others are not hidden."""
    a, b = torch.ones(2, 40).bfloat16(), torch.ones(40, 3).bfloat16()
    a[place] = torch.nan
    made = scaled(a, b, torch.tensor([0.0, 1.0]), torch.ones(3))
    assert made[0].tolist() == [0.0] * 3
    assert made[1].isnan().all() if place else made[1].tolist() == [39.0] * 3


@settings(max_examples=60)
@given(st.data())
def test_vectors_and_what_they_learn_are_pytorchs(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    vocab, rows, width = draw(st.integers(2, 40)), draw(st.integers(1, 70)), 16 * draw(st.integers(1, 5))
    dtype, scale = draw(st.sampled_from([*NAMES])), draw(st.sampled_from([1.0, 5.7]))
    ids, places = torch.randint(0, vocab, (rows,)), torch.randint(0, 9, (rows,))
    table = torch.randn(vocab, width)
    table[0] = 0
    vectors = torch.randn(9, width) if draw(st.booleans()) else None
    grad = torch.randn(rows, width).to(dtype)

    def both() -> Tensor:
        own = table.clone().requires_grad_()
        x = embedded(own, ids, vectors, places, scale=scale, dtype=dtype)
        x.backward(grad)
        assert x.dtype == dtype
        return torch.cat([x.detach().double(), own.grad.double()])

    made = by_threads(both).split([rows, vocab])
    own = table.double().requires_grad_()
    true = F.embedding(ids, own, padding_idx=0) * scale
    true = true if vectors is None else true + vectors.double()[places]
    true.backward(grad.double())
    off = 2.0**-8 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(made[0], true.detach(), rtol=off, atol=1e-6)
    torch.testing.assert_close(made[1], own.grad, rtol=1e-5, atol=1e-5)
    assert not made[1][0].any()


@pytest.mark.parametrize(
    ("ids", "places"), [([0, 5], [0, 0]), ([-1, 0], [0, 0]), ([1, 2], [0, 3]), ([1, 2], [0, -1]), ([1, 2], [0])]
)
def test_what_no_table_has_is_never_read(ids: list[int], places: list[int]) -> None:
    table, vectors = torch.ones(5, 16), torch.ones(3, 16)
    with pytest.raises(AssertionError):
        embedded(table, torch.tensor(ids), vectors, torch.tensor(places), scale=1.0, dtype=torch.float32)


def test_numbers_are_rounded_to_the_nearest() -> None:
    """As PyTorch rounds them, of any size, halfway between two, and what is none; only what is below the least that has
    all its bits may become 0, as products in bf16 take it."""
    torch.manual_seed(3)
    bits = torch.randint(-(2**31), 2**31, (1000, 16), dtype=torch.int64).to(torch.int32)
    bits[500:] = bits[500:] // 2**15 * 2**15
    table = torch.cat([bits.view(torch.float32), torch.tensor([0.0, -0.0, torch.inf, -torch.inf]).repeat(1, 4)])
    ids = torch.arange(len(table))
    ours = embedded(table, ids, None, torch.zeros_like(ids), scale=1.0, dtype=torch.bfloat16)
    true = table.bfloat16()
    is_small = table.abs() < 2.0**-126
    assert is_small.any()
    torch.testing.assert_close(ours[~is_small], true[~is_small], rtol=0, atol=0, equal_nan=True)
    assert (ours[is_small].abs() <= 2.0**-126).all()


@settings(max_examples=30)
@given(st.integers(1, 700), st.integers(1, 70), st.integers(0, 10**6))
def test_a_table_in_bf16_and_the_sums_of_its_columns(rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, width)

    def narrowed() -> Tensor:
        made, sums, room = x.new_empty(x.shape, dtype=torch.bfloat16), x.new_empty(1, width), x.new_empty(3, width)
        run("narrow", torch.bfloat16, x, made, sums, room, rows, width, get_num_threads())
        return torch.cat([made.float(), sums])

    made = by_threads(narrowed)
    assert torch.equal(made[:-1], x.bfloat16().float())
    torch.testing.assert_close(made[-1].double(), x.double().sum(0), rtol=1e-5, atol=1e-4)


def test_where_no_kernel_is_made_for_a_shape_there_is_hardly_any_padding() -> None:
    for n in (0, 1, 14, 15, 16, 1000, MOST - 1, MOST, 3 * MOST):
        layout, usual = (kind(torch.tensor([n]), CPU) for kind in (Dense, InPlace))
        assert layout.n_rows > n
        assert layout.n_rows == usual.n_rows if n >= MOST else layout.n_rows <= n + 16
    assert Dense.rows(920) == 928 < InPlace.rows(920)
    assert Dense(torch.tensor([64] * 64), CPU).n_rows <= MOST  # a batch of 4,096 tokens that needed no padding before


@pytest.mark.parametrize(
    ("dtype", "width", "by_ours", "is_dense"),
    [
        (torch.bfloat16, 32, True, True),
        (torch.bfloat16, 32, False, False),
        (torch.bfloat16, 40, True, False),
        (torch.float32, 32, True, False),
    ],
)
def test_batches_are_dense_where_all_products_are_ours(
    dtype: torch.dtype, width: int, by_ours: bool, is_dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "by_pairs", lambda dtype: by_ours and dtype == torch.bfloat16)
    config = ModelConfig(d_model=32, n_heads=2, d_ff=width, n_layers=1)
    model = build_model(config, source_vocab=9, target_vocab=9).compute_in(dtype, training=True)
    model.use_compiled()
    assert model.layout is (Dense if is_dense else InPlace)
