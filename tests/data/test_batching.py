from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from encoded import encode
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data import batching
from transformer_cli.data.batching import left_over, plan, plan_of_rest
from transformer_cli.data.binary import narrow
from transformer_cli.data.corpus import load_training
from transformer_cli.data.mixture import MixedCorpus, Mixture, Part
from transformer_cli.errors import DataError
from transformer_cli.tokenizer import train_tokenizer

REPOSITORY = Path(__file__).resolve().parents[2]

pairs = st.tuples(st.integers(1, 40), st.integers(1, 40))
corpora = st.lists(pairs, max_size=200).map(lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2))
budgets = st.integers(40, 300)


def padding_share(lengths, batches):
    """Of the source and target tokens that are computed."""
    computed = sum(len(batch) * int(lengths[batch].max(axis=0).sum()) for batch in batches if len(batch))
    real = sum(int(lengths[batch].sum()) for batch in batches)
    return 1 - real / computed if computed else 0.0


def random_lengths(n: int, *, longest: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(1, longest, size=(n, 2))


@given(lengths=corpora, budget=budgets, epoch=st.integers(0, 5))
def test_every_sentence_is_in_exactly_one_batch(lengths, budget, epoch):
    batches = plan(lengths, budget=budget, seed=1, epoch=epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))


@given(lengths=corpora, budget=budgets, world=st.integers(1, 4))
def test_no_batch_exceeds_the_budget_on_either_side(lengths, budget, world):
    for rank in range(world):
        for batch in plan(lengths, budget=budget, seed=1, epoch=1, rank=rank, world=world):
            assert all(len(batch) * longest <= budget for longest in lengths[batch].max(axis=0, initial=0))


@given(lengths=corpora, budget=budgets, world=st.integers(2, 5))
def test_the_ranks_share_an_epoch_evenly_and_completely(lengths, budget, world):
    plans = [plan(lengths, budget=budget, seed=1, epoch=1, rank=rank, world=world) for rank in range(world)]
    assert len({len(batches) for batches in plans}) == 1
    together = sorted(index for batches in plans for batch in batches for index in batch)
    assert together == list(range(len(lengths)))


@given(lengths=corpora, world=st.integers(2, 4))
def test_a_batch_is_empty_only_where_sentences_are_fewer_than_places(lengths, world):
    plans = [plan(lengths, budget=80, seed=1, epoch=1, rank=rank, world=world) for rank in range(world)]
    sizes = [len(batch) for batches in plans for batch in batches]
    assert min(sizes, default=1) > 0 or max(sizes) == 1


@given(lengths=corpora, budget=budgets, seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_a_plan_depends_on_its_arguments_alone(lengths, budget, seed, epoch):
    """On no plan before it, no generator of others, no dtype; and it leaves the lengths as they are."""
    given_lengths = lengths.copy()
    first = plan(lengths, budget=budget, seed=seed, epoch=epoch)
    np.random.seed(7)
    plan(lengths[::-1], budget=budget + 1, seed=seed, epoch=epoch)
    again = plan(lengths.astype(np.int32, order="F"), budget=budget, seed=seed, epoch=epoch)
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
    assert np.array_equal(lengths, given_lengths)


LARGEST = np.iinfo(np.int16).max
long_pairs = st.tuples(*[st.integers(1, 40) | st.integers(LARGEST - 3, LARGEST)] * 2)
long_corpora = st.lists(long_pairs, max_size=60).map(lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2))


@given(lengths=long_corpora, budget=st.integers(LARGEST, 4 * LARGEST) | st.just(10**12), world=st.integers(1, 3))
@settings(max_examples=50)
def test_lengths_of_two_bytes_make_the_same_batches_up_to_the_largest_that_there_is(lengths, budget, world):
    found = {}
    for given_lengths in (lengths, narrow(lengths)):
        options = {"budget": budget, "seed": 1, "epoch": 2}
        batches = plan_of_rest(given_lengths, [(2, 1)], rank=0, world=world, **options)
        left = rest(given_lengths, [(2, 1), (world, 2)], **options)
        share = padding_share(given_lengths, batches)
        found[given_lengths.dtype] = share, left.tolist(), [batch.tolist() for batch in batches]
    assert found[np.dtype(np.int16)] == found[np.dtype(np.int64)]


