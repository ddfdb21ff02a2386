"""One token's journey, against the shapes that the built model really makes."""

from __future__ import annotations

import random

import pytest
import torch

from transformer_cli.accounting.halves import build_counted
from transformer_cli.accounting.shapes import Stage, journeys
from transformer_cli.config.accounting import CountedModel
from transformer_cli.model.layout import Rows
from transformer_cli.model.transformer import Transformer

GPT3 = CountedModel(
    architecture="decoder-only",
    d_model=12288,
    n_heads=96,
    d_ff=49152,
    n_layers=96,
    activation="gelu",
    positions="learned",
    max_positions=2048,
)


def shapes(stages: list[Stage]) -> list[tuple[str, tuple[int, ...]]]:
    return [(stage.name, stage.shape) for stage in stages]


def test_the_lectures_journey_through_gpt_3():
    """id -> 12,288 -> (96 heads of 128 -> 12,288 -> 49,152 -> 12,288) 96 times -> 50,257."""
    found = journeys(GPT3, vocabs=(50257, 50257), source_length=0, target_length=2048)
    assert list(found) == ["decoder"]
    assert shapes(found["decoder"]) == [
        ("id", ()),
        ("embedding", (12288,)),
        ("+ position", (12288,)),
        ("norm", (12288,)),
        ("query", (96, 128)),
        ("key", (96, 128)),
        ("value", (96, 128)),
        ("weights", (96, 2048)),
        ("mixture", (96, 128)),
        ("output", (12288,)),
        ("+ what entered", (12288,)),
        ("norm", (12288,)),
        ("up", (49152,)),
        ("down", (12288,)),
        ("+ what entered", (12288,)),
        ("norm", (12288,)),
        ("logits", (50257,)),
        ("probabilities", (50257,)),
    ]
    inside = [stage for stage in found["decoder"] if stage.layers]
    assert {stage.layers for stage in inside} == {96}
    assert (inside[0].name, inside[-1].name) == ("norm", "+ what entered")


def test_the_memory_enters_every_layer_of_the_decoder():
    model = CountedModel.model_validate(
        {"d_model": 8, "n_heads": 2, "d_ff": 24, "n_layers": {"encoder": 3, "decoder": 5}, "norm_position": "post"}
    )
    found = journeys(model, vocabs=(30, 40), source_length=6, target_length=7)
    assert found["encoder"][-1] == Stage("memory", (6, 8), found["encoder"][-1].how)
    cross = {stage.name: stage for stage in found["decoder"] if stage.name.startswith("cross-")}
    assert {name: stage.shape for name, stage in cross.items()} == {
        "cross-query": (2, 4),
        "cross-key": (2, 4),
        "cross-value": (2, 4),
        "cross-weights": (2, 6),
        "cross-mixture": (2, 4),
        "cross-output": (8,),
    }
    assert {stage.layers for stage in cross.values()} == {5}
    assert "memory" in cross["cross-key"].how
    assert "memory" not in cross["cross-query"].how
    names = [stage.name for stage in found["encoder"] if stage.layers]
    assert names[-2:] == ["+ what entered", "norm"], "post-norm: the norm comes last"


def test_scores_are_divided_by_the_root_of_a_heads_width_as_equation_1_has_it():
    found = journeys(CountedModel(d_model=512, n_heads=8), vocabs=(30, 40), source_length=6, target_length=7)
    weights = [stage.how for stages in found.values() for stage in stages if stage.name.endswith("weights")]
    assert weights == ["query times keys / sqrt(64), softmax"] * 3


def test_keys_of_the_memory_are_normalised_not_the_memory():
    model = CountedModel(d_model=8, n_heads=2, n_kv_heads=1, qk_norm=True, positions="rotary")
    [of_itself, of_memory] = [
        stage.how
        for stage in journeys(model, vocabs=(30, 40), source_length=6, target_length=7)["decoder"]
        if stage.name.endswith("key")
    ]
    assert of_itself == "8 x 1 x 4, normalised, turned by the position"
    assert of_memory == "8 x 1 x 4 of the memory, normalised"


def test_an_encoder_alone_ends_in_its_vectors():
    model = CountedModel(architecture="encoder-only", d_model=8, n_heads=2, n_layers=1)
    found = journeys(model, vocabs=(30, 30), source_length=6, target_length=0)
    assert list(found) == ["encoder"]
    assert shapes(found["encoder"])[-1] == ("norm", (8,))


def test_without_a_vocabulary_vectors_come_from_elsewhere():
    found = journeys(CountedModel(), vocabs=(0, 0), source_length=6, target_length=7)
    assert shapes(found["decoder"])[0] == ("vector", (512,))
    assert "logits" not in dict(shapes(found["decoder"]))


@pytest.mark.parametrize("seed", range(12))
def test_the_shapes_are_those_that_the_built_model_makes(seed):
    draw = random.Random(seed)
    n_kv_heads = draw.choice([1, 2, 3])
    n_heads = n_kv_heads * draw.choice([1, 2])
    model = CountedModel(
        d_model=n_heads * 2 * draw.randint(1, 5),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=draw.choice([None, 2, 6]),
        d_ff=draw.randint(70, 90),
        n_layers=1,
        activation=draw.choice(["relu", "swiglu"]),
        positions=draw.choice(["sinusoidal", "learned", "rotary", "none"]),
        norm_position=draw.choice(["pre", "post"]),
    )
    B, S, T, V = 2, 5, 7, 31
    network = build_counted(model, source_vocab=V, target_vocab=V).eval()
    assert isinstance(network, Transformer)
    made: dict[str, tuple[int, ...]] = {}
    layer = network.decoder.layers[0]
    for name, module in {
        "embedding": network.target_embedding,
        "output": layer.self_attention.output,
        "up": layer.feed_forward.up,
        "down": layer.feed_forward.down,
    }.items():
        module.register_forward_hook(lambda _, __, out, name=name: made.update({name: tuple(out.shape[2:])}))
    for name, attention in {"weights": layer.self_attention, "cross-weights": layer.cross_attention}.items():
        attention.attend.softmax.register_forward_hook(
            lambda _, __, out, name=name: made.update({name: (out.shape[1], out.shape[3])})
        )
    hidden = network(torch.ones(B, S, dtype=torch.long), torch.full((B,), S), torch.ones(B, T, dtype=torch.long))
    made["logits"] = tuple(network.project(hidden).shape[2:])
    query, key, value = layer.self_attention.project(hidden, Rows(T))
    made |= {name: (x.size(1), x.size(3)) for name, x in {"query": query, "key": key, "value": value}.items()}
    told = dict(shapes(journeys(model, vocabs=(V, V), source_length=S, target_length=T)["decoder"]))
    assert {name: told[name] for name in made} == made
