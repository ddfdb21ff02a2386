"""`tx evaluate`: translations against references."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Json, Model, Overrides, Quiet, Traceback
from transformer_cli.cli.translate import BeamSize, LengthPenalty, progress_bar, tell
from transformer_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.config.evaluation import EvaluationConfig
    from transformer_cli.data.corpus import Lines
    from transformer_cli.decoding.translator import Translation
    from transformer_cli.evaluation.metrics import Score

Files = list[str] | None


def evaluate(
    model: Model = None,
    config: Config = None,
    overrides: Overrides = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="FILE", help="Translate this file, not the run's test set.")
    ] = None,
    reference: Annotated[
        Files, typer.Option("--reference", metavar="FILE", help="What it should say; repeatable.")
    ] = None,
    hypotheses: Annotated[
        Files, typer.Option("--hypotheses", metavar="FILE", help="Score this translation; repeatable; needs no model.")
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Score translations: BLEU, chrF and TER, with sacreBLEU's signatures.

    Translates the test set of a run, whose scores are then kept in its run.json; or --source, scored against each
    --reference; or takes finished translations (--hypotheses).

    Example:
      tx evaluate
    """
    if hypotheses:
        if any(option is not None for option in (source, model, beam_size, length_penalty)):
            raise UsageError(
                "--hypotheses are translations already: no --source, no --model and no search goes with them",
                hint="for example: tx evaluate --hypotheses out.en --reference test.en",
            )
        _score_files(hypotheses, reference, config, overrides, json_output=json_output)
        return
    if (source is None) != (not reference):
        raise UsageError(
            "--source and --reference need each other", hint="without both, the run's own test set is translated"
        )
    texts = [] if source is None else [_read_text(source, reference or [])]

    from transformer_cli.cli.trained import open_trained

    opened, settings = open_trained(model, config, overrides)
    if source is None:
        texts = _own_tests(opened, settings.data)

    from transformer_cli.loading import translator_of

    translator = translator_of(opened, settings)
    results = []
    for text in texts:
        start = time.perf_counter()
        with progress_bar(len(text.source.lines)) as progress:
            found = translator.translate_all(
                text.source.lines, beam_size=beam_size, length_penalty=length_penalty, progress=progress
            )
        seconds = time.perf_counter() - start
        console.say(f"{text.name}: {len(found):,} lines translated in {seconds:.1f} s")
        tell(text.source, found)
        result = _result(text, found, settings.evaluation)
        _show(result, json_output=json_output)
        results.append(result)
    if source is None and settings.data.test == opened.config.data.test:
        search = {
            "beam_size": beam_size or settings.decoding.beam_size,
            "length_penalty": settings.decoding.length_penalty if length_penalty is None else length_penalty,
        }
        _keep(opened, results, search)


@dataclass(frozen=True)
class Text:
    """What is translated, and what it should say."""

    name: str
    source: Lines
    references: list[list[str]]


@dataclass(frozen=True)
class Result:
    """The scores of one text."""

    name: str
    n_lines: int
    scores: list[Score]
    truncated: int | None
    counts: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        fields = {"set": self.name, "lines": self.n_lines, "scores": [asdict(score) for score in self.scores]}
        if self.truncated is not None:
            fields["truncated"] = self.truncated
        return fields | {"counts": self.counts}


def _read_text(source: str, references: Sequence[str]) -> Text:
    """Files, refused before anything is translated unless they match line by line."""
    from transformer_cli.data.corpus import parallel, read_lines

    pairs = [parallel(source, reference) for reference in references]
    return Text(Path(source).name, read_lines(source), [pair.target for pair in pairs])


def _own_tests(opened: OpenedRun, data: Any) -> list[Text]:
    from transformer_cli.data.corpus import Lines, load_tests

    tests = load_tests(data)
    if not tests:
        raise DataError(
            f"{opened.path} has no test set",
            hint="name one with --set data.test=PREFIX, or give --source and --reference",
        )
    return [Text(name, Lines(corpus.source, corpus.counts), [corpus.target]) for name, corpus in tests.items()]


def _result(text: Text, found: Sequence[Translation], options: EvaluationConfig) -> Result:
    from transformer_cli.evaluation.metrics import score

    return Result(
        name=text.name,
        n_lines=len(found),
        scores=score([translation.text for translation in found], text.references, options),
        truncated=sum(translation.truncated for translation in found),
        counts=text.source.counts,
    )


def _score_files(
    hypotheses: Sequence[str],
    references: Sequence[str] | None,
    config: str | None,
    overrides: Sequence[str] | None,
    *,
    json_output: bool,
) -> None:
    """Finished translations against references."""
    from transformer_cli.config.source import load_config
    from transformer_cli.data.corpus import parallel, read_lines
    from transformer_cli.evaluation.metrics import score

    if not references:
        raise UsageError("--hypotheses need a --reference", hint="for example: --reference test.en")
    options = load_config(config or "base.yaml", overrides or ()).evaluation
    for path in hypotheses:
        pairs = [parallel(path, reference) for reference in references]
        lines = read_lines(path)
        scores = score(lines.lines, [pair.target for pair in pairs], options)
        for reason, n in lines.counts.items():
            console.warn(f"{path}: {n:,} x {reason}")
        _show(Result(path, len(lines.lines), scores, None, lines.counts), json_output=json_output)


def _show(result: Result, *, json_output: bool) -> None:
    """One text: a line with its name, then a metric, its score and its signature per line."""
    if json_output:
        console.result(json.dumps(result.as_json(), ensure_ascii=False))
        return
    console.result(f"{result.name} ({result.n_lines:,} lines)")
    for score in result.scores:
        console.result(f"  {score.name:<6}{score.value:>7.2f}  {score.signature}")


def _keep(opened: OpenedRun, results: Sequence[Result], search: dict[str, Any]) -> None:
    """Write the scores of the run's own test set into its run.json."""
    from transformer_cli.files import write_json
    from transformer_cli.training.directory import read_record

    path = opened.path / "run.json"
    record = read_record(opened.path)
    kept = record.setdefault("scores", {})
    for result in results:
        kept[result.name] = {"checkpoint": opened.checkpoint.name, **search, **result.as_json()}
    write_json(path, record)
    console.say(f"kept in {path}")
