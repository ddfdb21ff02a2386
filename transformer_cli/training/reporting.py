"""What a run tells: lines that a person reads, and metrics.jsonl for programs, TensorBoard among them."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.checkpoints.events import METRICS, event_of, read_events, score_name, validation_scores
from transformer_cli.decoding.quality import LOOPED, flags
from transformer_cli.errors import ModelError
from transformer_cli.training.clock import Clock, Horizon
from transformer_cli.training.durations import duration
from transformer_cli.training.listening import Listener, Status
from transformer_cli.training.progress import Progress
from transformer_cli.training.replacing import NO_METRICS
from transformer_cli.training.tensorboard import Board
from transformer_cli.training.update import Update
from transformer_cli.training.utilisation import Utilisation
from transformer_cli.wording import counted
from transformer_cli.writing import width

SILENCE_S = 60.0
"""A line comes at least this often, so that a slow run does not look like a dead one."""
FIRST_S = 2.0
"""After so many seconds of updates the first line comes, and what is known of the end."""
LONGEST_LIST = 400
"""Characters of the lines of an update that was not made: on many GPUs they are thousands."""
ENDS = re.compile(r"(?<=\d)(?=[,;] |$)")
"""Of one line's number."""
ARROW = "  ->  "


class Reporter:
    """Turns updates and validations into text and events.

    run_dir: None keeps no metrics, as on all processes but the first. listener: who is told. horizon: what ends the
    run. progress: where it goes on; what was measured behind that is forgotten. clock: where time goes. utilisation:
    how much of the machine's products it uses.
    """

    def __init__(
        self,
        run_dir: Path | None,
        listener: Listener,
        *,
        horizon: Horizon,
        progress: Progress,
        clock: Clock,
        utilisation: Utilisation,
    ) -> None:
        self.path = None if run_dir is None else run_dir / METRICS
        self.listener = listener
        self.horizon = horizon
        self.clock = clock
        self.utilisation = utilisation
        self.tokens = 0
        self.targets = 0
        self.seconds = 0.0
        self.rate = 0.0
        self.mfu: float | None = None
        self.said = clock.now()
        self.has_told = self.has_forecast = False
        self.others_in_parts = 0
        if self.path is not None:
            forget_after(self.path, progress, warn=listener.warn)
        self.board = None if run_dir is None or not horizon.options.tensorboard else Board(run_dir)
        self.score_name = score_name(horizon.options.best_by)
        self.scores = [] if run_dir is None else [*validation_scores(read_events(run_dir), horizon.options.best_by)]

    def first(self, loss: float) -> None:
        """The loss that training begins with, told before the first update is made."""
        self._say(f"loss of the first batch: {loss:.3f}")

    def update(self, progress: Progress, update: Update) -> None:
        """Count an update; every log_every-th one becomes an event and a line."""
        seconds = self.clock.update(update.target_tokens)
        progress.elapsed_s += seconds
        self.seconds += seconds
        self.tokens += update.source_tokens + update.target_tokens
        progress.log_loss += update.loss * update.target_tokens
        progress.log_tokens += update.target_tokens
        self.targets += update.target_tokens
        self.rate = self.tokens / self.seconds
        self.mfu = self.utilisation.share(self.targets, self.seconds)
        if update.others_in_parts > self.others_in_parts:
            self.others_in_parts = update.others_in_parts
            self.listener.warn(
                f"in {counted(self.others_in_parts, 'processes')} beside the first, memory is not enough for a whole "
                "batch: there, each is learned from in parts from now on; an update has as many tokens as before"
            )
        if update.overflowed is not None:
            self._say(
                f"update {progress.step:,}: gradients overflow fp16 at a loss scale of {update.overflowed:,.0f}; "
                "it was not made, the next is scaled by half as much"
            )
        due = progress.step % self.horizon.options.log_every == 0 or progress.finished is not None
        if not self.has_forecast:
            self._tell_forecast(progress)
        if self.listener.show is not None:
            self.listener.show(self._status(progress, update))
        elif due or self._is_overdue():
            self._tell(progress)
        if not due:
            return
        self._write(
            event="update",
            step=progress.step,
            epoch=progress.epoch_number,
            loss=progress.log_loss / progress.log_tokens,
            learning_rate=update.learning_rate,
            gradient_norm=update.gradient_norm if update.overflowed is None else None,
            **({} if progress.loss_scale is None else {"loss_scale": progress.loss_scale.factor}),
            tokens_per_s=round(self.rate, 1),
            mfu=None if self.mfu is None else round(self.mfu, 4),
            elapsed_s=round(progress.elapsed_s, 3),
        )
        progress.log_loss, progress.log_tokens = 0.0, 0
        self.tokens, self.targets, self.seconds = 0, 0, 0.0

    def skipped(self, progress: Progress, update: Update, suspects: str) -> str:
        """An update was not made; returns what was said of it. suspects: the lines that may be why."""
        progress.elapsed_s += self.clock.lap("update")
        is_cut = len(first := _first(suspects)) < len(suspects)
        named = f"{first}, ...: {METRICS} has all" if is_cut else suspects
        words = (
            f"update {progress.step:,}: loss {update.loss:g}, gradient norm {update.gradient_norm:g}, "
            f"{update.fault} is not finite; the update was not made ({progress.skipped:,} in a row; {named})"
        )
        skipped = {"step": progress.step, "fault": update.fault, "in_a_row": progress.skipped, "lines": suspects}
        self._write(event="skipped", **skipped)
        self.listener.warn(words)
        return words

    def validation(self, progress: Progress, results: dict[str, Any], *, is_best: bool) -> None:
        """Report a validation; the time it took does not count as training."""
        seconds = self.clock.lap("validation")
        self._write(event="validation", step=progress.step, epoch=progress.epoch_number, **results)
        bleu = f"  BLEU {results['bleu']:5.2f}" if results.get("bleu") is not None else ""
        if each := results.get("directions"):
            bleu += f" ({', '.join(f'{direction} {score:.2f}' for direction, score in each.items())})"
        best = "  best so far" if is_best and math.isfinite(results["loss"]) else ""
        say = self.listener.praise if is_best and self.listener.praise is not None else self.listener.say
        self._say(
            f"  validation at step {progress.step:,}: loss {results['loss']:.3f}{bleu}{best}  ({duration(seconds)})",
            say,
        )
        for sample in results.get("samples", []):
            self._say(f"    {shown_sample(sample['source'], sample['translation'], self.listener.columns - 4)}")
        if (score := results.get(self.score_name.lower())) is not None and math.isfinite(score):
            self.scores.append(score)

    def _tell_forecast(self, progress: Progress) -> None:
        """How long it will take and what ends it, once, as soon as that is known."""
        left = self.horizon.left(progress, self.clock)
        if left is None or self.clock.seconds < FIRST_S:
            return
        self.has_forecast = True
        if progress.finished is None:
            self._say(f"this takes {left.in_words()}: training ends {self.horizon.ends()}")

    def _tell(self, progress: Progress) -> None:
        """Loss and rate since the last event, and when training would end at the pace so far."""
        self.has_told = True
        left = self.horizon.left(progress, self.clock)
        self._say(
            f"step {progress.step:>6,}  epoch {progress.epoch_number:>3}  "
            f"loss {progress.log_loss / progress.log_tokens:6.3f}  {self.rate:>8,.0f} tokens/s  "
            + ("" if self.mfu is None else f"MFU {self.mfu:.0%}  ")
            + f"{duration(self.clock.passed_s)} passed"
            + ("" if left is None else f", {left}")
        )

    def _is_overdue(self) -> bool:
        """Whether somebody waits for a sign: the first, or the next."""
        if not self.has_told:
            return self.clock.seconds >= FIRST_S
        return self.clock.now() - self.said >= SILENCE_S

    def _status(self, progress: Progress, update: Update) -> Status:
        left = self.horizon.left(progress, self.clock)
        return Status(
            step=progress.step,
            last_step=self.horizon.last_step,
            done=update.spent.share(self.horizon.options),
            epoch=progress.epoch_number,
            loss=progress.log_loss / progress.log_tokens,
            learning_rate=update.learning_rate,
            tokens_per_s=self.rate,
            mfu=self.mfu,
            passed_s=self.clock.passed_s,
            left=left,
            score_name=self.score_name,
            scores=tuple(self.scores),
        )

    def _say(self, line: str, say: Callable[[str], None] | None = None) -> None:
        self.said = self.clock.now()
        (say or self.listener.say)(line)

    def _write(self, **event: Any) -> None:
        if self.path is not None:
            files.append(self.path, f"{files.json_line(event)}\n".encode())
        if self.board is not None:
            self.board.take(event)


