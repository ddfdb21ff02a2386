"""`tx evaluate`: translations against references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console, evaluation_page
from transformer_cli.cli.options import (
    TEXT,
    Config,
    Json,
    Markdown,
    Models,
    Quiet,
    Strict,
    To,
    Traceback,
    TrainedOverrides,
    Valid,
    refuse_two_formats,
    refuse_two_runs,
)
from transformer_cli.cli.results import Tally, refuse_own_input
from transformer_cli.cli.test_sets import TestSet, keep, own_texts, read_text, refuse_nothing, translate
from transformer_cli.cli.translate import BeamSize, LengthPenalty
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line, shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.config.evaluation import EvaluationConfig
    from transformer_cli.config.run import RunConfig
    from transformer_cli.data.fingerprints import Numbers
    from transformer_cli.evaluation.page import Judged
    from transformer_cli.evaluation.report import System
    from transformer_cli.evaluation.words import WordCounts

Files = list[str] | None
WORST = 3
"""Sentences that are shown unless the command says how many."""
SLOW_WORDS = 500
"""In a line, from which on its TER takes noticeably long: sacreBLEU tries to move every stretch of it."""


def evaluate(
    models: Models = None,
    config: Config = None,
    overrides: TrainedOverrides = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="FILE",
            rich_help_panel=TEXT,
            help="Translate this file, not the run's test set.",
        ),
    ] = None,
    reference: Annotated[
        Files,
        typer.Option("--reference", metavar="FILE", rich_help_panel=TEXT, help="What it should say; repeatable."),
    ] = None,
    hypotheses: Annotated[
        Files,
        typer.Option(
            "--hypotheses",
            metavar="FILE",
            rich_help_panel=TEXT,
            help="Score this; repeatable, the first is the baseline.",
        ),
    ] = None,
    valid: Valid = False,
    to: To = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    worst: Annotated[
        int | None,
        typer.Option(
            "--worst",
            min=0,
            metavar="N",
            show_default=str(WORST),
            help="Show so many of the worst sentences.",
        ),
    ] = None,
    output_file: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="All of it as a page to look through and to mail: .html"),
    ] = None,
    check_batching: Annotated[
        bool,
        typer.Option(
            "--check-batching", help="Check that no translation depends on its batch; scores nothing, takes long."
        ),
    ] = False,
    strict: Strict = False,
    json_output: Json = False,
    markdown: Markdown = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Score translations: BLEU, chrF, chrF++ and TER, with sacreBLEU's signatures and 95 % intervals.

    Translates the test sets of a run, whose scores are then kept in its run.json; or, to choose by, what it was
    validated with (--valid); or --source, scored against each --reference; or takes finished translations
    (--hypotheses) and compares each with the first: how likely is such a difference by chance? These need no model;
    with --source, or -m for the words it has seen, they are looked at more closely.

    With -o FILE.html it is a page, too: one file that needs no network, with every sentence, to search and to sort.
    With --json each line is an object with a test's scores; `models` are the checkpoints that translated it: several
    (-m A -m B) are an ensemble, not compared.

    Examples:
      tx evaluate
      tx evaluate --beam-size 1 --worst 10 -o report.html
      tx evaluate --reference test.en --hypotheses greedy.en --hypotheses beam5.en
    """
    refuse_two_formats(json_output=json_output, markdown=markdown)
    inputs = (source, *(reference or ()), *(hypotheses or ()))
    refuse_own_input(None, *inputs)
    output = Output(
        as_json=json_output,
        markdown=markdown,
        strict=strict,
        n_worst=WORST if worst is None else worst,
        page=evaluation_page.checked(output_file, *inputs, config=config),
    )
    if valid and (hypotheses or source is not None or reference):
        raise UsageError(
            "--valid is a text of the run, and files are named as well", hint="leave out --valid, or the files"
        )
    if hypotheses:
        if beam_size is not None or length_penalty is not None or check_batching or to is not None:
            raise UsageError(
                "--hypotheses are translations already: no search goes with them",
                hint="for example: tx evaluate --hypotheses out.en --reference test.en",
            )
        _score_files(hypotheses, reference, source, known=_known(models, config, overrides), output=output)
        return
    if check_batching:
        idle = {"--reference": reference, "--markdown": markdown, "--strict": strict, "--worst": worst is not None}
        idle["-o"] = output_file is not None
        if any(idle.values()):
            named = " or ".join(option for option, is_there in idle.items() if is_there)
            raise UsageError(
                f"--check-batching scores nothing and takes no {named}", hint="check first, then score without it"
            )
    elif (source is None) != (not reference):
        raise UsageError(
            "--source and --reference need each other", hint="without both, the run's own test set is translated"
        )
    texts = [] if source is None else [read_text(source, reference or [], to)]
    refuse_nothing(texts)

    from transformer_cli.cli.trained import open_several, open_translator
    from transformer_cli.evaluation import metrics

    search: dict[str, Any] = {"beam_size": beam_size, "length_penalty": length_penalty}
    if check_batching:
        from transformer_cli.cli.batching_check import check

        runs, settings = open_several(models, config, overrides, precise=True)
        texts = texts or own_texts(runs[0], settings.data, to, valid=valid)
        refuse_nothing(texts)
        check(runs, settings, texts, search, as_json=json_output)
        return
    translator, opened, settings = open_translator(models, config, overrides, **search)
    metrics.check(settings.evaluation)
    texts = [replace(text, languages=opened[0].languages_into(to)) for text in texts]
    texts = texts or own_texts(opened[0], settings.data, to, valid=valid)
    refuse_nothing(texts)
    known = _run(opened[0].path, settings)
    findings = [_check(text, known, strict=strict, others=opened[1:]) for text in texts]
    if len(opened) > 1 and not json_output:
        together = f"an ensemble of {len(opened)} models: {', '.join(shown(run.checkpoint) for run in opened)}"
        console.result(f"**{together}**\n" if markdown else f"{together}\n")
    judged: list[Judged] = []
    results: list[dict[str, Any]] = []
    tallies: list[Tally] = []
    for text, suspicious in zip(texts, findings, strict=True):
        system, tally = translate(text, translator, search)
        facts = {"counts": _total(text.counts.values()), "truncated": tally.n_truncated, "findings": suspicious}
        facts["models"] = [str(run.checkpoint) for run in opened]
        facts["sha256"] = text.sha256
        if results and not json_output:
            console.result("")
        found, more = _judge(text, [system], known, output, [facts])
        judged += found
        results += more
        tallies.append(tally)
    if len(results) > 1 and len(settings.data.directions) > 1 and not json_output:
        from transformer_cli.cli.evaluation_tables import show_sets

        console.result("")
        show_sets(results, markdown=markdown)
    for tally in tallies:
        tally.refuse(translator.max_source_length, splits=settings.decoding.long == "split")
    given = {name: value for name, value in search.items() if value is not None}
    how: dict[str, Any] = {"decoding": settings.decoding.model_dump() | given}
    how |= {"evaluation": settings.evaluation.model_dump(), "seed": settings.seed, "engine": translator.name}
    if output.page is not None:
        evaluation_page.write(output.page, judged, evaluation_page.of_runs(opened, settings, how), known.options)
    if source is None and not valid and len(opened) == 1:
        there, asked = opened[0].config.data.tests, settings.data.tests
        keep(opened[0], [one for one in results if there.get(one["set"]) == asked[one["set"]]], how)


