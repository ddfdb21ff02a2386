"""What a head does, in numbers and names.

H heads, Q queries (rows), K keys (columns)

Source: Voita et al. 2019 (confidence, positional heads). Rows of padding count nowhere; keys that are text are neither
marks nor padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_cli.attention_maps.maps import AttentionMaps, Block, Kind
from transformer_cli.attention_maps.views import axes

POSITIONAL = 0.9
"""Share of rows whose greatest weight lies at one offset: `previous`, `self`, `next`."""
SINK = 0.6
"""Share of the weight on marks: `sink`."""
DIFFUSE = 0.9
"""Normalised entropy: `diffuse`."""
ALIGNER = 0.5
"""Share of target pieces in one-to-one agreement with a source piece; the best cross head from here on: `aligner`."""
FEWEST_ROWS = 3
"""With fewer rows than that, no offset is a habit, and no agreement."""
TAGS = {
    "previous": "looks at the piece before",
    "self": "looks at its own piece",
    "next": "looks at the piece after",
    "sink": "most weight on marks, which is how a head does nothing",
    "diffuse": "looks everywhere alike",
    "aligner": "of all cross-attention, most pieces in one-to-one agreement",
}
"""What the tags mean."""


@dataclass(frozen=True)
class Head:
    """One head on one sentence.

    entropy: 0 where one key has all the weight, 1 where all have the same; mean over rows that see several. confidence:
    mean over rows of the greatest weight on text. distance: mean |query - key| by weight, of self-attention. marks:
    share of the weight on marks, where text is visible, too. previous, itself, next: share of rows whose greatest
    weight is at that offset, of self-attention. one_to_one: share of a cross head's rows of text whose likeliest text
    has that row as its own likeliest.
    """

    kind: Kind
    layer: int
    head: int
    entropy: float
    confidence: float
    marks: float
    distance: float | None
    previous: float | None
    itself: float | None
    next: float | None
    one_to_one: float | None
    tags: tuple[str, ...]


def describe(maps: AttentionMaps) -> tuple[Head, ...]:
    """All heads, in the order of the blocks."""
    best = max((_one_to_one(maps, weights) for block in maps.of("cross") for weights in block.weights_HQK), default=1.0)
    return tuple(
        _head(maps, block, head, weights_QK, max(best, ALIGNER))
        for block in maps.blocks
        for head, weights_QK in zip(block.heads, block.weights_HQK, strict=True)
    )


def _head(maps: AttentionMaps, block: Block, head: int, whole_QK: NDArray[np.float32], best: float) -> Head:
    queries, keys = axes(maps, block.kind)
    n_real = len(queries.pieces) - queries.n_padding
    weights_QK, visible_QK = whole_QK[:n_real].astype(np.float64), maps.visible(block.kind)[:n_real]
    text_K = ~np.array(keys.marks)
    sees_text_Q = (visible_QK & text_K).any(axis=1)
    has_choice_Q = visible_QK.sum(axis=1) > 1
    entropy = float(_entropy(weights_QK, visible_QK)[has_choice_Q].mean()) if has_choice_Q.any() else 0.0
    confidence = float(weights_QK[sees_text_Q][:, text_K].max(axis=1, initial=0).mean()) if sees_text_Q.any() else 0.0
    marks = float(weights_QK[sees_text_Q][:, ~text_K].sum(axis=1).mean()) if sees_text_Q.any() else 1.0
    distance = previous = itself = after = one_to_one = None
    if block.kind == "cross":
        one_to_one = _one_to_one(maps, weights_QK)
    else:
        offsets_QK = np.subtract.outer(np.arange(n_real), np.arange(len(keys.pieces)))
        distance = float((weights_QK * np.abs(offsets_QK)).sum(axis=1).mean())
        previous, itself, after = (_share_at(weights_QK, visible_QK, offset) for offset in (-1, 0, 1))
    holds = {
        "previous": (previous or 0) >= POSITIONAL,
        "self": (itself or 0) >= POSITIONAL,
        "next": (after or 0) >= POSITIONAL,
        "sink": marks >= SINK and bool(sees_text_Q.any()),
        "diffuse": entropy >= DIFFUSE,
        "aligner": one_to_one is not None and one_to_one >= best and maps.target.marks.count(False) >= FEWEST_ROWS,
    }
    return Head(
        kind=block.kind,
        layer=block.layer,
        head=head,
        entropy=entropy,
        confidence=confidence,
        marks=marks,
        distance=distance,
        previous=previous,
        itself=itself,
        next=after,
        one_to_one=one_to_one,
        tags=tuple(tag for tag in TAGS if holds[tag]),
    )


def _entropy(weights_QK: NDArray[np.float64], visible_QK: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Per row, from 0 to 1."""
    logs_QK = np.log(weights_QK, out=np.zeros_like(weights_QK), where=weights_QK > 0)
    most_Q = np.log(np.maximum(visible_QK.sum(axis=1), 2))
    found: NDArray[np.float64] = np.clip(-(weights_QK * logs_QK).sum(axis=1) / most_Q, 0, 1)
    return found


def _share_at(weights_QK: NDArray[np.float64], visible_QK: NDArray[np.bool_], offset: int) -> float:
    """Of the rows that see a key there and another one, the share whose greatest weight it has."""
    rows = [
        q
        for q in range(len(weights_QK))
        if 0 <= q + offset < visible_QK.shape[1] and visible_QK[q, q + offset] and visible_QK[q].sum() > 1
    ]
    if len(rows) < FEWEST_ROWS:
        return 0.0
    return float(np.mean([weights_QK[q].argmax() == q + offset for q in rows]))


def _one_to_one(maps: AttentionMaps, weights_QK: NDArray[np.floating]) -> float:
    """Rows are read as the piece that comes out, as in alignment.py."""
    writes_text_Q, is_text_K = ~np.array(maps.target.marks[1:]), ~np.array(maps.source.marks)
    text_QK = weights_QK[np.ix_(writes_text_Q, is_text_K)]
    if not text_QK.size:
        return 0.0
    mutual = text_QK.argmax(axis=0)[text_QK.argmax(axis=1)] == np.arange(len(text_QK))
    return float(mutual.mean())
