"""What commands share that need a trained model: finding the run that -m, -c or neither means, and opening it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from transformer_cli.cli import console
from transformer_cli.errors import UsageError

if TYPE_CHECKING:
    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.config.run import RunConfig


def open_trained(
    model: str | None, config: str | None, overrides: Sequence[str] | None, *, precise: bool = False
) -> tuple[OpenedRun, RunConfig]:
    """The run with its best weights, and its configuration with the overrides on top.

    precise: in fp32 whatever the run says, unless the overrides name a precision. Raises UsageError for both -m and -c;
    ModelError, saying what to type and before torch is imported, where there is no such run.
    """
    [opened], settings = open_several(None if model is None else [model], config, overrides, precise=precise)
    return opened, settings


def open_several(
    models: Sequence[str] | None, config: str | None, overrides: Sequence[str] | None, *, precise: bool = False
) -> tuple[list[OpenedRun], RunConfig]:
    """The runs with their best weights, and the first one's configuration with the overrides on top; see above."""
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.config.source import load_config

    if models and config is not None:
        raise UsageError("--model and --config both name a run", hint="give one of them")
    wanted = load_config(config, overrides or ()) if config is not None else None
    names: Sequence[str | None] = models or [None]
    finders = [partial(find_checkpoint, model, config=wanted, config_path=config) for model in names]
    for find in finders:
        find()  # an error that takes no torch to be told

    from transformer_cli.checkpoints.store import open_found
    from transformer_cli.loading import machine_of, settings_of

    opened = []
    for find in finders:
        opened.append(run := open_found(find))
        console.say(f"model: {run.checkpoint}, {run.config.data.source} to {run.config.data.target}")
    settings = settings_of(opened[0], [*(["precision=fp32"] if precise else []), *(overrides or ())])
    machine, kept = machine_of(opened[0], settings), opened[0].record.get("machine", {})
    if settings.precision == "auto" and machine.reason != kept.get("reason"):
        trained = f"trained on {kept.get('device')} in {kept.get('precision')}, " if kept else ""
        console.say(f"{trained}now on {machine.device} in {machine.precision}: {machine.reason}")
    return opened, settings
