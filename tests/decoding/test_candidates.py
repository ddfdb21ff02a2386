"""The likeliest tokens of a step."""

import math

import numpy as np
import pytest
import torch
from compiling import needs_compiler

from transformer_cli.decoding.candidates import CACHED_BEAMS, ONE_BY_ONE, Made, largest, likeliest
from transformer_cli.decoding.options import Symbols
from transformer_cli.model import compiled


@pytest.mark.parametrize("n", [1, 2, 5, ONE_BY_ONE, ONE_BY_ONE + 3])
@pytest.mark.parametrize("n_rows", [1, 7, 2 * CACHED_BEAMS + 1])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_largest_are_those_of_a_sorted_row(n, n_rows, precision):
    x_RV = torch.rand(n_rows, 300, dtype=precision, generator=torch.Generator().manual_seed(n)).log()
    ids_RV = np.argsort(-x_RV.numpy(), axis=1, kind="stable")
    expected = np.take_along_axis(x_RV.numpy(), ids_RV, axis=1)[:, :n], ids_RV[:, :n]

    found, ids = largest(x_RV.clone(), n)

    assert found.dtype == precision
    np.testing.assert_array_equal(found, expected[0])
    np.testing.assert_array_equal(ids, expected[1])


def test_of_equals_the_first_comes_first_and_what_is_impossible_last():
    numbers = np.random.default_rng(1).integers(0, 4, size=(200, 30))
    x_RV = torch.from_numpy(np.where(numbers == 0, -np.inf, numbers)).float()
    x_RV[:, 6:] = -torch.inf
    order = np.argsort(-x_RV.numpy(), axis=1, kind="stable")[:, :ONE_BY_ONE]
    values = np.take_along_axis(x_RV.numpy(), order, axis=1)

    found, ids = largest(x_RV.clone(), ONE_BY_ONE)

    np.testing.assert_array_equal(found, values)
    assert ((ids.numpy() == order) | np.isinf(values)).all()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_of_logits_that_are_rounded_those_that_decide_are_looked_at_again(n):
    """In bf16 three of them are 10, for one or two that are wanted."""
    rest = [2.0 - n / 16 for n in range(20)]
    exact_RV = torch.tensor([[3.0, 9.99, 10.01, 10.02, *rest], [3.0, 10.02, 9.99, 10.01, *rest]])
    rounded_RV, symbols = exact_RV.bfloat16(), Symbols(bos=23, eos=0, banned=(23,))
    assert rounded_RV[:, 1:4].unique().tolist() == [10.0]

    logp_RK, ids_RK = likeliest(rounded_RV, symbols, n, made=Made(lambda ids_RK: exact_RV.gather(1, ids_RK)))

    wanted = exact_RV.log_softmax(-1).topk(n)
    assert ids_RK.tolist() == wanted.indices.tolist()
    torch.testing.assert_close(logp_RK, wanted.values.double(), rtol=0, atol=1e-6)
    assert likeliest(rounded_RV, symbols, n)[1].tolist() != ids_RK.tolist()


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=needs_compiler)])
def test_large_logits_that_are_rounded_by_more_than_all_have_between_them(scale, is_compiled):
    """Log-probabilities are no more than 0, and those of exact logits where what is looked at has all there is."""
    torch.manual_seed(0)
    x_RD, table_VD = torch.randn(200, 32), scale / 32**0.5 * torch.randn(40, 32)
    exact_RV = x_RD @ table_VD.T
    if is_compiled:
        none, parts = torch.empty(0, dtype=torch.int64), {"x_RD": x_RD, "table_VD": table_VD}
        logp_RK, ids_RK = compiled.likeliest(exact_RV.bfloat16(), 2, none, n_looked_at=4, **parts)
    else:
        made = Made(lambda ids_RK: exact_RV.gather(1, ids_RK))
        logp_RK, ids_RK = likeliest(exact_RV.bfloat16(), Symbols(bos=39, eos=0, banned=()), 2, made=made)
    assert logp_RK.isfinite().all()
    assert (logp_RK <= 0).all()
    wanted = exact_RV.double().log_softmax(-1).gather(1, ids_RK)
    close = (logp_RK - wanted).abs() < 0.05 + 0.01 * wanted.abs()
    assert close[:, 0].float().mean() > 0.97


def test_what_is_impossible_stays_so_whatever_its_logit_was_before_it_was_rounded():
    logits_RV = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf], [-torch.inf] * 4])
    logp_RK, ids_RK = likeliest(
        logits_RV, Symbols(bos=3, eos=0, banned=(3,)), 3, made=Made(lambda ids: torch.ones(ids.shape))
    )
    assert ids_RK[0, :2].tolist() == [0, 2]
    assert logp_RK[0, :2].tolist() == pytest.approx([math.log(0.5)] * 2)
    assert logp_RK[0, 2] == -torch.inf
    assert not logp_RK[1].isfinite().any()


@pytest.mark.parametrize("n", [1, 5])
def test_a_row_with_no_numbers_gives_none(n):
    logits_RV = torch.rand(3, 20, generator=torch.Generator().manual_seed(1))
    logits_RV[1, 7] = torch.nan

    logp_RK, _ = likeliest(logits_RV, Symbols(bos=1, eos=2, banned=(0, 1)), n)

    assert logp_RK.isnan().any(1).tolist() == [False, True, False]
