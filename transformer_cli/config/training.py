"""`training:` - how the model learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
)

OPTIMIZERS = Recipes("optimizers", {"adam": "training.optimizers:adam", "adamw": "training.optimizers:adamw"})
SCHEDULES = Recipes(
    "schedules",
    {
        "inverse-sqrt": "training.schedules:inverse_sqrt",
        "noam": "training.schedules:inverse_sqrt",
        "cosine": "training.schedules:cosine",
        "linear": "training.schedules:linear",
        "constant": "training.schedules:constant",
        "warmup-stable-decay": "training.schedules:warmup_stable_decay",
    },
)


class TrainingConfig(Section):
    """Optimisation, validation, checkpoints and when to stop."""

    budget_tokens: Annotated[int, Field(ge=8, le=10**7)] = 4096
    """Padded tokens of one batch, at most, on the source side and on the target side; memory grows linearly with it."""
    accumulation: PositiveInt = 1
    """Batches per update; their loss is normalised together, by the number of target tokens."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """What each of several processes holds: `ddp` the whole model, `fsdp` a part of every weight, gradient and moment,
    which takes less memory and more exchange; `tx count-params --memory` counts the whole."""
    recompute: bool = False
    """Keep only what goes into each layer and compute the rest again on the way back: less memory, more time;
    `tx count-params --memory` does not count it."""
    max_steps: PositiveInt = 100_000
    """Updates after which training ends."""
    max_epochs: PositiveInt | None = None
    """Passes over the training text after which training ends."""
    max_hours: PositiveFloat | None = None
    """Hours after which `tx train` stops, everything saved, to be continued by the same command (exit code 138)."""
    stop_loss: PositiveFloat | None = None
    """End as soon as the mean training loss of an epoch falls below this."""
    patience: PositiveInt | None = None
    """End after this many validations in a row without a new best."""
    init_from: str | None = None
    """Begin with the weights and the tokenizer of this run, or checkpoint: fine-tuning, as a run of its own."""
    freeze: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default=[])
    """Parts that stay as they are: `embeddings`, `encoder`, `decoder.layers.0-2`, or any tensor by its name."""
    optimizer: Annotated[str, OPTIMIZERS] = "adam"
    """Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019)."""
    learning_rate: PositiveFloat | None = 1e-3
    """The peak, reached at the end of the warm-up; null for `noam`, whose peak is (d_model * warmup_steps)^-0.5."""
    betas: list[Probability] = Field(default=[0.9, 0.98], min_length=2, max_length=2)
    """Adam's decay rates of the two moments."""
    eps: PositiveFloat = 1e-9
    """Adam's denominator offset."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 (adam) or decoupled (adamw) decay of the matrices; biases, norms and embeddings are left alone."""
    schedule: Annotated[str, SCHEDULES] = "inverse-sqrt"
    """The learning rate after the warm-up; cosine and linear end at zero at `max_steps`, noam is the paper's,
    warmup-stable-decay stays at the peak and falls to zero in the last fifth (Hägele et al. 2024)."""
    warmup_steps: NonNegativeInt = 4000
    """Updates in which the learning rate rises linearly."""
    ema: Probability | None = None
    """Keep an average of the weights beside them, of which so much is left after an update, such as 0.999; it is
    validated, too, and whichever is better is what a checkpoint translates with."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest norm of an update's gradient; null: no clipping."""
    max_skipped: NonNegativeInt = 5
    """Updates in a row that are skipped for numbers that are not finite; one more ends training (exit code 6)."""
    label_smoothing: Probability = 0.1
    """Mass spread over the vocabulary (Szegedy et al. 2016)."""
    validate_every: PositiveInt = 500
    """Updates between two validations."""
    validation_bleu: bool = True
    """Translate the validation text greedily at each validation, and score it."""
    best_by: Literal["bleu", "loss"] = "bleu"
    """What makes a checkpoint the best."""
    checkpoint_every: PositiveInt | None = None
    """Updates between two checkpoints; when not given, one at each validation."""
    keep_best: PositiveInt = 1
    """Checkpoints kept by merit."""
    keep_last: PositiveInt = 1
    """Checkpoints kept by age."""
    log_every: PositiveInt = 50
    """Updates between two lines of progress."""
