"""Which layers and heads are meant: what `--layers` and `--heads` say, against what a model has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from transformer_cli.attention_maps.maps import KINDS, AttentionMaps, Block, Kind
from transformer_cli.errors import UsageError

MEAN = "mean"


def selected(maps: AttentionMaps, *, layers: str | None, heads: str | None) -> AttentionMaps:
    """The maps with these layers and heads alone; None and, for heads, "mean" leave all.

    layers: `2`, `1-3`, `last`, `all`, each of all kinds or after `encoder:`, `decoder:`, `cross:`, such as `cross:2`; a
    kind alone is all its layers; separated by commas. heads: the same without kinds.
    Raises UsageError for what cannot be understood, or isn't there.
    """
    blocks = maps.blocks
    if layers is not None:
        wanted = {place for part in layers.split(",") for place in _places(part, maps)}
        blocks = tuple(block for block in blocks if (block.kind, block.layer) in wanted)
    if heads is not None and heads != MEAN:
        blocks = tuple(_with_heads(block, heads) for block in blocks)
    return replace(maps, blocks=blocks)


def _places(part: str, maps: AttentionMaps) -> set[tuple[Kind, int]]:
    """The layers that one part of `--layers` means; of several kinds it is enough that one has them."""
    name, _, numbers = part.strip().rpartition(":")
    if numbers in KINDS and not name:
        name, numbers = numbers, "all"
    kinds = [kind for kind in KINDS if name in ("", kind) and maps.of(kind)]
    if not kinds:
        raise UsageError(f"--layers {part}: no {name or 'layers'} here", hint=f"kinds: {', '.join(KINDS)}")
    there = {kind: [block.layer for block in maps.of(kind)] for kind in kinds}
    asked = {kind: _numbers(numbers, there[kind], f"--layers {shlex.quote(part)}") for kind in kinds}
    for number in {number for found in asked.values() for number in found}:
        if not any(number in layers for layers in there.values()):
            has = ", ".join(f"{kind} {_ranges(layers)}" for kind, layers in there.items())
            raise UsageError(f"there is no layer {number}: this model has {has}")
    return {(kind, number) for kind, found in asked.items() for number in found if number in there[kind]}


def _with_heads(block: Block, text: str) -> Block:
    wanted = _numbers(text, block.heads, f"--heads {shlex.quote(text)}")
    if missing := [number for number in wanted if number not in block.heads]:
        raise UsageError(f"there is no head {missing[0]}: {block.name} has {_ranges(block.heads)}")
    kept = [i for i, head in enumerate(block.heads) if head in wanted]
    return replace(block, heads=tuple(block.heads[i] for i in kept), weights_HQK=block.weights_HQK[kept])


def _numbers(text: str, there: Sequence[int], place: str) -> list[int]:
    """`1,3-5`, `last`, `all` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        part = part.strip()
        if part in ("all", "last"):
            found += there if part == "all" else there[-1:]
        elif match := re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part):
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
        else:
            found = []
        if not found:
            raise UsageError(
                f"{place}: expected numbers such as 2 or 1-3, last or all, found {part!r}",
                hint="--layers takes a kind, too: cross:2, encoder:1-3, decoder; --heads also takes mean",
            )
    return found


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if whole else ", ".join(map(str, numbers))
