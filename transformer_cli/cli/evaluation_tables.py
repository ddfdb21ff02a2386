"""What `tx evaluate` prints: scores with their doubt, systems beside each other, slices, the worst sentences."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_cli.cli import console
from transformer_cli.cli.tables import Column, Table, show
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.metrics import Score
from transformer_cli.evaluation.report import Report
from transformer_cli.evaluation.significance import Difference
from transformer_cli.wording import counted


def show_reports(reports: Sequence[Report], options: EvaluationConfig, *, markdown: bool) -> None:
    """Everything on stdout: a report by itself, or several, of systems that translated the same text."""
    width = sys.maxsize if markdown or not console.is_terminal(sys.stdout) else shutil.get_terminal_size().columns
    signatures = _signatures(reports[0], width)
    scores = _scores(reports[0], signatures) if len(reports) == 1 else _systems(reports, options, signatures)
    slices = [_slices(report) for report in reports if report.slices]
    if markdown:
        show([scores, *slices, *(_worst(report) for report in reports if report.worst)], markdown=True)
        return
    show([scores, *slices])
    for report in reports:
        if report.worst:
            console.result(f"\n{_worst_title(report)}")
            for sentence in report.worst:
                console.result(f"  line {sentence.line:,}: {sentence.score:.1f}")
                for side, text in sentence.sides():
                    console.result(f"    {side:<12} {text}")


def show_sets(results: Sequence[Mapping[str, Any]], *, markdown: bool) -> None:
    """A row for each of several test sets. results: of each report, as JSON."""
    names = [score["name"] for score in results[0]["scores"]]
    columns = (Column("test set"), Column("lines", "right"), *(Column(name, "right") for name in names))
    rows = ((one["set"], f"{one['lines']:,}", *(f"{score['value']:.2f}" for score in one["scores"])) for one in results)
    show([Table("All of them", columns, tuple(rows))], markdown=markdown)


def _scores(report: Report, signatures: tuple[str, ...]) -> Table:
    columns = (Column("metric"), Column("score", "right"), Column("95 %", "right"))
    rows = tuple((one.name, f"{one.value:.2f}", _margin(one)) for one in report.scores)
    return Table(f"{report.name} ({_lines(report)})", columns, rows, lines=signatures)


def _systems(reports: Sequence[Report], options: EvaluationConfig, signatures: tuple[str, ...]) -> Table:
    """Metric by metric, every system beside the baseline."""
    headings = ("score", "95 %", "difference", "p bootstrap", "p randomized")
    columns = (Column("metric"), Column("system"), *(Column(name, "right") for name in headings))
    rows: list[tuple[str, ...]] = []
    for place, metric in enumerate(reports[0].scores):
        rows += [()] * bool(rows)
        for number, report in enumerate(reports):
            score = report.scores[place]
            compared = _compared(report.differences[place]) if report.differences else ("", "", "")
            rows.append(
                (metric.name if not number else "", report.name, f"{score.value:.2f}", _margin(score), *compared)
            )
    notes = [
        f"Differences are from {reports[0].name}, with intervals of their own. p: how likely one of this size would be "
        f"if both systems were equally good, by approximate randomization ({options.trials:,} trials), which is "
        f"two-sided, and by sacreBLEU's paired bootstrap ({options.resamples:,} resamples), whose p of a small "
        "difference may be a third of the former. TER counts errors: less is better.",
    ]
    return Table(
        f"{len(reports)} systems ({_lines(reports[0])})", columns, tuple(rows), notes=tuple(notes), lines=signatures
    )


def _signatures(report: Report, width: int) -> tuple[str, ...]:
    """Below the table, for they are long; where they are longer than a line, they go on below themselves."""
    margin = max(len(score.name) for score in report.scores) + 2
    lines = []
    for score in report.scores:
        parts = textwrap.wrap(score.signature.replace("|", "| "), max(20, width - margin), break_on_hyphens=False)
        heads = [f"{score.name}:", *[""] * len(parts)]
        lines += [f"{head:{margin}}{part.replace('| ', '|')}" for head, part in zip(heads, parts, strict=False)]
    return tuple(lines)


def _compared(difference: Difference) -> tuple[str, str, str]:
    if difference.p_bootstrap is None or difference.p_randomization is None:
        return "0.00", "", ""
    value = f"{difference.value:+.2f} ± {difference.margin:.2f}"
    return value, f"{difference.p_bootstrap:.4f}", f"{difference.p_randomization:.4f}"


def _slices(report: Report) -> Table:
    columns = (Column("slice"), Column("lines", "right"), *(Column(score.name, "right") for score in report.scores))
    rows = (
        (part.name, f"{part.lines:,}", *(f"{score.value:.1f} {_margin(score, digits=1)}" for score in part.scores))
        for part in report.slices
    )
    return Table(f"Slices of {report.name}", columns, tuple(rows))


def _worst(report: Report) -> Table:
    columns = (Column("line", "right"), Column("chrF", "right"), Column(""), Column("text"))
    rows: list[tuple[str, ...]] = []
    for sentence in report.worst:
        first = (f"{sentence.line:,}", f"{sentence.score:.1f}")
        rows += [(*(("", "") if number else first), *side) for number, side in enumerate(sentence.sides())]
    return Table(_worst_title(report), columns, tuple(rows))


def _worst_title(report: Report) -> str:
    return f"Worst sentences of {report.name}, by the chrF of each"


def _lines(report: Report) -> str:
    return counted(report.lines, "lines")


def _margin(score: Score, *, digits: int = 2) -> str:
    return "" if score.margin is None else f"± {score.margin:.{digits}f}"
