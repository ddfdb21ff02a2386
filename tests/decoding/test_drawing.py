"""Whether what is drawn has the probabilities that were asked for, and depends on nothing but seed, line and draw."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from reference import Reference
from tables import EOS, SYMBOLS, Logits, TableModel, random_logits, sources

from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import NotFinite, Sampling
from transformer_cli.decoding.sampling import sample, weights

SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 3},
    {"top_p": 0.6},
    {"top_p": 0.8, "top_k": 4, "temperature": 1.5},
]


def draws(
    logits: Logits, numbers: list[int], *, limits: list[int], n_draws: int = 1, seed: int = 1, **options: Any
) -> list[list[Hypothesis]]:
    return sample(
        TableModel(logits),
        *sources(numbers),
        limits=limits,
        symbols=SYMBOLS,
        sampling=Sampling(seed, **options),
        lines=numbers,
        n_draws=n_draws,
    )


@pytest.mark.parametrize("options", SETTINGS)
def test_whole_translations_are_drawn_as_often_as_their_probability_says(options: dict[str, Any]) -> None:
    """Pearson's chi-square over all sequences, those that are expected less than five times taken together."""
    n, logits = 6000, random_logits(3, vocab=5, spread=1.0)
    reference = Reference(logits, 0, limit=2, vocab=5, **options)
    expected: dict[tuple[tuple[int, ...], bool], float] = {}

    def enumerate_all(ids: tuple[int, ...], probability: float) -> None:
        weights = reference.weights(ids)
        for token, weight in weights.items():
            p = probability * weight / sum(weights.values())
            if token != EOS and len(ids) < 2:
                enumerate_all((*ids, token), p)
            else:
                key = (ids, token != EOS)
                expected[key] = expected.get(key, 0.0) + n * p

    enumerate_all((), 1.0)
    [found] = draws(logits, [0], limits=[2], n_draws=n, **options)
    counts = Counter((h.ids, h.truncated) for h in found)
    assert set(counts) <= set(expected)
    rare = [key for key, mean in expected.items() if mean < 5]
    groups = [[key] for key in expected if key not in rare] + ([rare] if sum(expected[key] for key in rare) > 1 else [])
    cells = [(sum(counts[key] for key in group), sum(expected[key] for key in group)) for group in groups]
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    assert statistic < chi_square_quantile(len(cells) - 1)


