"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_cli.checkpoints.events import best_of, read_events, score_name, validation_scores
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.training.progress import Progress


@dataclass(frozen=True)
class Outcome:
    """How a run ended. scores: of all validations, in their order, under the name `score_name`, as `tx runs` has
    them."""

    run_dir: Path
    steps: int
    reason: str
    best: Path
    score_name: str
    scores: tuple[float, ...]
    was_finished: bool
    """Nothing was left to do."""
    example: tuple[str | None, str | None] = (None, None)
    """A short line of the validation text, to try the model on, and into which language, where it knows several."""

    @property
    def score(self) -> float | None:
        return best_of(self.scores, self.score_name)

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run_dir),
            "steps": self.steps,
            "finished": self.reason,
            "best": str(self.best),
            "score_name": self.score_name,
            "score": self.score,
            "was_finished": self.was_finished,
        }


def outcome_of(
    run_dir: Path, progress: Progress, best_by: str, *, was_finished: bool, example: tuple[str | None, str | None]
) -> Outcome:
    scores = validation_scores(read_events(run_dir), best_by)
    found = find_checkpoint(str(run_dir)), score_name(best_by), scores
    return Outcome(run_dir, progress.step, progress.finished or "", *found, was_finished, example)
