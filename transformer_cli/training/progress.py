"""How far training is, and whether what a checkpoint says about that can be true."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pydantic

from transformer_cli.checkpoints.manifest import STATE
from transformer_cli.checkpoints.standing import ranked
from transformer_cli.checkpoints.store import Checkpoint
from transformer_cli.config.section import NonNegativeFloat, NonNegativeInt, PositiveInt
from transformer_cli.config.training import Budget, TrainingConfig
from transformer_cli.decoding.doubt import Certainty
from transformer_cli.errors import DivergedError, ModelError, UsageError
from transformer_cli.files import json_line, shown
from transformer_cli.training.scaling import LossScale
from transformer_cli.training.schedules import Spent
from transformer_cli.wording import counted


def _no_share(warmed: Any) -> Any:
    """Older checkpoints have a share here, of a limit that is not known."""
    return None if isinstance(warmed, float) else warmed


@dataclass
class Progress:
    """How far training is: all that a checkpoint must know besides weights and moments."""

    __pydantic_config__: ClassVar = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: NonNegativeInt = 0
    """Updates."""
    epoch: NonNegativeInt = 0
    """The epoch that the next batch belongs to."""
    batch: NonNegativeInt = 0
    """Batches of that epoch already used by each of `processes`, since there are so many."""
    shares: list[tuple[PositiveInt, PositiveInt]] = field(default_factory=list)
    """What was used of that epoch before: by how many processes, and how many batches by each of them."""
    epoch_loss: float = 0.0
    """Summed loss of that epoch so far."""
    epoch_tokens: NonNegativeInt = 0
    """Target tokens of that epoch so far."""
    mean_loss: float | None = None
    """Of the last whole epoch; None before, and in checkpoints of before this was kept."""
    target_tokens: NonNegativeInt = 0
    """Of all updates that were made."""
    warmed: Annotated[Spent | None, pydantic.BeforeValidator(_no_share)] = None
    """Where the warm-up ended, once it has, in a run whose limits have a say in that."""
    log_loss: float = 0.0
    """Summed loss since the last line of progress."""
    log_tokens: NonNegativeInt = 0
    """Target tokens since then."""
    elapsed_s: NonNegativeFloat = 0.0
    """Seconds of training, validations left out."""
    passed_s: NonNegativeFloat = 0.0
    """Seconds of all of it, from the first update on."""
    stale: NonNegativeInt = 0
    """Validations in a row without a new best."""
    scores: dict[Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]{0,17}$")], float] = field(default_factory=dict)
    """Validation score by step, of the checkpoints that are kept or were; higher is better."""
    losses: dict[Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]{0,17}$")], float] = field(default_factory=dict)
    """And its loss, which decides between equal scores, as those of a young model are: no word right yet."""
    unsure_below: Certainty | None = None
    """The certainty of a translation that the last validation found to be little; None without such translations."""
    averaged: bool = False
    """Whether the last validation found the average of the weights to be better: then the model's file holds that."""
    skipped: NonNegativeInt = 0
    """Updates in a row that were not made, for numbers that are not finite."""
    not_made: NonNegativeInt = 0
    """And of all."""
    loss_scale: LossScale | None = None
    """In fp16."""
    finished: str | None = None
    """Why training ended, once it has."""
    owes_validation: bool = False
    """Whether that of this step is still to come: somebody asked to stop while it went on."""
    processes: PositiveInt | None = None
    """Processes that share each update, which `batch` depends on; None in checkpoints of before this was kept."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done."""
        return self.finished is not None and not self.owes_validation

    @property
    def epoch_number(self) -> int:
        """The epoch of the last update, counted from 1."""
        return self.epoch + self.is_within

    @property
    def is_within(self) -> bool:
        """Whether something of its epoch is used already."""
        return self.batch > 0 or bool(self.shares)

    def epochs_after(self, batches: int, n_batches: int) -> float:
        """How many will have passed after so many more batches. n_batches: what its processes now use of an epoch, or
        of what others have left of it."""
        whole = self.used_before + n_batches
        # One quotient: a limit such as 1.36 is its nearest number, too, which 1 + 9 / 25 is not.
        return (self.epoch * whole + self.used_before + self.batch + batches) / whole

    @property
    def used_before(self) -> float:
        """What other numbers of processes used of its epoch, in batches of as many as now."""
        return sum(processes * used for processes, used in self.shares) / (self.processes or 1)

    @property
    def spent(self) -> Spent:
        """What training has taken at least: of epochs, whole ones."""
        return Spent(self.step, self.epoch, self.target_tokens, self.passed_s or self.elapsed_s)

    def divide_among(self, processes: int) -> bool:
        """Go on with so many processes; returns whether it was another number before."""
        before, self.processes = self.processes or processes, processes
        if before == processes:
            return False
        if self.batch:
            self.shares.append((before, self.batch))
            self.batch = 0
        return True

    def scale(self, *, in_fp16: bool) -> None:
        """Go on in that precision, or in another."""
        self.loss_scale = (self.loss_scale or LossScale()) if in_fp16 else None

    def judge(self, score: float, loss: float) -> bool:
        """What validation came to after this step; returns whether that is the best so far. A number that is not finite
        is the worst there is."""
        step = str(self.step)
        self.scores[step] = score if math.isfinite(score) else -sys.float_info.max
        self.losses[step] = loss if math.isfinite(loss) else sys.float_info.max
        is_best = self.ranked[0] == step
        self.stale = 0 if is_best else self.stale + 1
        return is_best

    def validated(self, results: Mapping[str, Any], options: TrainingConfig) -> bool:
        """What follows from a validation; returns whether it is the best so far. Raises DivergedError where numbers are
        not finite and no update is left that could mend it; patience ends with an earlier one, which was better."""
        if self.finished is not None and not math.isfinite(results["loss"]):
            raise DivergedError("the loss is not a finite number")
        self.owes_validation = False
        is_best = self.judge(results["bleu"] if options.best_by == "bleu" else -results["loss"], results["loss"])
        self.unsure_below = results.get("unsure_below")
        if self.finished is None and options.patience is not None and self.stale >= options.patience:
            self.finished = f"patience: no better validation in {self.stale}"
        return is_best

    @property
    def ranked(self) -> list[str]:
        """The steps with a score, best first."""
        return ranked(self.scores, self.losses)

    def forget(self, *steps: str) -> None:
        """Their checkpoints are not there any more."""
        for step in steps:
            self.scores.pop(step, None)
            self.losses.pop(step, None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@functools.cache
def _reader() -> pydantic.TypeAdapter[Progress]:
    return pydantic.TypeAdapter(Progress)


def progress_of(checkpoint: Checkpoint, options: TrainingConfig) -> Progress:
    """What a checkpoint says; ModelError where no training can have come to that, UsageError where it does not know
    the tokens that a budget counts."""
    try:
        # JSON's way in is the strict one that takes an object for a dataclass.
        progress = _reader().validate_json(json_line(checkpoint.state))
        wrong = _impossible(progress, checkpoint.step)
    except pydantic.ValidationError as failure:
        wrong = [f"{'.'.join(map(str, error['loc'])) or 'all'} {error['input']!r:.60}" for error in failure.errors()]
    if wrong:
        raise ModelError(
            f"{shown(checkpoint.path / STATE)} has values that no run can have: {', '.join(wrong[:5])}",
            hint="restore the checkpoint from a copy, or start anew with --overwrite",
        )
    counts = options.budget is not None and options.budget.tokens is not None
    if counts and progress.step > progress.not_made and not progress.target_tokens:
        raise UsageError(
            f"{shown(checkpoint.path)} was saved before runs counted their tokens: nobody knows how much of "
            "training.budget.tokens is spent",
            hint="give the run training.max_steps or training.budget.epochs instead",
        )
    return progress


def _impossible(progress: Progress, step: int) -> list[str]:
    """What contradicts the checkpoint's step, or itself."""
    wrong = []
    if progress.step != step:
        wrong.append(f"step {progress.step:,} in the checkpoint of step {step:,}")
    if progress.epoch > step:
        wrong.append(f"epoch {progress.epoch:,} after {counted(step, 'updates')}")
    if progress.is_within != (progress.epoch_tokens > 0) and not progress.skipped:
        wrong.append(f"{counted(progress.epoch_tokens, 'tokens')} in {counted(progress.batch, 'batches')}")
    if progress.not_made > step:
        wrong.append(f"{progress.not_made:,} of {counted(step, 'updates')} not made")
    if progress.warmed is not None and progress.warmed.step > step:
        wrong.append(f"a warm-up of {progress.warmed.step:,g} updates after {step:,}")
    wrong += [f"a score of step {scored}" for scored in progress.scores if int(scored) > step]
    return wrong


def check_within(progress: Progress, n_batches: int, run_dir: Path) -> None:
    """ModelError where its epoch has no more batches than are used already."""
    if progress.batch >= n_batches:
        raise ModelError(
            f"the last checkpoint of {shown(run_dir)} has used {counted(progress.batch, 'batches')} of epoch "
            f"{progress.epoch + 1:,}, which has {n_batches:,}",
            hint="restore the run from a copy, or start anew with --overwrite",
        )


def check_unspent(progress: Progress, options: TrainingConfig, run_dir: Path) -> None:
    """UsageError where a run that was stopped is beyond what ends training by now, as far as whole epochs tell. Minutes
    do not: they pass while a run is validated and saved, too."""
    spent, budget = progress.spent, options.budget
    limits = [("max_epochs", (spent.epochs, options.max_epochs or math.inf))]
    if budget is None or budget.minutes is None:
        [name] = ["max_steps"] if budget is None else [f"budget.{name}" for name in budget.given]
        limits.append((name, spent.against(options)))
    for name, (done, limit) in limits:
        if progress.step and progress.finished is None and done >= limit:
            where = f"stopped after step {progress.step:,}, where training.{name} {limit:,.12g} is spent"
            raise UsageError(
                f"{shown(run_dir)} was {where}",
                hint="raise it and training goes on; `tx evaluate` and `tx translate` take the run as it is",
            )


def spent_in_words(budget: Budget) -> str:
    """Why training ended."""
    return f"budget spent ({budget})"


def _is_within(words: str, before: str) -> bool:
    """Whether this budget is no more than the one that was spent before, both as `spent_in_words` has them. How much of
    an epoch is used, and what ending takes, nobody knows here."""
    both = [re.fullmatch(r"budget spent \((\w+): (.*\d)\)", said) for said in (words, before)]
    (kind, limit), (other, spent) = (("", "inf") if found is None else found.groups() for found in both)
    return kind == other and float(limit.replace(",", "")) <= float(spent.replace(",", ""))


def is_over(progress: Progress, options: TrainingConfig) -> bool:
    """Whether a finished run stays finished under these options, which may allow more than those it ended by; what was
    imported has not begun."""
    reason = (progress.finished or "") if progress.step else ""
    if reason and progress.spent.share(options) >= 1:
        return True
    if reason and options.max_epochs is not None and progress.epoch >= options.max_epochs:
        return True
    if reason.startswith(("max_steps", "max_epochs")):
        return False
    if reason.startswith("budget"):
        return options.budget is not None and _is_within(spent_in_words(options.budget), reason)
    if reason.startswith("patience"):
        return options.patience is not None and progress.stale >= options.patience
    if reason.startswith("mean loss"):
        mean = progress.mean_loss
        return options.stop_loss is not None and (mean is None or mean < options.stop_loss)
    return bool(reason)
