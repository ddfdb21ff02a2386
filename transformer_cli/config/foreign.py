"""Another toolkit's configuration becomes ours: what it says, what it would be by default there, what is left over.

A table for each toolkit, foreign/NAME.yaml, says what its settings mean here:

- `means`: theirs, with sections where they have some and `*` for any. To one of ours, or several, which take the value
  as it is; or to what each value means, `{pre: {model.norm_position: pre}}`: `{}` is what tx does anyhow, null what it
  has not, `else` any other value. A name that begins with `~` is a fact that settings follow from (consequences.py). Of
  two that mean different things for one of ours the later in the table goes before, however their file has them.
- `unless_said`: what theirs does by default.
- `theirs_by_default`: theirs that tx has nothing like, which are told where a configuration does not say otherwise.
- `families`: settings with a value for many at once, such as `--arch`.
- `nothing`: what has no influence on the model: places, logs, devices.
- `others`: what a configuration has that is another toolkit's.
- `translates_by`: what one has that only says how a model translates, each with the file that says how it was trained.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from transformer_cli.config import elsewhere
from transformer_cli.config.complaints import complaint
from transformer_cli.config.consequences import Facts, follow
from transformer_cli.config.names import shorten
from transformer_cli.config.nodes import Refused, Source, read_file, read_nodes, read_scalar
from transformer_cli.config.run import RunConfig
from transformer_cli.config.settings import settings, written
from transformer_cli.errors import ConfigError

BETWEEN = ";&|\n"
"""Commands."""
END = "\n"
"""Of one: no word is this."""
REDIRECTION = re.compile(r"""(?<=\s)(?:\d|&)?>{1,2}\s*(?:&\d|"[^"\n]*"|'[^'\n]*'|[^\s"';&|]+)""")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
BRACES = re.compile(r"""([^{}\s"'$]*)\{([^{}\s"',]*(?:,[^{}\s"',]*)+)\}([^{}\s"']*)""")
UPDATES = re.compile(r"(\d{1,15})([kMG]?)u")
"""Marian's way to say how many, with k for a thousand."""
TABLES = Path(__file__).with_suffix("")


