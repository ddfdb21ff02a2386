"""Heads made by hand get their names and numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import synthetic_maps

from transformer_cli.attention_maps.heads import describe

MAPS = synthetic_maps(6, 6, layers=(1, 1), heads=1)
N_SOURCE, N_TARGET = 7, 7


def described(kind, weights):
    """The only head of a kind, with these weights [query][key], each row scaled to 1."""
    weights = np.array(weights, dtype=np.float64)
    if kind == "decoder":
        weights = np.tril(weights)
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)[None]
    blocks = tuple(replace(b, weights_HQK=weights) if b.kind == kind else b for b in MAPS.blocks)
    [head] = [head for head in describe(replace(MAPS, blocks=blocks)) if head.kind == kind]
    return head


def shifted(offset, n=N_SOURCE):
    """Nearly all weight at one offset; where there is no such key, on the query's own."""
    matrix = np.full((n, n), 1e-3)
    for q in range(n):
        matrix[q, q + offset if 0 <= q + offset < n else q] = 1
    return matrix


@pytest.mark.parametrize(("offset", "tag"), [(-1, "previous"), (0, "self"), (1, "next")])
def test_a_head_that_looks_at_one_offset_is_named_for_it(offset, tag):
    assert described("encoder", shifted(offset)).tags == (tag,)


def test_the_first_decoder_row_is_no_evidence():
    assert described("decoder", shifted(-1)).previous == 1.0


def test_a_head_on_the_end_mark_is_a_sink_without_entropy_or_confidence():
    matrix = np.zeros((N_TARGET, N_SOURCE))
    matrix[:, -1] = 1
    head = described("cross", matrix)
    assert head.tags == ("sink",)
    assert (head.entropy, head.confidence, head.marks) == (0, 0, 1)


def test_a_head_that_sees_nothing_but_marks_is_no_sink():
    """Of an empty translation every decoder head was called one, without having had a choice."""
    assert [head.tags for head in describe(synthetic_maps(3, 0)) if head.kind == "decoder"] == [()] * 4


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_equal_weights_are_diffuse_with_all_the_entropy(kind):
    head = described(kind, np.ones((7, 7)))
    assert "diffuse" in head.tags
    assert head.entropy == pytest.approx(1)


def test_a_cross_head_in_one_to_one_agreement_is_the_aligner():
    head = described("cross", shifted(0))
    assert (head.tags, head.one_to_one) == (("aligner",), 1.0)


@pytest.mark.parametrize("n_target", [1, 2])
def test_two_pieces_are_too_few_to_call_a_head_the_aligner(n_target):
    """Of a translation of one word from one word, every head of the cross-attention was one."""
    heads = [head for head in describe(synthetic_maps(1, n_target)) if head.kind == "cross"]
    assert [head.one_to_one for head in heads] == [1 / n_target] * 4
    assert {tag for head in heads for tag in head.tags} <= {"sink", "diffuse"}


def test_distance_is_the_mean_over_the_weights():
    assert described("encoder", np.eye(N_SOURCE)).distance == 0
    matrix = np.zeros((N_SOURCE, N_SOURCE))
    matrix[:, 0] = 1
    assert described("encoder", matrix).distance == pytest.approx(np.arange(N_SOURCE).mean())


def test_rows_of_padding_change_nothing():
    plain, padded = synthetic_maps(4, 3), synthetic_maps(4, 3, n_padding=2)
    blocks = []
    for short, long in zip(plain.blocks, padded.blocks, strict=True):
        weights = long.weights_HQK.copy()
        _, queries, keys = short.weights_HQK.shape
        weights[:, :queries] = 0
        weights[:, :queries, :keys] = short.weights_HQK
        blocks.append(replace(long, weights_HQK=weights))
    assert describe(replace(padded, blocks=tuple(blocks))) == describe(plain)
