"""Beam search and greedy search where it matters when they stop, what is possible, and who is in the batch."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import BOS, EOS, SYMBOLS, Logits, TableModel, random_logits, sources

from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import NotFinite, Symbols

ALPHAS = [-1.0, -0.3, 0.0, 0.6, 1.0, 2.0]


def search(
    logits: Logits, numbers: list[int], *, limits: list[int], beam_size: int, alpha: float, n_best: int = 1
) -> list[list[Hypothesis]]:
    return beam_search(
        TableModel(logits),
        *sources(numbers),
        limits=limits,
        symbols=SYMBOLS,
        beam_size=beam_size,
        penalty=LengthPenalty(alpha),
        n_best=n_best,
    )


@pytest.mark.parametrize(("alpha", "better"), [(-1.0, (2,)), (0.0, (2,)), (1.0, (2,) * 8)])
def test_a_hypothesis_that_is_better_only_later_is_waited_for(alpha: float, better: tuple[int, ...]) -> None:
    """An end mark comes first, with a middling score; what beats it goes on for one token, or to the limit."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        ends = 1.0 if tokens == better else 0.2 if not tokens else 0.0
        return [math.log(max(p, 1e-30)) for p in (ends, 0.0, 1.0 - ends, 0.0)]

    [[found]] = search(logits, [0], limits=[8], beam_size=3, alpha=alpha)
    assert found.ids == better


@pytest.mark.parametrize(("alpha", "n_best", "n_steps"), [(-1.0, 1, 1), (0.0, 1, 1), (0.0, 2, 2), (2.0, 1, 4)])
def test_a_search_ends_as_soon_as_nothing_can_become_better(alpha: float, n_best: int, n_steps: int) -> None:
    """The end mark has 9 of 10 parts of the probability at each step, so each hypothesis is worse than the one before;
    a strong length penalty could still let one win, until k log(0.06) / 9^2 < log(0.9), for k tokens: until k is 4."""
    model = TableModel(lambda *_: [math.log(p) for p in (0.9, 1e-30, 0.06, 0.04)])
    beam_search(
        model, *sources([0]), limits=[8], symbols=SYMBOLS, beam_size=20, penalty=LengthPenalty(alpha), n_best=n_best
    )
    assert len(model.steps) == n_steps


@settings(max_examples=100, derandomize=True)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from(ALPHAS), mark=st.sampled_from([-4.0, 0.0]))
def test_a_beam_of_one_is_greedy_search_in_tokens_and_scores(seed: int, alpha: float, mark: float) -> None:
    logits = random_logits(seed, vocab=7, mark=mark)
    numbers, limits = list(range(6)), [0, 1, 2, 5, 8, 12]
    greedy = greedy_search(TableModel(logits), *sources(numbers), limits=limits, symbols=SYMBOLS)
    assert [[one] for one in greedy] == search(logits, numbers, limits=limits, beam_size=1, alpha=alpha)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_partners_and_order_do_not_change_a_sentence(beam_size: int) -> None:
    logits = random_logits(3, vocab=8, mark=-1)
    numbers = list(range(40))
    limits = [number % 11 for number in numbers]
    alone = {n: search(logits, [n], limits=[limits[n]], beam_size=beam_size, alpha=1.0)[0] for n in numbers}
    random.Random(1).shuffle(numbers)
    for size in (2, 7, 40):
        for start in range(0, 40, size):
            batch = numbers[start : start + size]
            found = search(logits, batch, limits=[limits[n] for n in batch], beam_size=beam_size, alpha=1.0)
            assert found == [alone[n] for n in batch]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_banned_tokens_are_never_generated_however_likely_and_keep_their_probability(beam_size: int) -> None:
    symbols = Symbols(bos=BOS, eos=EOS, banned=(BOS, 2, 5))

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        row = random_logits(7, vocab=8)(sentence, tokens)
        return [x + 20 * (i in symbols.banned) for i, x in enumerate(row)]

    model = TableModel(logits)
    found = beam_search(
        model,
        *sources([1, 2, 3]),
        limits=[6, 6, 6],
        symbols=symbols,
        beam_size=beam_size,
        penalty=LengthPenalty(1.0),
        n_best=1,
    )
    for [hypothesis] in found:
        assert not set(hypothesis.ids) & {BOS, 2, 5}
        assert hypothesis.log_probability < -10 * hypothesis.length


@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_reaches_its_limit_is_cut_there_and_says_so(beam_size: int) -> None:
    logits = random_logits(1, vocab=6, mark=-50)
    [[found]] = search(logits, [0], limits=[7], beam_size=beam_size, alpha=1.0)
    assert found.truncated
    assert len(found.ids) == 7


