"""A message never says `1 lines`, and names a few of many."""

from __future__ import annotations

import pytest

from transformer_cli.wording import counted, listed, some


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


def test_the_last_two_of_a_list_have_a_word_between_them() -> None:
    assert [listed(names, "or") for names in (["de"], ["de", "en"], ["de", "en", "fr"])] == [
        "de",
        "de or en",
        "de, en or fr",
    ]
    assert listed([], "and") == ""


def test_of_many_some_are_named() -> None:
    assert some(["a", "b"], 2) == "a, b"
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"
    assert some([str(n) for n in range(1_234)], 1) == "0 and 1,233 more"
