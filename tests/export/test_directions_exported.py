"""A model of several directions in other engines."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from conftest import PAIRS

import transformer_cli as tx
from transformer_cli.cli import failures
from transformer_cli.cli.app import main

pytestmark = pytest.mark.filterwarnings("ignore:.*sacremoses")  # what Marian's tokenizer says without it
PACKAGES = {"ctranslate2": "ctranslate2", "onnx": "onnxruntime", "hugging-face": "transformers"}
ENGLISH = [english for _, english in PAIRS]


def call(*arguments: str) -> int:
    """The program in this process: its exit code."""
    return failures.exit_code(lambda: main([*arguments]))


@pytest.mark.parametrize("format", PACKAGES)
def test_another_engine_says_the_same_in_the_direction_that_is_asked_for(
    format: str, two_ways: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once by the comparison that comes with every export, once by the program of its card, from outside."""
    pytest.importorskip(PACKAGES[format])
    assert call("export", format, "-m", str(two_ways), "-o", "there") == 2
    assert "translates into de or en: say which" in capfd.readouterr().err
    assert call("export", format, "-m", str(two_ways), "-o", "there", "--to", "de") == 0
    kept = json.loads(Path("there/comparison.json").read_text(encoding="utf-8"))["exact"]
    assert sorted(line["source"] for line in kept["lines"]) == sorted(ENGLISH)
    assert kept["agreeing"] == 1
    assert kept["equal_texts"] >= 9  # CTranslate2 prunes a beam otherwise, and here some texts are as likely as others
    card = Path("there/README.md").read_text(encoding="utf-8")
    assert "# de to en, en to de" in card
    pieces = ">>de<< (98), >>en<< (99)" if format == "hugging-face" else "<2de> (98), <2en> (99)"
    assert f"language that is wanted: {pieces}" in card  # what a source is typed with there
    expected = tx.load(two_ways).translate(PAIRS[5][1], to="de", beam_size=1)
    code = card.split("```python\n")[1].split("```")[0].replace("...", PAIRS[5][1])
    monkeypatch.chdir("there")
    Path("usage.py").write_text(code, encoding="utf-8")
    capfd.readouterr()
    runpy.run_path("usage.py")
    assert capfd.readouterr().out.strip() == expected == PAIRS[5][0]


def test_marians_tokenizer_knows_every_direction_by_its_code(two_ways: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert call("export", "hugging-face", "-m", str(two_ways), "-o", "there", "--to", "en") == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained("there")
    ours = tx.load(two_ways)
    for to in ("de", "en"):
        lines = [f">>{to}<<{line}" for line in (*ENGLISH, "<2de> bier")]
        expected = ours.towards(to).encode_source([*ENGLISH, "<2de> bier"])
        assert tokenizer(lines).input_ids == expected
