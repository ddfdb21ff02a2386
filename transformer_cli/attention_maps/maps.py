"""All attention weights of one translation, with what their rows and columns stand for; numpy only.

H heads, Q queries (rows), K keys (columns)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from transformer_cli.errors import ModelError
from transformer_cli.wording import counted

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
ROW_SUM_TOLERANCE = 1e-5
ARROW = " → "


@dataclass(frozen=True)
class Side:
    """One side of a translation, cut into pieces; `▁` in a piece is a space, marks and padding are pieces, too.

    The source's pieces are what the encoder reads: the text, `</s>` if the model learned with it, then padding. The
    target's are `<s>`, the text, `</s>`: all but the last are the decoder's inputs, all but the first what it had to
    write. words: for each piece, the number of its word; marks and padding are words of their own. n_padding: how many
    pieces at the end are padding. language: the id of the mark before the text, if the model wants one.
    """

    text: str
    pieces: tuple[str, ...]
    ids: tuple[int, ...]
    words: tuple[int, ...]
    n_padding: int = 0
    language: int | None = None

    @property
    def marks(self) -> tuple[bool, ...]:
        """For each piece, whether it is a mark or padding, not text."""
        marks = {*_MARKS, self.language}
        return tuple(id in marks for id in self.ids)

    @property
    def unknown(self) -> tuple[int, ...]:
        """The places of pieces that the vocabulary does not have."""
        return tuple(place for place, id in enumerate(self.ids) if id == _UNK)


@dataclass(frozen=True)
class Step:
    """What the model expected at one target position.

    best: the likeliest next pieces with their probabilities, best first. probability: of the piece that came.
    """

    best: tuple[tuple[str, float], ...]
    probability: float


@dataclass(frozen=True)
class Block:
    """The weights of one layer's heads; rows are queries, columns keys, and each row sums to 1.

    layer, heads: their numbers in the model, from 1; a selection has not all of them. module: its name there.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    weights_HQK: NDArray[np.float32]
    module: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.layer}"


@dataclass(frozen=True)
class AttentionMaps:
    """All attention of one translation.

    model: what to call it. blocks: encoder 1, 2, ..., decoder 1, 2, ..., cross 1, 2, ... steps: one per target
    position. origin: "forced" for a given target, else how it was found: "beam 5", "greedy". score: the search's own.
    Raises ModelError where the parts contradict each other, or for weights that cannot be attention.
    """

    model: str
    source: Side
    target: Side
    blocks: tuple[Block, ...]
    steps: tuple[Step, ...]
    origin: str
    score: float | None = None

    def __post_init__(self) -> None:
        for name, side in (("source", self.source), ("target", self.target)):
            _check_side(name, side)
        if self.target.n_padding:
            raise ModelError("the target has padding: no target position could see it")
        if (self.target.ids[0], self.target.ids[-1]) != (_BOS, _EOS):
            raise ModelError("the target does not begin with <s> and end with </s>")
        if len(self.steps) != self.shape("cross")[0]:
            raise ModelError(f"{counted(len(self.steps), 'steps')} for {self.shape('cross')[0]} target positions")
        for number, step in enumerate(self.steps, start=1):
            chances = [chance for _, chance in step.best]
            if not chances or chances != sorted(chances, reverse=True) or not _are_chances(*chances, step.probability):
                raise ModelError(f"step {number}: expected the likeliest pieces, best first, with their probabilities")
        if not self.blocks:
            raise ModelError("there are no blocks, so no attention")
        order = [(KINDS.index(block.kind), block.layer) for block in self.blocks]
        if order != sorted(set(order)):
            raise ModelError("the blocks are not in order: encoder, decoder, cross, each by its layers")
        for block in self.blocks:
            _check_weights(block, self.shape(block.kind), self.visible(block.kind))

    def _repr_html_(self) -> str:
        """The interactive page, for notebooks: in a frame of its own, which can reach nothing else."""
        import html

        from transformer_cli.attention_maps.page import page

        style = "width: 100%; height: 640px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page(self))}"></iframe>'

    def of(self, kind: Kind) -> tuple[Block, ...]:
        """The blocks of one kind, by layer."""
        return tuple(block for block in self.blocks if block.kind == kind)

    def shape(self, kind: Kind) -> tuple[int, int]:
        """(Q, K)."""
        n_source, n_target = len(self.source.pieces), len(self.target.pieces) - 1
        return {"encoder": (n_source, n_source), "decoder": (n_target, n_target), "cross": (n_target, n_source)}[kind]

    def visible(self, kind: Kind) -> NDArray[np.bool_]:
        """(Q, K): whether a query may attend to a key; not the future, not padding."""
        n_queries, n_keys = self.shape(kind)
        allowed = np.ones((n_queries, n_keys), dtype=bool)
        if kind == "decoder":
            return np.tril(allowed)
        allowed[:, n_keys - self.source.n_padding :] = False
        return allowed

    def rows(self, kind: Kind) -> tuple[str, ...]:
        """What each query is: a source piece, or the decoder's `input → output`."""
        if kind == "encoder":
            return self.source.pieces
        return tuple(map(ARROW.join, zip(self.target.pieces, self.target.pieces[1:], strict=False)))

    def columns(self, kind: Kind) -> tuple[str, ...]:
        """What each key is: a source piece, or a piece that the decoder read."""
        return self.target.pieces[:-1] if kind == "decoder" else self.source.pieces


