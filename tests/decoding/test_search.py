"""Every search with every option, on thousands of random tables, against the slow reference; a wide beam against all
there is."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Found, Reference
from tables import BANNED, BOS, EOS, SYMBOLS, Logits, RoundedModel, TableModel, random_logits, sources

from transformer_cli.config.decoding import DecodingConfig, Mbr
from transformer_cli.decoding import candidates
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import Sampling, SearchOptions, Symbols
from transformer_cli.decoding.search import search
from transformer_cli.errors import UsageError

ALPHAS = [-1.0, -0.3, 0.0, 0.6, 1.0, 2.0]
OPTIONS = {
    "alpha": st.sampled_from(ALPHAS),
    "family": st.sampled_from(["power", "gnmt"]),
    "min_length": st.sampled_from([0, 0, 1, 2, 3, 6]),
    "no_repeat_ngram": st.sampled_from([0, 0, 1, 2, 3]),
}
SAMPLING = {
    "seed": st.integers(0, 9),
    "temperature": st.sampled_from([0.2, 0.7, 1.0, 2.5]),
    "top_k": st.sampled_from([0, 0, 1, 2, 5, 99]),
    "top_p": st.sampled_from([1.0, 0.9, 0.5, 0.01]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, Logits]:
    """A vocabulary's size and random logits: short or long hypotheses, flat or sharp, some tokens impossible."""
    vocab = draw(st.integers(3, 9))
    spread, mark = draw(st.sampled_from([1.0, 3.0, 9.0])), draw(st.sampled_from([-6.0, -2.0, 0.0, 2.0]))
    holes = draw(st.sampled_from([0.0, 0.0, 0.3]))
    return vocab, random_logits(draw(st.integers(0, 10**6)), vocab=vocab, spread=spread, mark=mark, holes=holes)


@st.composite
def batches(draw: st.DrawFn) -> list[Reference]:
    """Sentences of one table, with limits and prefixes of their own."""
    vocab, logits = draw(tables())
    banned = draw(st.sampled_from([BANNED, BANNED, (BOS, 2)])) if vocab > 3 else BANNED
    tokens = st.sampled_from([token for token in range(vocab) if token not in (EOS, *banned)])
    longest = draw(st.sampled_from([0, 0, 1, 4]))
    n_sentences = draw(st.integers(1, 9))
    options = {name: draw(values) for name, values in OPTIONS.items()}
    return [
        Reference(
            logits,
            sentence,
            limit=draw(st.integers(0, 9)),
            vocab=vocab,
            banned=banned,
            prefix=tuple(draw(st.lists(tokens, max_size=longest))),
            line=100 + sentence,
            **options,
        )
        for sentence in range(n_sentences)
    ]


def fast(
    batch: list[Reference], *, sampling: bool = False, model: type[TableModel] = TableModel
) -> list[list[Hypothesis]]:
    """The search under test, asked for what the references are asked for."""
    one = batch[0]
    options = SearchOptions(
        beam_size=one.beam_size,
        n_best=one.n_best,
        penalty=LengthPenalty(one.alpha, one.family),
        min_length=one.min_length,
        no_repeat_ngram=one.no_repeat_ngram,
        search="sampling" if sampling else "beam",
        sampling=Sampling(one.seed, temperature=one.temperature, top_k=one.top_k, top_p=one.top_p),
    )
    return search(
        model(one.logits),
        *sources([reference.sentence for reference in batch]),
        limits=[reference.limit for reference in batch],
        symbols=Symbols(bos=BOS, eos=EOS, banned=tuple(one.banned)),
        options=options,
        lines=[reference.line for reference in batch],
        prefixes=[reference.prefix for reference in batch],
    )


def same(found: list[Hypothesis], wanted: list[Found], reference: Reference) -> None:
    assert [(h.ids, h.truncated) for h in found] == [(h.ids, h.truncated) for h in wanted]
    penalty = LengthPenalty(reference.alpha, reference.family)
    for one, other in zip(found, wanted, strict=True):
        assert one.log_probability == pytest.approx(other.total, rel=1e-12, abs=1e-12)
        assert one.score(penalty) == pytest.approx(reference.score(other), rel=1e-12, abs=1e-12)


