"""Which target pieces translate which source piece, learned from pairs of ids.

IBM's Model 1 (Brown et al. 1993): each target piece comes from one piece of its source, or from none; how likely each
source piece becomes which target piece is found by expectation maximisation.

E entries: each target piece of a pair with each piece of its source; C cells: those of them that differ
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.volumes import encoded_before
from transformer_cli.errors import ModelError, ResourceError, UsageError
from transformer_cli.tokenizer import EOS, PAD, Tokenizer

LEXICON = "lexicon.npy"
"""In a run directory: `likeliest_targets` of its training text."""
KEPT = 100
"""Of each source piece."""
ROUNDS = 5
MOST_ENTRIES = 16_000_000
"""A text with more is read in part, pairs at even distances: a gigabyte, and some ten seconds."""

Ids = npt.NDArray[np.integer]


def lexicon_of(run_dir: Path, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """That of a run, (source pieces, KEPT), learned from its encoded training text when first asked for, and kept.

    Raises UsageError where that text is not there, ModelError where what was kept is damaged.
    """
    path = run_dir / LEXICON
    if not path.exists():
        return _learned(run_dir, tokenizer)
    try:
        table = np.load(path, allow_pickle=False)
    except OSError as failure:
        raise files.unreadable(path, failure, error=ModelError) from failure
    except (ValueError, EOFError):
        table = np.empty(0, np.int32)
    is_one = table.dtype == np.int32 and table.shape == (tokenizer.source.size, KEPT)
    if not is_one or table.min() < 0 or table.max() >= tokenizer.target.size:
        raise ModelError(
            f"{files.shown(path)} is damaged: it is not the array that was written",
            hint="delete it: it is learned again from the run's training text",
        )
    return table


def _learned(run_dir: Path, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    corpus = encoded_before(run_dir / "data", "train")
    if corpus is None:
        raise UsageError(
            f"{files.shown(run_dir)} has no encoded training text to learn decoding.shortlist from",
            hint="translate without it; or ask for it where the run was trained: what is learned is kept in the run",
        )
    sizes = {"n_sources": tokenizer.source.size, "n_targets": tokenizer.target.size}
    table = likeliest_targets(corpus, **sizes, kept=KEPT)
    with (
        suppress(ResourceError),
        files.atomic_file(run_dir / LEXICON) as file,
    ):  # where it cannot be kept: anew each time
        np.save(file, table, allow_pickle=False)
    return table


def likeliest_targets(corpus: EncodedCorpus, *, n_sources: int, n_targets: int, kept: int) -> npt.NDArray[np.int32]:
    """The likeliest target ids of each source id, best first, (n_sources, kept); EOS where there are fewer.

    Row PAD has the most frequent ids of the target. A source piece that the text has not may become the target piece
    of the same id, which is the same piece where both sides share a vocabulary.
    """
    sources, targets = _pairs(corpus)
    table = np.full((n_sources, kept), EOS, dtype=np.int32)
    frequent = np.bincount(np.concatenate(targets), minlength=n_targets) if targets else np.zeros(n_targets, int)
    order = np.argsort(-frequent, kind="stable")[: min(kept, np.count_nonzero(frequent))]
    rows, columns, p_C = translation_table(sources, targets)
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


def translation_table(sources: list[Ids], targets: list[Ids]) -> tuple[Ids, Ids, npt.NDArray[np.float64]]:
    """Source ids, target ids and p(target | source) of all that came together, (C,) each. PAD is no source piece."""
    if not sources:
        return np.empty(0, int), np.empty(0, int), np.empty(0)
    with_none = [np.concatenate(([PAD], source)) for source in sources]
    rows_E = np.concatenate([np.tile(s, len(t)) for s, t in zip(with_none, targets, strict=True)]).astype(np.int64)
    columns_E = np.concatenate([np.repeat(t, len(s)) for s, t in zip(with_none, targets, strict=True)])
    widths = np.concatenate([np.full(len(t), len(s)) for s, t in zip(with_none, targets, strict=True)])
    begins = np.cumsum(widths) - widths
    base = int(columns_E.max()) + 1
    cells_C, cell_E = np.unique(rows_E * base + columns_E, return_inverse=True)
    del rows_E, columns_E
    rows_C, columns_C = np.divmod(cells_C, base)
    p_C = np.ones(len(cells_C))
    for _ in range(ROUNDS):
        share_E = p_C[cell_E]
        share_E /= np.repeat(np.add.reduceat(share_E, begins), widths)
        counts_C = np.bincount(cell_E, share_E, len(cells_C))
        p_C = counts_C / np.bincount(rows_C, counts_C)[rows_C]
    return rows_C, columns_C, p_C


def _pairs(corpus: EncodedCorpus) -> tuple[list[Ids], list[Ids]]:
    sizes = corpus.lengths[:, 0] * corpus.lengths[:, 1].astype(np.int64)
    chosen = range(0, len(corpus), max(1, -(-int(sizes.sum()) // MOST_ENTRIES)))
    pairs = [(corpus.source(index), corpus.target(index)) for index in chosen]
    pairs = [(source, target) for source, target in pairs if len(source) and len(target)]
    return [source for source, _ in pairs], [target for _, target in pairs]
