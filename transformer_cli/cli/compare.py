"""`tx compare`: two runs, or more, on the same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console, options
from transformer_cli.cli.judging import learned_by
from transformer_cli.cli.options import (
    TEXT,
    Json,
    Markdown,
    Quiet,
    To,
    Traceback,
    TrainedOverrides,
    Valid,
    refuse_two_formats,
)
from transformer_cli.cli.results import refuse_own_input
from transformer_cli.cli.test_sets import TestSet, own_texts, read_text, refuse_lines, refuse_nothing, translate
from transformer_cli.cli.translate import BeamSize, LengthPenalty
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line, shown
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.cli.tables import Table
    from transformer_cli.config.run import RunConfig
    from transformer_cli.evaluation.contrast import Contrast, Pair
    from transformer_cli.evaluation.report import Report

SHOWN = 3
"""Sentences either way, unless the command says how many."""


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            autocompletion=options.runs,
            help="Two or more runs or checkpoints; the first is the baseline.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="FILE",
            rich_help_panel=TEXT,
            help="Translate this file instead of the first run's test set.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option("--reference", metavar="FILE", rich_help_panel=TEXT, help="Reference translation; repeatable."),
    ] = None,
    valid: Valid = False,
    to: To = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    sentences: Annotated[
        int, typer.Option("--sentences", min=0, metavar="N", help="Sentences to show where each is better.")
    ] = SHOWN,
    overrides: TrainedOverrides = None,
    json_output: Json = False,
    markdown: Markdown = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Compare runs: scores, settings, and the sentences that differ most.

    All runs translate the same text, each as its own configuration says: the test set of the first, the validation text
    of the first (--valid), or --source with its --reference. Scores come with 95 % intervals and paired tests: how
    likely is such a difference by chance? To compare finished translations, use `tx evaluate --hypotheses`.

    Examples:
      tx compare runs/tiny runs/wider
      tx compare runs/tiny runs/wider --sentences 10 --beam-size 1
      tx compare runs/tiny/checkpoints/step-00000500 runs/tiny --json
    """
    if runs is None or len(runs) < 2:
        raise UsageError(
            "there is nothing to compare with fewer than two runs", hint="name them: tx compare runs/tiny runs/wider"
        )
    refuse_two_formats(json_output=json_output, markdown=markdown)
    if (source is None) != (not reference):
        raise UsageError(
            "--source and --reference need each other", hint="without both, the first run's test set is translated"
        )
    if valid and source is not None:
        raise UsageError(
            "--valid is a text of the first run, and --source names another", hint="leave out --valid, or the files"
        )
    refuse_own_input(None, source, *(reference or ()))

    from transformer_cli.cli.trained import open_trained, tell_compiler

    given = [] if source is None else [read_text(source, reference or [], to)]
    opened, settings = zip(*(open_trained(name, None, overrides) for name in runs), strict=True)
    _refuse_other_languages(opened, to)
    into = [replace(text, to=text.to or opened[0].into(None)) for text in given]
    for run in opened[1:] if into else ():
        run.into(into[0].to)
    texts = into or own_texts(opened[0], settings[0].data, to, valid=valid)
    refuse_nothing(texts)

    from transformer_cli.evaluation import metrics, report
    from transformer_cli.evaluation.contrast import contrast
    from transformer_cli.loading import machine_of, translator_of

    tell_compiler(opened, settings[0])
    translators = [translator_of(run, its) for run, its in zip(opened, settings, strict=True)]
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    asked = {f"decoding.{name}": value for name, value in search.items() if value is not None}
    differences, evaluation = _differences(opened, settings, asked), settings[0].evaluation
    metrics.check(evaluation)
    for text in texts:
        _tell_what_was_learned(text, runs, opened)
    translated = []
    for number, text in enumerate(texts):
        systems = []
        for name, run, its, translator in zip(runs, opened, settings, translators, strict=True):
            machine_of(run, its).use()  # of which the process has one at a time
            found, tally = translate(text, translator, search)
            translated.append((f"{text.name}, {shown(name)}", tally, translator))
            systems.append(report.System(shown(name), found.lines, found.flags))
        judged = report.Text(text.references, text.source, is_own=text.is_own)
        with console.pulse.doing("scoring"):
            reports = report.reports(systems, judged, evaluation, n_worst=0)
            contrasts = [contrast(systems[0], other, judged, evaluation, n_shown=sentences) for other in systems[1:]]
        if json_output:
            console.result(json_line(_as_json(text, opened, reports, contrasts, differences)))
            continue

        from transformer_cli.cli.evaluation_tables import show_reports
        from transformer_cli.cli.tables import show

        console.result(f"{'' if number == 0 else chr(10)}{text.name}:")
        show_reports(reports, evaluation, markdown=markdown)
        console.result("")
        settings_table = [_table(runs, differences)] if differences else []
        show([*settings_table, *_contrast_tables(reports, contrasts)], markdown=markdown)
        for one, against in zip(reports[1:], contrasts, strict=True):
            if against.n_same == against.n_lines:
                console.result(f"{reports[0].name} and {one.name} write the same {counted(against.n_lines, 'lines')}")
        for warning in _complaints(reports):
            console.warn(f"{text.name}{warning}")
    refuse_lines(translated)


