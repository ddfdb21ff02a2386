"""Attention maps made of random numbers, for whatever draws or writes them."""

from __future__ import annotations

import numpy as np

from transformer_cli.attention_maps.maps import AttentionMaps, Block, Kind, Side, Step, words_of

BOS, EOS, UNK, PAD = ("<s>", 2), ("</s>", 3), ("<unk>", 1), ("<pad>", 0)


def side(pieces: list[tuple[str, int]], *, n_padding: int = 0) -> Side:
    names, ids = zip(*pieces, *[PAD] * n_padding, strict=True)
    text = "".join(name for name, id in pieces if id not in (0, 2, 3)).replace("▁", " ").strip()
    return Side(text, names, ids, words_of(names, ids), n_padding)


def synthetic_maps(
    source: list[str] | int = 5,
    target: list[str] | int = 4,
    *,
    layers: tuple[int, int] = (2, 2),
    heads: int = 2,
    n_padding: int = 0,
    seed: int = 0,
) -> AttentionMaps:
    """source, target: pieces of text without marks, or how many. layers: encoder's, decoder's."""
    random = np.random.default_rng(seed)
    both = [[f"▁w{i}" for i in range(n)] if isinstance(n, int) else n for n in (source, target)]
    texts = [[(piece, 4 + i) for i, piece in enumerate(pieces)] for pieces in both]
    left, right = side([*texts[0], EOS], n_padding=n_padding), side([BOS, *texts[1], EOS])
    n_source, n_target = len(left.pieces), len(right.pieces) - 1

    def block(kind: Kind, layer: int) -> Block:
        queries, keys = {
            "encoder": (n_source, n_source),
            "decoder": (n_target, n_target),
            "cross": (n_target, n_source),
        }[kind]
        weights = np.exp(2 * random.standard_normal((heads, queries, keys)))
        weights *= np.tri(queries) if kind == "decoder" else np.arange(keys) < n_source - n_padding
        weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
        return Block(kind, layer, tuple(range(1, heads + 1)), weights, f"{kind}.layers.{layer - 1}")

    counts = {"encoder": layers[0], "decoder": layers[1], "cross": layers[1]}
    return AttentionMaps(
        model="synthetic",
        source=left,
        target=right,
        blocks=tuple(block(kind, layer) for kind, n in counts.items() for layer in range(1, n + 1)),
        steps=tuple(
            Step(((output, 0.5), ("▁b", 0.2), ("▁c", 0.1), ("▁d", 0.05), ("▁e", 0.02)), 0.5)
            for output in right.pieces[1:]
        ),
        origin="beam 5",
        score=-0.25,
    )
