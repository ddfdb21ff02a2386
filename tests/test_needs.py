"""Optional packages do what they are imported for, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli import needs

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
