"""What is drawn of attention maps: blocks cut to pieces or words, one matrix per head or their mean, with labels.

H heads, Q queries (rows), K keys (columns)
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from transformer_cli.attention_maps.maps import AttentionMaps, Block, Kind, Side
from transformer_cli.writing import JOINED

TITLES: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
MAX_LABEL = 24
"""Widest label, in cells of a terminal."""
MOST_PER_CELL = 8
"""Characters: a letter has marks above and below it, which take no room; a text of marks alone would have no end."""
SPACE = "␣"
"""A space in a label; the tokenizer's own sign for it, `▁`, looks like an underscore."""
ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of what is invisible or moves what stands around it."""


@dataclass(frozen=True)
class View:
    """A block made ready to be drawn.

    rows, columns: labels that are safe to show anywhere, none wider than MAX_LABEL; a row has one, or two: what the
    decoder read and what it had to write. visible_QK: False where a key is hidden.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    weights_HQK: NDArray[np.floating]
    visible_QK: NDArray[np.bool_]

    @property
    def title(self) -> str:
        """What it shows: cross-attention, layer 2, head 3; the mean where it has one matrix for several heads."""
        which = f"head {self.heads[0]}" if len(self.heads) == 1 else f"{len(self.heads)} heads"
        if len(self.weights_HQK) < len(self.heads):
            which = f"mean of {which}"
        return f"{TITLES[self.kind]}, layer {self.layer}, {which}"

    @property
    def mean_QK(self) -> NDArray[np.floating]:
        """The average over the heads; its rows sum to 1, too."""
        return self.weights_HQK.mean(axis=0, dtype=np.float64)

    def mean(self) -> View:
        """The same with that one matrix."""
        return replace(self, weights_HQK=self.mean_QK[None])

    def single(self) -> list[View]:
        """One view per head."""
        if len(self.weights_HQK) < len(self.heads):
            return [self]
        return [
            replace(self, heads=(head,), weights_HQK=weights_QK[None])
            for head, weights_QK in zip(self.heads, self.weights_HQK, strict=True)
        ]


def view(maps: AttentionMaps, block: Block, *, words: bool = False) -> View:
    """The block by pieces, or by words: the sum over a word's keys, the mean over its queries (see `axes`)."""
    weights_HQK, visible_QK = block.weights_HQK, maps.visible(block.kind)
    if words:
        queries, keys = (_first_of_words(side) for side in axes(maps, block.kind))
        visible_QK = _any(visible_QK, queries, keys)
        weights_HQK = merged(weights_HQK, queries, keys)
    source, target = (word_labels(side) if words else piece_labels(side) for side in (maps.source, maps.target))
    columns = target[:-1] if block.kind == "decoder" else source
    rows = zip(source, strict=True) if block.kind == "encoder" else itertools.pairwise(target)
    return View(block.kind, block.layer, block.heads, tuple(rows), tuple(columns), weights_HQK, visible_QK)


def merged(weights_HQK: NDArray[np.float32], queries: Sequence[int], keys: Sequence[int]) -> NDArray[np.float32]:
    """The sum over each group of keys and the mean over each group of queries, so that rows still sum to 1.

    queries, keys: where each group begins.
    """
    sums = np.add.reduceat(weights_HQK.astype(np.float64), keys, axis=2)
    counts = np.diff([*queries, weights_HQK.shape[1]])
    return (np.add.reduceat(sums, queries, axis=1) / counts[:, None]).astype(np.float32)


def axes(maps: AttentionMaps, kind: Kind) -> tuple[Side, Side]:
    """The sides that queries and keys come from. A query of the decoder is the piece that it reads; of cross-attention
    the one that it writes, for which the source is looked at."""
    source, target = maps.source, maps.target
    read, written = (
        replace(target, pieces=target.pieces[part], ids=target.ids[part], words=target.words[part])
        for part in (slice(None, -1), slice(1, None))
    )
    return {"encoder": (source, source), "decoder": (read, read), "cross": (written, source)}[kind]


def piece_labels(side: Side) -> list[str]:
    """The pieces, a space as `␣` where some word has several of them; else every piece is a word and needs no sign."""
    all_words = len(set(side.words)) == len(side.words)
    names = [piece.removeprefix("▁") or piece if all_words else piece for piece in side.pieces]
    return [label(name.replace("▁", SPACE)) for name in names]


def word_labels(side: Side) -> list[str]:
    return [label(word) for word in word_texts(side)]


def word_texts(side: Side) -> list[str]:
    """The words as text: pieces joined, `▁` a space, runs of byte pieces the characters that they spell."""
    starts = [*_first_of_words(side), len(side.pieces)]
    words = [side.pieces[start:end] for start, end in itertools.pairwise(starts)]
    return [text_of(pieces) or "".join(pieces) for pieces in words]


def text_of(pieces: Sequence[str]) -> str:
    """What they spell, without the spaces around it."""
    return _BYTES.sub(_spelled, "".join(pieces)).replace("▁", " ").strip()


_JOINER = re.compile("(?<=[\u2190-\u2bff\U0001f000-\U0001faff\ufe0f])\u200d(?=[\u2190-\u2bff\U0001f000-\U0001faff])")
_SHAPING = re.compile(rf"(?<=\w|[{JOINED}])[\u200c\u200d](?=[{JOINED}])")
_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


def _spelled(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("<0x", "").replace(">", "")).decode("utf-8", errors="replace")


def label(text: str, *, width: int = MAX_LABEL) -> str:
    """The plain text, a mark without its letter on a dotted circle, cut to the width, and to what can stand in it."""
    whole, text = text, text[: MOST_PER_CELL * width]
    shown = _carried(plain(_JOINER.sub("", text)))  # a joiner has no place where pictures stand side by side
    if text == whole and cell_len(shown) <= width:
        return shown
    kept = ""
    for char in shown:
        if cell_len(kept + char) >= width:
            break
        kept += char
    return kept + "…"


def _carried(text: str) -> str:
    stem = text.lstrip(SPACE)
    bare = unicodedata.category(stem[:1] or " ").startswith("M")
    return f"{text.removesuffix(stem)}\u25cc{stem}" if bare else text


def plain(text: str) -> str:
    """The text on one line, with what cannot be seen, or reorders what stands around it, as U+202E.

    Joiners stay that shape letters, or make one picture of two.
    """
    shaping = {match.start() for pattern in (_SHAPING, _JOINER) for match in pattern.finditer(text)}
    return "".join(
        f"U+{ord(char):04X}" if unicodedata.category(char) in ESCAPED and place not in shaping else char
        for place, char in enumerate(text)
    )


def is_leftward(text: str) -> bool:
    """Whether some of it is written from right to left, which turns around what stands on the same line."""
    return any(unicodedata.bidirectional(char) in ("R", "AL") for char in text)


def _first_of_words(side: Side) -> list[int]:
    return [i for i, word in enumerate(side.words) if i == 0 or word != side.words[i - 1]]


def _any(visible_QK: NDArray[np.bool_], queries: Sequence[int], keys: Sequence[int]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.logical_or.reduceat(np.logical_or.reduceat(visible_QK, keys, axis=1), queries, axis=0)
    return found
