"""Nothing that tests write gets into the checkout, and if it did, that would be noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkout import REPOSITORY, contents, left_behind


def test_a_test_is_not_in_the_checkout(tmp_path: Path) -> None:
    """One of them let torchrun write the project's own `runs/latest`."""
    assert Path.cwd() == tmp_path
    assert not tmp_path.is_relative_to(REPOSITORY)


@pytest.mark.parametrize(
    ("written", "noticed"),
    [
        ("runs/latest", ["runs/latest"]),
        ("runs/x/best", ["runs/x", "runs/x/best"]),
        ("out.txt", ["out.txt"]),
        ("data/train/source.npy", ["data/train/source.npy"]),
        ("README.md", []),
        (".pytest_cache/v", []),
        ("tests/__pycache__/x.pyc", []),
    ],
)
def test_what_is_left_behind_is_noticed_and_caches_and_edits_are_not(
    tmp_path: Path, written: str, noticed: list[str]
) -> None:
    for name in ("runs/latest", "data/train/source.npy", "README.md", "tests/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    before = contents(tmp_path)
    path = tmp_path / written
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("tests were here", encoding="utf-8")
    assert left_behind(before, contents(tmp_path)) == [Path(name) for name in noticed]
