"""Commands as functions: what they print with --json is what is returned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.errors import UsageError
from transformer_cli.python.words import in_pythons_words, overrides
from transformer_cli.wording import what_is

if TYPE_CHECKING:
    from transformer_cli.training.outcome import Outcome

Option = str | int | float | bool | Path | Sequence[str | Path] | None
"""True is an option without a value; of a list each is given; None and False leave it out."""


@in_pythons_words
def train(
    config: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Outcome:
    """`tx train`: train the run of a configuration, or continue it where it was stopped; `run_dir` of what is returned
    is for `tx.load`.

    config: a YAML file, or a preset such as tiny.yaml. settings: {"training.max_steps": 100}. run_dir: runs/NAME when
    not given. overwrite: delete what it holds of a run, and start anew. quiet: nothing is said on stderr meanwhile.
    Raises ConfigError, UsageError, DataError, ModelError, ResourceError or DivergedError, as the command ends.
    """
    from transformer_cli.cli.live import listener
    from transformer_cli.config.source import load_config

    if run_dir is not None and (not isinstance(run_dir, str | Path) or not str(run_dir)):
        raise UsageError(
            f"run_dir is {run_dir!r:.60}; expected the path of a directory", hint="leave it out: runs/NAME"
        )
    loaded = load_config(config, overrides(settings), to_train=True)

    from transformer_cli.training import run

    with nullcontext() if quiet else listener() as listening:
        return run.train(loaded, Path(run_dir or f"runs/{loaded.name}"), overwrite=overwrite, listener=listening)


def evaluate(
    run: str | Path | Sequence[str | Path] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    **options: Option,
) -> list[dict[str, Any]]:
    """`tx evaluate`: a dictionary for each test, with its scores, slices and worst sentences. The scores of the run's
    own test set are kept in its run.json.

    run: the latest when not given; several are an ensemble. options: valid, source, reference, hypotheses, to,
    beam_size, length_penalty, worst, strict, check_batching. Raises what the command ends with.
    """
    return _results("evaluate", model=[run] if isinstance(run, str | Path) else run, set=overrides(settings), **options)


def count(model: str | Path, *, settings: Mapping[str, Any] | None = None, **options: Option) -> dict[str, Any]:
    """`tx count-params`: the parameters of a preset, a file or a run; and what it costs, where that is asked for.

    options: by, convention, compare, check; shapes, flops, memory, hardware, batch_size, source_length, target_length,
    beam_size, tokens, utilisation. Raises what the command ends with.
    """
    [found] = _results("count-params", str(model), set=overrides(settings), **options)
    return found


@in_pythons_words
def _results(command: str, *arguments: str, **options: Option) -> list[dict[str, Any]]:
    """The objects that a command prints with --json, on its own command line: nothing is checked twice."""
    from transformer_cli.cli import app, console, failures

    with console.collected() as lines:
        try:
            app.main([command, *arguments, *(word for item in options.items() for word in _words(*item)), "--json"])
        except Exception as error:
            if (told := failures.misunderstood(error)) is not None:
                raise told from None
            raise
    return [json.loads(line) for line in lines]


def _words(name: str, value: Option) -> list[str]:
    """An option as it is typed."""
    option, one_of = f"--{name.replace('_', '-')}", str | Real | PathLike
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    name = "run" if name == "model" else name
    if isinstance(value, one_of):
        return [f"{option}={value}"]
    if isinstance(value, bytes) or not isinstance(value, Sequence):
        raise UsageError(f"{name} is {what_is(value)}; expected a text, a number or a path, or a list of them")
    for number, one in enumerate(value, start=1):
        if not isinstance(one, one_of):
            raise UsageError(f"{name}, entry {number:,} is {what_is(one)}; expected a text, a number or a path")
    return [f"{option}={one}" for one in value]