@pytest.mark.parametrize("other", [{"seed": 2, "epoch": 1}, {"seed": 1, "epoch": 2}])
def test_another_epoch_or_seed_makes_other_batches_in_another_order(other):
    lengths = random_lengths(2000, longest=7)
    first = plan(lengths, budget=400, seed=1, epoch=1)
    second = plan(lengths, budget=400, **other)
    same_batches = {frozenset(batch.tolist()) for batch in first} & {frozenset(batch.tolist()) for batch in second}
    assert len(same_batches) < len(first) / 2
    assert [lengths[batch, 1].max() for batch in first] != [lengths[batch, 1].max() for batch in second]


@given(lengths=corpora, budget=budgets)
@settings(max_examples=50)
def test_batches_are_cut_from_the_sorted_corpus_where_the_next_sentence_would_not_fit(lengths, budget):
    """A slow plan, sentence by sentence; sentences of equal lengths may stand for each other."""
    expected: list[list[tuple[int, ...]]] = []
    for index in sorted(range(len(lengths)), key=lambda index: _key(lengths, index)):
        sentence = tuple(int(length) for length in lengths[index])
        together = [*expected[-1], sentence] if expected else []
        if not together or len(together) * max(map(max, together)) > budget:
            expected.append([])
        expected[-1].append(sentence)
    batches = plan(lengths, budget=budget, seed=1, epoch=1)
    assert sorted(map(sorted, expected)) == sorted(sorted(map(tuple, lengths[batch].tolist())) for batch in batches)


def _key(lengths: np.ndarray, index: int) -> tuple[int, int]:
    source, target = (int(length) for length in lengths[index])
    turn = sorted({int(length) for length in lengths[:, 1]}).index(target)
    return target, source if turn % 2 == 0 else -source


@given(lengths=corpora, budget=budgets, seed=st.integers(0, 2**40))
def test_equal_lengths_come_in_the_order_of_a_shuffle_that_every_version_made(lengths, budget, seed):
    """Runs that were begun before go on with the same batches: the order is that of NumPy's own sort by two keys."""
    chance = np.random.default_rng([seed, 1])
    shuffled = chance.permutation(len(lengths))
    source, target = lengths[shuffled].T
    _, turn = np.unique(target, return_inverse=True)
    order = shuffled[np.lexsort((np.where(turn % 2 == 0, source, -source), target))]
    batches = plan(lengths, budget=budget, seed=seed, epoch=1)
    in_order: list[np.ndarray] = [batches[i] for i in np.argsort(chance.permutation(len(batches)))]
    assert np.concatenate([np.empty(0), *in_order]).tolist() == order.tolist()


