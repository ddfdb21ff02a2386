"""`tx runs`: what has been trained here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Json, Quiet, Traceback
from transformer_cli.files import json_line, shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.overview import Overview


def runs(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of runs, or one run.")] = "runs",
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """List the runs: step, score, age, size, whether they are finished or being trained, and what is missing.

    The score is that of the best validation, with all of them as a curve if there is room. The run that was saved last
    comes first; `*` marks the one that other commands take when none is named. --json adds what `tx evaluate` found.

    Examples:
      tx runs
      tx runs sweep/runs
      tx runs --json
    """
    from transformer_cli.checkpoints.overview import overviews

    found = overviews(Path(folder))
    if json_output:
        now = time.time()
        for one in found:
            age_s = None if one.saved is None else round(now - one.saved, 1)
            console.result(json_line({**one.as_json(), "age_s": age_s}))
        return

    from transformer_cli.cli.live import MOST_SCORES, sparkline
    from transformer_cli.cli.tables import Column, Table, show

    right = ("step", "score", "age", "size")
    columns = (Column("run"), *(Column(name, "right") for name in right), Column("is"), Column("scores", optional=True))
    curves = [sparkline(one.scores[-MOST_SCORES:]) if one.scores else "" for one in found]
    rows = tuple((*_row(one), curve) for one, curve in zip(found, curves, strict=True))
    show([Table("", columns, rows)])
    for one in found:
        if said := one.trouble or one.doubt:
            console.warn(said)


def _row(one: Overview) -> tuple[str, ...]:
    name = f"{shown(one.path)}{' *' * one.is_default}"
    size = f"{one.n_bytes / 1e6:,.1f} MB"
    if one.standing is None:
        state = (
            "not readable"
            if not one.is_readable
            else "damaged"
            if one.trouble
            else "training, without a checkpoint"
            if one.is_training
            else "without a checkpoint"
        )
        return name, "", "", "", size, state
    score = "" if one.score is None else f"{one.score_name} {one.score:.2f}"
    words = {
        "training": one.is_training,
        "never validated": not one.standing.is_validated,
        "not finished": not one.standing.is_finished and not one.is_training,
    }
    standing = ", ".join(word for word, is_so in words.items() if is_so) or "finished"
    standing += "".join(f", without {what}" for what in one.missing)
    assert one.saved is not None
    return name, _step(one), score, age(time.time() - one.saved), size, standing


def _step(one: Overview) -> str:
    assert one.standing is not None
    steps = one.standing.steps
    return f"{one.standing.step:,}" + ("" if steps is None or one.standing.is_finished else f" of {steps:,}")


def age(seconds: float) -> str:
    """0 s, 12 min, 3 h or 25 days."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
