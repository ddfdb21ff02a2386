"""What other toolkits call our settings, so that whoever knows them is led to ours: the table is elsewhere.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

TABLE = Path(__file__).with_suffix(".yaml")


def ours(name: str, section: str = "") -> str | None:
    """Our setting for a name of theirs, perhaps with a value (`model.tied=all`); that in `section` goes first."""
    return _of(_names(), name, section)


def instead(name: str, section: str = "") -> str | None:
    """What tx does in place of something that it has no setting for."""
    return _of(_without(), name, section)


def is_meant_here(name: str, section: str) -> bool:
    """Whether a name of theirs is known to mean something in this very section."""
    return f"{section}.{_plain(name)}" in _names().keys() | _without().keys()


def theirs(setting: str) -> list[str]:
    """What others call a setting of ours."""
    return [name.rpartition(".")[2] for name, ours in _names().items() if ours.partition("=")[0] == setting]


@cache
def table() -> dict[str, dict[str, str]]:
    """names: our settings and what others call them; instead: what tx does, and what others call that."""
    read = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {"names": read["names"], "instead": {entry["ours"]: entry["theirs"] for entry in read["instead"]}}


@cache
def _names() -> dict[str, str]:
    return {name: ours for ours, names in table()["names"].items() for name in names.split()}


@cache
def _without() -> dict[str, str]:
    return {name: words for words, names in table()["instead"].items() for name in names.split()}


def _of(meanings: dict[str, str], name: str, section: str) -> str | None:
    return meanings.get(f"{section}.{_plain(name)}") or meanings.get(_plain(name))


def _plain(name: str) -> str:
    """The spelling that the table is searched with: `--learn-rate` is learn_rate."""
    return name.strip("-_").replace("-", "_").lower()
