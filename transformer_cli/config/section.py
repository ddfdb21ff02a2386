"""The base of every section: strict types, no unknown keys, docstrings that are the help."""

from __future__ import annotations

import ast
import inspect
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Path = tuple[str | int, ...]
"""Of a setting: its sections and keys, and places in lists."""


@cache
def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """What is written under each setting of a section. Read when somebody asks: pydantic's `use_attribute_docstrings`
    reads all of it at every start, 0.07 s (docs/measurements.md)."""
    if section is BaseModel:
        return {}
    [definition] = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    assert section.__base__ is not None
    return docstrings(section.__base__) | {
        setting.target.id: inspect.cleandoc(below.value.value)
        for setting, below in pairwise(definition.body)
        if isinstance(setting, ast.AnnAssign) and isinstance(setting.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _describe(schema: dict[str, Any], section: type[BaseModel]) -> None:
    for name, about in docstrings(section).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = about


class Section(BaseModel):
    """A part of the configuration, immutable once read."""

    is_one_of_several: ClassVar[bool] = False
    """Whether just one of its settings is given: then it replaces the one that a file inherits, and is not merged."""
    in_parts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Of settings that are one value or a section, which parts of that have the value: an override of one leaves the
    others as they are."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra=_describe,
        allow_inf_nan=False,
        validate_default=False,
    )


PositiveInt = Annotated[int, Field(gt=0, le=10**12)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**12)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Called:
    """What a text is called where one is expected."""

    words: str


PERCENT = r"^[0-9]{1,2}(\.[0-9]+)? *%$"
Percentage = Annotated[str, Field(pattern=PERCENT)]
"""A share of something, as people write it."""
NO_LETTERS = (
    r"\x00-,/:-@\[-^`{-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u034f\u061c\u115f\u1160\u1680\u180e\u2000-\u206f\u3000-\u3004\u3164"
    r"\ufe00-\ufe0f\ufeff\uff01-\uff0f\uff1a-\uff20\ufff0-\uffff"
)
"""What no name of ours has, as in a class of a regular expression that Python, pydantic and editors all read: `\\w` is
another set for each."""
LONGEST_NAME = 100
NAME_IN_WORDS = f"letters, digits, `.`, `_` and `-`, a letter or digit first, {LONGEST_NAME} at most"
NAME = rf"^[^{NO_LETTERS}._-][^{NO_LETTERS}]*$"


def composed(text: str) -> str:
    """A name as it is kept: the same one (NFC), however its letters were typed."""
    return unicodedata.normalize("NFC", text)


def is_name(text: str) -> bool:
    """Whether it can be one; a mark that is written on a letter does not come first."""
    return bool(
        len(text) <= LONGEST_NAME and re.fullmatch(NAME, text) and not unicodedata.category(text[0]).startswith("M")
    )


def is_latest(name: str) -> bool:
    """Whether runs/NAME is runs/latest, which is no run; to a Mac's disk it is so in any case."""
    return name.casefold() == "latest"


def as_name(stem: str) -> str:
    """A run's name from a file's, with 200 bytes at most."""
    name = re.sub(f"[{NO_LETTERS}]+", "-", composed(stem))
    first = next((place for place in range(len(name)) if is_name(name[place])), len(name))
    name = name[first:].rstrip("-._")[:LONGEST_NAME]
    name = name.encode(errors="ignore")[:200].decode(errors="ignore") or "run"
    return f"{name}-run" if is_latest(name) else name


def _name(text: str) -> str:
    if not is_name(name := composed(text)):
        raise ValueError(f"expected {NAME_IN_WORDS}")
    return name


Name = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME), AfterValidator(_name)]


AtHome = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(os.path.expanduser)]
"""A path that may begin with `~`, as a shell would take it where it is not quoted."""


def share_of(percentage: str) -> float:
    return float(percentage.removesuffix("%")) / 100


@dataclass(frozen=True)
class Contradiction:
    """Settings that are each fine but do not go together. paths: the settings, the likeliest culprit first."""

    message: str
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, message: str, *settings: str) -> Contradiction:
        """settings: with dots, as `--set` names them."""
        paths = (setting.split(".") for setting in settings)
        return cls(message, tuple(tuple(int(key) if key.isdecimal() else key for key in path) for path in paths))
