"""One interactive page of attention maps: a single file, whose parts lie in page/, one for each concept.

H heads, Q queries (rows), K keys (columns)
"""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_cli.attention_maps.alignment import best_block
from transformer_cli.attention_maps.heads import Head, describe
from transformer_cli.attention_maps.maps import ARROW, AttentionMaps, Block, Side
from transformer_cli.attention_maps.views import label, view, word_texts
from transformer_cli.page import Page, data

PAGE = Page(
    Path(__file__).with_name("page"),
    (
        *("tokens", "matrices", "colour", "heatmap", "state", "telling", "controls", "sentence"),
        *("sentences", "matrix", "grid", "lines", "steps", "heads", "numbers", "main"),
    ),
)
UNIT = 65535
"""The whole number that stands for a weight of 1."""
STRONGEST = 3
"""Source pieces named per target position for browsers without JavaScript."""


def page(maps: AttentionMaps, *, words: bool = False, among: AttentionMaps | None = None) -> str:
    """The whole file; the same maps give the same text. words: it opens with pieces joined to words. among: all maps,
    where these are some of them: a head is the best of all, or is not."""
    return PAGE.filled(
        title=html.escape(label(maps.model, width=80)),
        without_script=_without_script(maps),
        maps=_data(maps, "words" if words else "pieces", among or maps),
    )


def quantised(weights: NDArray[np.float32]) -> bytes:
    """Weights from 0 to 1 as little-endian 16-bit integers; off by half of 1/65535 at most."""
    return np.rint(weights.astype(np.float64) * UNIT).clip(0, UNIT).astype("<u2").tobytes()


def _data(maps: AttentionMaps, unit: str, among: AttentionMaps) -> str:
    shown = {(block.kind, block.layer, head) for block in maps.blocks for head in block.heads}
    return data(
        {
            "model": maps.model,
            "unit": unit,
            "layer": first.layer if (first := best_block(maps)) else 0,
            "origin": maps.origin,
            "score": maps.score,
            "source": _side(maps.source),
            "target": _side(maps.target),
            "steps": [{"best": step.best, "probability": step.probability} for step in maps.steps],
            "heads": [_head(head) for head in describe(among) if (head.kind, head.layer, head.head) in shown],
            "blocks": [_block(block) for block in maps.blocks],
        }
    )


def _side(side: Side) -> dict[str, Any]:
    return {
        "pieces": side.pieces,
        "ids": side.ids,
        "words": side.words,
        "word_texts": word_texts(side),
        "marks": [int(mark) for mark in side.marks],
        "unknown": side.unknown,
        "padding": side.n_padding,
    }


def _head(head: Head) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in vars(head).items()}


def _block(block: Block) -> dict[str, Any]:
    weights = base64.b64encode(quantised(block.weights_HQK)).decode("ascii")
    return {"kind": block.kind, "layer": block.layer, "heads": block.heads, "weights": weights}


def _without_script(maps: AttentionMaps) -> str:
    """For each step of the translation, where the cross-attention that is shown first goes, averaged over its heads."""
    if (first := best_block(maps)) is None:
        return ""
    shown = view(maps, first)
    rows = []
    for row, weights_K in zip(shown.rows, shown.mean_QK, strict=True):
        best = np.argsort(-weights_K, kind="stable")[:STRONGEST]
        seen = ", ".join(f"{shown.columns[key]} {weights_K[key]:.2f}" for key in best)
        rows.append(f"<tr><th scope=row>{html.escape(ARROW.join(row))}</th><td>{html.escape(seen)}</td></tr>")
    return "\n".join(rows)
