"""`tx translate`: text, a file, a pipe or a conversation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console
from transformer_cli.cli.lines import Incoming, Request, as_request, incoming_lines, parse_request
from transformer_cli.cli.live import progress_bar
from transformer_cli.cli.options import (
    SEARCH,
    TEXT,
    Config,
    Input,
    Json,
    Models,
    Output,
    Quiet,
    To,
    Traceback,
    TrainedOverrides,
)
from transformer_cli.cli.results import (
    JSON_FIELDS,
    UNSURE_OF_THIS,
    Tally,
    as_json,
    as_moses,
    as_text,
    refuse_own_input,
    writer,
)
from transformer_cli.cli.unseen import UNSEEN, Unseen
from transformer_cli.decoding.doubt import UNSURE
from transformer_cli.errors import DataError, UsageError
from transformer_cli.files import json_line
from transformer_cli.writing import unspaced_script

if TYPE_CHECKING:
    from transformer_cli.decoding.texts import TextTranslator
    from transformer_cli.decoding.translation import Translation

BeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size",
        "-b",
        min=1,
        metavar="N",
        rich_help_panel=SEARCH,
        help="Hypotheses kept per sentence; 1 is greedy search.",
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="X",
        rich_help_panel=SEARCH,
        help="Scores are divided by length to this power; 0 disables.",
    ),
]
Progress = Callable[[int], object] | None
Run = Callable[[Sequence[Request], int, Progress], "list[Translation]"]
"""Requests, how many lines came before them, and whom to tell of each that is done."""
Parse = Callable[[str, str], Request]
"""A line, and what an error calls it."""
Show = Callable[[int, Request, "Translation"], list[str]]
"""The lines that say a translation, whose line has this number, counted from 0."""


def translate(
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Sentences, one per argument.")] = None,
    input_file: Input = None,
    output_file: Output = None,
    to: To = None,
    models: Models = None,
    config: Config = None,
    overrides: TrainedOverrides = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int,
        typer.Option(
            "--n-best",
            min=1,
            metavar="N",
            rich_help_panel=SEARCH,
            help="Translations per line, in Moses' format, the best first, unfinished ones last: at most the beam's "
            "size; with --sample, draws.",
        ),
    ] = 1,
    length_penalty: LengthPenalty = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample", rich_help_panel=SEARCH, help="Draw translations at random; --set seed=2 draws others."
        ),
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments",
            rich_help_panel=TEXT,
            help="Say which word translates which: TEXT ||| 0-0 1-2.",
        ),
    ] = False,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            rich_help_panel=TEXT,
            help='Lines are objects: {"source": ..., "prefix": ...}; fields of other names are passed through.',
        ),
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Translate text, a file (-i, -o), a pipe or what you type.

    As many lines come out as go in, in the same order, each as soon as it is ready; an empty line stays empty. The
    model is the latest run, the run that -m names, several as an ensemble (-m A -m B), or a configuration's run (-c).
    --set decoding.KEY=VALUE changes the search: temperature, top_k, top_p, no_repeat_ngram, min_length, ...

    With --json each line is an object with source, translation, score, tokens, n_best, truncated and flags: looped (the
    same words four times in a row), copied (three in four words are the source's), short (less than a third of the
    source's words and two thirds of its letters), broken (bytes that are no character, which a tokenizer with bytes can
    write), split (more pieces or sentences than the model learned from, so translated in parts), refused (too long,
    with decoding.long=refuse; exit code 3), unseen (a word of the source was not in training), unsure (a lower mean
    probability of its pieces than seven in eight greedy translations of the validation text; a beam finds fewer such).
    If lines had to be changed (a byte order mark, carriage returns), a last object counts them.

    --alignments come from cross-attention: from the row that a word comes out of, which was better in every model
    measured here (docs/attention.md); --set decoding.alignment_reading=shifted reads the row that it goes into, as Chen
    et al. 2020 do. Words are separated by white space. In --json they are `alignment`.

    Examples:
      tx translate "ich mochte ein bier"
      echo "ich mochte ein bier" | tx translate --json
      tx translate --beam-size 10 --n-best 3 "ich mochte ein bier"
    """
    refuse_own_input(output_file, None if text else input_file or "-", config=config)
    if alignments and n_best > 1 and not (json_output or jsonl):
        raise UsageError("--alignments belong to the best translation: they go with --n-best only in --json")
    with _incoming(text, input_file, output_file) as source:  # a missing file is said before torch is imported
        from transformer_cli.cli.trained import open_translator

        search: dict[str, Any] = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best}
        search["search"] = "sampling" if sample else None
        also = [*(["--jsonl, whose lines may have prefixes"] if jsonl else []), *(["alignments"] if alignments else [])]
        translator, runs, settings = open_translator(models, config, overrides, also=also, **search)
        translator = translator.towards(to)
        unseen, told = Unseen.by(runs), list[str]()

        def run(requests: Sequence[Request], lines_before: int, progress: Progress = None) -> list[Translation]:
            found = translator.translate_all(
                [request.source for request in requests],
                **search,
                prefixes=[request.prefix for request in requests],
                lines_before=lines_before,
                progress=progress,
            )
            found = unseen.mark([request.source for request in requests], found)
            if not alignments:
                return found
            if not told:
                told.extend(_tell_unspaced([request.source for request in requests], found))
            return _aligned(translator, [request.source for request in requests], found)

        run([], 0)  # what cannot be searched for is said before anybody waits for a line
        parse = parse_request if jsonl else as_request
        show = as_json if json_output or jsonl else as_text if n_best == 1 else as_moses
        if source is None:
            tally = _converse(run, parse, show, tell=unseen.tell)
        else:
            tally = _filter(source, run, parse, show, output_file)
            unseen.tell()
    tally.refuse(translator.max_source_length, splits=settings.decoding.long == "split")