@settings(max_examples=700, derandomize=True)
@given(batch=batches(), beam_size=st.integers(1, 7), n_best=st.integers(1, 7))
def test_beam_and_greedy_search_find_what_the_definition_says(
    batch: list[Reference], beam_size: int, n_best: int
) -> None:
    """Also: stopping early changes nothing, for the definition never does."""
    batch = [dataclasses.replace(one, beam_size=beam_size, n_best=min(n_best, beam_size)) for one in batch]
    for reference, found in zip(batch, fast(batch), strict=True):
        same(found, reference.beam(), reference)


@settings(max_examples=200, derandomize=True)
@given(batch=batches(), beam_size=st.integers(1, 7))
def test_logits_that_are_rounded_are_searched_as_they_were(batch: list[Reference], beam_size: int) -> None:
    """Scores, too, where all that may come next is looked at again."""
    free = {"min_length": 0, "no_repeat_ngram": 0, "prefix": ()}
    batch = [dataclasses.replace(one, beam_size=beam_size, **free) for one in batch]
    with patch.object(candidates, "SPARE", 9):
        found = fast(batch, model=RoundedModel)
    for reference, several in zip(batch, found, strict=True):
        same(several, reference.beam(), reference)


@settings(max_examples=400, derandomize=True)
@given(batch=batches(), n_best=st.integers(1, 3), options=st.fixed_dictionaries(SAMPLING))
def test_sampling_draws_what_the_definition_says(batch: list[Reference], n_best: int, options: dict[str, Any]) -> None:
    batch = [dataclasses.replace(one, n_best=n_best, **options) for one in batch]
    for reference, found in zip(batch, fast(batch, sampling=True), strict=True):
        same(found, reference.samples(), reference)


@settings(max_examples=100, derandomize=True)
@given(
    table=tables().filter(lambda table: table[0] <= 6),
    n_best=st.integers(1, 5),
    prefix=st.sampled_from([(), (), (2,), (2, 2)]),
    options=st.fixed_dictionaries(OPTIONS),
)
def test_a_wide_beam_finds_the_best_of_all_sequences(
    table: tuple[int, Logits], n_best: int, prefix: tuple[int, ...], options: dict[str, Any]
) -> None:
    vocab, logits = table
    limit = {3: 6, 4: 5, 5: 4, 6: 3}[vocab]
    wide = sum((vocab - 2) ** length for length in range(limit + 2))
    one = Reference(logits, 0, limit=limit, vocab=vocab, beam_size=wide, n_best=n_best, prefix=prefix, **options)
    [found] = fast([one])
    same([hypothesis for hypothesis in found if not hypothesis.truncated], one.exhaustive(), one)


