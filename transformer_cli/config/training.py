"""`training:` - how the model learns."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import (
    AtHome,
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
ENDLESS = ("inverse-sqrt", "noam", "constant")
"""Schedules that do not ask where training ends."""
MAX_STEPS = 100_000
"""Updates of a training that nobody says the length of."""


class Budget(Section):
    """How much training may take: one of these. Training ends when it is spent, and the learning rate schedule with
    it."""

    is_one_of_several: ClassVar[bool] = True

    minutes: PositiveFloat | None = None
    """From the first update on, including validations and checkpoints, and everything before a run was stopped and
    continued. How long the last validation and checkpoint take is estimated from those before, so a run with a single
    one may take longer. Time is never the same twice, so the weights are not either."""
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
    """Padded tokens of one batch, at most, on the source side and on the target side; memory grows linearly with it.
    Where pieces are drawn (`tokenizer.sampling`) it is what is expected of a batch, and one in several has some more.
    With several processes each has a batch of its own, and an update learns from all of them."""
    accumulation: PositiveInt = 1
    """Batches per update; their loss is normalised together, by the number of target tokens."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """What each of several processes holds: `ddp` the whole model, `fsdp` a part of every weight, gradient and moment,
    which takes less memory and more communication; `tx count-params --memory` counts the whole."""
    recompute: bool = False
    """Keep only the inputs of each layer and compute the rest again in the backward pass: less memory, more time;
    `tx count-params --memory` does not take it into account."""
    budget: Budget | None = None
    max_steps: PositiveInt | None = None
    """Updates after which training ends; 100,000 when neither this nor a budget is given."""
    max_epochs: PositiveInt | None = None
    """Passes over the training text after which training ends; it ends at `max_steps` before that, at 100,000 updates
    if there is none."""
    max_hours: PositiveFloat | None = None
    """Hours after which `tx train` saves everything and stops (exit code 138, on macOS 158); the same command
    continues."""
    stop_loss: PositiveFloat | None = None
    """End as soon as the mean training loss of an epoch falls below this."""
    patience: PositiveInt | None = None
    """End after this many validations in a row without a new best."""
    init_from: AtHome | None = None
    """Start from the weights and the tokenizer of this run or checkpoint: fine-tuning, as a run of its own. The path is
    relative to where the command is typed, like that of `-m`, not to the file."""
    freeze: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default=[])
    """Parts that are not trained: `embeddings`, `encoder`, `decoder.layers.0-2`, or any tensor by its name."""
    optimizer: Annotated[str, OPTIMIZERS] = "adam"
    """Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019), Muon (Jordan et al. 2024) for the matrices of layers
    with AdamW for all else, or schedule-free AdamW, which has an average in place of a schedule (Defazio et al. 2024):
    the average is what is validated and kept."""
    learning_rate: PositiveFloat | None = 1e-3
    """The peak, reached at the end of the warm-up; null for `noam`, whose peak is (d_model * warmup_steps)^-0.5."""
    betas: list[Probability] = Field(default=[0.9, 0.98], min_length=2, max_length=2)
    """Adam's decay rates for the two moments."""
    eps: Annotated[float, Field(ge=1e-30)] = 1e-9
    """Adam's epsilon, added to the denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 (adam) or decoupled (all others) decay of the matrices; biases, norms and embeddings are left alone."""
    schedule: Annotated[str, SCHEDULES] = "inverse-sqrt"
    """The learning rate after the warm-up. cosine and linear fall to zero at `max_steps`, or where the budget ends;
    noam is the paper's; warmup-stable-decay stays at the peak and falls to zero in the last fifth (Hägele et al.
    2024)."""
    warmup_steps: NonNegativeInt | Percentage = 4000
    """Updates in which the learning rate rises linearly: a number, or a share of `max_steps` or of the budget, such as
    10%."""
    ema: Probability | None = None
    """Keep a moving average of the weights beside them: the share of it that is left after an update, such as 0.999,
    and no more than (n - 1) / (n + 8) after the n-th; where less than 1/32 is taken of each, every fourth counts for
    four. It is validated, too, and a checkpoint translates with whichever is better."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest norm allowed for an update's gradient; null: no clipping."""
    max_skipped: NonNegativeInt = 5
    """Updates in a row that may be skipped because numbers are not finite; one more ends training (exit code 6). Those
    after which fp16's loss scale is halved do not count."""
    label_smoothing: Probability = 0.1
    """Probability mass spread over the vocabulary (Szegedy et al. 2016)."""
    r_drop: PositiveFloat | None = None
    """Read each sentence twice, with different dropout, and penalise the difference between the predictions with this
    weight, such as 5 (Liang et al. 2021): twice the time and activations of an update, of which MFU counts one half."""
    validate_every: PositiveInt = 500
    """Updates between two validations."""
    validation_bleu: bool = True
    """Translate the validation text greedily at each validation, and score it."""
    best_by: Literal["bleu", "loss"] = "bleu"
    """What decides which checkpoint is the best."""
    checkpoint_every: PositiveInt | None = None
    """Updates between two checkpoints; when not given, one at each validation. A checkpoint of more than 64 MiB is
    written while training goes on, from a copy, which takes that much memory; parts that several processes hold are
    written by each of them."""
    keep_best: PositiveInt = 1
    """How many of the best checkpoints are kept."""
    keep_last: PositiveInt = 1
    """How many of the newest checkpoints are kept."""
    log_every: PositiveInt = 50
    """Updates between two progress lines."""
    tensorboard: bool = False
    """Also write the numbers of metrics.jsonl for TensorBoard, into the run's folder `tensorboard`; needs the extra of
    that name."""

    @property
    def last_step(self) -> int | None:
        """The last update; None where a budget says when training ends."""
        return self.max_steps or (MAX_STEPS if self.budget is None else None)

    @property
    def looks_ahead(self) -> bool:
        """Whether the learning rate depends on where training ends."""
        return self.schedule not in ENDLESS or not isinstance(self.warmup_steps, int)

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
