"""What pydantic complains about, in our words: none of its own sentences reaches a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from transformer_cli.config.names import shorten

FORMS = {
    "int": "a whole number",
    "float": "a number",
    "complex": "a number",
    "decimal": "a number",
    "fraction": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "bytes": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "iterable": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "none": "null",
}
"""By the first word of what pydantic calls an error: int_type, int_parsing, ..."""
LIMITS = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number up to {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "enum": "one of {expected}",
    "literal_error": "one of {expected}",
}


def complaints(failure: ValidationError) -> str:
    """All of them, each behind its setting."""
    return ", ".join(f"{'.'.join(map(str, entry['loc']))}: {complaint(entry)}" for entry in failure.errors())


def complaint(entry: Mapping[str, Any]) -> str:
    """One of a ValidationError's `errors()`: `'x' is not a whole number`; what our own validators say stays."""
    kind, context = entry["type"], entry.get("ctx") or {}
    if "error" in context and kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if kind == "missing":
        return "it is missing"
    if kind == "extra_forbidden":
        return "nothing of that name belongs here"
    form = LIMITS.get(kind)
    expected = form.format(**context) if form else FORMS.get(kind.split("_")[0], "what belongs here")
    return f"{shorten(repr(entry['input']))} is not {expected}"
