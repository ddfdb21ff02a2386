"""Which layers and heads are meant: what `--layers`, `--heads` and `--find` say, against what a model has.

H heads, Q queries (rows), K keys (columns)
"""

from __future__ import annotations

import itertools
import re
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from transformer_cli.attention_maps.maps import KINDS, AttentionMaps, Block, Kind, Side
from transformer_cli.attention_maps.views import TITLES, label, text_of, view, word_texts
from transformer_cli.errors import UsageError
from transformer_cli.writing import begins_unspaced, canonical

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
        named: Sequence[int] = ()
        if part in ("all", "last"):
            named = there if part == "all" else there[-1:]
        elif match := re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part):
            named = range(int(match[1]), int(match[2] or match[1]) + 1)
        found += named
        if not named:
            raise UsageError(
                f"{place}: expected numbers such as 2 or 1-3, last or all, found {part!r}",
                hint="--layers takes a kind, too: cross:2, encoder:1-3, decoder; --heads also takes mean",
            )
    return found


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if whole else ", ".join(map(str, numbers))


@dataclass(frozen=True)
class Found:
    """The head that looks most from one word at another.

    words: the two, as the text has them. weight: as a picture by words has it. maps: where it was found; text without
    spaces has pieces for words there, and what was looked for as one.
    """

    kind: Kind
    layer: int
    head: int
    words: tuple[str, str]
    weight: float
    maps: AttentionMaps


def found(maps: AttentionMaps, wanted: str) -> Found:
    """The head with the greatest weight from one word at another, of all kinds of attention that have each once.

    wanted: `it -> animal`; `the:2` is the second `the`. Case doesn't matter, nor how accents are encoded. In text
    without spaces a word is what some pieces spell. The decoder looks for the word that comes out, in its
    self-attention by the rows that read the one before it. Raises UsageError for what is no such pair, for words that
    aren't there, or are everywhere several times.
    """
    place = f"--find {shlex.quote(wanted)}"
    names = [name.strip() for name in re.split("->|→", wanted)]
    if len(names) != 2 or not all(names):
        raise UsageError(f"{place}: expected two words with an arrow between them", hint='--find "beer -> bier"')
    maps = replace(maps, source=_parted(maps.source, names), target=_parted(maps.target, names))
    best: Found | None = None
    several: UsageError | None = None
    there: set[str] = set()
    texts: dict[str, None] = {}
    for block in maps.blocks:
        shown = view(maps, block, words=True)
        rows, columns = [row[-1] for row in shown.rows], list(shown.columns)
        texts |= dict.fromkeys((*rows, *columns))
        there |= {name for name in names if _occurrences(name, rows) or _occurrences(name, columns)}
        queries, keys = _occurrences(names[0], rows), _occurrences(names[1], columns)
        if not queries or not keys:
            continue
        if len(queries) > 1 or len(keys) > 1:
            name, n = (names[0], len(queries)) if len(queries) > 1 else (names[1], len(keys))
            words = f"{place}: {name!r} is there {n} times in {TITLES[block.kind]}"
            several = several or UsageError(words, hint=f"`{name}:2` is the second of them")
            continue
        [query], [key] = queries, keys
        weights_H = shown.weights_HQK[:, query, key]
        i = int(weights_H.argmax())
        if shown.visible_QK[query, key] and (best is None or weights_H[i] > best.weight):
            pair = rows[query], columns[key]
            best = Found(block.kind, block.layer, block.heads[i], pair, float(weights_H[i]), maps)
    if best is None:
        if several is not None:
            raise several
        if missing := [name for name in names if name not in there]:
            _check_borders(missing[0], maps, place)
            stem, _, number = missing[0].rpartition(":")
            first = f": the first one is {f'{stem}:1'!r}" if stem and number.strip("0") == "" != number else ""
            raise UsageError(
                f"{place}: there is no word {missing[0]!r}{first}", hint=f"the words are {', '.join(texts)}"
            )
        raise UsageError(
            f"{place}: nothing here looks from the first of these words at the second",
            hint="source words look at the source, translated words at the source and at the words written before them",
        )
    return best


def _parted(side: Side, names: Sequence[str]) -> Side:
    """The same, but where text has no spaces each piece is a word, or several that spell one of these names."""
    unspaced = {word for word, text in enumerate(word_texts(side)) if any(map(begins_unspaced, text))}
    opens = [True] * len(side.pieces)
    for place, (before, piece) in enumerate(itertools.pairwise(side.pieces), start=1):
        if side.words[place] == side.words[place - 1]:
            is_byte = before.startswith("<0x") and piece.startswith("<0x")
            opens[place] = side.words[place] in unspaced and text_of([before]) != "" and not is_byte
    for name in names:
        for start, end in _spelled(_name(name), side.pieces):
            opens[start : end + 1] = [True, *[False] * (end - start - 1), True][: len(opens) - start]
    return replace(side, words=tuple(number - 1 for number in itertools.accumulate(map(int, opens))))


def _spelled(name: str, pieces: Sequence[str]) -> Iterator[tuple[int, int]]:
    """From where to where pieces spell a name that is written without spaces."""
    if not any(map(begins_unspaced, name)):
        return
    start = 0
    while start < len(pieces):
        text, end = "", start
        while text != name and len(text) <= len(name) and end < len(pieces):
            end += 1
            text = canonical(text_of(pieces[start:end]))
        if text == name:
            yield start, end
        start = end if text == name else start + 1


def _check_borders(name: str, maps: AttentionMaps, place: str) -> None:
    """UsageError for a part of a text without spaces that begins or ends inside of a piece."""
    for side in (maps.source, maps.target):
        if any(map(begins_unspaced, name)) and _name(name) in canonical(text_of(side.pieces)):
            texts = [piece.strip("▁") for piece, mark in zip(side.pieces, side.marks, strict=True) if not mark]
            pieces = ", ".join(map(label, filter(None, texts)))
            raise UsageError(
                f"{place}: {name!r} is there, but does not begin and end where pieces do",
                hint=f"the pieces are {pieces}; several in a row can be given as one word",
            )


def _name(name: str) -> str:
    """Without the number of `the:2`, as `canonical` has it."""
    return canonical(re.sub(r"(?<=.):\d{1,4}$", "", name))


def _occurrences(name: str, words: Sequence[str]) -> list[int]:
    """Where a word is, by its text, or else by what it is without the marks around it; of `the:2` the second place of
    `the`, unless that is a word itself."""
    folded = [canonical(word) for word in words]
    wanted = canonical(label(name))
    places = [place for place, word in enumerate(folded) if word == wanted]
    places = places or [place for place, word in enumerate(folded) if _bare(word) == wanted]
    stem, _, number = name.rpartition(":")
    if not places and stem and number.isdecimal() and len(number) < 5:
        return _occurrences(stem, words)[int(number) - 1 :][:1] if int(number) else []
    return places


def _bare(word: str) -> str:
    """Without what is no letter, number or accent at either end."""
    return word.strip("".join(char for char in word if unicodedata.category(char)[0] not in "LMN"))