@pytest.mark.parametrize("shares", [[], [(2, 3)], [(2, 100), (3, 10)]])
@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 2.0], [0.5, 3.0], [1.0, 0.5]])
def test_a_plan_takes_less_than_24_bytes_for_each_time_that_a_pair_comes(monkeypatch, weights, shares):
    monkeypatch.setattr("transformer_cli.data.batching.PART", 1000)  # as small beside this text as 2^18 beside millions
    n = 200_000
    lengths = narrow(np.random.default_rng(1).integers(1, 100, size=(n, 2)))
    mixture = Mixture([Part("a", n // 2, weights[0]), Part("b", n // 2, weights[1])], np.arange(n), temperature=1)
    tracemalloc.start()
    text: Any = SimpleNamespace(lengths=lengths)
    if (seen := mixture.epoch(seed=1, epoch=1)) is not None:
        text = MixedCorpus(text, seen)
    plan_of_rest(text.lengths, shares, budget=8192, seed=1, epoch=1, rank=0, world=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * sum(mixture.seen)


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(1, 4), st.integers(0, 3))
def test_sentences_that_have_other_numbers_are_in_the_batches_of_their_own_lengths(n, world, epoch):
    """Some come several times, as those of a text with a weight, and some not at all."""
    lengths, chance = random_lengths(100), np.random.default_rng(n)
    rows = chance.integers(0, 100, n).astype(np.int32)
    options = {"budget": 128, "seed": 3, "epoch": epoch, "world": world}
    for rank in range(world):
        counted = plan(lengths[rows], rank=rank, **options)
        found = plan(lengths[rows], rank=rank, rows=rows, **options)
        assert [batch.tolist() for batch in found] == [rows[batch].tolist() for batch in counted]


@pytest.mark.parametrize("budget", [40, 100, 5000])
def test_a_plan_does_not_depend_on_how_much_is_looked_at_at_a_time(monkeypatch, budget):
    lengths = random_lengths(3000)
    whole = plan(lengths, budget=budget, seed=1, epoch=1)
    monkeypatch.setattr("transformer_cli.data.batching.PART", 7)
    assert [batch.tolist() for batch in plan(lengths, budget=budget, seed=1, epoch=1)] == [
        batch.tolist() for batch in whole
    ]


def test_batches_do_not_come_in_the_order_of_length():
    lengths = random_lengths(2000)
    longest = [int(lengths[batch, 1].max()) for batch in plan(lengths, budget=400, seed=1, epoch=1)]
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.3


def test_ranks_get_batches_of_about_the_same_length_at_the_same_time():
    lengths = random_lengths(4000)
    plans = [plan(lengths, budget=400, seed=1, epoch=1, rank=rank, world=2) for rank in range(2)]
    longest = [[int(lengths[batch, 1].max()) for batch in batches] for batches in plans]
    assert max(abs(a - b) for a, b in zip(*longest, strict=True)) <= 1


def test_a_sentence_beyond_the_budget_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"pair 2 has 99 pieces, more than a batch may hold \(50\)"):
        plan(np.array([[3, 4], [99, 2], [1, 1]]), budget=50, seed=1, epoch=1)


def test_an_empty_corpus_has_an_empty_plan():
    assert plan(np.empty((0, 2), dtype=np.int64), budget=100, seed=1, epoch=1, world=2) == []


def test_padding_is_what_the_rectangles_hold_beyond_the_sentences():
    lengths = np.array([[3, 4], [1, 2], [5, 5]])
    batches = [np.array([0, 1]), np.array([2])]
    computed = (2 * 3 + 2 * 4) + (5 + 5)
    assert padding_share(lengths, batches) == pytest.approx(1 - (3 + 4 + 1 + 2 + 5 + 5) / computed)


def test_at_most_six_percent_of_multi30k_is_padding_at_the_default_budget(tmp_path, multi30k):
    corpus = load_training(DataConfig(train=str(multi30k / "train")))
    tokenizer, _ = train_tokenizer(TokenizerConfig(), corpus.source, corpus.target, seed=1)
    encoded = encode(corpus, tokenizer, tmp_path, split="train", source_eos=True, max_length=256)
    batches = plan(encoded.lengths, budget=4096, seed=1, epoch=1)
    assert padding_share(encoded.lengths, batches) <= 0.06


def test_whatever_numbers_of_processes_use_parts_of_an_epoch_every_sentence_is_used_once():
    lengths, used, shares = random_lengths(300), [], []
    options = {"budget": 64, "seed": 3, "epoch": 1}
    for world, n_batches in [(2, 3), (1, 4), (4, 2), (3, 1000)]:
        left = rest(lengths, shares, **options)
        for rank in range(world):
            parts = plan(lengths[left], rank=rank, world=world, **options)[:n_batches]
            used += [int(index) for batch in parts for index in left[batch]]
        shares.append((world, n_batches))
    assert sorted(used) == list(range(300))


def rest(lengths, shares, **options):
    """What is left after all of these."""
    left = np.arange(len(lengths))
    for share in shares:
        left = left[left_over(lengths[left], *share, **options)]
    return left


parts_of_epochs = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), max_size=4)


@given(lengths=corpora, budget=budgets, shares=parts_of_epochs, epoch=st.integers(0, 3))
def test_what_is_left_over_is_what_the_plans_of_all_processes_one_by_one_would_leave(lengths, budget, shares, epoch):
    left, options = list(range(len(lengths))), {"budget": budget, "seed": 3, "epoch": epoch}
    for world, n_batches in shares:
        plans = [plan(lengths[left], rank=rank, world=world, **options)[:n_batches] for rank in range(world)]
        used = {left[place] for batches in plans for batch in batches for place in batch}
        left = [place for place in left if place not in used]
    assert rest(lengths, shares, **options).tolist() == left


def test_what_is_left_over_takes_one_plan_however_many_processes_there_were(monkeypatch):
    """With eight of them and ten million pairs it took a quarter of a minute."""
    order, planned = batching._order, []

    def noting(lengths, chance):
        planned.append(len(lengths))
        return order(lengths, chance)

    monkeypatch.setattr(batching, "_order", noting)
    left = rest(random_lengths(3000), [(8, 1)], budget=64, seed=3, epoch=1)
    rest(random_lengths(3000), [(8, 1), (3, 1)], budget=64, seed=3, epoch=1)
    assert planned == [3000, 3000, len(left)]
