"""What goes wrong is told as the command line tells it, in Python's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformer_cli.errors import TxError, UsageError

FUNCTIONS = {"count-params": "count", "evaluate": "evaluate"}
"""What commands are called here."""


def overrides(settings: Mapping[str, Any] | None) -> list[str]:
    """Settings such as {"decoding.beam_size": 3} as `--set` takes them."""
    if settings is not None and not isinstance(settings, Mapping):
        raise UsageError(f"settings is {settings!r:.60}; expected a dictionary", hint='{"decoding.beam_size": 3}')
    return [f"{name}={_typed(value)}" for name, value in (settings or {}).items()]


@contextmanager
def in_pythons_words() -> Iterator[None]:
    """Errors speak of arguments, not of options, and a traceback ends in the hint."""
    try:
        yield
    except TxError as error:
        error.message = _translated(error.message)
        error.args = (error.message,)
        if error.hint is not None and not hasattr(error, "__notes__"):
            error.hint = _translated(error.hint)
            error.add_note(f"hint: {error.hint}")
        raise


def _translated(text: str) -> str:
    text = re.sub(r"`tx (\S+) --help`", lambda said: f"`help(tx.{FUNCTIONS.get(said[1], said[1])})`", text)
    text = re.sub(r"--set ([\w.]+)=([\w.-]+)", lambda said: f'settings={{"{said[1]}": {_value(said[2])}}}', text)
    return re.sub(r"--([a-z][a-z-]*)", lambda said: said[1].replace("-", "_"), text)


def _value(typed: str) -> str:
    """A value of a setting, as Python writes it."""
    return typed if re.fullmatch(r"-?\d+(\.\d+)?", typed) else f'"{typed}"'


def _typed(value: object) -> str:
    """A value as it is typed; of what no setting can be, its name, so that it is refused by that."""
    try:
        return json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        return str(value)