def shown_sample(source: str, translation: str, columns: int) -> str:
    """A source and its translation in one line, each cut at a word where there is no room; a loop is called one."""
    mark = "  (looped)" if LOOPED in flags(source, translation) else ""
    room = max(20, columns - len(ARROW) - len(mark))
    spare = max(0, room // 2 - min(width(source), width(translation)))
    fits = room // 2 + spare
    return cut(source, fits) + ARROW + cut(translation, fits) + mark


def cut(text: str, columns: int) -> str:
    """The text, or the words of it that fit, and an ellipsis."""
    if width(text) <= columns:
        return text
    fits = bisect_right(range(1, len(text) + 1), columns - 1, key=lambda n: width(text[:n]))
    words = text[: fits + 1].rpartition(" ")[0] or text[:fits]
    return words.rstrip() + "…"


def forget_after(path: Path, progress: Progress, *, warn: Callable[[str], None]) -> None:
    """Drop the events of what a stopped run did after its last checkpoint, which will come again. Lines that
    are no event - a crash leaves half of one - are kept beside it, which warn is told. ResourceError where nothing may
    be added, as to somebody else's: before the first update, not after so many as are logged together. Where there is
    no file there is one from now on: a run that is stopped before anything is logged lacks nothing.
    """
    data = files.read_bytes(path, error=ModelError) if path.exists() else b""
    lines = [line for line in data.split(b"\n") if line.strip()]
    strange = [line for line in lines if event_of(line) is None]
    if strange:
        aside = path.with_name(NO_METRICS)
        before = files.read_bytes(aside) if aside.exists() else b""
        with files.atomic_file(aside) as file:
            file.write(before + b"".join(line + b"\n" for line in strange))
        n_lines = f"{counted(len(strange), 'lines')} {'is' if len(strange) == 1 else 'are'}"
        warn(f"{files.shown(path)}: {n_lines} no event, now kept in {aside.name}")

    def stays(event: dict[str, Any]) -> bool:
        is_owed = progress.owes_validation and event.get("event") == "validation"
        return event["step"] < progress.step + (not is_owed)

    kept = b"".join(line + b"\n" for line in lines if (event := event_of(line)) is not None and stays(event))
    if kept != data:
        with files.atomic_file(path) as file:
            file.write(kept)
    files.append(path, b"")


def _first(lines: str) -> str:
    """As many of these, told by their numbers, as are not too long; one at least."""
    ends = [found.end() for found in ENDS.finditer(lines)] or [len(lines)]
    return lines[: max((end for end in ends if end <= LONGEST_LIST), default=ends[0])]
