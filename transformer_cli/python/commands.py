"""Commands as functions: what they print with --json is what is returned."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from numbers import Real
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from transformer_cli.errors import UsageError
from transformer_cli.python.host import given_back, random_numbers_given_back
from transformer_cli.python.words import check_name, in_pythons_words, overrides, warn
from transformer_cli.wording import what_is

if TYPE_CHECKING:
    from transformer_cli.training.outcome import Outcome

Option = str | int | float | bool | Path | Sequence[str | Path] | None
"""True is an option without a value; of a list each is given; None and False leave it out."""
ELSEWHERE = {
    "model": "the run comes first: tx.evaluate(run)",
    "set": 'settings={"decoding.beam_size": 3}',
    **dict.fromkeys(("json", "markdown"), "what is returned is what --json prints"),
    "help": "help(tx.evaluate) or help(tx.count) shows what is possible",
    **dict.fromkeys(("quiet", "traceback"), "nothing is printed, and an error has its traceback"),
}
"""What commands have and functions do not, and what there is in its place."""
_training = Lock()


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

    check_name("config", config, what="a YAML file or a preset", hint="settings= takes a dictionary, to change some")
    if run_dir is not None:
        check_name("run_dir", run_dir, what="the path of a directory", hint="leave it out: runs/NAME")
    loaded = load_config(config, overrides(settings), to_train=True)

    from transformer_cli.training import run

    if not _training.acquire(blocking=False):
        raise UsageError(
            "another training goes on in this process, and both would draw by the same generator",
            hint="one after the other, or each in a process of its own",
        )
    try:
        with random_numbers_given_back(), given_back(), nullcontext() if quiet else listener() as listening:
            return run.train(loaded, Path(run_dir or f"runs/{loaded.name}"), overwrite=overwrite, listener=listening)
    finally:
        _training.release()


@in_pythons_words
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
    return _results("evaluate", {"run": run}, settings, options)


@in_pythons_words
def count(model: str | Path, *, settings: Mapping[str, Any] | None = None, **options: Option) -> dict[str, Any]:
    """`tx count-params`: the parameters of a preset, a file or a run; and what it costs, where that is asked for.

    options: by, convention, compare, check; shapes, flops, memory, hardware, batch_size, source_length, target_length,
    beam_size, tokens, utilisation. Raises what the command ends with.
    """
    check_name("model", model, what="a preset, a YAML file or a run")
    [found] = _results("count-params", {}, settings, options, str(model))
    return found


def _results(
    command: str,
    named: Mapping[str, Option],
    settings: Mapping[str, Any] | None,
    options: Mapping[str, Option],
    *arguments: str,
) -> list[dict[str, Any]]:
    """The objects that a command prints with --json, on its own command line: nothing is checked twice. named: what is
    an argument here, not one of the options."""
    from transformer_cli.cli import app, console, failures

    there = app.with_values(command)
    for name in options:
        if name in ELSEWHERE:
            raise UsageError(f"no such option: {name}", hint=ELSEWHERE[name])
    words = [word for item in (*named.items(), *options.items()) for word in _words(*item, valued=there)]
    words += [f"--set={one}" for one in overrides(settings)]
    with given_back(), console.collected(warn=warn) as lines:
        try:
            app.main([command, "--json", *words, "--", *arguments])
        except Exception as error:
            if (told := failures.misunderstood(error)) is not None:
                raise told from None
            raise
    return [json.loads(line) for line in lines]


def _words(name: str, value: Option, *, valued: Collection[str]) -> list[str]:
    """An option as it is typed. valued: the options that take a value."""
    option, one_of = f"--{'model' if name == 'run' else name.replace('_', '-')}", str | Real | PathLike
    if str(getattr(value, "dtype", None)) == "bool":  # NumPy's
        value = bool(value)
    if value is None or value is False:
        return []
    if value is True and option not in valued:
        return [option]
    if isinstance(value, one_of) and value is not True:
        return [f"{option}={value}"]
    if value is True or isinstance(value, bytes) or not isinstance(value, Sequence) or not value:
        raise UsageError(f"{name} is {what_is(value)}; expected a text, a number or a path, or a list of them")
    for number, one in enumerate(value, start=1):
        if not isinstance(one, one_of):
            raise UsageError(f"{name}, entry {number:,} is {what_is(one)}; expected a text, a number or a path")
    return [f"{option}={one}" for one in value]
