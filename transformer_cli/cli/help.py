"""How help looks: options in groups, examples below, colour on a terminal that wants it; without rich, to be quick."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from transformer_cli.cli import console, options
from transformer_cli.errors import UsageError
from transformer_cli.threads import Turn

HELD = {" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"}
"""What stands where no line is to be broken: between the words of a limit in brackets, and inside of a word."""
ORDER = ("Arguments", options.TEXT, options.MODEL, "Options", options.SEARCH)
"""Of groups, in every command; what only one command has comes after them, what all have is last."""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Of the library: longer lines are hard to read, however wide the terminal is."""
parsing = Turn()
"""Whoever parses: meanwhile the library changes the environment of the process."""


class Command(TyperCommand):
    """A command whose help has its options in groups, and whose options are given once, unless they take several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        self._refuse_long_options_with_one_dash(ctx, given)
        rest = super().parse_args(ctx, args)
        found: list[Any] = self.make_parser(ctx).parse_args(given)[2]
        for one in found:
            takes_one = one.param_type_name == "option" and not one.multiple and not one.is_flag
            if takes_one and (n := found.count(one)) > 1:  # the library lets the last one win
                raise UsageError(f"{' or '.join(one.opts)} is given {n} times, but takes one value", hint="give one")
        return rest

    def invoke(self, ctx: Any) -> Any:
        os.getcwd()  # refused where the folder was deleted: libraries would end the program, each in its own way
        return super().invoke(ctx)

    def _refuse_long_options_with_one_dash(self, ctx: Any, args: list[str]) -> None:
        """`-output FILE`, as other toolkits have it, would be read as `-o utput`, and FILE as something else."""
        takes_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        there = [name for one in self.params for name in one.opts]
        for before, word in zip(["", *args], args, strict=False):
            if word == "--":
                return
            name = word.partition("=")[0]
            if before in takes_value or not re.fullmatch(r"-[A-Za-z][A-Za-z_-]{2,}", name):
                continue
            from transformer_cli.cli.unknown import option_error
            from transformer_cli.config import elsewhere

            long = f"-{name.replace('_', '-')}"
            if long in there or elsewhere.option(name, there) or name[:2] not in there:
                raise option_error(name, ctx.command_path, there)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The library writes {NAME} for what has to be given; braces are for a choice."""
        return [re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with parsing:
            return super().make_context(*arguments, **options)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(self.epilog, formatter)


def command(name: str, function: Callable[..., object], *, summary: str | None = None) -> Any:
    """The command made of a function: its docstring is the help, the docstring's `Examples:` end it; the summary is
    what a shell says of it.
    """
    return _made.command(name, function, summary=summary)


def _make(name: str, function: Callable[..., object], *, summary: str | None) -> Any:
    about, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\nExamples:\n")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    about = _held(about.strip())
    single.command(name, cls=Command, context_settings=SETTINGS, help=about, epilog=examples)(function)
    made = get_command(single)
    made.short_help = summary
    for parameter in made.params:
        if parameter.metavar in options.NAMES:
            parameter.callback = options.refuse_impossible
    return made


class _Made(threading.local):
    """Each command is made once by a thread: the library keeps in it what is given, which another thread would find."""

    def __init__(self) -> None:
        self.command = cache(_make)


_made = _Made()


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Arguments and options by their groups, `rich_help_panel` in the library; what all commands have is last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        if record := parameter.get_help_record(ctx):
            groups.setdefault(_group(parameter), []).append(_readable(*record))
    for title in sorted(groups, key=_place):
        write_group(title, groups[title], formatter)


def write_group(title: str, rows: Sequence[tuple[str, str]], formatter: Any) -> None:
    """What to type, and what that does."""
    with formatter.section(console.styled(title, "1", on=sys.stdout)):
        formatter.write_dl([(console.styled(typed, "36", on=sys.stdout), _held(words)) for typed, words in rows])
        released = str.maketrans({held: character for character, held in HELD.items()})
        formatter.buffer[:] = [part.translate(released) for part in formatter.buffer]


def write_examples(examples: str | None, formatter: Any) -> None:
    """Lines to paste, as they are: never wrapped."""
    if examples:
        with formatter.section(console.styled("Examples", "1", on=sys.stdout)):
            for line in examples.strip("\n").split("\n"):
                formatter.write(f"{'':{formatter.current_indent}}{line.strip()}\n")


def _group(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return options.EVERY if "--help" in parameter.opts else parameter.rich_help_panel or "Options"


def _place(title: str) -> tuple[bool, int]:
    return title == options.EVERY, ORDER.index(title) if title in ORDER else len(ORDER)


def _held(text: str) -> str:
    """The text, to be broken between words alone, and not in the bracket that ends it."""
    return re.sub(r"(?<=\w)-(?=\w)", HELD["-"], re.sub(r" (?=[^[]*\]$)", HELD[" "], text))


def _readable(typed: str, words: str) -> tuple[str, str]:
    """Choices, but no types of Python; and limits in words: at least 1, 1 to 10."""
    words = re.sub(r"\[default: \((.*?)\)", r"[default: \1", words)  # one that is only said, not set
    words = re.sub(r"([^\s[]+)<=x<=\d{7,}", r"at least \1", words)  # a limit that nobody meets
    words = re.sub(r"([^\s[]+)<=x<=([^];]+)", r"\1 to \2", words).replace("x>=", "at least ")
    return re.sub(r" <(\S+)>$", lambda kind: f" {kind[1]}" if "|" in kind[1] else "", typed), words
