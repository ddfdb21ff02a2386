"""The likeliest tokens of a step."""

import numpy as np
import pytest
import torch

from transformer_cli.decoding.candidates import CACHED_BEAMS, ONE_BY_ONE, largest, likeliest
from transformer_cli.decoding.options import Symbols


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


@pytest.mark.parametrize("n", [1, 5])
def test_a_row_with_no_numbers_gives_none(n):
    logits_RV = torch.rand(3, 20, generator=torch.Generator().manual_seed(1))
    logits_RV[1, 7] = torch.nan

    logp_RK, _ = likeliest(logits_RV, Symbols(bos=1, eos=2, banned=(0, 1)), n)

    assert logp_RK.isnan().any(1).tolist() == [False, True, False]
