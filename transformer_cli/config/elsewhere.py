"""What other toolkits call our settings, so that whoever knows them is led to ours: the table is elsewhere.yaml."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

import yaml

TABLE = Path(__file__).with_suffix(".yaml")


def ours(name: str, section: str = "") -> str | None:
    """Our setting for a name of theirs, perhaps with a value (`model.tied=all`); that in `section` goes first."""
    return _of(_names(), name, section)


def in_sections(name: str) -> dict[str, str]:
    """What ours are where others call them so in a section of that name: of `batch_size`, that of training."""
    named = [(*theirs.rpartition("."), ours.partition("=")[0]) for theirs, ours in _names().items()]
    return {section: ours for section, _, key, ours in named if section and key == _plain(name)}


def instead(name: str, section: str = "") -> str | None:
    """What tx does in place of something that it has no setting for."""
    return _of(_without(), name, section)


def is_meant_here(name: str, section: str) -> bool:
    """Whether a name of theirs is known to mean something in this very section."""
    return f"{section}.{_plain(name)}" in _names().keys() | _without().keys()


def option(name: str, there: Collection[str]) -> str | None:
    """The option among those that are there which others call so."""
    return _among(table_of("options"), name, there)


def command(name: str, there: Collection[str]) -> str | None:
    """The command that others call so."""
    return _among(table_of("commands"), name, there)


def export_format(name: str, there: Collection[str]) -> str | None:
    """The format of `tx export` that others call so."""
    return _among(table_of("formats"), name, there)


def theirs(setting: str) -> list[str]:
    """What others call a setting of ours."""
    return [name.rpartition(".")[2] for name, ours in _names().items() if ours.partition("=")[0] == setting]


def table_of(part: str) -> dict[str, str]:
    """names, options, commands, formats: what others call ours; instead: what they call what tx does in another way."""
    return _read()[part]


@cache
def _read() -> dict[str, dict[str, str]]:
    read = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return read | {"instead": {entry["ours"]: entry["theirs"] for entry in read["instead"]}}


@cache
def _names() -> dict[str, str]:
    return {name: ours for ours, names in table_of("names").items() for name in names.split()}


@cache
def _without() -> dict[str, str]:
    return {name: words for words, names in table_of("instead").items() for name in names.split()}


def _among(table: dict[str, str], name: str, there: Collection[str]) -> str | None:
    return next((ours for ours, names in table.items() if ours in there and _plain(name) in names.split()), None)


def _of(meanings: dict[str, str], name: str, section: str) -> str | None:
    return meanings.get(f"{section}.{_plain(name)}") or meanings.get(_plain(name))


def _plain(name: str) -> str:
    """The spelling that the table is searched with: `--learn-rate` is learn_rate."""
    return name.strip("-_").replace("-", "_").lower()