def test_what_ended_by_itself_comes_before_what_was_cut() -> None:
    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        ends = -3.0 if not tokens else -90.0  # only the empty translation ends, and it is the less likely one
        return [ends, 0.0, 5.0, 2.0]

    [found] = search(logits, [0], limits=[4], beam_size=3, alpha=1.0, n_best=3)
    assert [hypothesis.truncated for hypothesis in found] == [False, True, True]
    assert found[0].ids == ()
    assert found[0].score(LengthPenalty(1.0)) < found[1].score(LengthPenalty(1.0))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_end_mark_at_once_is_an_empty_translation(beam_size: int) -> None:
    [[found]] = search(lambda *_: [9.0, 0.0, 0.0, 0.0], [0], limits=[4], beam_size=beam_size, alpha=1.0)
    assert found.ids == ()
    assert not found.truncated


@pytest.mark.parametrize("beam_size", [1, 3])
def test_where_no_token_is_possible_what_there_is_comes_back_finite(beam_size: int) -> None:
    """Every candidate at -inf once put a hypothesis that never was at the head of the list elsewhere."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        stuck = len(tokens) == 2 * sentence
        return [-math.inf, 0.0, *([-math.inf] * 2 if stuck else [1.0, 2.0])]

    found = search(logits, [0, 1], limits=[9, 9], beam_size=beam_size, alpha=1.0, n_best=1)
    assert [[(h.ids, h.truncated) for h in n_best] for n_best in found] == [[((), True)], [((3, 3), True)]]
    assert all(math.isfinite(h.score(LengthPenalty(1.0))) for n_best in found for h in n_best)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_logits_that_are_no_numbers_name_the_sentence(beam_size: int, bad: float) -> None:
    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        row = random_logits(2, vocab=6, mark=-9)(sentence, tokens)
        return [bad, *row[1:]] if sentence == 13 and len(tokens) == 3 else row

    # The first sentences end early and leave the batch, so that the row of the failing one moves.
    limits = [1, 1, 1, 9, 9]
    with pytest.raises(NotFinite) as caught:
        search(logits, [10, 11, 12, 13, 14], limits=limits, beam_size=beam_size, alpha=1.0)
    assert caught.value.row == 3


def test_n_best_are_distinct_sorted_and_begin_with_the_best() -> None:
    logits = random_logits(5, vocab=9)
    numbers, limits = list(range(20)), [8] * 20
    best = search(logits, numbers, limits=limits, beam_size=6, alpha=0.6)
    for [one], several in zip(
        best, search(logits, numbers, limits=limits, beam_size=6, alpha=0.6, n_best=6), strict=True
    ):
        assert several[0] == one
        assert len({h.ids for h in several}) == len(several) == 6
        assert several == sorted(several, key=lambda h: h.rank(LengthPenalty(0.6)))


def test_finished_sentences_leave_the_batch_and_used_up_slots_the_beam() -> None:
    model = TableModel(random_logits(4, vocab=8, mark=1))
    numbers = list(range(32))
    beam_search(model, *sources(numbers), limits=[12] * 32, symbols=SYMBOLS, beam_size=4, penalty=LengthPenalty(1.0))
    sentences, widths, beams = zip(*model.steps, strict=True)
    assert sum(beams) < sum(b * w for b, w in zip(sentences, widths, strict=True)), "what ended is stepped"
    assert list(sentences) == sorted(sentences, reverse=True)
    assert sentences[-1] < 32 / 4
    assert widths[0] == 1
    assert list(widths[1:]) == sorted(widths[1:], reverse=True)
    assert widths[-1] < 4


def test_finished_sentences_leave_the_batch_of_greedy_search_and_its_beam_is_one_wide() -> None:
    model = TableModel(random_logits(4, vocab=8, mark=1))
    greedy_search(model, *sources(list(range(32))), limits=[12] * 32, symbols=SYMBOLS)
    sentences, widths, _ = zip(*model.steps, strict=True)
    assert list(sentences) == sorted(sentences, reverse=True)
    assert sentences[-1] < 32 / 4
    assert set(widths) == {1}


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_ties_are_broken_the_same_way_whoever_is_in_the_batch(beam_size: int) -> None:
    """All continuations are alike, or there are two sorts of them; nothing but their order can decide."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return [0.0] * 40 if sentence % 2 else [-9.0] + [float(token % 2) for token in range(1, 40)]

    options = {"beam_size": beam_size, "alpha": 0.0, "n_best": beam_size}
    limits = [number % 5 for number in range(40)]
    alone = [search(logits, [number], limits=limits[number : number + 1], **options)[0] for number in range(40)]
    assert search(logits, list(range(40)), limits=limits, **options) == alone


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_are_summed_in_fp64_whatever_the_logits(dtype: torch.dtype) -> None:
    table = TableModel(random_logits(6, vocab=6, mark=-2))

    class Narrow(TableModel):
        def step(self, tokens_R, state):
            return super().step(tokens_R, state).to(dtype)

    found = greedy_search(Narrow(table.logits), *sources([0]), limits=[10], symbols=SYMBOLS)[0]
    rows = [torch.tensor(table.logits(0, found.ids[:t])).to(dtype).float().log_softmax(-1) for t in range(found.length)]
    tokens = [*found.ids, EOS][: found.length]
    total = sum(float(row[token]) for row, token in zip(rows, tokens, strict=True))
    assert found.log_probability == pytest.approx(total, abs=1e-12)
