"""A run as Python sees it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import transformer_cli as tx
from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.decoding.invariance import check_batching
from transformer_cli.decoding.scoring import score_texts
from transformer_cli.decoding.translator import Translator

LINES = ["ich mochte ein bier", "der hund schläft"]


@pytest.mark.parametrize(
    "use",
    [
        lambda run: run.translate(LINES, beam_size=1),
        lambda run: run.translate(LINES, beam_size=3),
        lambda run: run.translate(LINES, search="sampling"),
        lambda run: score_texts(run, LINES, ["i want a beer", "the dog sleeps"]),
        lambda run: attention_maps(run, LINES[0]),
        lambda run: check_batching(run, LINES),
    ],
    ids=["greedy", "beam", "sample", "score", "attention maps", "check batching"],
)
def test_a_run_leaves_the_callers_random_numbers_alone(trained_run: Path, use: Callable[[Translator], object]) -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    use(tx.load(trained_run))
    assert states() == before