def _complaints(reports: Sequence[Report]) -> Iterator[str]:
    """Each warning once, with the names of those that it is about where it is not about all."""
    for warning in dict.fromkeys(warning for one in reports for warning in one.warnings):
        names = [one.name for one in reports if warning in one.warnings]
        yield f"{', '.join(['', *names]) * (len(names) < len(reports))}: {warning}"


def _tell_what_was_learned(text: TestSet, runs: Sequence[str], opened: Sequence[OpenedRun]) -> None:
    """Where a run was trained with what it is compared by."""
    from transformer_cli.data.checks import Looked
    from transformer_cli.data.corpus import Corpus

    if text.is_own:
        return
    looked = Looked(Corpus(text.source or [], text.references[0]))
    for name, run in zip(runs, opened, strict=True):
        for finding in learned_by(run, text, looked, named=name):
            console.warn(str(finding))


def _refuse_other_languages(opened: Sequence[OpenedRun], to: str | None) -> None:
    """to: the only language that is translated into; None: all that the first run knows."""
    first, *others = (run.config.data for run in opened)
    wanted = {direction for direction in first.directions if to in (None, direction.target)}
    for run, data in zip(opened[1:], others, strict=True):
        if not set(data.directions) >= wanted:
            raise UsageError(
                f"{shown(run.path)} translates {run.languages}, {shown(opened[0].path)} {opened[0].languages}",
                hint="only runs of the same directions can translate the same text"
                + f"; --to {data.directions[0].target} compares one of them" * (len(wanted) > 1),
            )


def _differences(
    opened: Sequence[OpenedRun], settings: Sequence[RunConfig], asked: dict[str, Any]
) -> dict[str, list[Any]]:
    """What is not the same in all runs, setting by setting, and what came of that: each with every run's value. All are
    judged as the first one says. asked: settings that were the same for all, whatever the runs say."""
    from transformer_cli.config.dotted import is_among, settled

    trees = [
        {key: value for key, value in settled(its).items() if not is_among(key, {"name", "evaluation"})}
        | asked
        | {
            "checkpoint": run.checkpoint_name,
            "parameters": run.record.get("parameters"),
            "minutes of training": None if (s := run.record.get("elapsed_s")) is None else round(s / 60, 1),
        }
        for its, run in zip(settings, opened, strict=True)
    ]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    rows = {key: [tree.get(key) for tree in trees] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _as_json(
    text: TestSet,
    opened: Sequence[OpenedRun],
    reports: Sequence[Report],
    contrasts: Sequence[Contrast],
    differences: dict[str, list[Any]],
) -> dict[str, Any]:
    systems = [
        {"run": one.name, "checkpoint": str(run.checkpoint), **{k: v for k, v in one.as_json().items() if k != "set"}}
        for one, run in zip(reports, opened, strict=True)
    ]
    for system, contrast in zip(systems[1:], contrasts, strict=True):
        system["sentences"] = contrast.as_json()
    return {"set": text.name, "systems": systems, "settings": differences}


def _table(runs: Sequence[str], differences: dict[str, list[Any]]) -> Table:
    from transformer_cli.cli.tables import Column, Table
    from transformer_cli.config.settings import written

    rows = tuple((key, *map(written, v)) for key, v in differences.items())
    columns = (Column("setting"), *(Column(shown(name)) for name in runs))
    return Table("What differs between them", columns, rows)


def _contrast_tables(reports: Sequence[Report], contrasts: Sequence[Contrast]) -> list[Table]:
    tables = []
    for report, found in zip(reports[1:], contrasts, strict=True):
        names = (reports[0].name, report.name)
        same = f"{found.n_same:,} of {counted(found.n_lines, 'lines')} {'is' if found.n_same == 1 else 'are'} the same"
        for pairs, title in (
            (found.better, f"Where {names[1]} is better than {names[0]}: {counted(found.n_better, 'lines')}; {same}"),
            (found.worse, f"Where {names[1]} is worse than {names[0]}: {counted(found.n_worse, 'lines')}"),
        ):
            if pairs:
                tables.append(_sentences(title, pairs, names))
    return tables


def _sentences(title: str, pairs: Sequence[Pair], names: tuple[str, str]) -> Table:
    from transformer_cli.cli.tables import Column, Table

    rows: list[tuple[str, ...]] = []
    for pair in pairs:
        rows += [()] * bool(rows)
        rows += [("", "", "source", pair.source)] if pair.source is not None else []
        rows += [("", "", "reference", reference) for reference in pair.references]
        rows += [
            ("", f"{score:.1f}", *side) for score, *side in zip(pair.scores, names, pair.translations, strict=True)
        ]
        first = len(rows) - 2 - len(pair.references) - (pair.source is not None)
        rows[first] = (f"{pair.line:,}", *rows[first][1:])
    return Table(title, (Column("line", "right"), Column("chrF", "right"), Column(""), Column("text")), tuple(rows))
