"""`tx visualize-attention`: the attention of one translation, on the terminal or in files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Json, Model, Quiet, To, Traceback, TrainedOverrides
from transformer_cli.cli.results import check_suffix, refuse_own_input, write_result
from transformer_cli.errors import UsageError

if TYPE_CHECKING:
    from transformer_cli.attention_maps.maps import AttentionMaps
    from transformer_cli.attention_maps.selection import Found
    from transformer_cli.attention_maps.terminal import ColourSystem
    from transformer_cli.attention_maps.views import View

FIGURES, DATA = (".png", ".svg", ".pdf"), (".npz", ".json")
SUFFIXES = (".html", *FIGURES, *DATA)
MAX_WEIGHTS = 20_000_000
"""What a page or a JSON file may hold: about 55 MB of page, or 6 layers of 8 heads for 370 + 370 pieces."""


def visualize_attention(
    text: Annotated[list[str] | None, typer.Argument(metavar="SENTENCE", help="One sentence; or use a pipe.")] = None,
    model: Model = None,
    config: Config = None,
    output_files: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="FILE", help=f"A file, by its suffix: {' '.join(SUFFIXES)}."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TEXT", help="Force this translation; the model's when not given.")
    ] = None,
    to: To = None,
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="LAYERS", help="2, 1-3, last, all, cross:2, encoder, ...")
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="HEADS", help="3, 1-4, all, or mean, the default for pictures.")
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            "--find", metavar="WORDS", help='Show the head that looks most from one word at another: "beer -> bier".'
        ),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Merge pieces into words in pictures.")] = False,
    from_file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Draw what a .npz or .json file holds; no model is needed."),
    ] = None,
    pad_to: Annotated[
        int | None,
        typer.Option("--pad-to", metavar="N", min=1, max=10_000, help="Pad the source to N positions, and show it."),
    ] = None,
    overrides: TrainedOverrides = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Show where a model looks while it translates a sentence.

    Without -o: the cross-attention of one layer as a heat map, and what its heads do. .html is one interactive page
    with everything, which works offline; .png, .svg and .pdf are figures of the chosen layers and heads; .npz and .json
    hold the numbers, and --from draws them again. Rows are queries and sum to 1; a decoder's row is `input → output`.

    Examples:
      tx visualize-attention "ich mochte ein bier"
      tx visualize-attention "ich mochte ein bier" -o beer.html -o beer.png
      tx visualize-attention "ich mochte ein bier" --find "beer -> bier"
    """
    paths = [Path(name) for name in output_files or ()]
    for path in paths:
        check_suffix(path, *SUFFIXES)
        refuse_own_input(path, None if text or from_file else "-", from_file, config=config)
    if any(path.suffix.lower() in FIGURES for path in paths):
        # A notebook's own backend, which programs started from it inherit, is not there for all of them.
        os.environ["MPLBACKEND"] = "agg"
    if from_file is not None:
        others = {"a sentence": text, "-m": model, "-c": config, "--target": target, "--to": to, "--pad-to": pad_to}
        if clashing := [name for name, value in (others | {"--set": overrides or None}).items() if value is not None]:
            raise UsageError(f"--from draws what was saved: it goes without {' and '.join(clashing)}")
        from transformer_cli.attention_maps.saved import read_maps

        maps = read_maps(from_file)
    else:
        maps = _translated(_sentence(text), model, config, overrides, target, to, pad_to)

    from transformer_cli.attention_maps.selection import found, selected

    chosen = selected(maps, layers=layers, heads=heads)
    _tell(chosen)
    pictured = chosen
    if find is not None:
        head = found(chosen, find)
        layers, heads = f"{head.kind}:{head.layer}", str(head.head)
        chosen, pictured = (selected(one, layers=layers, heads=heads) for one in (chosen, head.maps))
        _tell_of(head)

    joined = words or find is not None

    def views() -> list[View]:
        return _views(pictured, layers=layers, heads=heads, words=joined)

    if words and (paths or json_output) and all(path.suffix.lower() in DATA for path in paths):
        console.warn("--words joins pieces in pictures; numbers are saved by pieces")
    with console.pulse.doing("drawing"):
        contents = [
            _content(path, chosen if path.suffix.lower() in DATA else pictured, views, words=joined, among=maps)
            for path in paths
        ]
    for path, content in zip(paths, contents, strict=True):
        write_result(path, content)
    if json_output:
        from transformer_cli.attention_maps.saved import as_json

        _check_size(chosen, "JSON")
        console.result(as_json(chosen))
    elif not paths:
        from transformer_cli.attention_maps.heads import describe
        from transformer_cli.attention_maps.terminal import draw

        drawn = draw(views(), describe(maps), width=shutil.get_terminal_size().columns, colours=_colours())
        sys.stdout.write(f"{drawn}\n")


