"""How translations are judged: what is suspicious about their test, and how well they score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli import console
from transformer_cli.cli.options import refuse_two_runs
from transformer_cli.cli.test_sets import TestSet
from transformer_cli.cli.unseen import kept
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line, shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.config.evaluation import EvaluationConfig
    from transformer_cli.config.run import RunConfig
    from transformer_cli.data.checks import Finding, Looked
    from transformer_cli.data.fingerprints import Numbers
    from transformer_cli.evaluation.page import Judged
    from transformer_cli.evaluation.report import System
    from transformer_cli.evaluation.words import WordCounts

SLOW_WORDS = 500
"""In a line, from which on its TER takes noticeably long: sacreBLEU tries to move every stretch of it."""


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


def known_of(models: Sequence[str] | None, config: str | None, overrides: Sequence[str] | None) -> Known:
    """For finished translations: a run tells which words it has seen; nothing of it needs torch."""
    from transformer_cli.checkpoints.find import find_run
    from transformer_cli.checkpoints.record import read_config
    from transformer_cli.config.source import load_config

    if not models:
        return Known(load_config(config or "base.yaml", overrides or ()).evaluation)
    if len(models) > 1:
        raise UsageError(
            f"--hypotheses are compared with the words of one run, but --model names {len(models)}",
            hint="name one of them",
        )
    refuse_two_runs(models, config)
    run_dir = find_run(models[0])
    return known_of_run(run_dir, read_config(run_dir, overrides or ()))


def known_of_run(run_dir: Path, settings: RunConfig) -> Known:
    from transformer_cli.data.fingerprints import LINES, load_fingerprints
    from transformer_cli.evaluation.words import WORD_COUNTS, load_word_counts

    counts = kept(load_word_counts, run_dir, "rare and unseen words are not looked for")
    if not (run_dir / WORD_COUNTS).exists():
        console.say(
            f"{run_dir} keeps no word counts: rare and unseen words are not looked for{_training(run_dir, 'adds them')}"
        )
    lines = kept(load_fingerprints, run_dir, "nobody looked whether training saw the test")
    if not (run_dir / LINES).exists():
        console.say(
            f"nobody looked whether training saw the test: {run_dir} keeps no {LINES}{_training(run_dir, 'adds it')}"
        )
    return Known(settings.evaluation, counts, lines, settings.data.tells_directions_by_source)


def _training(run_dir: Path, does: str) -> str:
    """What `tx train` does about it, as the rest of a sentence; nothing of a run that it did not make, which it
    refuses."""
    from transformer_cli.checkpoints.record import UNTRAINED, read_record

    record = kept(read_record, run_dir, "nobody knows what made the run")
    is_its_own = record is not None and not record.keys() & UNTRAINED.keys()
    return f"; `tx train` with the same configuration {does}" if is_its_own else ""


def check(
    texts: Sequence[TestSet], known: Known, *, strict: bool, others: Sequence[KnownRun] = ()
) -> list[list[dict[str, Any]]]:
    """What is suspicious about each test, as JSON: told, or with `strict` refused, all of it at once. others: of an
    ensemble, those that are not known yet."""
    found = [_suspicions(text, known, others) for text in texts]
    _tell([one for of_text in found for one in of_text], strict=strict)
    return [[one.as_json() for one in of_text] for of_text in found]


def _suspicions(text: TestSet, known: Known, others: Sequence[KnownRun]) -> list[Finding]:
    from transformer_cli.data import checks
    from transformer_cli.data.corpus import Corpus

    found = [change for file, counts in text.counts.items() for change in checks.changes(file, counts)]
    if text.source is not None and not text.is_own:
        corpus, *more = (Corpus(text.source, reference) for reference in text.references)
        looked = checks.Looked(corpus)
        found += looked.findings(text.pairs_of)
        for number, other in enumerate(more, start=2):
            name = f"{text.pairs_of} with reference {number}"
            found += [one for one in checks.check(name, other) if replace(one, text=text.pairs_of) not in found]
        if known.lines is not None:
            by, of_sources = "the training text", known.of_sources
            found += checks.overlap(text.pairs_of, looked, by, {None: known.lines}, of_sources=of_sources)
        for run in others:
            found += learned_by(run, text, looked, named=run.path)
    return found


def learned_by(run: KnownRun, text: TestSet, looked: Looked, *, named: str | Path) -> list[Finding]:
    """What of a test a run was trained with, as far as it keeps what that was. looked: the test. named: the run."""
    from transformer_cli.data.checks import overlap
    from transformer_cli.data.fingerprints import load_fingerprints

    learned = kept(load_fingerprints, run.path, f"nobody looked whether {shown(named)} saw the test")
    if learned is None:
        return []
    return overlap(
        text.pairs_of,
        looked,
        f"the training text of {shown(named)}",
        {None: learned},
        of_sources=run.config.data.tells_directions_by_source,
    )


def judge(
    text: TestSet, systems: Sequence[System], known: Known, output: Output, facts: Sequence[dict[str, Any]]
) -> tuple[list[Judged], list[dict[str, Any]]]:
    """Scores, slices and the rest: shown, and returned, also as JSON. facts: what else there is to say of each system.
    With `strict`, whoever has done with all of them calls `refuse`."""
    from transformer_cli.evaluation import report
    from transformer_cli.evaluation.page import Judged

    longest = max((len(line.split()) for system in systems for line in system.lines), default=0)
    if longest > SLOW_WORDS and "ter" in known.options.metrics:
        console.say(
            f"TER takes long for lines as long as these, of up to {longest:,} words; "
            "--set evaluation.metrics=[bleu,chrf] leaves it out"
        )
    judged = report.Text(text.references, text.source, known.counts, text.is_own)
    with console.pulse.doing("scoring"):
        found = report.reports(systems, judged, known.options, n_worst=output.n_worst)
    results = [{**one.as_json(), **more} for one, more in zip(found, facts, strict=True)]
    if output.as_json:
        for result in results:
            console.result(json_line(result))
    else:
        from transformer_cli.cli.evaluation_tables import show_reports

        show_reports(found, known.options, markdown=output.markdown)
    scored = [Judged(*both, judged, text.languages) for both in zip(found, systems, strict=True)]
    if not output.strict:
        _tell(_warnings(scored), strict=False)
    return scored, results


def refuse(judged: Sequence[Judged], output: Output) -> None:
    """With `strict`, DataError where scores are suspicious: in the end, for what is shown, written and kept of them is
    the same as without."""
    if output.strict:
        _tell(_warnings(judged), strict=True)


def _warnings(judged: Sequence[Judged]) -> list[str]:
    return [f"{one.report.name}: {warning}" for one in judged for warning in one.report.warnings]


def _tell(suspicions: Sequence[object], *, strict: bool) -> None:
    """Warnings, or with `strict` a DataError."""
    from transformer_cli.data.checks import refuse

    if strict:
        refuse(suspicions)
    for suspicion in suspicions:
        console.warn(str(suspicion))
