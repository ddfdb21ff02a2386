"""Whatever is set, a run that was stopped anywhere ends in the bits of one that was not, and is used like any other.

TX_FUZZ=N tries N configurations instead of a few.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from bits import assert_same_bits, at_update, interrupt
from fuzz import TRIED
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import transformer_cli as tx
from transformer_cli.accounting.parameters import count
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import Interrupted
from transformer_cli.training.run import train

pytestmark = pytest.mark.usefixtures("own_threads")

WORDS = {"der": "the", "Hund": "dog", "Katze": "cat", "schläft": "sleeps", "trinkt": "drinks", "große": "big"}
PAIRS = [[f"{one} {other}", f"{WORDS[one]} {WORDS[other]}"] for one, other in itertools.product(WORDS, repeat=2)]
POSITIONS = ["sinusoidal", "sinusoidal-halves", "sinusoidal-table", "learned", "rotary", "none"]


def chosen(draw: st.DrawFn, **choices: list[Any]) -> dict[str, Any]:
    return {name: draw(st.sampled_from(values)) for name, values in choices.items()}


@st.composite
def configurations(draw: st.DrawFn) -> RunConfig:
    """Of a tiny model: any of what it may be made of, in any of the ways in which it may be trained."""
    n_heads = draw(st.sampled_from([1, 2, 4]))
    model = chosen(
        draw,
        n_kv_heads=[None, 1, n_heads],
        d_head=[None, 6],
        n_layers=[1, 2, {"encoder": 2, "decoder": 1}],
        norm=["layer-norm", "rms-norm"],
        norm_position=["pre", "post"],
        final_norm=[None, True, False],
        activation=["relu", "gelu", "silu", "swiglu", "geglu"],
        positions=[*POSITIONS, {"encoder": "rotary", "decoder": "learned"}],
        first_position=[0, 2],
        bias=[True, False, {"attention": False, "feed_forward": True, "norm": False}],
        output_bias=[False, True],
        tied=["all", "embeddings", "decoder", "none"],
        qk_norm=[False, True],
        embedding_scale=[True, False],
        dropout=[0.1, 0.3],
        attention_dropout=[0.0, 0.2],
        activation_dropout=[0.0, 0.2],
    )
    model |= {"n_heads": n_heads, "d_model": 8 * n_heads, "d_ff": 16}
    tokenizer = chosen(draw, kind=["bpe", "unigram", "word", "char", "byte"], normalization=["nfkc", "identity"])
    is_cut = tokenizer["kind"] in ("bpe", "unigram")
    tokenizer |= {
        "vocab_size": 270 if tokenizer["kind"] == "byte" else 50,
        "joint": model["tied"] in ("all", "embeddings"),
    }
    tokenizer |= {"sampling": draw(st.sampled_from([0.0, 0.2])) if is_cut else 0.0}
    halves = [{"text": {"pairs": PAIRS[:20]}, "weight": 2.5, "both": True}, {"text": {"pairs": PAIRS[20:]}}]
    data = chosen(
        draw,
        train=[{"pairs": PAIRS}, halves],
        valid=["20%", {"pairs": PAIRS[:4]}],
        temperature=[1.0, 3.0],
        tags=[False, True],
        source_eos=[True, False],
    )
    training = chosen(
        draw,
        budget_tokens=[96, 300],
        accumulation=[1, 3],
        recompute=[False, True],
        optimizer=["adam", "adamw", "muon"],
        schedule=["inverse-sqrt", "cosine", "linear", "constant", "warmup-stable-decay"],
        warmup_steps=[0, 2, "20%"],
        weight_decay=[0.0, 0.01],
        ema=[None, 0.9],
        clip_norm=[1.0, None],
        label_smoothing=[0.0, 0.1],
        r_drop=[None, 1.0],
        freeze=[[], ["encoder.layers.0"]],
        validate_every=[1, 2],
        validation_bleu=[False, True],
        checkpoint_every=[None, 1],
        keep_last=[1, 2],
    )
    training |= {"max_steps": 5, "log_every": 1, "best_by": "loss"}
    if draw(st.booleans()):
        training |= {"optimizer": "schedule-free", "schedule": "constant", "ema": None}
    whole = {"device": "cpu", "precision": "fp32", "threads": 1, "seed": draw(st.integers(0, 99))}
    return RunConfig.model_validate(
        whole | {"tokenizer": tokenizer, "data": data | {"max_length": 90}, "model": model, "training": training}
    )


@settings(
    max_examples=TRIED or 3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(configurations(), st.integers(1, 4))
def test_a_stopped_run_ends_in_the_same_bits_and_translates_and_scores(
    tmp_path: Path, config: RunConfig, step: int
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for folder in (straight, stopped):
        shutil.rmtree(folder, ignore_errors=True)
    train(config, straight)
    with at_update(step, interrupt), pytest.raises(Interrupted):
        train(config, stopped)
    train(config, stopped)
    assert_same_bits(straight, stopped)
    model = tx.load(straight)
    kept = load_checkpoint(list_checkpoints(straight)[-1], with_optimizer=False).model
    sizes = {"source_vocab": model.tokenizer.source_size, "target_vocab": model.tokenizer.target_size}
    assert sum(tensor.numel() for tensor in kept.values()) == count(config.counted, **sizes).total
    lines = ["der Hund schläft", "", "große Katze"]
    to = "en" if len(config.data.directions) > 1 else None
    translated = model.translate(lines, to=to)
    assert len(translated) == 3
    assert translated[1] == ""
    assert len(model.score(lines, ["the dog sleeps", "", "big cat"], to=to)) == 3
