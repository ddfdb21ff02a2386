"""One model, however its settings are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer_cli.config.model import POSITIONS, ModelConfig
from transformer_cli.model.build import build_model

WIDTHS = {"d_model": 8, "n_heads": 4, "d_ff": 8}
SIDES = ("encoder", "decoder")


def choices(name: str) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(ModelConfig.model_fields[name].annotation))


def alike(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One for both stacks, or one for each."""
    return values | st.fixed_dictionaries(dict.fromkeys(SIDES, values))


PARTS = st.fixed_dictionaries({}, optional=dict.fromkeys(("attention", "feed_forward", "norm"), st.booleans()))
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "n_layers": alike(st.integers(1, 2)),
    "positions": alike(st.sampled_from([*POSITIONS.own])),
    "max_positions": alike(st.sampled_from([4, 8, 1024])),
    "bias": st.booleans() | PARTS,
    "n_kv_heads": st.sampled_from([None, 2, 4]),
    "d_head": st.sampled_from([None, 2, 4]),
    "final_norm": st.sampled_from([None, True, False]),
    **{name: choices(name) for name in ("norm", "norm_position", "activation", "tied")},
    **{name: st.booleans() for name in ("qk_norm", "output_bias", "embedding_scale")},
}
SHAPES = st.fixed_dictionaries(DRAWN)


def otherwise(shape: dict[str, Any]) -> dict[str, Any]:
    """Each of its settings as somebody else would write it."""
    config = ModelConfig(**WIDTHS, **shape)
    written = {
        "n_layers": dict(config.depths),
        "positions": {side: config.positions_of(side) for side in config.sides},
        "max_positions": {side: config.max_positions_of(side) for side in config.sides},
        "bias": dict(config.biases),
    }
    for name, sides in written.items():
        [value, *others] = {*sides.values()}
        if isinstance(shape[name], dict) and not others and value is not False:  # `bias: false` leaves norms theirs
            written[name] = value
    written |= {"n_kv_heads": config.kv_heads, "d_head": config.head_width, "final_norm": config.ends_in_norm}
    derived = {"n_kv_heads": 4, "d_head": 2, "final_norm": config.norm_position == "pre"}
    return shape | written | {name: None for name, value in derived.items() if shape[name] == value}


def built(config: ModelConfig) -> list[Any]:
    """What it is built of: every module with its numbers, every parameter with its shape, and which of them are one."""
    model = build_model(config, source_vocab=5, target_vocab=5, device="meta")
    places: dict[int, str] = {}
    parameters = [
        (name, tuple(one.shape), one.requires_grad, places.setdefault(id(one), name))
        for name, one in model.named_parameters(remove_duplicate=False)
    ]
    return [parameters, [(name, *_facts(module)) for name, module in model.named_modules()]]


def _facts(module: nn.Module) -> Iterator[Any]:
    yield type(module)
    for name, value in sorted(vars(module).items()):
        if callable(value) or isinstance(value, int | float | str):
            yield name, getattr(value, "__qualname__", value)


@given(shape=SHAPES)
def test_two_spellings_of_one_model_are_one_in_the_end(shape: dict[str, Any]) -> None:
    """Those of `tx train` and `tx import`, `n_layers: 2` and `{encoder: 2, decoder: 2}`, were two kinds."""
    one, other = ModelConfig(**WIDTHS, **shape), ModelConfig(**WIDTHS, **otherwise(shape))
    assert one.settled == other.settled
    assert built(one) == built(other) == built(one.settled)
    assert one.settled.settled == one.settled
    assert ModelConfig.model_validate(one.settled.model_dump()).settled == one.settled


@given(one=SHAPES, other=SHAPES, changed=st.sampled_from([*DRAWN]))
def test_models_are_one_in_the_end_exactly_where_the_same_is_built(
    one: dict[str, Any], other: dict[str, Any], changed: str
) -> None:
    """Of two that differ in one setting, so that many are the same."""
    first = ModelConfig(**WIDTHS, **one)
    second = ModelConfig(**WIDTHS, **(one | {changed: other[changed]}))
    assert (first.settled == second.settled) == (built(first) == built(second))
