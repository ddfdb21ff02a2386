"""Searching a real Transformer with its caches, against computing everything anew for every token."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest
import torch
from reference import Found, Reference, mean_of
from tables import Logits

from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding.ensemble import Ensemble
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import Sampling, SearchOptions, Symbols
from transformer_cli.decoding.search import search
from transformer_cli.decoding.stepper import Stepper
from transformer_cli.model.build import build_model
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import BOS, EOS, PAD, UNK

SYMBOLS = Symbols(bos=BOS, eos=EOS, banned=(PAD, UNK, BOS))
VOCAB = 24
VARIANTS = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_positions": 40},
    "rotary": {"positions": "rotary"},
    "no positions": {"positions": "none"},
    "post-norm, rms, gated, untied": {
        "norm_position": "post",
        "norm": "rms-norm",
        "activation": "swiglu",
        "tied": "none",
    },
    "two and one layers": {"n_layers": {"encoder": 2, "decoder": 1}},
}


def random_model(seed: int, *, gain: float = 1.7, **options: object) -> Transformer:
    """In fp64, with embeddings large enough that the translations differ and end at different lengths."""
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2}
    torch.manual_seed(seed)
    model = build_model(ModelConfig.model_validate(shape | options), source_vocab=VOCAB, target_vocab=VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain).add_(0.1 * torch.randn_like(parameter))
        model.source_embedding.table.weight[PAD] = 0
        model.target_embedding.table.weight[PAD] = 0
    return model.double().eval()


def random_sources(seed: int, n: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, VOCAB) for _ in range(draw.randint(1, 9))] + [EOS] for _ in range(n)]


def padded(sources: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, sources))
    return torch.tensor([ids + [PAD] * (width - len(ids)) for ids in sources]), torch.tensor([*map(len, sources)])


def anew(model: Transformer, sources: list[list[int]]) -> Logits:
    """The logits after a prefix, by running the whole model on one sentence that has no padding."""

    @functools.cache
    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        source_BS, lengths_B = padded([sources[sentence]])
        hidden_BTD = model(source_BS, lengths_B, torch.tensor([[BOS, *tokens]]))
        return model.project(hidden_BTD[0, -1]).tolist()

    return logits


SEARCHES = {
    "greedy": SearchOptions(beam_size=1),
    "beam": SearchOptions(beam_size=4, n_best=2, penalty=LengthPenalty(0.6)),
    "constrained beam": SearchOptions(beam_size=3, no_repeat_ngram=2, min_length=5),
    "sampling": SearchOptions(search="sampling", n_best=3, sampling=Sampling(seed=1)),
    "constrained sampling": SearchOptions(
        search="sampling", n_best=3, sampling=Sampling(seed=1), no_repeat_ngram=2, min_length=5
    ),
}


def found_by(
    stepper: Stepper,
    sources: list[list[int]],
    options: SearchOptions,
    *,
    lines: Sequence[int] | None = None,
    prefixes: list[tuple[int, ...]] | None = None,
) -> list[list[Hypothesis]]:
    return search(
        stepper,
        *padded(sources),
        limits=[len(source) + 6 for source in sources],
        symbols=SYMBOLS,
        options=options,
        lines=range(len(sources)) if lines is None else lines,
        prefixes=prefixes,
    )


def wanted(logits: Logits, index: int, source: list[int], options: SearchOptions, prefix: tuple[int, ...] = ()):
    reference = Reference(
        logits,
        index,
        limit=len(source) + 6,
        vocab=VOCAB,
        eos=EOS,
        banned=SYMBOLS.banned,
        beam_size=options.beam_size,
        n_best=options.n_best,
        alpha=options.penalty.alpha,
        min_length=options.min_length,
        no_repeat_ngram=options.no_repeat_ngram,
        prefix=prefix,
        seed=1,
        line=index,
    )
    return reference.samples() if options.search == "sampling" else reference.beam()


def same(found: list[Hypothesis], others: Sequence[Found | Hypothesis]) -> None:
    assert [(h.ids, h.truncated) for h in found] == [(h.ids, h.truncated) for h in others]
    totals = [other.total if isinstance(other, Found) else other.log_probability for other in others]
    assert [h.log_probability for h in found] == pytest.approx(totals, abs=1e-10)


@functools.cache
def recomputed(variant: str) -> Logits:
    """Those of a variant of the model, kept for all searches."""
    return anew(random_model(1, **VARIANTS[variant]), random_sources(2, 6))


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_a_search_over_caches_finds_what_full_recomputation_finds(variant: str, name: str) -> None:
    model, sources = random_model(1, **VARIANTS[variant]), random_sources(2, 6)
    lengths = set()
    for index, hypotheses in enumerate(found_by(Prepared(model), sources, SEARCHES[name])):
        same(hypotheses, wanted(recomputed(variant), index, sources[index], SEARCHES[name]))
        lengths.add(len(hypotheses[0].ids))
    assert len(lengths) > 1, "a test in which all sentences end together would not see rows that leave the batch"


@pytest.mark.parametrize("name", SEARCHES)
@torch.inference_mode()
def test_prefixes_go_through_the_caches_like_what_is_found(name: str) -> None:
    model, sources = random_model(1), random_sources(2, 6)
    prefixes = [(), (7,), (8, 8, 8), (9, 10, 11, 12, 13), (), (5, 4)]
    found = found_by(Prepared(model), sources, SEARCHES[name], prefixes=prefixes)
    for index, hypotheses in enumerate(found):
        same(hypotheses, wanted(anew(model, sources), index, sources[index], SEARCHES[name], prefixes[index]))


@pytest.fixture(scope="module")
def several() -> tuple[list[Transformer], list[list[int]], Logits]:
    """Models, sentences, and what the mean of the models says of these anew; searches ask for much of it twice."""
    models = [random_model(1), random_model(2, positions="rotary", n_heads=1), random_model(3, n_layers=1)]
    sources = random_sources(2, 6)
    return models, sources, mean_of([anew(model, sources) for model in models])


@pytest.mark.parametrize("name", SEARCHES)
@torch.inference_mode()
def test_an_ensemble_of_transformers_searches_the_mean_of_their_probabilities(
    name: str, several: tuple[list[Transformer], list[list[int]], Logits]
) -> None:
    models, sources, mean = several
    for index, hypotheses in enumerate(found_by(Ensemble([*map(Prepared, models)]), sources, SEARCHES[name])):
        same(hypotheses, wanted(mean, index, sources[index], SEARCHES[name]))


@pytest.mark.parametrize("name", SEARCHES)
@torch.inference_mode()
def test_partners_order_and_batch_size_do_not_change_a_translation(name: str) -> None:
    model, sources = Prepared(random_model(5)), random_sources(6, 12)
    alone = [found_by(model, [source], SEARCHES[name], lines=[i])[0] for i, source in enumerate(sources)]
    order = list(range(12))
    for size in (2, 5, 12):
        random.Random(size).shuffle(order)
        for start in range(0, 12, size):
            batch = order[start : start + size]
            for index, hypotheses in zip(
                batch, found_by(model, [sources[i] for i in batch], SEARCHES[name], lines=batch), strict=True
            ):
                same(hypotheses, alone[index])


@pytest.mark.parametrize("name", SEARCHES)
@torch.inference_mode()
def test_in_fp32_partners_order_and_batch_size_change_nothing_but_ties(name: str) -> None:
    """Where a rounding error decides between two hypotheses, they are equally good within 1e-4."""
    model = Prepared(random_model(7, gain=1.3, d_model=32, n_heads=4, d_ff=64).float())
    sources, options = random_sources(8, 16), SEARCHES[name]
    alone = [found_by(model, [source], options, lines=[i])[0][0] for i, source in enumerate(sources)]
    assert len({hypothesis.length for hypothesis in alone}) > 5
    ties = []
    for size in (2, 7, 16):
        order = random.Random(size).sample(range(16), 16)
        for start in range(0, 16, size):
            batch = order[start : start + size]
            found = found_by(model, [sources[i] for i in batch], options, lines=batch)
            for index, (best, *_) in zip(batch, found, strict=True):
                assert best.score(options.penalty) == pytest.approx(alone[index].score(options.penalty), abs=1e-4)
                ties += [index] * (best.ids != alone[index].ids)
    assert len(ties) <= 1
