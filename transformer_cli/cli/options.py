"""The options that commands share: one spelling, one help text.

    def train(config: Config, overrides: Overrides = None, quiet: Quiet = False, traceback: Traceback = False) -> None:

Every command takes `quiet` and `traceback`; it need not look at them, they act by themselves.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from transformer_cli.cli import console, failures
from transformer_cli.errors import UsageError


def _set_quiet(value: bool) -> bool:
    if value:
        console.be_quiet()
    return value


def _set_traceback(value: bool) -> bool:
    if value:
        failures.show_tracebacks()
    return value


NAMES = {"FILE", "RUN", "DIR", "NAME_OR_PATH", "MODEL", "OTHER"}
"""The metavars of what names a file or a run: `refuse_impossible` sees to them in every command."""


MODEL = "Model and settings"
TEXT = "Text"
SEARCH = "Search"
EVERY = "With every command"
"""Groups of options in a help; the last is for those that all commands have."""


def _configurations(incomplete: str) -> list[str]:
    """Presets, and the YAML files that could be meant."""
    from transformer_cli.config.source import preset_names

    names = [*(f"{name}.yaml" for name in preset_names()), *glob.glob(f"{glob.escape(incomplete)}*.yaml")]
    return _offered(names, incomplete)


def settings(incomplete: str) -> list[str]:
    """The settings that begin so."""
    from transformer_cli.config.settings import settings

    return [setting.name for setting in settings() if setting.name.startswith(incomplete)]


def _assignments(incomplete: str) -> list[str]:
    return [f"{name}=" for name in settings(incomplete)]


def runs(incomplete: str) -> list[str]:
    """The runs that begin so."""
    from transformer_cli.checkpoints.find import RUNS

    return _offered(map(str, sorted(RUNS.glob("*/"))), incomplete)


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Those that begin so, but for what a shell, which reads a name a line, would not understand."""
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def models(incomplete: str) -> list[str]:
    """What can be counted: configurations and runs."""
    return _configurations(incomplete) + runs(incomplete)


def refuse_impossible(context: Any, parameter: Any, value: Any) -> Any:
    """The value; UsageError for a name that no file can have, before anything is looked for or done."""
    from transformer_cli.config.names import shorten, why_impossible

    for name in value if isinstance(value, list) else [value]:
        if name is not None and (reason := why_impossible(str(name))):
            said = f" '{shorten(str(name), 60)}'" if name else ""
            hint = None if name else "an unset variable of the shell is an empty name"
            option = max(parameter.opts, key=len)
            where = option if option.startswith("-") else parameter.metavar
            raise UsageError(f"{where}: the name{said} {reason}", hint=hint)
    if parameter.metavar == "DIR" and value == "-":
        raise UsageError(
            f"{max(parameter.opts, key=len)}: a directory cannot go to stdout",
            hint="name a directory; one that is called so is ./-",
        )
    return value


def refuse_two_formats(*, json_output: bool, markdown: bool) -> None:
    if json_output and markdown:
        raise UsageError("--json and --markdown are two formats", hint="give one of them")


def refuse_two_runs(model: str | Sequence[str] | None, config: str | None) -> None:
    if model and config is not None:
        raise UsageError("--model and --config both name a run", hint="give one of them")


def _set(help: str) -> Any:
    return typer.Option("--set", metavar="KEY=VALUE", rich_help_panel=MODEL, autocompletion=_assignments, help=help)


Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME_OR_PATH",
        rich_help_panel=MODEL,
        autocompletion=_configurations,
        help="A YAML file, or a preset such as base.yaml.",
    ),
]
Overrides = Annotated[list[str] | None, _set("Override a setting: model.d_model=64; repeatable.")]
TrainedOverrides = Annotated[list[str] | None, _set("Other settings: decoding.beam_size=1; repeatable.")]
"""Of a model that is there: what made it stays."""
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="RUN",
        rich_help_panel=MODEL,
        autocompletion=runs,
        help="A run or a checkpoint directory; the latest run when not given.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="RUN",
        rich_help_panel=MODEL,
        autocompletion=runs,
        help="A run or a checkpoint directory; the latest run when not given; several are an ensemble.",
    ),
]
RunDir = Annotated[
    str | None,
    typer.Option(
        "--run-dir", metavar="DIR", rich_help_panel=MODEL, help="The run's directory; runs/NAME when not given."
    ),
]
Input = Annotated[
    str | None,
    typer.Option("--input", "-i", metavar="FILE", rich_help_panel=TEXT, help="Read lines from this file; - is stdin."),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", rich_help_panel=TEXT, help="Write to this file; - is stdout."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="LANGUAGE", rich_help_panel=TEXT, help="Target language, for a model of several."),
]
Valid = Annotated[
    bool,
    typer.Option(
        "--valid", rich_help_panel=TEXT, help="Use the validation text, held out or not; its scores are not kept."
    ),
]
OutputDir = Annotated[str, typer.Option("--output-dir", "-o", metavar="DIR", help="A new directory to write into.")]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=EVERY, help="Machine-readable results, one JSON object per line.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Tables to paste into a document.")]
Strict = Annotated[bool, typer.Option("--strict", help="Make suspicious text an error (exit code 3).")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        rich_help_panel=EVERY,
        help="Only results and errors; an unfinished model is still reported.",
        callback=_set_quiet,
    ),
]
Traceback = Annotated[
    bool,
    typer.Option(
        "--traceback",
        rich_help_panel=EVERY,
        help="Show Python's traceback when something fails.",
        callback=_set_traceback,
    ),
]
