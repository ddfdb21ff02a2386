"""Every setting there is, read from the schema: what it does, what it takes, what it is when nobody says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from transformer_cli.config import elsewhere
from transformer_cli.config.expectations import HUGE, Accepted, accepted, nearest
from transformer_cli.config.nodes import read_scalar
from transformer_cli.config.run import RunConfig
from transformer_cli.config.section import Section, docstrings

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Setting:
    """A key that takes a value.

    name: with its sections, `training.learning_rate`; in a list `accounting.extra[].shape`. section: the innermost one
    that it is in, "" at the top.
    """

    name: str
    section: str
    about: str
    takes: Accepted
    default: object
    is_required: bool
    may_be_null: bool

    @property
    def key(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def takes_in_words(self) -> str:
        """With all limits but those that are there for safety alone."""
        return self.takes.in_words(HUGE) + ", or null" * self.may_be_null

    @property
    def default_in_words(self) -> str:
        """As it would be written into a file."""
        return "must be given" if self.is_required else written(self.default)

    @property
    def default_as_json(self) -> object:
        return self.default.model_dump() if isinstance(self.default, Section) else self.default


def sections() -> dict[str, str]:
    """The sections by name, with what each is about; the top, "", first."""
    return {"": _about(RunConfig)} | dict(_sections(RunConfig, ""))


def settings() -> list[Setting]:
    """All settings, in the order in which they are declared; what a setting takes inside comes after it."""
    return list(_settings(RunConfig, "", section=""))


def _sections(section: type[Section], prefix: str) -> Iterator[tuple[str, str]]:
    for key, field in section.model_fields.items():
        if inner := accepted(field.annotation).section:
            yield f"{prefix}{key}", _about(inner)
            yield from _sections(inner, f"{prefix}{key}.")


def _settings(schema: type[Section], prefix: str, *, section: str) -> Iterator[Setting]:
    for key, field in schema.model_fields.items():
        takes = accepted(field.annotation, *field.metadata)
        name = f"{prefix}{key}"
        if takes.section:
            yield from _settings(takes.section, f"{name}.", section=name)
            continue
        yield Setting(
            name,
            section,
            _help(schema, key),
            takes,
            default=field.get_default(call_default_factory=True),
            is_required=field.is_required(),
            may_be_null=type(None) in get_args(field.annotation),
        )
        for form in takes.members:
            item = accepted(get_args(form.annotation)[0]) if get_origin(form.annotation) is list else form
            if item.section:
                inner = _settings(item.section, f"{name}{'[]' if item is not form else ''}.", section=section)
                # Where a form's names say all, such as {encoder, decoder}, what the setting takes says it, too.
                yield from (setting for setting in inner if setting.about)


def _help(section: type[Section], key: str) -> str:
    return " ".join(docstrings(section).get(key, "").split())


def _about(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())


def written(value: Any) -> str:
    """A value as YAML on one line, short and exact: 1e-9, null, [0.9, 0.98], {source: 1, target: 2}."""
    if isinstance(value, Section):
        value = value.model_dump()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {written(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-").replace("e+0", "e+")
    if isinstance(value, str):
        harmless = value and value.isprintable() and not set(value) & set("\"'#:,[]{}&*!|>%@`\\ ")
        return value if harmless and read_scalar(value) == value else f'"{_escaped(value)}"'
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(frozen=True)
class Lookup:
    """What a name leads to: settings of ours, and why these where it is no name of ours."""

    settings: tuple[Setting, ...] = ()
    remark: str = ""


EXTENDS = "a file beside this one, or a preset, that this one changes"


def look_up(name: str) -> Lookup:
    """A setting's name, a section's, a bare key, another toolkit's name, or something like one of them."""
    everything = settings()
    wanted = name.strip().removesuffix(".")
    if wanted == "extends":
        return Lookup((), f"{wanted} is in front of all settings: {EXTENDS}")
    exact = [one for one in everything if one.name == wanted or one.name.startswith((f"{wanted}.", f"{wanted}[]"))]
    section, _, key = wanted.rpartition(".")
    bare = [one for one in everything if one.key == key]
    if bare and not section and (others := elsewhere.in_sections(key)):
        remark = "; ".join(f"{wanted} of {around} is {ours} in tx" for around, ours in others.items())
        return Lookup((*bare, *(one for one in everything if one.name in others.values())), remark)
    if exact:
        return Lookup(tuple(exact))
    if bare and not section:  # others may mean another one by it, which they are more likely to look for
        likely = [one for one in everything if one.name == elsewhere.ours(key) and one.key != key]
        return Lookup((*likely, *bare))
    if theirs := elsewhere.ours(key, section):
        found, _, value = theirs.partition("=")
        return Lookup(look_up(found).settings, f"{wanted} is {found}{f': {value}' * bool(value)} in tx")
    if bare:
        return Lookup(tuple(bare), f"{wanted} is {' or '.join(one.name for one in bare)} in tx")
    if words := elsewhere.instead(key, section):
        return Lookup((), f"{wanted}: tx {words}")
    close = nearest(wanted, [one.name for one in everything]) or nearest(key, [one.key for one in everything])
    alike = [one.name for one in everything if close in (one.name, one.key)]
    return Lookup((), f"there is no setting {wanted}" + (f"; did you mean {' or '.join(alike)}?" if alike else ""))


