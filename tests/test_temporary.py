"""Temporary directories: gone in the end, and elsewhere where there is no room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from faults import Saboteur

from transformer_cli import files, temporary
from transformer_cli.errors import ResourceError
from transformer_cli.temporary import temporary_directory


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (there := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(there))
    return there


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ESTALE, errno.EBUSY], ids=os.strerror)
def test_what_does_not_fit_there_may_fit_elsewhere(there: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tx train --dry-run --time` and `tx export onnx --quantization int8` spoke of "that disk" alone."""
    monkeypatch.setattr(files, "disk", Saboteur(1, OSError(number, os.strerror(number))))
    words = f"cannot write {there}/tx/weights: "
    with pytest.raises(ResourceError, match=words) as refused, temporary_directory() as folder:
        files.write_text(folder / "weights", "x")
    assert str(refused.value.hint).endswith("TMPDIR may name another folder")
    assert list(there.iterdir()) == []


def test_of_what_lies_elsewhere_it_says_nothing(there: Path, tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as refused, temporary_directory():
        files.write_text(tmp_path, "x")
    assert refused.value.hint == "name another file"


def test_where_there_is_none_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with (
        pytest.raises(ResourceError, match="there is no temporary folder: No usable") as refused,
        temporary_directory(),
    ):
        pass
    assert refused.value.hint == "TMPDIR may name another folder"


NONE = """
import tempfile
tempfile._candidate_tempdir_list = lambda: ["/proc/nowhere"]
"""


def test_scores_need_none() -> None:
    """Where nothing may be written but the run, training ended at its first validation: what sacreBLEU imports asks for
    a temporary folder, and puts nothing there."""
    program = f"""{NONE}
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.decoding.mbr import utilities
from transformer_cli.evaluation.metrics import score
utilities(["a b"], "bleu")
print(round(score(["a b c d e"], [["a b c d e"]], EvaluationConfig())[0].value))
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=120) == "100\n"


def test_what_is_only_named_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/nowhere"])
    with temporary.name_one():
        assert tempfile.gettempdir() == "/tmp"
    with pytest.raises(ResourceError, match="there is no temporary folder"), temporary_directory():
        pass
