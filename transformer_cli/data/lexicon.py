"""Which target pieces translate which source piece, learned from pairs of ids.

IBM's Model 1 (Brown et al. 1993): each target piece comes from one piece of its source, or from none; how likely each
source piece becomes which target piece is found by expectation maximisation.

E entries of a block of pairs: each target piece of a pair with each piece of its source; C cells: those that differ
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.volumes import encoded_before
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.tokenizer import EOS, PAD, Tokenizer

LEXICON = "lexicon.bin"
"""In a run directory: the digest of what follows, and `likeliest_targets` of its training text."""
KEPT = 100
"""Of each source piece."""
ROUNDS = 5
MOST_ENTRIES, BLOCK = 50_000_000, 4_000_000
"""A text with more entries is read in part: of the shorter half of its pairs, which tell more per entry, those at even
distances. A block of them is in memory at once, else 4 bytes an entry."""

Ids = npt.NDArray[np.integer]


def lexicon_of(run_dirs: Sequence[Path], tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """That of a run, (source pieces, KEPT), learned from its encoded training text when first asked for, and kept.

    run_dirs: of runs with this tokenizer; the first that has it, or else its text. Raises UsageError where none has,
    ModelError where what was kept is damaged, ResourceError where it cannot be kept.
    """
    shape = (tokenizer.source.size, KEPT)
    for path in (run_dir / LEXICON for run_dir in run_dirs):
        if path.exists():
            data = files.read_bytes(path, error=ModelError)
            if len(data) != 32 + 4 * shape[0] * KEPT or hashlib.sha256(data[32:]).digest() != data[:32]:
                raise ModelError(
                    f"{files.shown(path)} is damaged: it is not what was written",
                    hint="delete it: it is learned again from the run's training text",
                )
            return np.frombuffer(data, "<i4", offset=32).reshape(shape).astype(np.int32)
    for run_dir in run_dirs:
        if (corpus := encoded_before(run_dir / "data", "train")) is not None:
            sizes = {"n_sources": tokenizer.source.size, "n_targets": tokenizer.target.size}
            table = likeliest_targets(corpus, **sizes, kept=KEPT)
            data = table.astype("<i4").tobytes()
            with files.atomic_file(run_dir / LEXICON) as file:
                file.write(hashlib.sha256(data).digest() + data)
            return table
    raise UsageError(
        f"decoding.shortlist is learned from the encoded training text, and {files.shown(run_dirs[0])} has none, or it "
        "is damaged",
        hint=f"translate without it (--set decoding.shortlist=null), or ask for it where the run was trained, and copy "
        f"its {LEXICON}",
    )


def likeliest_targets(corpus: EncodedCorpus, *, n_sources: int, n_targets: int, kept: int) -> npt.NDArray[np.int32]:
    """The likeliest target ids of each source id, best first, (n_sources, kept); EOS where there are fewer.

    Row PAD has the most frequent ids of the target. A source piece that the text has not may become the target piece
    of the same id, which is the same piece where both sides share a vocabulary.
    """
    pairs = _pairs(corpus)
    table = np.full((n_sources, kept), EOS, dtype=np.int32)
    frequent = np.zeros(n_targets, dtype=np.int64)
    for _, target in pairs:
        np.add.at(frequent, target, 1)
    order = np.argsort(-frequent, kind="stable")[: min(kept, np.count_nonzero(frequent))]
    rows, columns, p_C = translation_table(pairs)
    best = np.lexsort((columns, -p_C, rows))
    rows, columns = rows[best], columns[best]
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    is_kept = places < kept
    table[rows[is_kept], places[is_kept]] = columns[is_kept]
    unseen = np.setdiff1d(np.arange(min(n_sources, n_targets)), rows)
    table[unseen, 0] = unseen
    table[PAD] = EOS
    table[PAD, : len(order)] = order
    return table


def translation_table(pairs: Sequence[tuple[Ids, Ids]]) -> tuple[Ids, Ids, npt.NDArray[np.float64]]:
    """Source ids, target ids and p(target | source) of all that came together in a pair, (C,) each, in the order of
    the ids. PAD is no source piece."""
    base = 1 + max((int(target.max()) for _, target in pairs), default=0)
    cells_C = np.empty(0, dtype=np.int64)
    for codes_E, _ in _blocks(pairs, base):
        cells_C = np.union1d(cells_C, codes_E)
    blocks = [(np.searchsorted(cells_C, codes_E).astype(np.int32), widths) for codes_E, widths in _blocks(pairs, base)]
    rows_C, columns_C = np.divmod(cells_C, base)
    p_C = np.ones(len(cells_C))
    for _ in range(ROUNDS):
        counts_C = np.zeros(len(cells_C))
        for cell_E, widths in blocks:
            share_E = p_C[cell_E]
            share_E /= np.repeat(np.add.reduceat(share_E, np.cumsum(widths) - widths), widths)
            counts_C += np.bincount(cell_E, share_E, len(cells_C))
        p_C = counts_C / np.bincount(rows_C, counts_C)[rows_C]
    return rows_C, columns_C, p_C


def _blocks(pairs: Sequence[tuple[Ids, Ids]], base: int) -> Iterator[tuple[Ids, Ids]]:
    """Source id x base + target id of each entry, (E,), and of how many sources each target piece has one after the
    other."""
    codes: list[Ids] = []
    widths: list[int] = []
    room = BLOCK
    for source, target in pairs:
        with_none = np.concatenate(([PAD], source)).astype(np.int64)
        codes.append((with_none * base + target[:, None]).ravel())
        widths += [len(with_none)] * len(target)
        room -= len(codes[-1])
        if room <= 0:
            yield np.concatenate(codes), np.array(widths)
            codes, widths, room = [], [], BLOCK
    if codes:
        yield np.concatenate(codes), np.array(widths)


def _pairs(corpus: EncodedCorpus) -> list[tuple[Ids, Ids]]:
    sizes = corpus.lengths[:, 0] * corpus.lengths[:, 1].astype(np.int64)
    chosen = np.arange(len(corpus))
    if sizes.sum() > MOST_ENTRIES:
        chosen = np.flatnonzero(sizes <= np.median(sizes))
        chosen = chosen[:: -(-int(sizes[chosen].sum()) // MOST_ENTRIES)]
    pairs = zip(corpus.sources(chosen.tolist()), corpus.targets(chosen.tolist()), strict=True)
    return [(source, target) for source, target in pairs if len(source) and len(target)]
