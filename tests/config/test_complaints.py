"""What pydantic complains about, in our words."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticKnownError, core_schema

from transformer_cli.config.complaints import complaint

KINDS = get_args(core_schema.ErrorType)
THEIRS = re.compile(r"input|unable|parse|valid|required|permitted|should|string|integer|dictionary|python|field", re.I)


def known_error(kind: str) -> PydanticKnownError:
    """Pydantic's error of this kind, with whatever context it asks for."""
    context: dict[str, object] = {}
    values = iter(VALUES)
    for _ in range(20):
        try:
            error = PydanticKnownError(kind, context or None)
            error.message()
            return error
        except TypeError as wanting:
            [key] = re.findall(r"^\w+: '(\w+)'", str(wanting))
            values = values if key in context else iter(VALUES)
            context[key] = next(values)
    raise AssertionError(f"{kind} is content with nothing")


VALUES = (3, "it", ValueError("it"), ["it"], 1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_of_pydantics_comes_through(kind):
    error = known_error(kind)
    said = complaint({"type": kind, "ctx": error.context, "input": 7, "msg": error.message()})
    assert not THEIRS.search(said), said
    assert said != error.message()


@pytest.mark.parametrize(
    ("form", "value", "said"),
    [
        (int, "x", "'x' is not a whole number"),
        (int, "9" * 5000, f"'{'9' * 19}...{'9' * 9}' is not a whole number"),
        (int, 1.5, "1.5 is not a whole number"),
        (float, "", "'' is not a number"),
        (Annotated[float, Field(ge=0.5)], "nan", "'nan' is not a number of at least 0.5"),
        (Annotated[int, Field(gt=0)], 0, "0 is not a number above 0"),
        (bool, "maybe", "'maybe' is not true or false"),
        (list[int], "x", "'x' is not a list"),
        (dict[str, int], [], "[] is not an object"),
        (Literal["a", "b"], "c", "'c' is not one of 'a' or 'b'"),
        (Annotated[list[int], Field(min_length=2)], [1], "[1] is not a list of at least 2"),
    ],
)
def test_a_complaint_says_what_was_found_and_what_was_expected(form, value, said):
    with pytest.raises(ValidationError) as failure:
        TypeAdapter(form).validate_python(value)
    assert complaint(failure.value.errors()[0]) == said