_PAD, _UNK, _BOS, _EOS = range(4)  # as in tokenizer, whose import would bring SentencePiece
_MARKS = {_PAD, _BOS, _EOS}
"""Padding, `<s>`, `</s>`."""


def words_of(pieces: tuple[str, ...], ids: tuple[int, ...], language: int | None = None) -> tuple[int, ...]:
    """For each piece, the number of its word: `▁` opens one, of several the first, and ends one that it comes behind; a
    mark or padding is one.

    At the end, `▁` without text belongs to the word before.
    """
    marks = {*_MARKS, language}
    words: list[int] = []
    word, is_open, has_text = -1, False, True
    text = [i for i, (piece, id) in enumerate(zip(pieces, ids, strict=True)) if id not in marks and piece.strip("▁")]
    last = text[-1] if text else len(pieces)
    for place, (piece, id) in enumerate(zip(pieces, ids, strict=True)):
        is_mark = id in marks
        ended = place > 0 and pieces[place - 1].strip("▁") and pieces[place - 1].endswith("▁")
        opens = (piece.startswith("▁") or ended) and has_text and place <= last
        if is_mark or not is_open or opens:
            word, has_text = word + 1, False
        is_open, has_text = not is_mark, has_text or bool(piece.strip("▁"))
        words.append(word)
    return tuple(words)


def _check_side(name: str, side: Side) -> None:
    n = len(side.pieces)
    if not (len(side.ids) == len(side.words) == n) or not 0 <= side.n_padding < n:
        raise ModelError(
            f"the {name} has {counted(n, 'pieces')}, {len(side.ids)} ids, {len(side.words)} word numbers and "
            f"{counted(side.n_padding, 'pieces')} of padding: they don't belong together"
        )
    if min(side.ids) < 0 or not all(side.pieces):
        raise ModelError(f"the {name} has a negative id or an empty piece")
    if [id == _PAD for id in side.ids] != [place >= n - side.n_padding for place in range(n)]:
        raise ModelError(f"the {name} has {counted(side.n_padding, 'pieces')} of padding, but its ids say otherwise")
    if side.words[0] != 0 or any(b - a not in (0, 1) for a, b in zip(side.words, side.words[1:], strict=False)):
        raise ModelError(f"the {name}'s word numbers do not count 0, 1, 2, ...")


def _are_chances(*values: float) -> bool:
    """A sum of many roundings may exceed 1 a little."""
    return all(0 <= value <= 1 + ROW_SUM_TOLERANCE for value in values)


def _check_weights(block: Block, shape: tuple[int, int], visible_QK: NDArray[np.bool_]) -> None:
    weights_HQK, name = block.weights_HQK, block.name
    if not block.heads or block.heads[0] < 1 or list(block.heads) != sorted(set(block.heads)):
        raise ModelError(f"{name}: the numbers of the heads do not rise from 1: {', '.join(map(str, block.heads))}")
    shape_HQK = (len(block.heads), *shape)
    if weights_HQK.shape != shape_HQK or weights_HQK.dtype != np.float32:
        raise ModelError(
            f"{name}: expected float32 weights of shape {shape_HQK}, found {weights_HQK.dtype} {weights_HQK.shape}"
        )
    if not np.isfinite(weights_HQK).all():
        head, query, _ = np.argwhere(~np.isfinite(weights_HQK))[0]
        raise ModelError(
            f"{name}, head {block.heads[head]}, row {query + 1}: the weights are not finite numbers",
            hint="the model has diverged: try another checkpoint",
        )
    if (weights_HQK < 0).any() or weights_HQK[:, ~visible_QK].any():
        raise ModelError(f"{name}: weights that are negative, or not 0 where a key is hidden")
    error_HQ = np.abs(weights_HQK.sum(axis=-1, dtype=np.float64) - 1)
    if error_HQ.max(initial=0) > ROW_SUM_TOLERANCE:
        head, query = np.unravel_index(error_HQ.argmax(), error_HQ.shape)
        total = weights_HQK[head, query].sum(dtype=np.float64)
        raise ModelError(f"{name}, head {block.heads[head]}, row {query + 1}: the weights sum to {total:.6f}, not to 1")
