"""`tx import`: another toolkit's model becomes a run."""

from __future__ import annotations

from typing import Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import MODEL, Json, Quiet, Traceback, TrainedOverrides
from transformer_cli.config.names import typed
from transformer_cli.files import json_line


def import_model(
    place: Annotated[str, typer.Argument(metavar="PATH", help="A Hugging Face directory, or a fairseq checkpoint.")],
    run_dir: Annotated[
        str, typer.Option("--run-dir", metavar="DIR", rich_help_panel=MODEL, help="The new run's directory.")
    ],
    overrides: TrainedOverrides = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Import another toolkit's model as a run.

    Reads Hugging Face models: Marian models such as OPUS-MT's, M2M100 and NLLB for one pair of their languages, and
    what `tx export hugging-face` wrote of a model of one target language. Also reads fairseq's Transformers: a
    checkpoint, with dict.LANGUAGE.txt of both sides and its SentencePiece model or codes beside it; without these, text
    is split at spaces.

    You can translate, score, evaluate, visualize, count, export and train the run like any other. What tx cannot hold
    is refused, with all reasons. Nothing in a pickled checkpoint is executed.

    Examples:
      tx import checkpoint_best.pt --run-dir runs/fair
      tx import opus-mt-de-en --run-dir runs/opus
      tx import m2m100 --run-dir runs/m2m --set data.source=de --set data.target=en
    """
    from transformer_cli.export.importing import import_model as write

    with console.pulse.doing("reading the model"):
        made = write(place, run_dir, overrides or ())
    if made.left:
        console.warn(f"it was generated with what tx has not, and is not here: {', '.join(made.left)}")
    if json_output:
        console.result(json_line(made.as_json()))
        return
    console.result(run_dir)
    console.say(f"{made.kind}, {made.source} to {made.target}, {made.parameters:,} parameters")
    console.say(f"next: tx translate -m {typed(run_dir)} -i FILE", to_paste=True)
