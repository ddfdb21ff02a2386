"""What constraints promise, read off the translations themselves."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import BOS, EOS, SYMBOLS, TableModel, random_logits, sources

from transformer_cli.decoding.candidates import forbidden
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import Sampling, SearchOptions, Symbols
from transformer_cli.decoding.search import search

SEARCHES = {
    "greedy": SearchOptions(beam_size=1),
    "beam": SearchOptions(beam_size=4, n_best=3),
    "sampling": SearchOptions(search="sampling", n_best=3, sampling=Sampling(seed=1, temperature=1.5)),
}
N = 12


def results(name: str, seed: int, prefixes: list[tuple[int, ...]] | None = None, **options: int) -> list[Hypothesis]:
    """Of 12 sentences that may have 15 tokens each and end soon if they are let."""
    found = search(
        TableModel(random_logits(seed, vocab=8, mark=1)),
        *sources(list(range(N))),
        limits=[15] * N,
        symbols=SYMBOLS,
        options=SearchOptions(**{**vars(SEARCHES[name]), **options}),
        lines=range(N),
        prefixes=prefixes,
    )
    return [hypothesis for hypotheses in found for hypothesis in hypotheses]


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=15, derandomize=True)
@given(seed=st.integers(0, 10**6), least=st.integers(1, 20))
def test_none_is_shorter_than_the_least_length_and_none_longer_than_the_limit(name: str, seed: int, least: int) -> None:
    """Where the two contradict each other the limit counts, and what ends there ends by itself if it can."""
    lengths = [len(hypothesis.ids) for hypothesis in results(name, seed, min_length=least)]
    assert min(lengths) >= min(least, 15)
    assert max(lengths) <= 15


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=15, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 4))
def test_no_run_of_n_tokens_comes_twice(name: str, seed: int, n: int) -> None:
    for hypothesis in results(name, seed, no_repeat_ngram=n, min_length=9):
        runs = list(zip(*(hypothesis.ids[i:] for i in range(n)), strict=False))
        assert len(set(runs)) == len(runs)


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=15, derandomize=True)
@given(seed=st.integers(0, 10**6), prefixes=st.lists(st.lists(st.integers(2, 7), max_size=17), min_size=N, max_size=N))
def test_each_sentence_begins_with_its_own_prefix_though_it_repeat_and_go_beyond_the_limit(
    name: str, seed: int, prefixes: list[list[int]]
) -> None:
    found = results(name, seed, prefixes=[tuple(prefix) for prefix in prefixes], no_repeat_ngram=1, n_best=1)
    for prefix, hypothesis in zip(prefixes, found, strict=True):
        assert list(hypothesis.ids[: len(prefix)]) == prefix
        assert len(hypothesis.ids) <= max(15, len(prefix))


def test_a_prefix_that_the_search_would_choose_anyway_changes_nothing() -> None:
    free = results("greedy", 3)
    assert results("greedy", 3, prefixes=[hypothesis.ids[:2] for hypothesis in free]) == free


@pytest.mark.parametrize("name", SEARCHES)
def test_a_constrained_translation_has_the_probability_that_the_model_gives_it(name: str) -> None:
    logits = random_logits(4, vocab=8, mark=1)
    found = search(
        TableModel(logits),
        *sources([7]),
        limits=[9],
        symbols=Symbols(bos=BOS, eos=EOS, banned=(BOS, 5)),
        options=SearchOptions(**{**vars(SEARCHES[name]), "min_length": 4, "no_repeat_ngram": 2}),
        lines=[0],
        prefixes=[(3, 6)],
    )
    for hypothesis in found[0]:
        tokens = (*hypothesis.ids, EOS)[: hypothesis.length]
        rows = [torch.tensor(logits(7, tokens[:t]), dtype=torch.float64).log_softmax(-1) for t in range(len(tokens))]
        total = sum(float(row[token]) for row, token in zip(rows, tokens, strict=True))
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("name", SEARCHES)
def test_where_constraints_leave_no_token_what_there_is_comes_back(name: str) -> None:
    """Six letters that must not repeat, and at least nine of them: the seventh cannot be."""
    for hypothesis in results(name, 5, no_repeat_ngram=1, min_length=9):
        assert sorted(hypothesis.ids) == [2, 3, 4, 5, 6, 7]
        assert hypothesis.truncated
        assert math.isfinite(hypothesis.log_probability)


def test_a_search_without_constraints_makes_no_table_of_what_is_forbidden() -> None:
    assert forbidden([], torch.zeros(6, 4), torch.zeros(2, 3, 0), torch.arange(2), torch.ones(2, 3).bool()) is None
