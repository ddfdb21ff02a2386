"""`tx config`: what can be set, what each setting does, and where its value comes from."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console, options
from transformer_cli.cli.options import Config, Json, Overrides, Quiet, Traceback
from transformer_cli.errors import UsageError

if TYPE_CHECKING:
    from transformer_cli.cli.tables import Table
    from transformer_cli.config.nodes import Node
    from transformer_cli.config.run import RunConfig
    from transformer_cli.config.settings import Setting

ANYTHING = "base.yaml"
"""Has everything that there is to look up."""
GREATEST_WIDTH = 100
"""Of lines to read."""
PAIRS = {"diff": "two presets, files or runs", "from": "a toolkit and its file"}
"""Words that are no setting but take two more."""
INTRODUCTION = """\
# Configuration

`tx config --markdown` writes this page from the schema in `transformer_cli/config`; `tx config --schema` writes the
same for programs, [configuration.schema.json](configuration.schema.json). An editor with YAML support completes and
checks a file whose first line is `# yaml-language-server: $schema=` followed by the path of that JSON file.

A configuration contains only what differs from the defaults; `extends: base.yaml` builds on another file or a preset.
On the command line, `--set training.learning_rate=3e-4` overrides a setting. `tx config NAME` explains one setting, by
tx's name or another toolkit's, and `tx config -c mine.yaml` shows the value of each and the line that sets it."""


def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=options.settings,
            help="A setting or a section, by tx's name or another toolkit's; or `diff` or `from`, as above.",
        ),
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
    schema: Annotated[bool, typer.Option("--schema", help="All settings as a JSON schema, for editors.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="All settings as a document.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Look up settings: what each does, what it takes, and its default.

    Without a name, all of them, section by section; with -c or --set also the value of each, and the line and the file
    that set it. `diff A B` lists the differences between two presets, files or runs; `from TOOLKIT FILE` translates a
    configuration of Eole, fairseq, JoeyNMT, Marian, OpenNMT-py or Sockeye into tx's, with the origin of each line, and
    lists what could not be carried over.

    Examples:
      tx config training.learning_rate
      tx config -c tiny.yaml --set training.max_steps=10
      tx config diff tiny.yaml base.yaml
    """
    from transformer_cli.config.settings import json_schema, look_up, settings
    from transformer_cli.files import json_line, json_text

    if schema or markdown:
        if any((words, config, overrides, json_output, schema and markdown)):
            raise UsageError("--schema and --markdown describe all settings", hint="give one of them, and nothing else")
        sys.stdout.write(json_text(json_schema()) if schema else document())
        return
    if words and words[0] in PAIRS:
        _of_two(words[0], words[1:], has_settings=bool(config or overrides), json_output=json_output)
        return
    if words and len(words) > 1:
        raise UsageError(f"`tx config` looks up one name at a time, not {len(words)}")
    name = words[0] if words else None
    here = read(config, overrides) if config or overrides else None
    if name is None:
        found = settings()
    else:
        lookup = look_up(name)
        if not lookup.settings:
            raise UsageError(lookup.remark, hint="`tx config` lists all settings")
        if lookup.remark:
            console.say(lookup.remark)
        found = list(lookup.settings)
    if json_output:
        for setting in found:
            console.result(json_line(_as_json(setting, here)))
    elif name is not None and len({setting.name.partition("[]")[0] for setting in found}) <= 2:
        console.result("\n\n".join(_explained(setting, here) for setting in found))
    else:
        from transformer_cli.cli.tables import show

        show(_listed(found, here))


def _of_two(word: str, two: list[str], *, has_settings: bool, json_output: bool) -> None:
    from transformer_cli.cli import config_pairs

    if len(two) != 2 or has_settings:
        raise UsageError(f"`tx config {word}` takes {PAIRS[word]}, and neither -c nor --set")
    (config_pairs.diff if word == "diff" else config_pairs.carried_over)(*two, json_output=json_output)


@dataclass(frozen=True)
class Here:
    """A configuration, and the places where its values were written."""

    config: RunConfig
    tree: Node

    @cached_property
    def values(self) -> dict[str, Any]:
        """Section by section."""
        return self.config.model_dump()

    def value(self, name: str) -> tuple[str, str] | None:
        """The value, and where it comes from; None for what does not apply, such as the parts of a plain number."""
        from transformer_cli.config.messages import find, place_of
        from transformer_cli.config.settings import written

        value: Any = self.values
        path = tuple(name.split("."))
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        if find(self.tree, path) is not None:
            return written(value), str(place_of(self.tree, path))
        return written(value), "the file's name" if name == "name" else "default"


