"""`tx plot`: how runs went."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console, options
from transformer_cli.cli.options import Json, Quiet, Traceback
from transformer_cli.cli.results import check_suffix, refuse_own_input, write_result
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformer_cli.training.curves import Curve, Over

SUFFIXES = (".png", ".svg", ".html")
WIDEST = 40
"""Columns of a curve on the terminal."""


def _units(incomplete: str) -> list[str]:
    from transformer_cli.training.curves import OVERS

    return [unit for unit in OVERS if unit.startswith(incomplete)]


def plot(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", autocompletion=options.runs, help="Runs, or the latest one when not given."),
    ] = None,
    output_files: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="FILE", help=f"A file, by its suffix: {' '.join(SUFFIXES)}."),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            "--over",
            metavar="UNIT",
            autocompletion=_units,
            help="steps; tokens, of source and target; or minutes, without validations.",
        ),
    ] = "steps",
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Draw loss, score and learning rate of runs over steps, tokens or minutes.

    Without -o, one small curve of each on stdout. With several runs, every file shows them all, for comparison; .html
    is one page that works offline. A run without curves, such as an average, is left out. --json prints the points
    themselves. Of a run only its config.yaml and metrics.jsonl are needed.

    Examples:
      tx plot
      tx plot runs/tiny runs/wider --over minutes -o curves.png
      tx plot runs/tiny -o curves.html -o curves.svg
    """
    from transformer_cli.checkpoints.find import find_run
    from transformer_cli.training.curves import OVERS, figure

    if over not in OVERS:
        raise UsageError(f"--over {over}: expected {', '.join(OVERS)}")
    paths = [Path(name) for name in output_files or ()]
    for path in paths:
        check_suffix(path, *SUFFIXES)
        refuse_own_input(path)
    names = [find_run(name) for name in runs] if runs else [find_run(None, option="")]
    found = _drawn(names, over)
    note = _note(found)
    if paths:
        # A notebook's own backend, which programs started from it inherit, is not there for all of them.
        os.environ["MPLBACKEND"] = "agg"
        from transformer_cli.attention_maps.fonts import fonts_for, lacking

        fonts, missing = fonts_for(shown(name) for name, _ in found)
        if missing:
            console.warn(lacking(missing))
        with console.pulse.doing("drawing"):
            contents = [figure(found, over=over, suffix=path.suffix.lower(), note=note, fonts=fonts) for path in paths]
        for path, content in zip(paths, contents, strict=True):
            write_result(path, content)
    if json_output:
        for name, those in found:
            for curve in those:
                console.result(json_line({"run": name, "curve": curve.name, "over": over, "x": curve.x, "y": curve.y}))
    elif not paths:
        _show(found)
        if note:
            console.say(note)


def _drawn(runs: Sequence[Path], over: Over) -> list[tuple[str, Sequence[Curve]]]:
    """Those that have a curve, and their curves; which has none is said, and raised only where none has one."""
    from transformer_cli.training.curves import WithoutCurvesError, curves

    found: list[tuple[str, Sequence[Curve]]] = []
    without = []
    for run in runs:
        try:
            those, remarks = curves(run, over=over)
        except WithoutCurvesError as failure:
            without.append(failure)
            continue
        found.append((str(run), those))
        for remark in remarks:
            console.say(f"{shown(run)}: {remark}")
    if not found:
        raise without[0]
    for one in without:
        console.warn(f"left out: {one.message}")
    return found


def _note(found: Sequence[tuple[str, Sequence[Curve]]]) -> str:
    """Why the two curves of loss are no nearer to each other; "" where there is nothing to say."""
    from transformer_cli.training.curves import added

    both = {
        name: added(Path(name)) for name, those in found if {"loss", "validation loss"} <= {one.name for one in those}
    }
    runs: dict[str, list[str]] = {}
    for name, what in both.items():
        runs.setdefault(what, []).append(shown(name))
    some = {what: names for what, names in runs.items() if what}
    reasons = "; ".join(some if len(runs) == 1 else [f"{what} ({', '.join(names)})" for what, names in some.items()])
    return f"the training loss includes {reasons}; the validation loss does not" if reasons else ""


def _show(found: Sequence[tuple[str, Sequence[Curve]]]) -> None:
    from transformer_cli.cli.live import sparkline
    from transformer_cli.cli.tables import Column, Table, show

    rows = [
        (shown(name), one.name, sparkline(_thinned(one.y)), *(f"{value:.4g}" for value in (one.y[0], one.y[-1])))
        for name, those in found
        for one in those
    ]
    columns = (Column("run"), Column("of"), Column("curve"), Column("first", "right"), Column("last", "right"))
    show([Table("", columns, tuple(rows))])


def _thinned(values: Sequence[float]) -> list[float]:
    """As many of them as there is room for, evenly spaced, the first and the last among them."""
    if len(values) <= WIDEST:
        return list(values)
    return [values[round(place * (len(values) - 1) / (WIDEST - 1))] for place in range(WIDEST)]
