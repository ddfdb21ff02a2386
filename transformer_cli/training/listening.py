"""Where the conversation of a run goes: lines, what there is to see now, and stages that take a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformer_cli.training.clock import Left

Advance = Callable[[int], object]
"""Told how much more of a stage is done."""


class Stage(Protocol):
    """Opens a stage of so many steps; total: None where nobody knows."""

    def __call__(self, what: str, total: int | None = None, /) -> AbstractContextManager[Advance]: ...


@contextmanager
def unseen(what: str, total: int | None = None, /) -> Iterator[Advance]:
    """A stage that nobody looks at."""
    yield lambda n: None


@dataclass(frozen=True)
class Status:
    """How training stands after an update.

    last_step: None where a budget ends training. done: the share of training that is behind it. loss: the mean since
    the last event. mfu: see utilisation.py; None where nobody can tell. passed_s, left: of the run, when this was said;
    left is None as long as nobody can tell. scores: of all validations, in order, by `score_name`; lower is better only
    for a loss.
    """

    step: int
    last_step: int | None
    done: float
    epoch: int
    loss: float
    learning_rate: float
    tokens_per_s: float
    mfu: float | None
    passed_s: float
    left: Left | None
    score_name: str
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Listener:
    """Where the conversation of a run goes.

    say, warn: take a line; praise: one that is good news, `say` does when there is none. show: takes every status,
    where somebody looks all the time; then there are no periodic lines. stage: see there. stopping: a signal came, and
    the end of an update is waited for. columns: the room for a sample.
    """

    say: Callable[[str], None] = field(default=lambda line: None)
    warn: Callable[[str], None] = field(default=lambda line: None)
    praise: Callable[[str], None] | None = None
    show: Callable[[Status], None] | None = None
    stage: Stage = unseen
    stopping: Callable[[], None] = field(default=lambda: None)
    columns: int = 160

    def warn_of(self, what: str, counts: Mapping[str, int]) -> None:
        """How many of a text, by the reason."""
        for reason, n in counts.items():
            self.warn(f"{what}: {n:,} {reason}")
