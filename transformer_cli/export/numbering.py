"""The ids that another toolkit gave to pieces: which of its rows each of tx's ids is read by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from transformer_cli.errors import UsageError
from transformer_cli.tokenizer import SPECIALS, Tokenizer, Vocabulary
from transformer_cli.tokenizer.renumbering import Model


@dataclass(frozen=True)
class Marks:
    """Which ids are there what pad, unk, bos and eos are here; start: what a translation begins with."""

    pad: int
    unk: int
    start: int
    eos: int


@dataclass(frozen=True)
class Numbering:
    """tx's ids of a side. rows: the row that each is read by there. own: whether it is written there, too. pieces: from
    id 4 on. marks: those of them that are no text."""

    rows: list[int]
    own: list[bool]
    pieces: list[str]
    marks: frozenset[str]


def numbered(
    ids: Mapping[str, int], n_rows: int, cut: Sequence[str], marks: Marks, *, others: Collection[str] = ()
) -> Numbering:
    """cut: the pieces that text becomes; those that the list lacks are read as unknown ones are. others: more of the
    list that are marks. UsageError where a mark has the number of a piece, which would be read as unknown."""
    firsts = [marks.pad, marks.unk, marks.start, marks.eos]
    for piece in cut:
        if ids.get(piece) in firsts and piece not in SPECIALS:
            raise UsageError(
                f"{piece} is a piece of text and by its number, {ids[piece]:,}, a mark (padding, unknown, beginning or "
                "end); in tx marks are no text"
            )
    named = {id: piece for piece, id in ids.items() if piece not in SPECIALS}
    rest = [id for id in range(n_rows) if id not in firsts]
    pieces = [named.get(id, f"<there {id}>") for id in rest]
    lacking = [piece for piece in cut if piece not in ids and piece not in SPECIALS]
    starts = marks.start not in (marks.pad, marks.unk, marks.eos)
    return Numbering(
        rows=[*firsts, *rest, *[marks.unk] * len(lacking)],
        own=[True, True, starts, *[True] * (1 + len(rest)), *[False] * len(lacking)],
        pieces=[*pieces, *lacking],
        marks=frozenset(others).union(name for id, name in zip(rest, pieces, strict=True) if id not in named),
    )


def tokenizer_of(
    models: Sequence[Model], numberings: Sequence[Numbering], languages: Sequence[str | None] = (None, None)
) -> tuple[Tokenizer, str]:
    """The tokenizer that cuts text as these models of both sides do, and what kind of models they are.

    languages: the marks that texts begin with. UsageError where a model cannot have all pieces of the list.
    """
    kinds = {model.kind for model in models}
    foreign = [set(one.pieces) - one.marks - set(model.pieces) for one, model in zip(numberings, models, strict=True)]
    if kinds <= {"bpe", "word"}:
        # What neither model has no text becomes. In BPE it would take part in merges, which a character never does.
        known = {piece for model in models for piece in model.pieces}
        silent = [{piece for piece in one - known if len(piece) > 1} for one in foreign]
        numberings = [replace(one, marks=one.marks | more) for one, more in zip(numberings, silent, strict=True)]
        foreign = [{piece for piece in one & known if len(piece) > 1} for one in foreign]
    if len(kinds) > 1 or (any(foreign) and kinds != {"unigram"}):
        found = ", ".join(sorted(kinds))
        raise UsageError(
            f"its SentencePiece models ({found}) do not have all pieces of its list; tx can add them to unigram models "
            "only"
        )
    sides = [model.numbered(one.pieces, one.marks) for model, one in zip(models, numberings, strict=True)]
    if sides[0].model == sides[1].model and languages[0] is languages[1] is None:
        return Tokenizer(sides[0]), kinds.pop()
    marked = (Vocabulary(side.model, mark=mark) for side, mark in zip(sides, languages, strict=True))
    return Tokenizer(*marked), kinds.pop()