def suggestion(path: tuple[str, ...], parent: type[Section]) -> str:
    """What somebody who wrote this unknown setting into `parent` may have meant; "" where nothing is like it.

    It is in another section; other toolkits call one of ours so; tx does something else instead; it is mistyped. The
    answer is the end of a sentence.
    """
    *around, key = path
    section = ".".join(around)
    if not around and nearest(key, ["extends"]):
        return "; did you mean `extends`?"
    theirs = elsewhere.ours(key, section)
    if not elsewhere.is_meant_here(key, section) and (homes := _homes(key)):
        if not section and (others := elsewhere.in_sections(key)):
            meant = [one for one in settings() if one.key == key or one.name in others.values()]
            return "; there is " + " and ".join(f"`{one.name}` ({_in_short(one.about)})" for one in meant)
        return f"; it belongs to {' or '.join(homes)}"
    if theirs:
        name, _, value = theirs.partition("=")
        if name.rpartition(".")[2] in parent.model_fields and not value:
            name = ".".join([*around, name.rpartition(".")[2]])
        takes = next((f", {one.takes.in_words()}" for one in settings() if one.name == name), "")
        return f"; here it is `{name}: {value}`" if value else f"; here it is `{name}`{takes}"
    if words := elsewhere.instead(key, section):
        return f"; tx {words}"
    close = nearest(key, parent.model_fields)
    return f"; did you mean `{close}`?" if close else ""


def _in_short(about: str) -> str:
    """The beginning of a setting's help, within a sentence."""
    return about[0].lower() + about[1:].partition(".")[0].partition(";")[0]


def _homes(key: str) -> list[str]:
    """The sections that have a setting of this name."""
    around = [name.rpartition(".")[0] for name in _names() if name.rpartition(".")[2] == key]
    return [f"`{home}`" if home else "the top, outside of all sections" for home in around]


@cache
def _names() -> list[str]:
    """Of all settings outside of lists, and of the sections; kept, for a file may have thousands of mistakes."""
    return [one.name for one in settings() if "[]" not in one.name] + list(sections())


def json_schema() -> dict[str, Any]:
    """The schema for editors and other programs; `extends` is a matter of files and of no section."""
    schema = RunConfig.model_json_schema()
    extends = {"type": "string", "description": f"{EXTENDS[0].upper()}{EXTENDS[1:]}."}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    return {"$schema": SCHEMA_ID, **schema, "title": "A configuration of tx"}
