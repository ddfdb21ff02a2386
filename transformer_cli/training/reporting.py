"""What a run tells: lines that a person reads, and metrics.jsonl for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transformer_cli import files
from transformer_cli.training.directory import METRICS, NO_METRICS
from transformer_cli.training.loop import Update
from transformer_cli.training.progress import Progress

SILENCE_S = 60.0
"""Without a bar a line comes at least this often, so that a slow run does not look like a dead one."""


class Reporter:
    """Turns updates and validations into text and events.

    run_dir: None keeps no metrics, as on all processes but the first. say, warn: take a line of conversation. bar:
    show a progress bar, for a terminal. log_every: updates between two lines. total_steps: updates of the run, at most.
    """

    def __init__(
        self,
        run_dir: Path | None,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None] = lambda line: None,
        bar: bool,
        log_every: int,
        total_steps: int,
        progress: Progress,
    ) -> None:
        self.path = None if run_dir is None else run_dir / METRICS
        self.say = say
        self.log_every = log_every
        self.total_steps = total_steps
        self.tokens = 0
        self.seconds = 0.0
        self.session_steps = 0
        self.session_seconds = 0.0
        self.since = self.said = time.perf_counter()
        self.bar = tqdm(
            total=total_steps, initial=progress.step, unit="step", dynamic_ncols=True, leave=False, disable=not bar
        )
        if self.path is not None:
            forget_after(self.path, progress.step, warn=warn)

    def update(self, progress: Progress, update: Update) -> None:
        """Count an update; every log_every-th one becomes a line."""
        now = time.perf_counter()
        progress.elapsed_s += now - self.since
        self.seconds += now - self.since
        self.session_seconds += now - self.since
        self.since = now
        self.session_steps += 1
        self.tokens += update.source_tokens + update.target_tokens
        progress.log_loss += update.loss * update.target_tokens
        progress.log_tokens += update.target_tokens
        self.bar.update()
        if progress.step % self.log_every and progress.finished is None:
            if self.bar.disable and now - self.said >= SILENCE_S:
                self._tell(progress)
            return
        self._tell(progress)
        loss, rate = progress.log_loss / progress.log_tokens, self.tokens / self.seconds
        self._write(
            event="update",
            step=progress.step,
            epoch=progress.epoch_number,
            loss=loss,
            learning_rate=update.learning_rate,
            gradient_norm=update.gradient_norm,
            tokens_per_s=round(rate, 1),
            elapsed_s=round(progress.elapsed_s, 3),
        )
        progress.log_loss, progress.log_tokens, self.tokens, self.seconds = 0.0, 0, 0, 0.0

    def _tell(self, progress: Progress) -> None:
        """Loss and rate since the last event, and when the last update would come at the pace so far."""
        loss, rate = progress.log_loss / progress.log_tokens, self.tokens / self.seconds
        left = (self.total_steps - progress.step) * self.session_seconds / self.session_steps
        self._say(
            f"step {progress.step:>6,}  epoch {progress.epoch_number:>3}  loss {loss:6.3f}  {rate:>8,.0f} tokens/s  "
            f"{duration(progress.elapsed_s)} passed, about {duration(left)} to step {self.total_steps:,}"
        )

    def validation(self, progress: Progress, results: dict[str, Any], *, is_best: bool) -> None:
        """Report a validation; the time it took does not count as training."""
        self._write(event="validation", step=progress.step, epoch=progress.epoch_number, **results)
        bleu = f"  BLEU {results['bleu']:5.2f}" if results.get("bleu") is not None else ""
        best = "  best so far" if is_best else ""
        self._say(f"  validation at step {progress.step:,}: loss {results['loss']:.3f}{bleu}{best}")
        for sample in results.get("samples", []):
            self._say(f"    {sample['source']}  ->  {sample['translation']}")
        self.since = time.perf_counter()

    def resume_clock(self) -> None:
        """What happened since the last update was not training."""
        self.since = time.perf_counter()

    def close(self) -> None:
        self.bar.close()

    def _say(self, line: str) -> None:
        self.said = time.perf_counter()
        with tqdm.external_write_mode():
            self.say(line)

    def _write(self, **event: Any) -> None:
        if self.path is not None:
            files.append_line(self.path, files.json_line(event))


def forget_after(path: Path, step: int, *, warn: Callable[[str], None]) -> None:
    """Drop the events of updates that a stopped run made after its last checkpoint, which will come again. Lines that
    are no event - a crash leaves half of one - are kept beside it, which warn is told.
    """
    if not path.exists():
        return
    data = files.read_bytes(path)
    lines = [line for line in data.split(b"\n") if line.strip()]
    strange = [line for line in lines if _step(line) is None]
    if strange:
        aside = path.with_name(NO_METRICS)
        before = files.read_bytes(aside) if aside.exists() else b""
        with files.atomic_file(aside) as file:
            file.write(before + b"".join(line + b"\n" for line in strange))
        n_lines = "1 line is" if len(strange) == 1 else f"{len(strange):,} lines are"
        warn(f"{files.shown(path)}: {n_lines} no event, now kept in {aside.name}")
    kept = b"".join(line + b"\n" for line in lines if (found := _step(line)) is not None and found <= step)
    if kept != data:
        with files.atomic_file(path) as file:
            file.write(kept)


def _step(line: bytes) -> int | None:
    """The step of an event, None for a line that is none."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if type(step) is int else None


def duration(seconds: float) -> str:
    """1:05:07, or 5:07 under an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
