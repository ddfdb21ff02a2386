"""What the tests of several parts share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PAIRS = [
    ["ich mochte ein bier", "i want a beer"],
    ["ich möchte ein bier", "i want a beer"],
    ["ich mochte einen kaffee", "i want a coffee"],
    ["ich trinke ein bier", "i drink a beer"],
    ["ich trinke einen kaffee", "i drink a coffee"],
    ["der hund schläft", "the dog sleeps"],
    ["der hund schläft nicht", "the dog does not sleep"],
    ["die katze schläft", "the cat sleeps"],
    ["die katze trinkt", "the cat drinks"],
    ["der hund trinkt", "the dog drinks"],
    ["die unglückliche katze", "the unhappy cat"],
    ["der glückliche hund", "the happy dog"],
]


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that `tx train` made, and that knows PAIRS by heart: `runs/tiny`, in a folder of its own, the latest there.

    Everybody reads the same one: who wants to change something takes a copy.
    """
    from transformer_cli.cli.app import main

    folder = tmp_path_factory.mktemp("trained")
    overrides = {
        **{f"data.{split}": {"pairs": PAIRS} for split in ("train", "valid", "test")},
        "tokenizer.vocab_size": 100,
        "model": {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 1, "dropout": 0.0},
        "training": {"learning_rate": 0.01, "warmup_steps": 20, "max_steps": 150, "validate_every": 50},
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
    }
    arguments = [f"--set={key}={json.dumps(value)}" for key, value in overrides.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-c", "tiny.yaml", *arguments]) == 0
    return folder / "runs" / "tiny"
