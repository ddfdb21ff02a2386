"""How a run went, as curves: loss, score and learning rate over steps, tokens or minutes; from metrics.jsonl alone."""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from transformer_cli.checkpoints.events import METRICS, damage_of, numbered_events
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.record import read_config, read_record
from transformer_cli.errors import ModelError, TxError
from transformer_cli.files import shown
from transformer_cli.needs import drawing_library
from transformer_cli.trouble import missing
from transformer_cli.wording import counted, listed

Over = Literal["steps", "tokens", "minutes"]
OVERS: tuple[Over, ...] = get_args(Over)
PANELS = ("loss", "BLEU", "learning rate")
LABELS = {"steps": "updates", "tokens": "tokens, source and target", "minutes": "minutes of training"}
DPI = 150
NOTE_WIDTH = 100
"""Letters in a line of what stands above the panels."""
RESTORE = "restore it from a copy, or delete that line"
NAME_WIDTH = 60
"""Characters in a line of the legend, which would be wider than the figure."""
PANEL_HEIGHT, LEGEND_LINE, WITHIN = 2.6, 0.157, 8
"""Inches, and the most lines of a legend that stands among the curves."""
STYLES = ("-", "--", ":", "-.")
"""Curves are told apart by more than their colour."""


@dataclass(frozen=True)
class Curve:
    """One quantity of one run. name: `loss`, `validation loss`, `BLEU` or `learning rate`."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    @property
    def panel(self) -> str:
        return self.name.removeprefix("validation ")


class WithoutCurvesError(ModelError):
    """A run of which nothing was measured, or not what is asked for."""


def curves(run_dir: Path, *, over: Over) -> tuple[list[Curve], list[str]]:
    """Those that the run has a point of, and what they lack, in words; WithoutCurvesError where it has none.

    over: tokens are all that were read in training; minutes leave validations out. Both are known of updates alone, and
    of what lies before one of them.
    """
    lines = numbered_events(run_dir)
    damage = damage_of(run_dir, lines)
    numbered = [(number, event) for number, event in lines if event is not None]
    updates = [event for _, event in numbered if event.get("event") == "update"]
    validations = [event for _, event in numbered if event.get("event") == "validation"]
    skipped = _skipped(run_dir, sum(event.get("event") == "skipped" for _, event in numbered))
    if not updates and (over != "steps" or not validations):
        if damage:
            raise WithoutCurvesError(damage, hint=RESTORE)
        raise _without(run_dir, over=over, validations=len(validations), skipped=skipped)
    for number, event in numbered:
        if event.get("event") == "update" and not all(
            _is_number(event.get(key)) for key in ("elapsed_s", "tokens_per_s")
        ):
            words = f"line {number:,} is an update without its time or rate: it is damaged"
            raise ModelError(f"{shown(run_dir / METRICS)}, {words}", hint=RESTORE)
    steps = np.array([0, *(event["step"] for event in updates)])
    elapsed_s = np.array([0.0, *(event["elapsed_s"] for event in updates)])
    rates = np.array([event["tokens_per_s"] for event in updates])
    passed = {
        "tokens": np.concatenate([[0.0], np.cumsum(rates * np.diff(elapsed_s))]),
        "minutes": elapsed_s / 60,
    }
    placed = [event for event in validations if over == "steps" or event["step"] <= steps[-1]]
    wanted = (
        ("loss", updates, "loss"),
        ("validation loss", placed, "loss"),
        ("BLEU", placed, "bleu"),
        ("learning rate", updates, "learning_rate"),
    )
    found = []
    for name, those, key in wanted:
        points = [(event["step"], event[key]) for event in those if _is_number(event.get(key))]
        at = [step for step, _ in points]
        x = np.array(at, dtype=float) if over == "steps" else np.interp(at, steps, passed[over])
        found.append(Curve(name, tuple(x.tolist()), tuple(value for _, value in points)))
    remarks = [f"{damage}; what it should say is left out"] if damage else []
    remarks += [skipped] * bool(skipped)
    if len(updates) < 2:
        n = "no point" if not updates else "one point"
        remarks.append(f"{n} of loss and learning rate: there is one every training.log_every updates, and at the end")
    if n_left := len(validations) - len(placed):
        remarks.append(
            f"{counted(n_left, 'validations')} after the last logged update left out: their {over} are not known"
        )
    return [curve for curve in found if curve.y], remarks


def _is_number(value: object) -> bool:
    """And neither infinite nor beyond all that was ever measured."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _skipped(run_dir: Path, n: int) -> str:
    """That so many updates were not made since their numbers were not finite; "" where all were."""
    were = "was" if n == 1 else "were"
    return f"{counted(n, 'updates')} {were} not made: {shown(run_dir / METRICS)} has each as `skipped`" if n else ""


