"""`tx train`: from text to a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Json, Overrides, Quiet, RunDir, Traceback
from transformer_cli.errors import UsageError


def train(
    config: Config = None,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete what the run directory holds of a run, and start anew.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Train a model, or continue one that was stopped: the same command does both.

    Trains the tokenizer if there is none, encodes the text, trains, validates by loss and by BLEU of real translations,
    and keeps the best and the last checkpoints.

    Example:
      tx train -c tiny.yaml
    """
    from transformer_cli.config.source import load_config

    if config is None:
        raise UsageError("which configuration?", hint="for example: tx train -c tiny.yaml")
    loaded = load_config(config, overrides or [])
    directory = run_dir or Path("runs") / (loaded.name or "")

    from transformer_cli.training.run import Listener, train

    console.say(f"training {directory}")
    listener = Listener(
        say=console.say, warn=console.warn, bar=console.is_terminal(sys.stderr) and not console.is_quiet()
    )
    outcome = train(loaded, directory, overwrite=overwrite, listener=listener)
    if json_output:
        console.result(json.dumps(outcome.as_json()))
        return
    if outcome.was_finished:
        console.say(
            f"already finished after step {outcome.steps:,} ({outcome.reason}); raise training.max_steps to go on"
        )
    else:
        console.say(f"finished after step {outcome.steps:,}: {outcome.reason}")
    console.say(f"best checkpoint: {outcome.best}")
    console.say(f"next: tx evaluate -m {directory}")
    console.say(f'      tx translate -m {directory} "ich mochte ein bier"')
