"""The options that commands share: one spelling, one help text.

    def train(config: Config, overrides: Overrides = None, quiet: Quiet = False, traceback: Traceback = False) -> None:

Every command takes `quiet` and `traceback`; it need not look at them, they act by themselves.
"""

from __future__ import annotations

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


NAMES = {"FILE", "RUN", "DIR", "NAME_OR_PATH", "[NAME]", "MODEL", "OTHER"}
"""The metavars of what names a file or a run: `refuse_impossible` sees to them in every command."""


def refuse_impossible(context: Any, parameter: Any, value: Any) -> Any:
    """The value; UsageError for a name that no file can have, before anything is looked for or done."""
    from transformer_cli.config.names import shorten, why_impossible

    for name in value if isinstance(value, list) else [value]:
        if name is not None and (reason := why_impossible(str(name))):
            said = f" {shorten(str(name), 60)!r}" if name else ""
            hint = None if name else "an unset variable of the shell is an empty name"
            option = max(parameter.opts, key=len)
            where = option if option.startswith("-") else parameter.metavar
            raise UsageError(f"{where}: the name{said} {reason}", hint=hint)
    return value


Config = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="NAME_OR_PATH", help="A YAML file, or a preset such as base.yaml."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. model.d_model=64; repeatable."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="RUN", help="A run or a checkpoint directory; the latest run when not given."
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="RUN",
        help="A run or a checkpoint directory; the latest run when not given; repeated, an ensemble.",
    ),
]
RunDir = Annotated[
    str | None, typer.Option("--run-dir", metavar="DIR", help="The run's directory; runs/NAME when not given.")
]
Input = Annotated[
    str | None, typer.Option("--input", "-i", metavar="FILE", help="Read lines from this file; - is stdin.")
]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; - is stdout.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable results, one JSON object per line.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop with exit code 3 where text is suspicious, instead of a warning.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Results and errors only.", callback=_set_quiet)]
Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show Python's traceback when something fails.", callback=_set_traceback)
]
