"""A run that takes a moment."""

from __future__ import annotations

from typing import Any

from transformer_cli.config.run import RunConfig


def tiny(*, precision: str = "fp32", **training: Any) -> RunConfig:
    """Its configuration: twenty-five sentence pairs, a layer a side."""
    words = ["schläft", "trinkt", "isst", "lacht", "weint"]
    text = {"pairs": [[f"der hund {word} {other}", f"the dog {word}"] for word in words for other in words]}
    return RunConfig.model_validate(
        {
            "device": "cpu",
            "precision": precision,
            "threads": 1,
            "tokenizer": {"vocab_size": 60, "sampling": 0.1},
            "data": {"train": text, "valid": text, "max_length": 32},
            "model": {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1},
            "training": {"budget_tokens": 32, "warmup_steps": 2} | training,
        }
    )
