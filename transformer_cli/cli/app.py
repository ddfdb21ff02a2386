"""`tx`: the table of commands; a command's module is imported when that command runs or shows its help."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from transformer_cli.cli import completion, console, failures, help


@dataclass(frozen=True)
class Entry:
    """Where a command lives, and its line in `tx --help`."""

    module: str
    function: str
    summary: str

    def load(self) -> Callable[..., object]:
        """The function, its module imported now."""
        function: Callable[..., object] = getattr(importlib.import_module(self.module), self.function)
        return function


def _entry(name: str, summary: str) -> Entry:
    return Entry(f"transformer_cli.cli.{name}", name, summary)


COMMANDS = {
    "tokenize": _entry("tokenize", "Show text as pieces, or train the SentencePiece model."),
    "train": _entry("train", "Train a model: tokenizer, data, training, checkpoints."),
    "translate": _entry("translate", "Translate text, a file or stdin."),
    "score": _entry("score", "Score given translations by the model's probability."),
    "evaluate": _entry("evaluate", "Score translations: BLEU, chrF, TER."),
    "serve": _entry("serve", "Serve a model over HTTP, with a page to type into."),
    "visualize-attention": _entry("visualize_attention", "Show where a model looks while it translates."),
    "compare": _entry("compare", "Compare runs: scores, settings, sentences."),
    "reproduce": _entry("reproduce", "Train again, and check whether a result holds."),
    "runs": _entry("runs", "List the runs: step, score, age, size."),
    "plot": _entry("plot", "Draw curves of runs: loss, score, learning rate."),
    "average": _entry("average", "Average checkpoints into one."),
    "export": _entry("export", "Write a model for another engine, and compare."),
    "import": Entry("transformer_cli.cli.import_model", "import_model", "Turn another toolkit's model into a run."),
    "config": _entry("config", "Look up settings and where their values come from."),
    "count-params": _entry("count_params", "Count parameters, every number explained."),
}
EXAMPLES = """\
tx train -c tiny.yaml
tx translate -c tiny.yaml "ich mochte ein bier"
tx evaluate -c tiny.yaml"""


class Commands(TyperGroup):
    """The commands of the table; listing them imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return help.command(cmd_name, entry.load(), summary=entry.summary) if entry else None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        help.write_group("Commands", [(name, entry.summary) for name, entry in COMMANDS.items()], formatter)
        help.write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        help.write_examples(self.epilog, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS:
            from transformer_cli.cli.unknown import command_error

            raise command_error(name, list(COMMANDS), args[1:])
        return super().resolve_command(ctx, args)


def _version(wanted: bool) -> None:
    if wanted:
        print(version_text())
        raise typer.Exit


def version_text() -> str:
    """The versions that decide what happens, from package metadata: nothing is imported for it."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import python_version

    from transformer_cli import __version__

    parts = [f"tx {__version__}", f"Python {python_version()}"]
    for package in ("torch", "sentencepiece", "sacrebleu"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} not installed")
    return ", ".join(parts)


app = typer.Typer(cls=Commands, context_settings=help.SETTINGS, rich_markup_mode=None)


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def tx(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the versions and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train and evaluate sequence-to-sequence Transformers.

    `tx COMMAND --help` explains a command.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(failures.USAGE)


def with_values(command: str) -> set[str]:
    """The options of a command that take a value."""
    program = help.command(command, COMMANDS[command].load(), summary="")
    return {name for one in program.params if not getattr(one, "is_flag", False) for name in one.opts}


def run() -> NoReturn:
    """The program: parse, run, report, exit."""
    console.open_streams()
    if console.has_cursor() and completion.ASKED not in os.environ:
        console.pulse.start()
    leave(failures.exit_code(lambda: main(sys.argv[1:])))


def leave(code: int) -> NoReturn:
    """End at once: Python would take seconds to free, object by object, what the system takes back as a whole."""
    atexit._run_exitfuncs()
    console.pulse.hush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(arguments: list[str]) -> int:
    """Parses and runs; raises what goes wrong. The library's own `main` would answer a closed pipe with exit code 1."""
    completion.mend()
    program = get_command(app)
    if asked := os.environ.get(completion.ASKED):
        return completion.answer(program, asked)
    try:
        with help.parsing:
            parsed = program.make_context("tx", arguments)
        with parsed as context:
            program.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0