@dataclass(frozen=True)
class Output:
    """How results are shown. strict: what is suspicious is an error. page: the file of one."""

    as_json: bool
    markdown: bool
    strict: bool
    n_worst: int
    page: Path | None


@dataclass(frozen=True)
class Known:
    """What translations are judged by: how they are scored, and, where a run is known, the words and the lines that it
    learned from."""

    options: EvaluationConfig
    counts: WordCounts | None = None
    lines: Numbers | None = None
    of_sources: bool = True
    """Whether one of these sources with another target is suspicious."""


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """How many lines of several files were changed, by reason."""
    return dict(sum(map(Counter, counts), Counter()))


def _known(models: Sequence[str] | None, config: str | None, overrides: Sequence[str] | None) -> Known:
    """For finished translations: a run tells which words it has seen; nothing of it needs torch."""
    from transformer_cli.checkpoints.find import find_run
    from transformer_cli.checkpoints.record import read_config
    from transformer_cli.config.source import load_config

    if not models:
        return Known(load_config(config or "base.yaml", overrides or ()).evaluation)
    if len(models) > 1:
        raise UsageError(
            f"--hypotheses are looked at with the words of one run, but --model names {len(models)}",
            hint="name one of them",
        )
    refuse_two_runs(models, config)
    run_dir = find_run(models[0])
    return _run(run_dir, read_config(run_dir, overrides or ()))


def _run(run_dir: Path, settings: RunConfig) -> Known:
    from transformer_cli.data.fingerprints import LINES, load_fingerprints
    from transformer_cli.evaluation.words import load_word_counts

    counts = load_word_counts(run_dir)
    if counts is None:
        console.say(
            f"{run_dir} keeps no word counts: rare and unseen words are not looked for; "
            "`tx train` with the same configuration adds them"
        )
    lines = load_fingerprints(run_dir)
    if lines is None:
        console.say(
            f"nobody looked whether training saw the test: {run_dir} keeps no {LINES}; "
            "`tx train` with the same configuration adds it"
        )
    return Known(settings.evaluation, counts, lines, settings.data.tells_directions_by_source)


