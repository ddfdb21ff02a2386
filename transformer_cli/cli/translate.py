"""`tx translate`: text, a file, a pipe or a conversation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Input, Json, Model, Output, Overrides, Quiet, Traceback
from transformer_cli.errors import DataError

if TYPE_CHECKING:
    from transformer_cli.data.corpus import Lines
    from transformer_cli.decoding.translator import Candidate, Translation

BeamSize = Annotated[
    int | None, typer.Option("--beam-size", "-b", min=1, help="Hypotheses kept per sentence; 1 is greedy search.")
]
LengthPenalty = Annotated[
    float | None, typer.Option("--length-penalty", help="Scores are divided by length^this; 0 disables.")
]


def translate(
    text: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Sentences, one per argument.")] = None,
    input_file: Input = None,
    output_file: Output = None,
    model: Model = None,
    config: Config = None,
    overrides: Overrides = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int, typer.Option("--n-best", min=1, help="Translations per line, at most the beam's size; in Moses' format.")
    ] = 1,
    length_penalty: LengthPenalty = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Translate text, a file (-i, -o), what comes in through a pipe, or what you type.

    As many lines come out as go in, in the same order; an empty line stays empty. The model is the latest run, the one
    that -m names, or the run of a configuration (-c). With --json each line is an object with source, translation,
    score, tokens, n_best and truncated; if lines had to be touched (a byte order mark, carriage returns), a last object
    says so in counts.

    Example:
      tx translate "ich mochte ein bier"
    """
    lines = _lines(text, input_file, output_file)  # a missing file is said before torch is imported

    from transformer_cli.cli.trained import open_trained

    opened, settings = open_trained(model, config, overrides)

    from transformer_cli.loading import translator_of

    translator = translator_of(opened, settings)

    def run(lines: list[str]) -> list[Translation]:
        with progress_bar(len(lines)) as progress:
            return translator.translate_all(
                lines, beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, progress=progress
            )

    show = _as_json if json_output else _as_text if n_best == 1 else _as_moses
    if lines is None:
        _converse(run, show)
        return
    with _writer(output_file) as write:
        found = run(lines.lines)
        for number, (source, translation) in enumerate(zip(lines.lines, found, strict=True)):
            for line in show(number, source, translation):
                write(line)
        if json_output and lines.counts:
            write(json.dumps({"counts": lines.counts}, ensure_ascii=False))
    tell(lines, found)


def tell(lines: Lines, found: list[Translation]) -> None:
    """On stderr: what happened to which number of lines."""
    for reason, n in lines.counts.items():
        console.warn(f"{n:,} x {reason}")
    from transformer_cli.decoding.translator import NOTHING

    if n_empty := found.count(NOTHING):
        console.say(f"{n_empty:,} of {len(found):,} lines have no text; their translations are empty")
    if n_truncated := sum(translation.truncated for translation in found):
        console.warn(f"{n_truncated:,} of {len(found):,} translations did not end and were cut at the longest length")


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], object]]:
    """A bar on stderr for more than a few lines, where a person looks at it."""
    from tqdm import tqdm

    hidden = total < 2 or console.is_quiet() or not console.is_terminal(sys.stderr)
    with tqdm(total=total, unit=" lines", disable=hidden, file=sys.stderr, leave=False) as bar:
        yield bar.update


def _lines(text: list[str] | None, input_file: str | None, output_file: str | None) -> Lines | None:
    """What is to be translated; None where somebody sits at a terminal and will type it."""
    from transformer_cli.cli.lines import given_lines

    if not text and input_file is None:
        if output_file is None and sys.stdin is not None and console.is_terminal(sys.stdin):
            return None
        input_file = "-"
    return given_lines(text, input_file)


@contextmanager
def _writer(output_file: str | None) -> Iterator[Callable[[str], None]]:
    """Takes one line at a time; a file appears only when all of them are there."""
    if output_file is None or output_file == "-":
        yield console.result
        return
    from transformer_cli.files import atomic_file

    with atomic_file(output_file) as file:

        def write(line: str) -> None:
            file.write(f"{line}\n".encode())

        yield write


def _converse(
    run: Callable[[list[str]], list[Translation]],
    show: Callable[[int, str, Translation], list[str]],
) -> None:
    """Read a line, translate it, until the end of the input."""
    from transformer_cli.data.corpus import check_line

    console.say("Type a sentence; an empty line or Ctrl-D ends.")
    number = 0
    while line := _ask():
        try:
            check_line(line, place="what was typed")
            [translation] = run([line])
        except DataError as failure:
            console.error(failure.message, hint=failure.hint)
            continue
        for shown in show(number, line, translation):
            console.result(shown)
        number += 1


def _ask() -> str:
    """One line without its end; "" at the end of the input."""
    import readline  # noqa: F401  (gives `input` editing and a history)

    try:
        return input("> " if console.is_terminal(sys.stdout) else "")
    except EOFError:
        return ""


def _as_text(number: int, source: str, translation: Translation) -> list[str]:
    return [translation.text]


def _as_moses(number: int, source: str, translation: Translation) -> list[str]:
    """Moses' format: line ||| text ||| features ||| score; lines are numbered from 0."""
    return [
        f"{number} ||| {one.text} ||| LogProbability= {one.log_probability:.6f} ||| {one.score:.6f}"
        for one in translation.n_best
    ]


def _as_json(number: int, source: str, translation: Translation) -> list[str]:
    fields = {"source": source, **_fields(translation), "n_best": [_fields(one) for one in translation.n_best]}
    return [json.dumps(fields, ensure_ascii=False)]


def _fields(one: Candidate) -> dict[str, Any]:
    return {
        "translation": one.text,
        "score": one.score,
        "log_probability": one.log_probability,
        "tokens": list(one.tokens),
        "truncated": one.truncated,
    }
