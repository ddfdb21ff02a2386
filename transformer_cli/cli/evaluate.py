"""`tx evaluate`: translations against references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console, evaluation_page, judging
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
)
from transformer_cli.cli.results import Tally, refuse_own_input
from transformer_cli.cli.test_sets import (
    TestSet,
    is_own,
    keep,
    own_texts,
    read_text,
    refuse_lines,
    refuse_nothing,
    tell_repeated,
    translate,
)
from transformer_cli.cli.translate import BeamSize, LengthPenalty
from transformer_cli.errors import UsageError
from transformer_cli.files import shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.config.run import RunConfig
    from transformer_cli.decoding.texts import TextTranslator
    from transformer_cli.evaluation.page import Judged

Files = list[str] | None
WORST = 3
"""Sentences that are shown unless the command says how many."""


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
            help="Translate this file instead of the run's test set.",
        ),
    ] = None,
    reference: Annotated[
        Files,
        typer.Option("--reference", metavar="FILE", rich_help_panel=TEXT, help="Reference translation; repeatable."),
    ] = None,
    hypotheses: Annotated[
        Files,
        typer.Option(
            "--hypotheses",
            metavar="FILE",
            rich_help_panel=TEXT,
            help="Score this file; repeatable, the first is the baseline.",
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
            help="How many of the worst sentences to show.",
        ),
    ] = None,
    output_file: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it as a page to look through and to mail: .html"),
    ] = None,
    check_batching: Annotated[
        bool,
        typer.Option(
            "--check-batching", help="Check that no translation depends on its batch; scores nothing, and takes long."
        ),
    ] = False,
    strict: Strict = False,
    json_output: Json = False,
    markdown: Markdown = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Score translations: BLEU, chrF, chrF++ and TER, with sacreBLEU's signatures and 95 % intervals.

    Translates the test sets of a run, whose scores are then kept in its run.json; or its validation text (--valid), to
    choose between models; or --source, scored against each --reference. Or scores finished translations (--hypotheses)
    and compares each with the first: how likely is such a difference by chance? These need no model; --source, or -m
    for the words that a model has seen, adds a closer look.

    -o FILE.html also writes a page: one file that works offline, with every sentence, to search and to sort. With
    --json each line is an object with a test's scores; `models` are the checkpoints that translated it. Several models
    (-m A -m B) are an ensemble, not compared.

    Examples:
      tx evaluate
      tx evaluate --beam-size 1 --worst 10 -o report.html
      tx evaluate --reference test.en --hypotheses greedy.en --hypotheses beam5.en
    """
    refuse_two_formats(json_output=json_output, markdown=markdown)
    inputs = (source, *(reference or ()), *(hypotheses or ()))
    refuse_own_input(None, *inputs)
    output = judging.Output(
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
        known = judging.known_of(models, config, overrides)
        with console.more_than_results():
            _score_files(hypotheses, reference, source, known=known, output=output)
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
    search: dict[str, Any] = {"beam_size": beam_size, "length_penalty": length_penalty}
    if check_batching:
        from transformer_cli.cli.batching_check import check
        from transformer_cli.cli.trained import open_several

        runs, settings = open_several(models, config, overrides, precise=True)
        texts = texts or own_texts(runs[0], settings.data, to, valid=valid)
        refuse_nothing(texts)
        with console.more_than_results():
            check(runs, settings, texts, search, as_json=json_output)
        return
    from transformer_cli.cli.trained import open_translator

    opened = open_translator(models, config, overrides, **search)
    with console.more_than_results():
        _score_runs(*opened, texts, search, to=to, valid=valid, output=output)


def _score_runs(
    translator: TextTranslator,
    opened: Sequence[KnownRun],
    settings: RunConfig,
    texts: Sequence[TestSet],
    search: dict[str, Any],
    *,
    to: str | None,
    valid: bool,
    output: judging.Output,
) -> None:
    """What the runs translate, against references. texts: those that were named; none: the first run's own, whose
    scores a run keeps."""
    from transformer_cli.evaluation import metrics

    metrics.check(settings.evaluation)
    are_own = not texts
    if are_own:
        texts = own_texts(opened[0], settings.data, to, valid=valid)
        refuse_nothing(texts)
    else:
        texts = [replace(text, languages=opened[0].languages_into(to)) for text in texts]
    known = judging.known_of_run(opened[0].path, settings)
    findings = judging.check(texts, known, strict=output.strict, others=opened[1:])
    if len(opened) > 1 and not output.as_json:
        together = f"an ensemble of {len(opened)} models: {', '.join(shown(run.checkpoint) for run in opened)}"
        console.result(f"**{together}**\n" if output.markdown else f"{together}\n")
    judged: list[Judged] = []
    results: list[dict[str, Any]] = []
    tallies: list[Tally] = []
    for text, suspicious in zip(texts, findings, strict=True):
        system, tally = translate(text, translator, search)
        facts = {"counts": _total(text.counts.values()), "truncated": tally.n_truncated, "findings": suspicious}
        facts["models"] = [str(run.checkpoint) for run in opened]
        facts["sha256"] = text.sha256
        if results and not output.as_json:
            console.result("")
        found, more = judging.judge(text, [system], known, output, [facts])
        judged += found
        results += more
        tallies.append(tally)
    if len(results) > 1 and len(settings.data.directions) > 1 and not output.as_json:
        from transformer_cli.cli.evaluation_tables import show_sets

        console.result("")
        show_sets(results, markdown=output.markdown)
    given = {name: value for name, value in search.items() if value is not None}
    how: dict[str, Any] = {"decoding": settings.decoding.model_dump() | given}
    how |= {"evaluation": settings.evaluation.model_dump(), "seed": settings.seed, "engine": translator.name}
    if output.page is not None:
        evaluation_page.write(output.page, judged, evaluation_page.of_runs(opened, settings, how), known.options)
    is_kept = are_own and not valid and len(opened) == 1
    if is_kept and any(tally.flags["refused"] for tally in tallies):
        console.warn("the scores are not kept: lines were refused")
    elif is_kept:
        there, asked = opened[0].config.data.tests, settings.data.tests
        kept = [one for one in results if is_own(opened[0], one, asked[one["set"]])]
        keep(opened[0], kept, how)
        others = [one["set"] for one in results if one not in kept]
        for why, names in (
            ("the run has no text of that name", [name for name in others if name not in there]),
            ("the run's own text of that name is another", [name for name in others if name in there]),
        ):
            if names:
                console.say(f"not kept: {', '.join(names)}, for {why} (data.test)")
    judging.refuse(judged, output)
    refuse_lines((text.name, tally, translator) for text, tally in zip(texts, tallies, strict=True))


def _score_files(
    hypotheses: Sequence[str], references: Files, source: str | None, *, known: judging.Known, output: judging.Output
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
        if path in references:
            console.warn(f"{path} is the reference, too: its scores are those of a text against itself")
    tell_repeated(references)
    text = TestSet(
        name=Path(references[0]).name,
        source=None if source is None else read[source].lines,
        references=[read[reference].lines for reference in references],
        counts={path: lines.counts for path, lines in read.items()},
        files="" if source is None else f"{Path(source).name} and {Path(references[0]).name}",
    )
    systems, facts = [], []
    [findings] = judging.check([text], known, strict=output.strict)
    for path in hypotheses:
        lines = read[path].lines
        flags = None
        if text.source is not None:
            flags = [quality.flags(*pair) for pair in zip(text.source, lines, strict=True)]
        systems.append(System(path, lines, flags))
        counts = _total(text.counts[file] for file in dict.fromkeys((path, *sides)))
        facts.append({"counts": counts, "findings": findings})
    judged, _ = judging.judge(text, systems, known, output, facts)
    if output.page is not None:
        evaluation_page.write(output.page, judged, evaluation_page.of_files(hypotheses, known.options), known.options)
    judging.refuse(judged, output)


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """How many lines of several files were changed, by reason."""
    return dict(sum(map(Counter, counts), Counter()))
