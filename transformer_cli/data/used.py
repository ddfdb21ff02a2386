"""What of a training text is learned from: not what has an empty side, nor what is held out of it to validate with.

Which pairs are held out is decided by a hash of each and by nothing else: pairs that are equal, but for blanks at their
ends, are on one side, wherever they lie, whatever the seed and in either direction, so that the model of one never
learned from what that of the other is validated with; and a larger share has those of a smaller one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from transformer_cli.config.data import DataConfig
from transformer_cli.data.corpus import EMPTY_BOTH, EMPTY_SOURCE, EMPTY_TARGET, Corpus
from transformer_cli.data.mixture import weights_of
from transformer_cli.data.text import BLOCK, ListedText, as_text
from transformer_cli.errors import DataError
from transformer_cli.wording import counted


def as_used(texts: Mapping[str, Corpus], data: DataConfig) -> dict[str, Corpus]:
    """Texts by what they are used for: of the training text `train`, and `valid` where that is to be held out of it and
    was not yet; the others as they are. DataError for more than an epoch can have, be it that some of it will turn out
    to be too long."""
    text, share = learnable(texts["train"]), data.held_out
    used = dict(texts) | ({"train": text} if share is None or "valid" in texts else hold_out(text, share))
    parts = used["train"].parts
    sizes = [part.pairs for part in parts] or [len(used["train"])]
    weights_of(parts, sizes, temperature=data.temperature)
    return used


def learnable(corpus: Corpus) -> Corpus:
    """The pairs of a training text that have text on both sides, in order; DataError where there is none."""
    source, target = as_text(corpus.source), as_text(corpus.target)
    left_out = np.union1d(source.blank, target.blank)
    if len(left_out) == len(corpus):
        pairs = f"of {counted(len(corpus), 'pairs')}, none has text on both sides" if len(corpus) else "it is empty"
        raise DataError(
            f"the training text has no pair to learn from: {pairs}",
            hint="look at the files that `data.train` names",
        )
    if not len(left_out):
        return corpus
    empty = zip(np.isin(left_out, source.blank), np.isin(left_out, target.blank), strict=True)
    reasons = (EMPTY_BOTH if all(sides) else EMPTY_SOURCE if sides[0] else EMPTY_TARGET for sides in empty)
    return corpus.without(left_out, Counter(reasons))


def hold_out(corpus: Corpus, share: float) -> dict[str, Corpus]:
    """The text in two: `train`, read where it lies, and `valid`, about so large a share of it, in memory, of which it
    is known where it lies.

    Raises DataError where either would have no pair.
    """
    sides = [as_text(side) for side in (corpus.source, corpus.target)]
    limit = int(share * 2**64).to_bytes(8, "big")
    places: list[int] = []
    valid: tuple[list[str], list[str]] = ([], [])
    for start in range(0, len(corpus), BLOCK):
        lines = [side.utf8(start, min(start + BLOCK, len(corpus)))[:-1].split(b"\n") for side in sides]
        for place, pair in enumerate(zip(*lines, strict=True), start=start):
            if _hash(*pair) < limit:
                places.append(place)
                for side, line in zip(valid, pair, strict=True):
                    side.append(line.decode("utf-8"))
    if not 0 < len(places) < len(corpus):
        raise DataError(
            f"data.valid: {100 * share:g}% of the {counted(len(corpus), 'pairs')} of the training text would be "
            f"{len(places):,} to validate with, which leaves {len(corpus) - len(places):,} to learn from",
            hint="take another share, or name a text of its own",
        )
    held_out = np.array(places, dtype=np.int64)
    n_of_each = zip(corpus.parts, corpus.of_each_part(held_out), strict=True)
    parts = tuple(replace(part, pairs=n, weight=1.0, left_out=0) for part, n in n_of_each if part.direction is not None)
    source, target = (
        ListedText(lines, origins=[side.where(place) for place in places])
        for side, lines in zip(sides, valid, strict=True)
    )
    return {"train": corpus.without(held_out, {}), "valid": Corpus(source, target, parts=parts)}


def _hash(source: bytes, target: bytes) -> bytes:
    return hashlib.blake2b(b"\n".join(sorted((_stripped(source), _stripped(target)))), digest_size=8).digest()


def _stripped(line: bytes) -> bytes:
    """Without blanks at its ends, whatever the alphabet: of ASCII, which most lines end with, none needs decoding."""
    line = line.strip()
    ends = *line[:1], *line[-1:]
    return line if all(0x20 < byte < 0x80 for byte in ends) else line.decode("utf-8").strip().encode()
