"""Searching a real Transformer with its caches, against computing everything anew for every token."""

from __future__ import annotations

import random

import pytest
import torch
from tables import slow_beam_search

from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.search import Hypothesis, Symbols
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import BOS, EOS, PAD, UNK

SYMBOLS = Symbols(bos=BOS, eos=EOS, banned=(PAD, UNK, BOS))
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


def random_model(seed: int, vocab: int = 24, **options: object) -> Transformer:
    """In fp64, with embeddings large enough that the translations differ and end at different lengths."""
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2}
    torch.manual_seed(seed)
    model = build_model(ModelConfig.model_validate(shape | options), source_vocab=vocab, target_vocab=vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7).add_(0.1 * torch.randn_like(parameter))
        model.source_embedding.table.weight[PAD] = 0
        model.target_embedding.table.weight[PAD] = 0
    return model.double().eval()


def random_sources(seed: int, n: int, vocab: int = 24) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, vocab) for _ in range(draw.randint(1, 9))] + [EOS] for _ in range(n)]


def padded(sources: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, sources))
    return torch.tensor([ids + [PAD] * (width - len(ids)) for ids in sources]), torch.tensor([*map(len, sources)])


def anew(model: Transformer, sources: list[list[int]]):
    """The logits after a prefix, by running the whole model on one sentence that has no padding."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        source_BS, lengths_B = padded([sources[sentence]])
        hidden_BTD = model(source_BS, lengths_B, torch.tensor([[BOS, *tokens]]))
        return model.project(hidden_BTD[0, -1]).tolist()

    return logits


def same(one: Hypothesis, other: Hypothesis) -> None:
    assert (one.ids, one.truncated) == (other.ids, other.truncated)
    assert one.log_probability == pytest.approx(other.log_probability, abs=1e-10)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_a_beam_over_caches_finds_what_full_recomputation_finds(options: dict, fused: bool) -> None:
    model, sources = random_model(1, **options), random_sources(2, 8)
    model.use_attention(fused=fused)
    limits = [len(source) + 6 for source in sources]
    found = beam_search(
        model, *padded(sources), limits=limits, symbols=SYMBOLS, beam_size=4, length_penalty=0.6, n_best=2
    )
    lengths = set()
    for index, hypotheses in enumerate(found):
        slow = slow_beam_search(
            anew(model, sources), index, limit=limits[index], beam_size=4, alpha=0.6, symbols=SYMBOLS
        )
        for one, other in zip(hypotheses, slow, strict=False):
            same(one, other)
        lengths.add(len(hypotheses[0].ids))
    assert len(lengths) > 1, "a test in which all sentences end together would not see rows that leave the batch"


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_greedy_over_caches_finds_what_full_recomputation_finds(options: dict) -> None:
    model, sources = random_model(3, **options), random_sources(4, 10)
    limits = [len(source) + 6 for source in sources]
    found = greedy_search(model, *padded(sources), limits=limits, symbols=SYMBOLS)
    for index, one in enumerate(found):
        [slow] = slow_beam_search(
            anew(model, sources), index, limit=limits[index], beam_size=1, alpha=1.0, symbols=SYMBOLS
        )
        same(one, slow)


@pytest.mark.parametrize("beam_size", [1, 3])
@torch.inference_mode()
def test_partners_and_padding_do_not_change_a_translation(beam_size: int) -> None:
    model, sources = random_model(5), random_sources(6, 24)

    def search(batch: list[list[int]]) -> list[Hypothesis]:
        found = beam_search(
            model,
            *padded(batch),
            limits=[2 * len(source) for source in batch],
            symbols=SYMBOLS,
            beam_size=beam_size,
            length_penalty=1.0,
        )
        return [hypothesis for [hypothesis] in found]

    alone = [search([source])[0] for source in sources]
    order = list(range(24))
    for size in (2, 7, 24):
        random.Random(size).shuffle(order)
        for start in range(0, 24, size):
            batch = order[start : start + size]
            for index, found in zip(batch, search([sources[i] for i in batch]), strict=True):
                same(found, alone[index])
