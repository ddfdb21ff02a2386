"""The built-in corpus, drawn once for all processes that run tests, for that takes seconds."""

from __future__ import annotations

import fcntl
import os
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path

from transformer_cli.data.phrasebook import Phrasebook, phrasebook

FOLDER = "TX_TESTS_DRAWN"
"""Names the folder in which they keep it."""
FEW, ALL = 5_000, 40_000


def drawn(*, n_pairs: int = ALL, seed: int = 1, reasons: float | None = None) -> Phrasebook:
    """What `phrasebook` draws; of the usual seed the beginning of a larger one, which test_phrasebook.py holds."""
    if seed != 1 or reasons is not None or n_pairs > ALL:
        return phrasebook(n_pairs=n_pairs, seed=seed, reasons=reasons)
    book = _kept(ALL) if n_pairs > FEW else _few()
    return replace(book, train=book.train[:n_pairs])


@cache
def _few() -> Phrasebook:
    return _kept(FEW)


def _kept(n_pairs: int) -> Phrasebook:
    path = Path(os.environ[FOLDER], str(n_pairs))
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(pickle.dumps(phrasebook(n_pairs=n_pairs, seed=1)))
    return pickle.loads(path.read_bytes())  # noqa: S301 - what was written above