def read(config: str | None, overrides: Sequence[str] | None, *, of_run: bool = False) -> Here:
    """A configuration with its places."""
    from transformer_cli.config.source import load_with_places

    loaded, tree = load_with_places(config or ANYTHING, overrides or (), of_run=of_run)
    return Here(loaded, tree)


def _as_json(setting: Setting, here: Here | None) -> dict[str, Any]:
    from transformer_cli.config import elsewhere

    fields: dict[str, Any] = {
        "setting": setting.name,
        "about": setting.about,
        "takes": setting.takes_in_words,
        "default": None if setting.is_required else setting.default_as_json,
        "elsewhere": elsewhere.theirs(setting.name),
    }
    if here is not None and (found := here.value(setting.name)):
        fields |= dict(zip(("value", "from"), found, strict=True))
    return fields


def _explained(setting: Setting, here: Here | None) -> str:
    """One setting, everything about it."""
    from transformer_cli.config import elsewhere

    facts = {"takes": setting.takes_in_words, "default": setting.default_in_words}
    if here is not None and (found := here.value(setting.name)):
        facts |= {"here": found[0], "from": found[1]}
    if theirs := elsewhere.theirs(setting.name):
        facts["elsewhere"] = ", ".join(theirs)
    width = min(GREATEST_WIDTH, shutil.get_terminal_size().columns)
    lines = [setting.name, *_folded(setting.about, width, "  "), ""]
    for fact, words in facts.items():
        lines += _folded(words, width, f"  {fact:<11}")
    return "\n".join(lines)


def _folded(text: str, width: int, start: str) -> list[str]:
    return textwrap.wrap(
        text,
        max(40, width),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _listed(found: Sequence[Setting], here: Here | None) -> list[Table]:
    """A table for each section."""
    from transformer_cli.cli.tables import Column, Table
    from transformer_cli.config.settings import sections

    tables = []
    for section, about in sections().items():
        inside = [setting for setting in found if setting.section == section]
        rows: list[tuple[str, ...]] = []
        for setting in inside:
            name = setting.name.removeprefix(f"{section}.")
            if here is None:
                rows.append((name, setting.default_in_words, setting.about))
            elif value := here.value(setting.name):
                rows.append((name, *value))
        columns = ("default", "what it does") if here is None else ("here", "from")
        headings = (Column("setting"), Column(columns[0]), Column(columns[1], optional=here is None))
        if rows:
            tables.append(Table(f"{section}: {about}" if section else about, headings, tuple(rows)))
    return tables


def document() -> str:
    """docs/configuration.md."""
    from transformer_cli.cli.tables import Column, Table, as_markdown
    from transformer_cli.config import elsewhere
    from transformer_cli.config.settings import sections, settings

    parts = [INTRODUCTION]
    for section, about in sections().items():
        rows = tuple(
            (
                f"`{setting.name.removeprefix(f'{section}.')}`",
                f"`{setting.default_in_words}`" if not setting.is_required else setting.default_in_words,
                setting.takes_in_words,
                setting.about,
            )
            for setting in settings()
            if setting.section == section
        )
        columns = tuple(map(Column, ("setting", "default", "takes", "what it does")))
        parts += [f"## {section or 'At the top'}", about, as_markdown(Table("", columns, rows), of_markup=True)]
    names = tuple(
        (f"`{ours.replace('=', ': ')}`", _code(theirs)) for ours, theirs in elsewhere.table_of("names").items()
    )
    others = tuple((_code(theirs), f"tx {words}") for words, theirs in elsewhere.table_of("instead").items())
    parts += [
        "## Names of other toolkits",
        "What JoeyNMT, fairseq, OpenNMT-py, Marian, Sockeye and Hugging Face call tx's settings. A name with a section "
        "has this meaning in that section.",
        as_markdown(Table("", (Column("tx"), Column("others")), names), of_markup=True),
        as_markdown(Table("", (Column("others"), Column("tx")), others), of_markup=True),
    ]
    return "\n\n".join(parts) + "\n"


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())