def _score_files(
    hypotheses: Sequence[str], references: Files, source: str | None, *, known: Known, output: Output
) -> None:
    """Finished translations against references, and against each other."""
    from transformer_cli.data.corpus import read_parallel
    from transformer_cli.decoding import quality
    from transformer_cli.evaluation import metrics
    from transformer_cli.evaluation.report import System

    if not references:
        raise UsageError("--hypotheses need a --reference", hint="for example: --reference test.en")
    metrics.check(known.options)
    sides = [*references, *([] if source is None else [source])]
    read = read_parallel([*hypotheses, *sides])
    for path, n in Counter(hypotheses).items():
        if n > 1:
            console.say(f"{path} is given {n} times: it is compared with itself")
    text = TestSet(
        name=Path(references[0]).name,
        source=None if source is None else read[source].lines,
        references=[read[reference].lines for reference in references],
        counts={path: lines.counts for path, lines in read.items()},
    )
    systems, facts = [], []
    findings = _check(text, known, strict=output.strict)
    for path in hypotheses:
        lines = read[path].lines
        flags = None
        if text.source is not None:
            flags = [quality.flags(*pair) for pair in zip(text.source, lines, strict=True)]
        systems.append(System(path, lines, flags))
        counts = _total(text.counts[file] for file in dict.fromkeys((path, *sides)))
        facts.append({"counts": counts, "findings": findings})
    judged, _ = _judge(text, systems, known, output, facts)
    if output.page is not None:
        evaluation_page.write(output.page, judged, evaluation_page.of_files(hypotheses, known.options), known.options)


def _check(text: TestSet, known: Known, *, strict: bool, others: Sequence[KnownRun] = ()) -> list[dict[str, Any]]:
    """What is suspicious about a test, as JSON: told, or with `strict` refused. others: of an ensemble, those that are
    not known yet."""
    from transformer_cli.data import checks
    from transformer_cli.data.corpus import Corpus
    from transformer_cli.data.fingerprints import load_fingerprints

    found = [change for file, counts in text.counts.items() for change in checks.changes(file, counts)]
    if text.source is not None and not text.is_own:
        corpus, *more = (Corpus(text.source, reference) for reference in text.references)
        looked = checks.Looked(corpus)
        found += looked.findings(text.name)
        for number, other in enumerate(more, start=2):
            name = f"{text.name} with reference {number}"
            found += [one for one in checks.check(name, other) if replace(one, text=text.name) not in found]
        if known.lines is not None:
            by, of_sources = "the training text", known.of_sources
            found += checks.overlap(text.name, looked, by, {None: known.lines}, of_sources=of_sources)
        for run in others:
            if (learned := load_fingerprints(run.path)) is not None:
                by, of_sources = f"the training text of {shown(run.path)}", run.config.data.tells_directions_by_source
                found += checks.overlap(text.name, looked, by, {None: learned}, of_sources=of_sources)
    _tell(found, strict=strict)
    return [finding.as_json() for finding in found]


def _judge(
    text: TestSet, systems: Sequence[System], known: Known, output: Output, facts: Sequence[dict[str, Any]]
) -> tuple[list[Judged], list[dict[str, Any]]]:
    """Scores, slices and the rest: shown, and returned, also as JSON; facts: what else there is to say of each
    system."""
    from transformer_cli.evaluation import report
    from transformer_cli.evaluation.page import Judged

    longest = max((len(line.split()) for system in systems for line in system.lines), default=0)
    if longest > SLOW_WORDS and "ter" in known.options.metrics:
        console.say(
            f"TER takes long for lines as long as these, of up to {longest:,} words; "
            "--set evaluation.metrics=[bleu,chrf] leaves it out"
        )
    judged = report.Text(text.references, text.source, known.counts)
    with console.pulse.doing("scoring"):
        found = report.reports(systems, judged, known.options, n_worst=output.n_worst)
    if text.is_own:
        found = [replace(one, warnings=[]) for one in found]
    results = [{**one.as_json(), **more} for one, more in zip(found, facts, strict=True)]
    if output.as_json:
        for result in results:
            console.result(json_line(result))
    else:
        from transformer_cli.cli.evaluation_tables import show_reports

        show_reports(found, known.options, markdown=output.markdown)
    _tell([f"{one.name}: {warning}" for one in found for warning in one.warnings], strict=output.strict)
    return [Judged(*both, judged, text.languages) for both in zip(found, systems, strict=True)], results


def _tell(suspicions: Sequence[object], *, strict: bool) -> None:
    """Warnings, or with `strict` a DataError."""
    from transformer_cli.data.checks import refuse

    if strict:
        refuse(suspicions)
    for suspicion in suspicions:
        console.warn(str(suspicion))