def _tell_unspaced(lines: Sequence[str], found: Sequence[Translation]) -> list[str]:
    """Of which sides it was said that they have hardly any words to be aligned."""
    texts = {"source": "".join(lines), "translation": "".join(one.text for one in found)}
    sides = [side for side, text in texts.items() if unspaced_script(text)]
    for side in sides:
        console.warn(f"the {side} is written without spaces: what stands between two is one word for --alignments")
    return sides


def _aligned(translator: TextTranslator, lines: Sequence[str], found: list[Translation]) -> list[Translation]:
    from transformer_cli.attention_maps.aligner import alignments
    from transformer_cli.decoding.translator import Translator

    assert isinstance(translator, Translator)  # of the engines the one that says what it attends to
    links = alignments(translator, lines, found)
    return [replace(translation, alignment=one) for translation, one in zip(found, links, strict=True)]


def _filter(source: Incoming, run: Run, parse: Parse, show: Show, output_file: str | None) -> Tally:
    """Translate what comes in, as it comes in; returns what happened to it."""
    tally, touched = Tally(), Counter[str]()
    bar = progress_bar("translating", source.total, beside_results=output_file in (None, "-"))
    with bar as progress, writer(output_file) as write:
        for block in source.blocks:
            requests = [parse(line, f"line {number:,}") for number, line in enumerate(block, start=tally.n_lines + 1)]
            found = run(requests, tally.n_lines, progress)
            for number, (request, translation) in enumerate(zip(requests, found, strict=True), start=tally.n_lines):
                for line in show(number, request, translation):
                    write(line)
                touched.update(f"field `{name}` of the input not kept" for name in JSON_FIELDS & request.fields.keys())
                touched["prefix of an empty source left out"] += bool(request.prefix and translation.is_of_nothing)
            tally.add(found)
        counts = {**source.counts, **+touched}
        if show is as_json and counts:
            write(json_line({"counts": counts}))
    tally.tell(counts)
    return tally


@contextmanager
def _incoming(text: list[str] | None, input_file: str | None, output_file: str | None) -> Iterator[Incoming | None]:
    """What is to be translated; None where somebody sits at a terminal and will type it."""
    nothing_given = not text and input_file is None and output_file is None
    if nothing_given and sys.stdin is not None and console.is_terminal(sys.stdin):
        yield None
    else:
        with incoming_lines(text, input_file) as source:
            yield source


def _converse(run: Run, parse: Parse, show: Show, *, tell: Callable[[], None]) -> Tally:
    """Read a line, translate it, until the end of the input. tell: says what is to be said of each. Returns what
    happened to them."""
    if isinstance(sys.stdin, TextIOWrapper):  # UTF-8 whatever the locale says, and a bad byte ends nothing
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    console.say("Type a sentence; an empty line or Ctrl-D ends.")
    tally = Tally()
    while line := _ask():
        try:
            request = parse(line, "what was typed")
            [translation] = run([request], tally.n_lines, None)
        except DataError as failure:
            console.error(failure.message, hint=failure.hint)
            continue
        for shown in show(tally.n_lines, request, translation):
            console.result(shown)
        tally.add([translation])
        tell()
        signs = [flag for flag in translation.flags if flag not in (UNSEEN, UNSURE)]
        if signs := [*signs, *["cut at the longest length"] * translation.truncated]:
            console.warn(f"this translation is {', '.join(signs)}")
        if UNSURE in translation.flags and UNSEEN not in translation.flags:
            console.warn(UNSURE_OF_THIS)
    return tally


def _ask() -> str:
    """One line without its end; "" at the end of the input."""
    with suppress(ImportError):  # not everywhere
        import readline  # noqa: F401  (gives `input` editing and a history)

    try:
        with console.pulse.paused():
            return input("> " if console.is_terminal(sys.stdout) else "")
    except EOFError:
        return ""
