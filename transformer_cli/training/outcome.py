"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run_dir: Path
    steps: int
    reason: str
    best: Path
    score: float | None
    was_finished: bool
    """Nothing was left to do."""
    example: tuple[str | None, str | None] = (None, None)
    """A short line of the validation text, to try the model on, and into which language, where it knows several."""

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run_dir),
            "steps": self.steps,
            "finished": self.reason,
            "best": str(self.best),
            "score": self.score,
            "was_finished": self.was_finished,
        }
