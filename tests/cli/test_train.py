"""What `tx train` says when it is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.cli import console, failures
from transformer_cli.cli.app import main

SMALL = ("--set", "model={d_model: 16, n_heads: 1, d_ff: 16, n_layers: 1}", "--set", "tokenizer.vocab_size=100")


@pytest.mark.parametrize(("source", "what"), [("de", '"ich mochte ein bier"'), ("en", '"i want a beer"'), ("fr", "-i")])
def test_the_next_command_speaks_the_source_language_and_a_model_says_its_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], source: str, what: str
) -> None:
    monkeypatch.setattr(console, "_quiet", False)
    pairs = f"{{pairs: {PAIRS[:4]}}}"
    text = f"data: {{source: {source}, target: xx, train: {pairs}, valid: {pairs}}}\n"
    Path("mine.yaml").write_text(text, encoding="utf-8")
    arguments = ["train", "-c", "mine.yaml", *SMALL, "--set", "training.max_steps=1"]
    assert failures.exit_code(lambda: main(arguments)) == 0
    assert f"tx translate -m runs/mine {what}" in capfd.readouterr().err
    assert failures.exit_code(lambda: main(["translate", "-m", "runs/mine", PAIRS[0][0]])) == 0
    assert re.search(rf"^model: runs/mine/\S+, {source} to xx$", capfd.readouterr().err, re.MULTILINE)