def chi_square_quantile(freedom: int, z: float = 3.09) -> float:
    """Exceeded once in a thousand times (Wilson and Hilferty 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("options", [{}, {"top_k": 4, "top_p": 0.9}])
def test_a_lines_draws_depend_on_neither_partners_nor_order_nor_batch_size_nor_number_of_draws(
    options: dict[str, Any],
) -> None:
    logits = random_logits(3, vocab=8, mark=-1)
    numbers = list(range(40))
    limits = [number % 11 for number in numbers]
    alone = {n: draws(logits, [n], limits=[limits[n]], n_draws=3, **options)[0] for n in numbers}
    random.Random(1).shuffle(numbers)
    for size, n_draws in ((1, 1), (2, 3), (7, 2), (32, 3)):
        for start in range(0, 40, size):
            batch = numbers[start : start + size]
            found = draws(logits, batch, limits=[limits[n] for n in batch], n_draws=n_draws, **options)
            assert found == [alone[n][:n_draws] for n in batch]


def test_draws_that_have_ended_are_not_stepped() -> None:
    model = TableModel(random_logits(4, vocab=8, mark=1))
    numbers = list(range(8))
    found = sample(
        model, *sources(numbers), limits=[12] * 8, symbols=SYMBOLS, sampling=Sampling(seed=1), lines=numbers, n_draws=9
    )
    assert sum(beams for _, _, beams in model.steps) == sum(
        one.length + one.truncated for several in found for one in several
    )


def test_another_seed_another_line_and_another_draw_draw_something_else() -> None:
    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [-9.0] + [0.0] * 20

    first = draws(logits, list(range(10)), limits=[8] * 10, n_draws=10)
    other = draws(logits, list(range(10)), limits=[8] * 10, n_draws=10, seed=2)
    all_ids = [h.ids for found in (first, other) for hypotheses in found for h in hypotheses]
    assert len(set(all_ids)) == 200


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-9}, {"temperature": 1e-300}, {"top_p": 1e-9}])
def test_drawing_from_the_likeliest_alone_is_greedy_search(options: dict[str, Any]) -> None:
    logits, numbers, limits = random_logits(5, vocab=7), list(range(9)), [9] * 9
    greedy = greedy_search(TableModel(logits), *sources(numbers), limits=limits, symbols=SYMBOLS)
    assert draws(logits, numbers, limits=limits, **options) == [[one] for one in greedy]


def test_a_high_temperature_makes_all_tokens_alike() -> None:
    found = weights(Sampling(1, temperature=1e9), torch.tensor([[[-1.0, -50.0, -torch.inf, -2.0]]]))
    torch.testing.assert_close(found, torch.tensor([[[1.0, 1.0, 0.0, 1.0]]], dtype=torch.float64), atol=1e-6, rtol=0)


def test_of_equally_likely_tokens_the_first_ids_are_among_the_top() -> None:
    found = weights(Sampling(1, top_k=2), torch.zeros(1, 1, 300))
    assert found.nonzero()[:, 2].tolist() == [0, 1]


def test_the_top_share_ends_as_soon_as_it_is_reached() -> None:
    logp = torch.tensor([[[0.25, 0.5, 0.25]]], dtype=torch.float64).log()
    assert weights(Sampling(1, top_p=0.5), logp).nonzero()[:, 2].tolist() == [1]
    assert weights(Sampling(1, top_p=0.51), logp).nonzero()[:, 2].tolist() == [0, 1]


@pytest.mark.parametrize("options", [{"top_k": 70}, {"top_k": 300, "top_p": 0.3}, {"top_p": 0.1}, {"top_p": 0.8}])
@pytest.mark.parametrize("spread", [0, 1, 4])
def test_of_many_tokens_those_stay_that_sorting_all_of_them_says(spread: int, options: dict[str, Any]) -> None:
    """Rounded, so that many are equally likely."""
    logits = spread * torch.randn(2, 3, 5000, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    sampling = Sampling(1, **options)
    found, all_of_them = weights(sampling, logits), weights(Sampling(1), logits)
    order = all_of_them.sort(descending=True, stable=True).indices[..., : sampling.top_k or None]
    sorted_weights = all_of_them.gather(-1, order)
    share = sorted_weights.cumsum(-1) / sorted_weights.sum(-1, keepdim=True)
    stay = torch.cat((torch.ones_like(share[..., :1]).bool(), share[..., :-1] < sampling.top_p), dim=-1)
    wanted = torch.zeros_like(all_of_them).scatter(-1, order, sorted_weights * stay)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


class Always:
    """A generator of one number."""

    def __init__(self, number: int) -> None:
        self.number = np.uint64(number)

    def random_raw(self, n: int) -> np.ndarray[Any, Any]:
        return np.full(n, self.number)


@pytest.mark.parametrize("number", [0, 2**64 - 1])
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_possible(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which the same number for all makes the likeliest win."""
    monkeypatch.setattr(np.random, "Philox", lambda **_: Always(number))
    for seed in range(50):
        logits = random_logits(seed, vocab=6, holes=0.5)
        [greedy] = greedy_search(TableModel(logits), *sources([0]), limits=[3], symbols=SYMBOLS)
        assert draws(logits, [0], limits=[3]) == [[greedy]]


def test_rounding_errors_change_draws_only_where_two_tokens_are_level() -> None:
    """An interval cut into shares once moved with the errors of all of them together, and gave 37 of these 300 lines
    another token."""
    numbers, rows = list(range(300)), torch.randn(300, 8000, generator=torch.Generator().manual_seed(1)).double()
    errors = torch.zeros(8000, dtype=torch.float64)
    errors[:4000] = 1e-4

    def first_tokens(rows: torch.Tensor) -> list[tuple[int, ...]]:
        table = [row.tolist() for row in rows]
        found = draws(lambda sentence, tokens: table[sentence], numbers, limits=[1] * 300)
        return [one.ids for [one] in found]

    assert first_tokens(rows + errors) == first_tokens(rows)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_name_the_sentence(bad: float) -> None:
    """Also where the last id is banned, which is what a search for NaN would come to."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [0.0, bad if sentence == 12 and len(tokens) == 2 else 0.0]

    with pytest.raises(NotFinite) as caught:
        sample(
            TableModel(lambda sentence, tokens: [-9.0, *logits(sentence, tokens), 0.0]),
            *sources([10, 11, 12, 13]),
            limits=[1, 1, 9, 9],
            symbols=type(SYMBOLS)(bos=3, eos=0, banned=(3,)),
            sampling=Sampling(1),
            lines=[0, 1, 2, 3],
        )
    assert caught.value.row == 2
