"""A run as Python sees it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import transformer_cli as tx
from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.manifest import MODEL
from transformer_cli.checkpoints.store import open_run
from transformer_cli.decoding.invariance import check_batching
from transformer_cli.decoding.scoring import score_texts
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import ModelError
from transformer_cli.loading import in_fp32, settings_of, translator_of

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


def test_in_fp32_it_is_the_same_weights_though_training_deleted_the_checkpoint(
    trained_run: Path, tmp_path: Path
) -> None:
    """They were read again: what was opened a second before was then missing."""
    both = LINES, ["i want a beer", "the dog sleeps"]
    checkpoint = find_checkpoint(str(shutil.copytree(trained_run, tmp_path / "run")))
    run = open_run(checkpoint)
    expected = score_texts(translator_of(run, settings_of(run, ["precision=fp32", "device=cpu"])), *both)
    run = open_run(checkpoint)
    rounded = translator_of(run, settings_of(run, ["precision=bf16", "device=cpu"]))
    before = score_texts(rounded, *both)
    shutil.rmtree(checkpoint)
    precise = in_fp32(rounded, [run], settings_of(run, ["precision=auto", "device=cpu"]))
    assert score_texts(precise, *both) == expected
    assert score_texts(rounded, *both) == before != expected
    shared = zip(rounded.model.parameters(), precise.model.parameters(), strict=True)
    assert all(one is other for one, other in shared), "they take the memory of one"


def test_in_fp32_it_is_never_the_weights_of_a_run_that_took_its_place(trained_run: Path, best: str) -> None:
    """A GPU holds weights in bf16 alone, so they are read again: scores were silently those of the other run."""
    run = open_run(find_checkpoint(str(trained_run)))
    rounded = translator_of(run, settings_of(run, ["precision=bf16", "device=cpu"]))
    run.model.to(torch.bfloat16)
    settings = settings_of(run, ["precision=auto", "device=cpu"])
    assert in_fp32(rounded, [run], settings).model.output.weight.dtype == torch.float32
    file = run.manifest.files[MODEL]
    was = run.manifest.model_copy(update={"files": {MODEL: file.model_copy(update={"sha256": "0" * 64})}})
    with pytest.raises(ModelError, match=f"{best} was replaced after it was opened"):
        in_fp32(rounded, [replace(run, manifest=was)], settings)