def _sentence(text: list[str] | None) -> str:
    from transformer_cli.cli.lines import given_lines

    given = given_lines(text, None)
    lines = given.lines if given is not None else []
    if len(lines) > 1:
        raise UsageError(
            f"{len(lines):,} lines were given, but one sentence is shown at a time",
            hint="put quotes around it" if text else "`sed -n 3p FILE | tx visualize-attention` shows the third",
        )
    if not lines or not lines[0].strip():
        raise UsageError("the source is empty", hint='give a sentence: tx visualize-attention "ich mochte ein bier"')
    return lines[0]


def _translated(
    sentence: str,
    model: str | None,
    config: str | None,
    overrides: list[str] | None,
    target: str | None,
    to: str | None,
    pad_to: int | None,
) -> AttentionMaps:
    from transformer_cli.cli.trained import open_trained, tell_compiler

    if target is not None:
        from transformer_cli.data.lines import check_line

        check_line(target, place="--target")
    opened, settings = open_trained(model, config, overrides, precise=True)

    from transformer_cli.attention_maps.capture import attention_maps
    from transformer_cli.decoding.long_lines import sentences
    from transformer_cli.loading import translator_of, usual_sentences_of

    n, usual = len(sentences(sentence)), usual_sentences_of(opened)
    if target is None and usual is not None and n > usual:
        console.warn(
            f"{n:,} sentences at once, of {usual:,} that the model is used to: it may leave some out; `tx translate` "
            "translates them one by one"
        )
    if target is None:
        tell_compiler([opened], settings)
    translator = translator_of(opened, settings).towards(to)
    return attention_maps(translator, sentence, model=opened.title, target=target, pad_to=pad_to)


def _tell(maps: AttentionMaps) -> None:
    """On stderr: what was cut into what, and what came out."""
    from transformer_cli.attention_maps.views import plain

    score = "" if maps.score is None else f", score {maps.score:.3f}"
    console.say(plain(f"source: {' '.join(maps.source.pieces)}"))
    console.say(plain(f"target: {maps.target.text} ({maps.origin}{score})"))
    for name, side in (("source", maps.source), ("target", maps.target)):
        if unknown := " ".join(side.pieces[place] for place in side.unknown):
            console.warn(plain(f"the {name} has pieces that the model does not know: {unknown}"))


def _tell_of(head: Found) -> None:
    """On stderr: which head was found, and how much of its attention is there."""
    from transformer_cli.attention_maps.maps import ARROW
    from transformer_cli.attention_maps.views import TITLES

    place = f"{TITLES[head.kind]}, layer {head.layer}, head {head.head}"
    console.say(f"found: {ARROW.join(head.words)} has {head.weight:.2f} of {place}")


def _views(maps: AttentionMaps, *, layers: str | None, heads: str | None, words: bool) -> list[View]:
    """What pictures show: of all layers one, by default; of all heads their mean."""
    from transformer_cli.attention_maps.alignment import best_block
    from transformer_cli.attention_maps.selection import MEAN
    from transformer_cli.attention_maps.views import view

    blocks = maps.blocks
    if layers is None and (best := best_block(maps)) is not None:
        blocks = (best,)
    drawn = [view(maps, block, words=words) for block in blocks]
    return [one.mean() for one in drawn] if heads in (None, MEAN) else drawn


def _content(
    path: Path, maps: AttentionMaps, views: Callable[[], list[View]], *, words: bool, among: AttentionMaps
) -> bytes:
    """What the file is to hold, by its suffix. among: all maps, of which these are some."""
    suffix = path.suffix.lower()
    if suffix in FIGURES:
        from transformer_cli.attention_maps.figure import figure
        from transformer_cli.files import shown

        data, warnings = figure(views(), f"{maps.model}, {maps.origin}", suffix=suffix)
        for warning in warnings:
            console.warn(f"{shown(path)}: {warning}")
        return data
    if suffix == ".npz":
        from transformer_cli.attention_maps.saved import as_npz

        return as_npz(maps)
    _check_size(maps, suffix)
    if suffix == ".json":
        from transformer_cli.attention_maps.saved import as_json

        return f"{as_json(maps)}\n".encode()
    from transformer_cli.attention_maps.page import page

    return page(maps, words=words, among=among).encode()


def _check_size(maps: AttentionMaps, what: str) -> None:
    n_weights = sum(block.weights_HQK.size for block in maps.blocks)
    if n_weights > MAX_WEIGHTS:
        raise UsageError(
            f"{n_weights:,} weights are too many for {what}, which holds {MAX_WEIGHTS:,}",
            hint="choose some of them with --layers and --heads, or write an .npz",
        )


def _colours() -> ColourSystem | None:
    """How many colours the terminal has; sixteen are too few for a scale."""
    if not console.has_colour(sys.stdout):
        return None
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256color" in os.environ.get("TERM", "") else None
