"""Work that takes a while, on a terminal: one calm picture that changes in its place, lines above it; else plain lines.

Nothing but lines goes to a file, a pipe or a terminal that cannot move its cursor.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transformer_cli.cli import console
from transformer_cli.cli.pulse import WHEEL, WORKING
from transformer_cli.training.durations import duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

    from transformer_cli.training.listening import Advance, Listener, Stage, Status

SILENCE_S = 60.0
"""A stage is told about at least this often where nobody sees it."""
REFRESHES_PER_S = 5
BARS = "▁▂▃▄▅▆▇█"
MOST_SCORES = 24
WIDE = 110
"""Columns that have room for the numbers and the time in one line."""
STOPPING = "stopping as soon as everything is saved; a second time stops at once"


@dataclass
class Task:
    """A stage that is going on. total: None where nobody knows."""

    what: str
    total: int | None
    started: float
    done: int = 0


@dataclass
class Picture:
    """How training stands, and what it is at; drawn anew whenever somebody looks."""

    status: Status | None = None
    tasks: list[Task] = field(default_factory=list)
    is_stopping: bool = False
    now: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)
    told: float = 0.0

    def show(self, status: Status) -> None:
        """This is how training stands now."""
        self.status, self.told = status, self.now()

    def __rich_console__(self, output: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if self.status is not None:
            yield from status_lines(self.status, self.now() - self.told, columns=options.max_width)
        elif not self.tasks:
            yield task_line(Task(WORKING, None, self.started), self.now(), columns=options.max_width)
        for task in self.tasks[-1:]:
            yield task_line(task, self.now(), columns=options.max_width)
        if self.is_stopping:
            yield Text(STOPPING, style="magenta", no_wrap=True, overflow="ellipsis")


def status_lines(status: Status, since_s: float, *, columns: int) -> Iterator[Text]:
    """How far, how well, how long, and how good the validations were. since_s: how old the status is."""
    from rich.text import Text

    def line(*parts: str | tuple[str, str]) -> Text:
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")

    of_all = f", {status.done:.0%} of the budget" if status.last_step is None else f" of {status.last_step:,}"
    steps = f"step {status.step:,}{of_all}  epoch {status.epoch}"
    width = max(10, min(60, columns - len(steps) - 2))
    yield line(
        *drawn_bar(status.done if status.last_step is None else status.step / status.last_step, width),
        "  ",
        (steps, "bold"),
    )
    loss = ("loss ", (f"{status.loss:.3f}", "bold"))
    rates = f"  learning rate {status.learning_rate:.2g}  {status.tokens_per_s:,.0f} tokens/s"
    rates += "" if status.mfu is None else f"  MFU {status.mfu:.0%}"
    time_left = f"{duration(status.passed_s + since_s)} passed"
    time_left += "" if status.left is None else f", {status.left.after(since_s)}"
    if columns < WIDE:
        yield line(*loss, rates)
        yield line(time_left)
    else:
        yield line(*loss, rates, f"  {time_left}")
    if status.scores:
        best = (min if status.score_name == "loss" else max)(status.scores)
        latest = status.scores[-1]
        yield line(
            f"{status.score_name} ",
            (sparkline(status.scores[-MOST_SCORES:]), "cyan"),
            f" {latest:.2f}",
            (", the best so far", "bold green") if latest == best else f", best {best:.2f}",
        )


def task_line(task: Task, now: float, *, columns: int) -> Text:
    """What is being done, how much of it is, and since when."""
    from rich.text import Text

    seconds = now - task.started
    since = duration(int(seconds))
    if not task.total:
        done = f"  {task.done:,}" if task.done else ""
        wheel = WHEEL[int(seconds * 4) % len(WHEEL)]
        return Text.assemble((wheel, "cyan"), f" {task.what}{done}  {since}", no_wrap=True, overflow="ellipsis")
    done = f"{min(task.done, task.total):,}/{task.total:,}  {since}"
    width = max(8, min(30, columns - len(task.what) - len(done) - 4))
    bar = drawn_bar(task.done / task.total, width)
    return Text.assemble(f"{task.what}  ", *bar, f"  {done}", no_wrap=True, overflow="ellipsis")


def drawn_bar(share: float, width: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """What is done and what is not, with their styles; told apart without colours, too."""
    full = min(width, int(width * share))
    return ("━" * full, "cyan"), ("┄" * (width - full), "dim")


def sparkline(values: Sequence[float]) -> str:
    """A bar for each, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale) if scale else len(BARS) // 2] for value in values)