def _without(run_dir: Path, *, over: Over, validations: int, skipped: str) -> WithoutCurvesError:
    try:
        record = read_record(run_dir)
    except TxError:
        record = {}
    if "average" in record:
        return WithoutCurvesError(
            f"{shown(run_dir)} is a mean of checkpoints, which has no curves", hint="draw the runs that they are of"
        )
    if "imported" in record:
        return WithoutCurvesError(
            f"{shown(run_dir)} was imported, and has not been trained since: it has no curves", hint="draw another run"
        )
    if not (run_dir / METRICS).exists() and list_checkpoints(run_dir):
        return WithoutCurvesError(
            f"{shown(run_dir / METRICS)} {missing(run_dir / METRICS)}, and the curves were in it",
            hint="restore it from a copy, or draw another run",
        )
    if validations:
        return WithoutCurvesError(
            f"{shown(run_dir / METRICS)} has no update yet: nobody knows after how many {over} its validations came",
            hint="draw it over steps",
        )
    return WithoutCurvesError(
        f"{shown(run_dir / METRICS)} has no update: there is nothing to draw",
        hint=skipped or "a run has its first after training.log_every updates",
    )


def added(run_dir: Path) -> str:
    """What a run's training loss has more than its validation loss; "" for nothing, or where nobody can tell."""
    try:
        config = read_config(run_dir)
    except TxError:
        return ""
    model, training = config.model, config.training
    amounts = {
        "label smoothing": training.label_smoothing,
        "dropout": model.dropout,
        "attention dropout": model.attention_dropout,
        "activation dropout": model.activation_dropout,
        "drawn subwords": config.tokenizer.sampling,
        "R-Drop": training.r_drop,
    }
    named = [f"{what} {amount:g}" for what, amount in amounts.items() if amount]
    return listed(named, "and")


def figure(
    runs: Sequence[tuple[str, Sequence[Curve]]], *, over: Over, suffix: str, note: str = "", fonts: Sequence[str] = ()
) -> bytes:
    """A file of a panel for each quantity and a line for each run, the same bytes for the same curves.

    runs: their names, and their curves. note: stands above them. fonts: for them, by their families; matplotlib's own
    when not given. suffix: .png, .svg or .html, which is a page around the .svg that asks for nothing.
    """
    matplotlib = drawing_library()
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    panels = [panel for panel in PANELS if any(curve.panel == panel for _, found in runs for curve in found)]
    settings: Any = {"svg.hashsalt": "tx", "text.parse_math": False, "font.size": 9}
    settings |= {"font.family": list(fonts)} if fonts else {}
    file = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # who names the fonts knows
        height = PANEL_HEIGHT * len(panels)
        drawing = Figure(figsize=(7, height), layout="constrained")
        axes = drawing.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        lines = [(number, name, curve) for number, (name, found) in enumerate(runs) for curve in found]
        for axis, panel in zip(axes, panels, strict=True):
            for number, name, curve in lines:
                if curve.panel == panel:
                    _line(axis, curve, name, number)
            axis.set_ylabel(panel)
            axis.grid(alpha=0.3)
        named = axes[0].get_legend_handles_labels()
        if (n_lines := "\n".join(named[1]).count("\n") + 1) <= WITHIN:
            axes[0].legend(fontsize="small")
        else:  # below, where it hides none of them
            drawing.set_figheight(height + LEGEND_LINE * (n_lines + 1))
            drawing.legend(*named, fontsize="small", loc="outside lower left")
        axes[0].set_title(textwrap.fill(note, NOTE_WIDTH), fontsize="small", loc="left")
        axes[-1].set_xlabel(LABELS[over])
        if over != "minutes":
            axes[-1].xaxis.set_major_formatter(EngFormatter(sep=""))  # 5M and not 0.5 of 1e7, which stands elsewhere
        # A creation date would make every file another one.
        kind = "png" if suffix == ".png" else "svg"
        drawing.savefig(file, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue() if suffix != ".html" else _page(file.getvalue(), [shown(name) for name, _ in runs])


def _line(axis: Any, curve: Curve, name: str, number: int) -> None:
    is_validation = curve.name.startswith("validation")
    name = re.sub("^_", "./_", shown(name))  # of what begins so matplotlib's legend has nothing
    label = f"{name}, validation" if is_validation else name
    axis.plot(
        curve.x,
        curve.y,
        label="\n".join(label[at : at + NAME_WIDTH] for at in range(0, len(label), NAME_WIDTH)),
        color=f"C{number % 10}",
        linestyle=STYLES[number % len(STYLES)],
        marker="o" if curve.name == "BLEU" or is_validation or len(curve.y) == 1 else None,
        markersize=3,
        alpha=0.6 if curve.name == "loss" else 1.0,
    )


def _page(svg: bytes, names: Sequence[str]) -> bytes:
    drawing = svg.decode("utf-8")
    title = html.escape(", ".join(names))
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
    style = "<style>body{margin:2em auto;max-width:60em;font-family:sans-serif}svg{width:100%;height:auto}</style>\n"
    return f"{head}{style}<h1>{title}</h1>\n{drawing[drawing.index('<svg') :]}</html>\n".encode()
