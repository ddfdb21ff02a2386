"""The base of every section: strict types, no unknown keys, docstrings that are the help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Path = tuple[str | int, ...]
"""Of a setting: its sections and keys, and places in lists."""


class Section(BaseModel):
    """A part of the configuration, immutable once read."""

    is_one_of_several: ClassVar[bool] = False
    """Whether just one of its settings is given: then it replaces the one that a file inherits, and is not merged."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        validate_default=False,
    )


PositiveInt = Annotated[int, Field(gt=0, le=10**12)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**12)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
PERCENT = r"^[0-9]{1,2}(\.[0-9]+)? *%$"
Percentage = Annotated[str, Field(pattern=PERCENT)]
"""A share of something, as people write it."""


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