class Screen:
    """A terminal with the picture at its bottom, and lines above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.output = Console(
            file=sys.stderr, force_terminal=True, no_color=not console.has_colour(sys.stderr), highlight=False
        )
        self.picture = Picture()
        self._live = Live(
            self.picture,
            console=self.output,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """At the bottom of the terminal, until the block ends."""
        with console.pulse.paused(), self._live:
            yield

    def say(self, line: str, style: str = "") -> None:
        from rich.text import Text

        self.output.print(Text(console.visible(console.brief(line)), style=style))

    def warn(self, line: str) -> None:
        from rich.text import Text

        text = Text.assemble(("warning:", "yellow"), f" {console.visible(console.brief(line))}")
        self.output.print(text)

    def praise(self, line: str) -> None:
        self.say(line, style="bold green")

    def show(self, status: Status) -> None:
        self.picture.show(status)

    def stopping(self) -> None:
        self.picture.is_stopping = True

    @contextmanager
    def stage(self, what: str, total: int | None = None, /) -> Iterator[Advance]:
        task = Task(what, total, self.picture.now())
        self.picture.tasks.append(task)

        def advance(n: int) -> None:
            task.done += n

        try:
            yield advance
        finally:
            self.picture.tasks.remove(task)


@contextmanager
def listener() -> Iterator[Listener]:
    """Who listens to training: a person at a terminal, or whoever reads lines."""
    from transformer_cli.training.listening import Listener

    if console.is_quiet():
        yield Listener()
    elif not console.has_cursor():
        yield Listener(say=console.say, warn=console.warn, stage=plain_stage, stopping=_tell_stopping)
    else:
        screen = Screen()
        with screen.shown():
            yield Listener(
                say=screen.say,
                warn=screen.warn,
                praise=screen.praise,
                show=screen.show,
                stage=screen.stage,
                stopping=screen.stopping,
                columns=screen.output.width,
            )


@contextmanager
def stages() -> Iterator[Stage]:
    """The stages of work that ends in a result: seen by a person at a terminal, left out of a pipe."""
    from transformer_cli.training.listening import unseen

    if console.is_quiet() or not console.has_cursor():
        yield unseen
        return
    screen = Screen()
    with screen.shown():
        yield screen.stage


@contextmanager
def progress_bar(what: str, total: int | None, *, beside_results: bool = False) -> Iterator[Advance]:
    """A bar on stderr for more than a few steps, where a person looks at it; total: None where nobody knows it.
    beside_results: they go to stdout meanwhile, so that on a terminal they are the sign of life themselves.
    """
    few = total is not None and total < 2
    is_read = beside_results and console.is_terminal(sys.stdout)
    if few or is_read or console.is_quiet() or not console.has_cursor():
        yield lambda n: None
        return
    screen = Screen()
    with screen.shown(), screen.stage(what, total) as advance:
        yield advance


@contextmanager
def plain_stage(what: str, total: int | None = None, /) -> Iterator[Advance]:
    """A line at the start where nobody knows how long it takes; else one whenever it was silent for long."""
    if total is None:
        console.say(f"{what} ...")
    done, said = 0, time.monotonic()

    def advance(n: int) -> None:
        nonlocal done, said
        done += n
        if time.monotonic() - said >= SILENCE_S:
            said = time.monotonic()
            console.say(f"  {what}: {done:,}" + (f" of {total:,}" if total else ""))

    yield advance


def _tell_stopping() -> None:
    """Out of a signal handler: the line at hand may be half written, so nothing of Python's is used."""
    with suppress(OSError):  # whoever started the program may have closed it
        os.write(2, f"{STOPPING}\n".encode())
