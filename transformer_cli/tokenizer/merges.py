"""subword-nmt's and fastBPE's merges (Sennrich et al. 2016), and lists of words, as SentencePiece models.

SentencePiece merges two symbols where both together are a piece, BPE where the two are a pair of its list. Both cut
every text the same way where each pair's result, cut by itself, becomes one symbol: two neighbours that could become it
are cut as they would be alone. Lists that were learned from text are like that; any other is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from transformer_cli.errors import ModelError
from transformer_cli.tokenizer.renumbering import Model, built

END = "</w>"
GOES_ON = "@@"
SPACE = "▁"
Pair = tuple[str, str]


def merged(codes: str, listed: Collection[str], *, name: str = "the codes") -> Model:
    """The merges in a file of codes, and the characters of the pieces that are listed. Raises ModelError."""
    ranks = _ranks(codes, name)
    scores: dict[str, float] = {}
    for pair in ranks:
        whole = "".join(pair)
        cut, last = _cut(_characters(whole), ranks)
        if cut != [whole]:
            raise ModelError(
                f"{name}: {' '.join(cut)} are never one symbol, though {pair[0]} and {pair[1]} are: merges that were "
                "not learned from text, which SentencePiece cannot follow",
                hint="split the text with them yourself, and remove the file of codes: then pieces are words",
            )
        scores[_here(whole)] = -1.0 - last
    characters = set("".join([*scores, *map(renamed, listed)])) - {SPACE}
    alone = {char + end: 0.0 for char in sorted(characters) for end in ("", SPACE)}
    return Model(built(alone | scores, kind="bpe", is_suffix=True), name=name)


def renamed(piece: str) -> str:
    """A piece of the list in SentencePiece's terms, which marks the end of a word, not that it goes on."""
    return piece.removesuffix(GOES_ON) if piece.endswith(GOES_ON) else piece + SPACE


def words(listed: Sequence[str]) -> Model:
    """A text that is cut at blanks into what is listed."""
    return Model(built({SPACE + word: 0.0 for word in listed}, kind="word"))


def _ranks(codes: str, name: str) -> dict[Pair, int]:
    lines = codes.rstrip("\n").split("\n")
    has_version = lines[0].startswith("#version:")
    if not has_version and len(lines[0].split(" ")) != 3:  # fastBPE counts pairs
        raise ModelError(f"{name} have no version: subword-nmt's first ones, which ended words in another way")
    ranks: dict[Pair, int] = {}
    for number, line in enumerate(lines[has_version:], start=1 + has_version):
        parts = line.strip("\r ").split(" ")
        if len(parts) not in (2, 3):
            raise ModelError(f"{name}, line {number:,}: {line[:60]!r} is no pair")
        ranks.setdefault((parts[0], parts[1]), len(ranks))
    return ranks


def _characters(text: str) -> list[str]:
    """What BPE begins with: the last character of a word has its end with it."""
    inner = text.removesuffix(END)
    return [*inner[:-1], inner[-1:] + END] if inner != text else [*text]


def _cut(symbols: list[str], ranks: Mapping[Pair, int]) -> tuple[list[str], int]:
    """By BPE, and the rank of the last merge."""
    last = 0
    while len(symbols) > 1:
        best = min(itertools.pairwise(symbols), key=lambda pair: ranks.get(pair, math.inf))
        if best not in ranks:
            break
        last, symbols = ranks[best], list(joined(symbols, best))
    return symbols, last


def joined(symbols: Sequence[str], pair: Pair) -> Iterator[str]:
    """The symbols, those of the pair as one wherever they follow each other."""
    place = 0
    while place < len(symbols):
        is_pair = tuple(symbols[place : place + 2]) == pair
        yield "".join(pair) if is_pair else symbols[place]
        place += 1 + is_pair


def _here(symbol: str) -> str:
    return symbol.removesuffix(END) + SPACE if symbol.endswith(END) else symbol
