"""`tx export`: a run becomes another engine's model, which has to say the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Input, Json, Model, OutputDir, Quiet, To, Traceback, TrainedOverrides
from transformer_cli.cli.results import refuse_inside_a_run
from transformer_cli.export.formats import FORMATS
from transformer_cli.files import json_line, shown
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.config.run import RunConfig
    from transformer_cli.export.comparison import Comparison


KINDS = (
    "for CTranslate2 int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16 or float32; for ONNX "
    "int8"
)
"""In words: the formats themselves are not imported for a help."""


def _formats(incomplete: str) -> list[str]:
    return [name for name in FORMATS.names if name.startswith(incomplete)]


def export(
    format: Annotated[
        str, typer.Argument(metavar="FORMAT", autocompletion=_formats, help=f"One of {', '.join(FORMATS.own)}.")
    ],
    output_dir: OutputDir,
    quantization: Annotated[
        str | None,
        typer.Option("--quantization", metavar="KIND", help=f"What weights are rounded to: {KINDS}."),
    ] = None,
    input_file: Input = None,
    to: To = None,
    model: Model = None,
    config: Config = None,
    overrides: TrainedOverrides = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Export a trained model to another engine, and compare.

    The model is written and opened by the engine that it is for, and both translate up to 100 lines of the run's
    validation text, or of -i. If logits or the scores of the same text differ, nothing is left behind and the exit code
    is 4; texts that only one of the two searches finds are counted. comparison.json records all of it. What a format
    cannot hold is refused, with all reasons.

    A model of several languages is exported whole, and compared in the direction of --to; the README that is written
    says how each source begins. For Hugging Face that is `>>en<<`, as in other Marian models.

    With --quantization the unrounded weights are compared first; then it reports what rounding changes.

    Each format needs the extra of its name: pip install -e '.[FORMAT]' where tx was cloned to.

    Examples:
      tx export ctranslate2 -m runs/tiny -o tiny-ct2
      tx export ctranslate2 -o tiny-int8 --quantization int8
      tx export hugging-face -o tiny-hf -i sentences.de --json
    """
    from transformer_cli.export.exporting import check_format, check_place

    check_format(format, quantization)
    check_place(Path(output_dir))
    refuse_inside_a_run(Path(output_dir))

    from transformer_cli.cli.trained import open_trained

    opened, settings = open_trained(model, config, overrides, precise=True)

    from transformer_cli.export.exporting import export as write

    opened = replace(opened.towards(to), config=settings)
    lines = _lines(input_file, settings, opened.into(to))

    with console.pulse.doing("writing, and translating with both engines"):
        found = write(opened, format, output_dir, lines=lines, quantization=quantization)
    if json_output:
        console.result(json_line({"place": str(found.place), **found.as_json()}))
        return
    console.result(str(found.place))
    _tell(found.exact_engine, found.exact)
    if found.rounded is not None:
        console.say(f"rounded to {quantization}:")
        _tell(found.engine, found.rounded)


def _lines(input_file: str | None, settings: RunConfig, to: str) -> list[str]:
    """The text to compare on. to: the language that it is to be translated into."""
    from transformer_cli.cli.lines import given_lines
    from transformer_cli.data.corpus import load_validation
    from transformer_cli.data.mixture import sources_into
    from transformer_cli.errors import DataError

    if input_file is not None:
        given = given_lines(None, input_file)
        return [] if given is None else given.lines
    try:
        with console.pulse.doing("reading the text to compare on"):
            corpus = load_validation(settings.data)
    except DataError as failure:
        raise DataError(failure.message, hint="name another text to compare the engines on, with -i") from None
    return [] if corpus is None else list(sources_into(corpus, to))


def _tell(engine: str, found: Comparison) -> None:
    n_lines = len(found.lines)
    console.say(
        f"{engine}: {counted(n_lines, 'lines')}, {counted(found.steps, 'steps')}: "
        f"logits differ by at most {found.logit_difference:.2g}, "
        f"the same piece is preferred at {found.agreeing:.1%}, scores differ by at most {found.score_difference:.2g}"
    )
    console.say(f"{found.equal_texts:,} of {n_lines:,} texts of both beam searches are the same")
    other = [line for line in found.lines if line.text != line.text_there]
    if other:
        better = sum(line.scored_here > line.score for line in other)
        console.say(
            f"of the others, tx prefers its own text {counted(len(other) - better, 'times')}, the engine's {better:,}"
        )
        console.say(f'for example "{shown(other[0].text)}" and "{shown(other[0].text_there)}"')
