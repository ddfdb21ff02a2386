"""The base of every section: strict types, no unknown keys, docstrings that are the help."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration, immutable once read."""

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
