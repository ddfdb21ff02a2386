"""`--layers` and `--heads`: what they mean, and what they cannot."""

from __future__ import annotations

import pytest
from synthetic import synthetic_maps

from transformer_cli.attention_maps.selection import selected
from transformer_cli.errors import UsageError

MAPS = synthetic_maps(2, 2, layers=(4, 2), heads=4)


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("2", "encoder 2, decoder 2, cross 2"),
        ("4", "encoder 4"),
        ("last", "encoder 4, decoder 2, cross 2"),
        ("cross:last", "cross 2"),
        ("cross", "cross 1, cross 2"),
        ("encoder:1-3,cross:2", "encoder 1, encoder 2, encoder 3, cross 2"),
        ("decoder:all, encoder:4", "encoder 4, decoder 1, decoder 2"),
        ("3-4,1", "encoder 1, encoder 3, encoder 4, decoder 1, cross 1"),
    ],
)
def test_layers_are_counted_from_one_and_may_be_of_one_kind(layers, names):
    assert ", ".join(block.name for block in selected(MAPS, layers=layers, heads=None).blocks) == names


def test_heads_keep_their_numbers_and_weights():
    block = selected(MAPS, layers="cross:1", heads="4,2").blocks[0]
    assert block.heads == (2, 4)
    whole = MAPS.of("cross")[0].weights_HQK
    assert (block.weights_HQK == whole[[1, 3]]).all()
    assert selected(MAPS, layers=None, heads="mean").blocks == MAPS.blocks
    assert [block.heads for block in selected(MAPS, layers="all", heads="all").blocks] == [(1, 2, 3, 4)] * 8


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        ("5", None, r"no layer 5: this model has encoder 1-4, decoder 1-2, cross 1-2"),
        ("cross:3", None, r"no layer 3: this model has cross 1-2"),
        ("1-9999", None, "no layer"),
        ("0", None, "no layer 0"),
        ("middle", None, "expected numbers such as 2"),
        ("2-1", None, "expected numbers"),
        ("", None, "--layers '': expected numbers"),
        ("self:1", None, "no self here"),
        (None, "5", "no head 5: encoder 1 has 1-4"),
        (None, "one", "--heads one: expected numbers"),
    ],
)
def test_what_is_not_there_or_not_understood_is_refused(layers, heads, message):
    with pytest.raises(UsageError, match=message):
        selected(MAPS, layers=layers, heads=heads)