@pytest.mark.parametrize(
    ("impossible", "message"),
    [
        ({"beam_size": 0}, "a beam of 0 is not between 1 and 1,000"),
        ({"beam_size": 1001}, "a beam of 1,001 is not between 1 and 1,000"),
        ({"n_best": 0}, "0 translations per line were asked of a beam of 5"),
        ({"beam_size": 3, "n_best": 4}, "4 translations per line were asked of a beam of 3"),
        ({"search": "sampling", "beam_size": 5}, "a beam of 5 was asked for, but translations are drawn"),
        ({"search": "sampling", "n_best": 0}, "0 translations per line were to be drawn, not 1 to 1,000"),
        ({"search": "sampling", "n_best": 1001}, "1,001 translations per line were to be drawn, not 1 to 1,000"),
        ({"length_penalty": math.nan}, "a length penalty of nan is not between -10 and 10"),
        ({"length_penalty": -10.1}, "a length penalty of -10.1 is not between -10 and 10"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(impossible: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SearchOptions.of(DecodingConfig(), seed=1, **impossible)


def test_options_are_the_configurations_but_for_what_is_given() -> None:
    config = DecodingConfig(beam_size=3, length_penalty=0.6, length_penalty_family="gnmt", search="sampling", top_k=7)
    drawn = SearchOptions.of(config, seed=5)
    assert (drawn.search, drawn.sampling) == ("sampling", Sampling(5, top_k=7))
    given_ = SearchOptions.of(config, seed=5, beam_size=9, length_penalty=-1.0, search="beam", n_best=2)
    penalty = LengthPenalty(-1.0, "gnmt")
    assert given_ == SearchOptions(beam_size=9, n_best=2, penalty=penalty, sampling=Sampling(5, top_k=7))


def test_sampling_draws_as_often_as_is_asked_whatever_the_beam() -> None:
    reference = Reference(random_logits(1, vocab=6), 0, limit=5, vocab=6, beam_size=1, n_best=9)
    assert len(fast([reference], sampling=True)[0]) == 9


@pytest.mark.parametrize(("beam_size", "sampling"), [(1, False), (3, False), (1, True)])
def test_what_a_finished_sentence_would_go_on_with_does_not_matter(beam_size: int, sampling: bool) -> None:
    """It stays in the batch until removing it pays; the numbers it gets meanwhile are nobody's."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        if sentence == 0:
            return [math.nan] * 5 if tokens else [99.0, 0.0, 1.0, 2.0, 3.0]
        return random_logits(8, vocab=5, mark=-20)(sentence, tokens)

    batch = [Reference(logits, number, limit=5, vocab=5, beam_size=beam_size, alpha=0.0) for number in range(20)]
    [first] = fast(batch, sampling=sampling)[0]
    assert (first.ids, first.truncated) == ((), False)


@pytest.mark.parametrize("sampling", [False, True])
def test_a_limit_costs_nothing_before_it_is_reached(sampling: bool) -> None:
    reference = Reference(random_logits(1, vocab=6, mark=2), 0, limit=10**12, vocab=6, beam_size=3, alpha=-1.0)
    [[found]] = fast([reference], sampling=sampling)
    assert not found.truncated


@pytest.mark.parametrize(
    ("config", "n_best"),
    [
        (DecodingConfig(), 1),
        (DecodingConfig(), 3),
        (DecodingConfig(beam_size=1), 1),
        (DecodingConfig(search="sampling"), 1),
        (DecodingConfig(mbr=Mbr(samples=7)), 1),
        (DecodingConfig(mbr=Mbr(samples=7), beam_size=1), 4),
    ],
)
def test_a_sentence_has_as_many_rows_as_are_counted(config: DecodingConfig, n_best: int) -> None:
    model = TableModel(random_logits(1, vocab=50, mark=-9))
    options = SearchOptions.of(config, seed=1, n_best=n_best)
    search(model, *sources([0]), limits=[6], symbols=SYMBOLS, options=options, lines=[0])
    assert max(rows for _, _, rows in model.steps) == config.n_paths


@settings(max_examples=150)
@given(
    tables(), st.integers(1, 4), st.sampled_from(ALPHAS), st.integers(1, 6), st.sampled_from([TableModel, RoundedModel])
)
def test_a_mark_that_comes_first_is_what_a_table_that_is_sure_of_it_writes(table, beam_size, alpha, n_sentences, model):
    vocab, logits = table
    mark = vocab - 1

    def sure(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        return logits(sentence, tokens) if tokens else [0.0 if id == mark else -math.inf for id in range(vocab)]

    found = [
        search(
            model(scores),
            *sources(list(range(n_sentences))),
            limits=[5] * n_sentences,
            symbols=Symbols(bos=BOS, eos=EOS, banned=BANNED, first=first),
            options=SearchOptions(beam_size=beam_size, penalty=LengthPenalty(alpha)),
            lines=list(range(n_sentences)),
        )
        for scores, first in ((logits, mark), (sure, None))
    ]
    assert found[0] == found[1]
    assert all(one.ids[0] == mark for several in found[0] for one in several)
