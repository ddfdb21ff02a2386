"""`tx train`: from text to a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Json, Overrides, Quiet, RunDir, Strict, Traceback
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line

if TYPE_CHECKING:
    from transformer_cli.training.forecast import Forecast


def train(
    config: Config = None,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete what the run directory holds of a run, and start anew.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check configuration and text and say what would happen; train nothing.")
    ] = False,
    strict: Strict = False,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Train a model, or continue one that was stopped: the same command does both.

    Trains the tokenizer if there is none, encodes the text, trains, validates by loss and by BLEU of real translations,
    and keeps the best and the last checkpoints. With --dry-run or --strict the text is checked first: for pairs that
    are repeated, shifted, alike, of odd lengths or in two texts at once, and for characters nobody sees.

    Examples:
      tx train -c tiny.yaml
      tx train -c tiny.yaml --dry-run
      tx train -c tiny.yaml --run-dir runs/wider --set model.d_model=256
    """
    from transformer_cli.config.source import load_config

    if config is None:
        raise UsageError("which configuration?", hint="for example: tx train -c tiny.yaml")
    loaded = load_config(config, overrides or [], to_train=True)
    directory = Path(run_dir or f"runs/{loaded.name}")

    if dry_run:
        from transformer_cli.training.forecast import forecast

        _show(forecast(loaded, directory, overwrite=overwrite), as_json=json_output, strict=strict)
        return
    if strict:
        from transformer_cli.data import checks, corpus

        checks.refuse(checks.check_all(corpus.load_all(loaded.data)))

    from transformer_cli.training.run import Listener, train

    console.say(f"training {directory}")
    listener = Listener(
        say=console.say, warn=console.warn, bar=console.is_terminal(sys.stderr) and not console.is_quiet()
    )
    outcome = train(loaded, directory, overwrite=overwrite, listener=listener)
    if json_output:
        console.result(json_line(outcome.as_json()))
        return
    if outcome.was_finished:
        console.say(
            f"already finished after step {outcome.steps:,} ({outcome.reason}); raise training.max_steps to go on"
        )
    else:
        console.say(f"finished after step {outcome.steps:,}: {outcome.reason}")
    console.say(f"best checkpoint: {outcome.best}")
    console.say(f"next: tx evaluate -m {directory}")
    sentence = {"de": "ich mochte ein bier", "en": "i want a beer"}.get(loaded.data.source)
    console.say(f"      tx translate -m {directory} " + (f'"{sentence}"' if sentence else "-i FILE"))


def _show(found: Forecast, *, as_json: bool, strict: bool) -> None:
    """What would happen, and what is suspicious."""
    from transformer_cli.cli.tables import Column, Table, show
    from transformer_cli.data.checks import refuse

    if as_json:
        console.result(json_line(found.as_json()))
    else:
        sizes = tuple(
            (name, f"{size.pairs:,}", f"{size.source_words:,}", f"{size.target_words:,}")
            for name, size in found.texts.items()
        )
        headings = ("pairs", "source words", "target words")
        show([Table("", (Column("text"), *(Column(name, "right") for name in headings)), sizes)])
        source, target = found.pieces
        pieces = f"{source:,}" if source == target else f"{source:,} + {target:,}"
        at_most = "at most " * found.tokenizer.endswith("to be trained")
        facts = {
            "tokenizer": f"{found.tokenizer}, {at_most}{pieces} pieces",
            "parameters": f"{at_most}{found.parameters:,}",
            "rate": f"{found.peak_rate:.3g} at its peak, at step {found.peak_step:,}",
            "machine": ", ".join(f"{key} {value}" for key, value in found.machine.items() if key != "reason"),
            "run": f"{found.run}: {_would(found)}",
        }
        console.result("")
        for name, fact in facts.items():
            console.result(f"{name:<11} {fact}")
        console.result(f"suspicious  {len(found.findings) or 'nothing'}")
        for finding in found.findings:
            console.result(f"  {finding}")
    if strict:
        refuse(found.findings)


def _would(found: Forecast) -> str:
    if found.replaces:
        return "would be deleted, and a new one trained"
    if found.finished:
        return f"finished after step {found.step:,} ({found.finished}); nothing would be done"
    return f"would continue after step {found.step:,}" if found.step else "would be trained anew"