def toolkits() -> list[str]:
    """Those whose configurations are understood."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


@dataclass(frozen=True)
class Carried:
    """What became of a configuration. values: ours, each with where it is from; left: theirs, each with why."""

    toolkit: str
    values: dict[str, tuple[Any, str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def as_yaml(self) -> str:
        """A file of ours whose lines say where they come from; what is left stands at its end."""
        lines = [f"# From {self.toolkit}'s, by `tx config from`."]
        around: list[str] = []
        for setting in settings():
            if setting.name in self.values:
                value, origin = self.values[setting.name]
                *sections, key = setting.name.split(".")
                is_same = [name == other for name, other in zip(sections, around, strict=False)]
                known = [*is_same, False].index(False)
                lines += [f"{'  ' * depth}{name}:" for depth, name in enumerate(sections) if depth >= known]
                origin = origin.removesuffix(f": {written(value)}")
                lines.append(f"{'  ' * len(sections)}{key}: {written(value)} # {origin}")
                around = sections
        if self.left:
            lines += ["# Not carried over:", *(f"# {theirs}: {why}" for theirs, why in self.left.items())]
        return "\n".join(lines) + "\n"


def carry_over(toolkit: str, path: Path) -> Carried:
    """Their file in our words; raises ConfigError for one that is neither YAML nor a command line."""
    table = _table(toolkit)
    carried, facts = Carried(table["called"]), Facts()
    for name, value in table["unless_said"].items():
        facts.suppose(name, value, f"{carried.toolkit}'s default")
    found = _options(read_file(path, name=str(path)), path)
    options = sorted(found, key=lambda option: (_place(table, option[0]), option[0]))
    said = dict.fromkeys(name for name, _ in options)
    _refuse_others(table, said, path)
    translates_by = {name: file for name, file in table.get("translates_by", {}).items() if name in said}
    for name, value in options:
        if name in translates_by:
            why = f"how a model is trained is not said here, but in its {translates_by[name]}"
        else:
            why = _taken(facts, table, name, value)
        if why:
            carried.left[f"{name}: {shorten(written(value), 60)}"] = why
    if translates_by:
        _only_translates(facts, carried)
        return carried
    for name, value in table.get("theirs_by_default", {}).items():
        if not any(name in (one, one.rpartition(".")[2]) for one in said):
            carried.left[f"{name}: {value}, {carried.toolkit}'s default"] = _why_not(name)
    carried.left.update(follow(facts))
    for split in ("train", "valid"):
        if "$" in str(facts.value(f"data.{split}", "$")):  # nothing, or a variable of the shell's
            facts.pop(f"data.{split}")
            facts.say(f"data.{split}", f"corpus/{split}", "to be filled in: this, with .source and .target behind it")
            carried.left[f"the text, data.{split}"] = f"put yours in place of corpus/{split}"
    carried.values.update({name: fact for name, fact in facts.items() if not name.startswith("~")})
    _refuse_what_does_not_fit(carried)
    return carried


def _table(toolkit: str) -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((TABLES / f"{toolkit}.yaml").read_text(encoding="utf-8"))
    return table


def _refuse_others(table: Mapping[str, Any], said: Iterable[str], path: Path) -> None:
    """ConfigError for the file of another toolkit, whose names would here mean nothing, or something else."""
    for toolkit, patterns in table.get("others", {}).items():
        if found := next((one for one in said if any(fnmatchcase(one, pattern) for pattern in patterns.split())), None):
            other = _table(toolkit)["called"]
            raise ConfigError(
                f"{path} has `{found}`, as {other}'s configurations have, and not {table['called']}'s",
                hint=f"tx config from {toolkit} {path}",
            )


def _only_translates(facts: Facts, carried: Carried) -> None:
    """Takes how theirs translates; that it says nothing of training is no reason for the defaults of training."""
    for name, (value, origin) in facts.items():
        if name.startswith("decoding.") or name in ("seed", "threads", "precision"):
            carried.values[name] = value, origin
        elif origin != f"{carried.toolkit}'s default":
            carried.left[origin] = f"{name.removeprefix('~')} is of training"
    _refuse_what_does_not_fit(carried)


def _taken(facts: Facts, table: Mapping[str, Any], name: str, value: Any) -> str:
    """Takes what a setting of theirs means; why it cannot, "" where it can."""
    origin = f"{name}: {shorten(written(value), 60)}"
    family = table.get("families", {}).get(name, {})
    if isinstance(value, str) and value in family:
        for ours, inner in family[value].items():
            facts.suppose(ours, inner, origin)
        return ""
    if any(fnmatchcase(one, pattern) for pattern in table["nothing"].split() for one in _names(name)):
        return ""
    means: Any = [*table["means"].values(), {}][_place(table, name)]
    if isinstance(means, dict):
        by_value = {_spelled(theirs): meaning for theirs, meaning in means.items()}
        means = by_value.get(_spelled(value), by_value.get("else"))
    if isinstance(means, dict):
        for ours, inner in means.items():
            facts.imply(ours, inner, origin)
        return ""
    if means is None:
        return _why_not(name)
    reasons = [facts.say(ours, value, origin) for ours in ([means] if isinstance(means, str) else means)]
    return next(filter(None, reasons), "")


def _place(table: Mapping[str, Any], name: str) -> int:
    """The line of the table that says what it means; behind the last where none does."""
    known = list(table["means"])
    found = (place for one in _names(name) for place, pattern in enumerate(known) if fnmatchcase(one, pattern))
    return next(found, len(known))


def _names(name: str) -> tuple[str, str]:
    """With its sections, and without."""
    return name, name.rpartition(".")[2]


def _why_not(name: str) -> str:
    """What tx does instead, or has that comes nearest."""
    key = name.rpartition(".")[2]
    sections = (name.partition(".")[0], "model", "training")
    section = next((one for one in sections if elsewhere.is_meant_here(key, one)), "")
    if words := elsewhere.instead(key, section):
        return f"tx {words}"
    return f"nearest is {ours}" if (ours := elsewhere.ours(key, section)) else "tx has nothing like it"


def _spelled(value: Any) -> str:
    """A value as it is looked up: 0 is 0.0, and the text "true" is true."""
    return written(float(value) if type(value) is int else value).strip('"')


def _refuse_what_does_not_fit(carried: Carried) -> None:
    """What our schema does not take is left, with the reason."""
    tree: dict[str, Any] = {}
    for name, (value, _) in carried.values.items():
        *sections, key = name.split(".")
        inside = tree
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[key] = value
    try:
        RunConfig.model_validate(tree)
    except ValidationError as error:
        for entry in error.errors():
            path = ".".join(map(str, entry["loc"]))
            for name in [name for name in carried.values if f"{path}.".startswith(f"{name}.")]:
                _, origin = carried.values.pop(name)
                carried.left.setdefault(origin, f"{name}: {complaint(entry)}")


def _options(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Their settings by dotted name, `-` written as `_`: of YAML, or of a command line with its options."""
    try:
        words = _words(text.replace("\r\n", "\n").replace("\\\n", " "))
    except ValueError:  # no quotation ends there
        words = []
    if any(_is_option(word) for word in words):
        yield from _of_command(words)
        return
    try:
        tree = read_nodes(Source(str(path), text)).plain()
    except Refused as refused:
        raise ConfigError(f"{path}: neither YAML nor a command line: {refused.message}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: neither `key: value` lines nor a command line with its --options")
    yield from _of_tree(tree)


