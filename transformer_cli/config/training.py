"""`training:` - how the model learns."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import (
    NonNegativeFloat,
    NonNegativeInt,
    Percentage,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
    share_of,
)

OPTIMIZERS = Recipes(
    "optimizers",
    {
        "adam": "training.optimizers:adam",
        "adamw": "training.optimizers:adamw",
        "muon": "training.muon:muon",
        "schedule-free": "training.schedule_free:schedule_free",
    },
)
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
MAX_STEPS = 100_000
"""Updates of a training that nobody says the length of."""


class Budget(Section):
    """How much training may take: one of these. It ends when that is spent, and the learning rate with it."""

    is_one_of_several: ClassVar[bool] = True

    minutes: PositiveFloat | None = None
    """From the first update on, validations and checkpoints included, also those of a run that was stopped and goes on;
    how long the last ones take is told by those before, so that a run with a single one may take longer. Time is never
    the same twice, so that the weights are not either."""
    tokens: PositiveInt | None = None
    """Target tokens to learn from, end marks included."""
    epochs: PositiveFloat | None = None
    """Passes over the training text; 2.5 is possible."""

    @property
    def given(self) -> dict[str, float]:
        return {name: value for name, value in self if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value:,.12g}" for name, value in self.given.items())


class TrainingConfig(Section):
    """Optimisation, validation, checkpoints and when to stop."""

    budget_tokens: Annotated[int, Field(ge=8, le=10**7)] = 4096
    """Padded tokens of one batch, at most, on the source side and on the target side; memory grows linearly with it. Of
    several processes each has a batch of its own, and an update learns from all of them."""
    accumulation: PositiveInt = 1
    """Batches per update; their loss is normalised together, by the number of target tokens."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """What each of several processes holds: `ddp` the whole model, `fsdp` a part of every weight, gradient and moment,
    which takes less memory and more exchange; `tx count-params --memory` counts the whole."""
    recompute: bool = False
    """Keep only what goes into each layer and compute the rest again on the way back: less memory, more time;
    `tx count-params --memory` does not count it."""
    budget: Budget | None = None
    max_steps: PositiveInt | None = None
    """Updates after which training ends; 100,000 when neither this nor a budget is given."""
    max_epochs: PositiveInt | None = None
    """Passes over the training text after which training ends."""
    max_hours: PositiveFloat | None = None
    """Hours after which `tx train` stops, everything saved, to be continued by the same command (exit code 138)."""
    stop_loss: PositiveFloat | None = None
    """End as soon as the mean training loss of an epoch falls below this."""
    patience: PositiveInt | None = None
    """End after this many validations in a row without a new best."""
    init_from: str | None = None
    """Begin with the weights and the tokenizer of this run, or checkpoint: fine-tuning, as a run of its own. Its path
    counts from where the command is typed, as that of `-m`, not from the file."""
    freeze: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default=[])
    """Parts that stay as they are: `embeddings`, `encoder`, `decoder.layers.0-2`, or any tensor by its name."""
    optimizer: Annotated[str, OPTIMIZERS] = "adam"
    """Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019), Muon (Jordan et al. 2024) for the matrices of layers
    beside AdamW for all else, or AdamW with an average in place of a schedule (Defazio et al. 2024): the average is
    what is validated and kept."""
    learning_rate: PositiveFloat | None = 1e-3
    """The peak, reached at the end of the warm-up; null for `noam`, whose peak is (d_model * warmup_steps)^-0.5."""
    betas: list[Probability] = Field(default=[0.9, 0.98], min_length=2, max_length=2)
    """Adam's decay rates of the two moments."""
    eps: PositiveFloat = 1e-9
    """Adam's denominator offset."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 (adam) or decoupled (all others) decay of the matrices; biases, norms and embeddings are left alone."""
    schedule: Annotated[str, SCHEDULES] = "inverse-sqrt"
    """The learning rate after the warm-up; cosine and linear end at zero at `max_steps`, or where the budget does, noam
    is the paper's, warmup-stable-decay stays at the peak and falls to zero in the last fifth (Hägele et al. 2024)."""
    warmup_steps: NonNegativeInt | Percentage = 4000
    """Updates in which the learning rate rises linearly: a number, or a share of `max_steps` or of the budget, such as
    10%."""
    ema: Probability | None = None
    """Keep an average of the weights beside them, of which so much is left after an update, such as 0.999, and no more
    than (n - 1) / (n + 8) after the n-th; it is validated, too, and whichever is better is what a checkpoint translates
    with."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest norm of an update's gradient; null: no clipping."""
    max_skipped: NonNegativeInt = 5
    """Updates in a row that are skipped for numbers that are not finite; one more ends training (exit code 6). Those
    after which fp16's loss scale is halved do not count."""
    label_smoothing: Probability = 0.1
    """Mass spread over the vocabulary (Szegedy et al. 2016)."""
    r_drop: PositiveFloat | None = None
    """Read each sentence twice, with other dropout, and weigh by how much the predictions differ, such as 5 (Liang et
    al. 2021): twice the time and activations of an update, of which MFU counts one half."""
    word_dropout: Probability = 0.0
    """Of source words, as spaces divide them, that an update does not see: their pieces' vectors are zero (Sennrich et
    al. 2016)."""
    validate_every: PositiveInt = 500
    """Updates between two validations."""
    validation_bleu: bool = True
    """Translate the validation text greedily at each validation, and score it."""
    best_by: Literal["bleu", "loss"] = "bleu"
    """What makes a checkpoint the best."""
    checkpoint_every: PositiveInt | None = None
    """Updates between two checkpoints; when not given, one at each validation. One of more than 64 MiB is written while
    training goes on, from a copy, which takes that much memory; what several processes hold in parts, by each of
    them."""
    keep_best: PositiveInt = 1
    """Checkpoints kept by merit."""
    keep_last: PositiveInt = 1
    """Checkpoints kept by age."""
    log_every: PositiveInt = 50
    """Updates between two lines of progress."""
    tensorboard: bool = False
    """Write what metrics.jsonl gets for TensorBoard, too, into the run's folder `tensorboard`; needs the extra of that
    name."""

    @property
    def last_step(self) -> int | None:
        """The last update; None where a budget says when training ends."""
        return self.max_steps or (MAX_STEPS if self.budget is None else None)

    @property
    def warmup_share(self) -> float | None:
        """The warm-up as a share of the budget; None where it is so many updates."""
        return self._warmup_share or None if self.budget is not None else None

    @property
    def warms_by_updates(self) -> bool:
        """Whether the warm-up ends at an update that is written down, and training at one, too."""
        return self.budget is None and isinstance(self.warmup_steps, int)

    @property
    def warmup_updates(self) -> int:
        """The warm-up in updates, where it is no share of a budget."""
        if isinstance(self.warmup_steps, int):
            return self.warmup_steps
        return round(self._warmup_share * (self.last_step or 0))

    @property
    def _warmup_share(self) -> float:
        return 0.0 if isinstance(self.warmup_steps, int) else share_of(self.warmup_steps)
