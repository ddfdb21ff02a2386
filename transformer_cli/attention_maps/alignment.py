"""Which word translates which, read from cross-attention; in Pharaoh format: `0-0 1-2`, source-target, from 0.

H heads, T target positions (Q queries), S source pieces (K keys)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transformer_cli import files
from transformer_cli.attention_maps.maps import AttentionMaps, Block, Side
from transformer_cli.config.decoding import Reading
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.stream import read_lines
from transformer_cli.errors import DataError
from transformer_cli.wording import counted

Links = frozenset[tuple[int, int]]
"""Pairs of a source word and a target word."""


def best_layer(n_layers: int) -> int:
    """The layer whose cross-attention is read when none is named: the last but one, but not the first of two.

    Source: Garg et al. 2019; and what scripts/benchmark/alignment.py measures on models of 2 and of 6 layers.
    """
    return max(n_layers - 1, min(n_layers, 2))


def best_block(maps: AttentionMaps) -> Block | None:
    """The cross-attention that is shown first where no layer is named; None where there is none."""
    cross = maps.of("cross")
    return cross[best_layer(len(cross)) - 1] if cross else None  # whatever its number: a selection has not all


def align(maps: AttentionMaps, *, layer: int | None = None, reading: Reading = "raw") -> Links:
    """Links between the words of `Side.words`, marks not counted, read from the mean over a layer's heads."""
    block = best_block(maps) if layer is None else next(one for one in maps.of("cross") if one.layer == layer)
    assert block is not None
    weights_TS = block.weights_HQK.mean(axis=0, dtype=np.float64)
    return linked(
        read_pieces(weights_TS, maps.source, maps.target, reading), text_words(maps.source), text_words(maps.target)
    )


def read_pieces(weights_TS: NDArray[np.floating], source: Side, target: Side, reading: Reading) -> list[int]:
    """For each target piece of text, the place of its source piece among those that are text.

    The row that is read is the one that the target piece came out of (raw), or the one whose input it is (shifted).
    Chen et al. 2020 ("Accurate Word Alignment Induction from Neural Machine Translation") find the second to be better;
    scripts/benchmark/alignment.py finds the first, by far, in every layer of every model trained here.
    """
    rows_TS = weights_TS[1:] if reading == "shifted" else weights_TS[:-1]
    rows_TS = rows_TS[~np.array(target.marks[1:-1], dtype=bool)]
    text_S = ~np.array(source.marks)
    return [int(place) for place in rows_TS[:, text_S].argmax(axis=1)] if text_S.any() else []


def text_words(side: Side) -> list[int]:
    """For each piece of text, the number of its word, from 0; marks not counted."""
    words = [word for word, is_mark in zip(side.words, side.marks, strict=True) if not is_mark]
    return [word - words[0] for word in words]


def linked(places: Sequence[int], source_words: Sequence[int], target_words: Sequence[int]) -> Links:
    """Words are linked if any of their pieces are. places: see `read_pieces`."""
    return frozenset((source_words[place], target_words[t]) for t, place in enumerate(places))


def pharaoh(links: Links) -> str:
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@dataclass(frozen=True)
class Gold:
    """True links of one sentence pair: those that have to be there, and those that may be, the former among them."""

    sure: Links
    possible: Links


def read_gold(path: str | Path, text: Corpus) -> tuple[list[Gold], dict[str, int]]:
    """The true links of a text, one line per pair: `0-1` is sure, `0p1` or `0?1` possible; words are those between
    white space. Also the lines that were touched, by reason.

    Raises DataError, with the line, for anything else and for words that the pair does not have.
    """
    read, name = read_lines(path), files.shown(path)
    if len(read.lines) != len(text):
        raise DataError(
            f"{name} has {counted(len(read.lines), 'lines')}, the text has {len(text):,}: they must match line by line"
        )
    found: list[Gold] = []
    for line, source, target in zip(read.lines, text.source, text.target, strict=True):
        found.append(_gold(line, source, target, f"{name}, line {len(found) + 1:,}"))
    return found, read.counts


def _gold(line: str, source: str, target: str, place: str) -> Gold:
    found: dict[str, set[tuple[int, int]]] = {"-": set(), "p": set()}
    n_words = {"source": len(source.split()), "target": len(target.split())}
    for word in line.split():
        match = re.fullmatch(r"(\d{1,6})([-p?])(\d{1,6})", word)
        if match is None:
            raise DataError(f"{place}: expected links such as 0-1 or, for possible ones, 0p1; found {word[:40]!r}")
        link = int(match[1]), int(match[3])
        for side, number in zip(n_words, link, strict=True):
            if number >= n_words[side]:
                raise DataError(
                    f"{place}: {word} links word {number} of the {side}, which has {n_words[side]:,}",
                    hint="words are those between white space, counted from 0 on both sides, the source's first",
                )
        found[match[2].replace("?", "p")].add(link)
    return Gold(frozenset(found["-"]), frozenset(found["-"] | found["p"]))


def error_rate(found: Iterable[Links], gold: Iterable[Gold]) -> float:
    """1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all sentences (Och and Ney 2003); 0 is perfect."""
    right = total = 0
    for links, true in zip(found, gold, strict=True):
        right += len(links & true.sure) + len(links & true.possible)
        total += len(links) + len(true.sure)
    return 1 - right / total if total else 0.0
