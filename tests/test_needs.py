"""Optional packages do what they are imported for, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_cli import needs
from transformer_cli.errors import ResourceError

NOWHERE = {"HOME": "/proc/nobody", "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "", "MPLCONFIGDIR": ""}
"""Where nothing can be kept: a container whose home is not there."""


def alone(program: str, **environment: str) -> str:
    """What a process says on stderr that has imported nothing yet."""
    known = os.environ | environment
    ended = subprocess.run([sys.executable, "-c", program], env=known, capture_output=True, text=True, timeout=120)
    return ended.stderr


def test_matplotlib_does_not_talk_about_its_list_of_fonts(tmp_path: Path) -> None:
    """`tx plot -o` of whoever has no home wrote five lines about a folder of that library, also with --quiet."""
    program = "from transformer_cli.needs import drawing_library; print(drawing_library().__name__)"
    assert alone(program, **NOWHERE, TMPDIR=str(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []


def test_where_matplotlib_has_no_folder_it_says_which_may_be_named() -> None:
    """It was a bug in tx, in a container that is read-only."""
    program = """
import tempfile
tempfile._candidate_tempdir_list = lambda: ["/proc/nowhere"]
from transformer_cli.cli import failures
from transformer_cli.needs import drawing_library
assert failures.exit_code(drawing_library) == 5
"""
    assert alone(program, **NOWHERE) == (
        "error: Matplotlib has no folder where it may keep its list of fonts\n"
        "  hint: MPLCONFIGDIR may name one, and so may TMPDIR\n"
    )


pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


def test_onnx_runtime_tells_nobody_that_it_is_used(tmp_path: Path) -> None:
    """From 1.31 on it sends events to Microsoft from its import on, and keeps a number for this machine."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    # Whatever it tries, there is no way to any network.
    environment |= {"HOME": str(home), "TMPDIR": str(temporary), "https_proxy": "http://127.0.0.1:9"}
    imports = "from transformer_cli.needs import needed; needed('onnxruntime')"
    subprocess.run([sys.executable, "-c", imports], env=environment, timeout=120, check=True)
    assert [path for place in (home, temporary) for path in place.rglob("*")] == []


def test_unless_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: name)
    for said, expected in (({"ORT_DISABLE_TELEMETRY": "0"}, "0"), ({}, "1")):
        monkeypatch.setattr(os, "environ", said)
        assert needs.needed("onnxruntime.quantization") == "onnxruntime.quantization"
        assert said == {"ORT_DISABLE_TELEMETRY": expected}


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ('{"url": "file:///home/a%20b/tx", "dir_info": {"editable": true}}', "-e '/home/a b/tx[serve]'"),
        ('{"url": "file:///tmp/tx.whl", "archive_info": {}}', "'/tmp/tx.whl[serve]'"),
        (
            '{"url": "https://forge/tx", "vcs_info": {"vcs": "git", "commit_id": "1"}}',
            "'transformer-cli[serve] @ git+https://forge/tx@1'",
        ),
        (
            '{"url": "https://forge/tx", "subdirectory": "a", "vcs_info": '
            '{"vcs": "git", "commit_id": "1", "requested_revision": "next"}}',
            "'transformer-cli[serve] @ git+https://forge/tx@next#subdirectory=a'",
        ),
        (None, "'transformer-cli[serve]'"),
    ],
)
def test_an_extra_is_asked_for_where_tx_came_from(told, asked, monkeypatch):
    """By its name alone pip would look for it on an index, where that is nobody's, or somebody else's."""
    monkeypatch.setattr(needs, "lacking", lambda package: "which is not installed")
    monkeypatch.setattr(needs, "distribution", lambda name: SimpleNamespace(read_text=lambda file: told))
    with pytest.raises(ResourceError) as refused:
        needs.needed("uvicorn")
    assert refused.value.hint == f"install it with tx: pip install {asked}"
