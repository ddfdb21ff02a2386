"""A message never says `1 lines`."""

from __future__ import annotations

import pytest

from transformer_cli.wording import counted


@pytest.mark.parametrize(
    ("n", "what", "said"),
    [
        (1, "pairs", "1 pair"),
        (0, "pairs", "0 pairs"),
        (2, "pairs", "2 pairs"),
        (1234, "target tokens", "1,234 target tokens"),
        (1, "batches", "1 batch"),
        (1, "processes", "1 process"),
        (1, "prefixes", "1 prefix"),
        (1, "pieces", "1 piece"),
        (1, "sentences", "1 sentence"),
        (1, "differences", "1 difference"),
        (1, "ties", "1 tie"),
        (1, "times", "1 time"),
        (7, "", "7"),
    ],
)
def test_one_is_of_one(n: int, what: str, said: str) -> None:
    assert counted(n, what) == said