def _words(text: str) -> list[str]:
    """Of commands, END between them; what goes to files is none. ValueError for a quotation that does not end."""
    found = shlex.shlex(_Commands(REDIRECTION.sub(" ", text)), posix=True, punctuation_chars=BETWEEN)
    found.whitespace, found.whitespace_split = " \t\r", True
    return list(_filled_in(END if word and set(word) <= set(BETWEEN) else word for word in found))


def _filled_in(words: Iterable[str]) -> Iterator[str]:
    """As the shell has them: with the variables that were set before, as in `lr=5e-4`, and x.{en,de} as two."""
    variables: dict[str, str] = {}
    begins = True
    for read in words:
        word = VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), read)
        assigned = ASSIGNMENT.fullmatch(word) if begins else None
        if assigned and not re.search(r"\$\(|`", word):
            variables[assigned[1]] = assigned[2]
        begins = word == END or (begins and (assigned is not None or word in ("export", "local")))
        parts = word.split() if word != read and VARIABLE.fullmatch(read) else [word]
        for part in parts:
            braces = BRACES.fullmatch(part)
            yield from (f"{braces[1]}{one}{braces[3]}" for one in braces[2].split(",")) if braces else [part]


class _Commands(StringIO):
    """What shlex reads to the end of a line is a comment, and the line ends behind it all the same."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # typeshed: of bytes, too
        line = super().readline(size)
        self.seek(self.tell() - line.endswith("\n"))
        return line


def _of_tree(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = prefix.removesuffix(".") if key == "_name" else f"{prefix}{key}".replace("-", "_")
        if isinstance(value, dict):
            yield from _of_tree(value, f"{name}.")
        else:
            yield name, _alone(value)


def _of_command(words: list[str]) -> Iterator[tuple[str, Any]]:
    """`--name value`, `-name value`, `--name=value`, and `--name` alone for true; what comes before is the program."""
    name, values = "", list[str]()
    for word in [*words, END]:
        if word != END and not _is_option(word):
            values.append(word)
            continue
        if name:
            yield name, _alone([_read(value) for value in values]) if values else True
        name, equals, value = word.strip(END).lstrip("-").partition("=")
        name, values = name.replace("-", "_"), [value] if equals else []


def _is_option(word: str) -> bool:
    return re.match(r"--?[a-zA-Z]", word) is not None


def _read(word: str) -> Any:
    """A value as it stands in a command: a number, a list such as (0.9, 0.98) or 6:6, or text."""
    if not word:
        return ""  # and not YAML's null
    inside = word.removeprefix("(").removesuffix(")") if word.startswith("(") else word
    separator = "," if inside != word else ":"
    parts = [read_scalar(part.strip()) for part in inside.split(separator)]
    return parts if len(parts) > 1 and all(isinstance(part, int | float) for part in parts) else read_scalar(word)


def _alone(value: Any) -> Any:
    """The value of a list that has but one, or the same twice, for encoder and decoder; `10ku` is 10000 updates."""
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        return _alone(value[0])
    if isinstance(value, str) and (value.startswith("(") or value in ("true", "false")):
        return _read(value)
    if isinstance(value, str) and (counted := UPDATES.fullmatch(value)):
        return int(counted[1]) * 1000 ** " kMG".index(counted[2] or " ")
    return value
