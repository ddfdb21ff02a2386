"""What goes wrong is told as the command line tells it, in Python's words."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from transformer_cli.config.names import shorten, why_impossible
from transformer_cli.errors import TxError, UsageError
from transformer_cli.wording import what_is

P = ParamSpec("P")
T = TypeVar("T")
FUNCTIONS = {"count-params": "count", "evaluate": "evaluate"}
"""What commands are called here."""
OPTION = re.compile(r"(?<![^\s(`'\"])(?P<option>--[a-z][a-z-]*|-m (?=\S))")
OURS = re.compile(rf"`tx (?P<command>\S+) --help`|{OPTION.pattern}((?<=--set) (?P<setting>[\w.]+=.*))?")
"""What is said otherwise in Python."""
_given: ContextVar[object] = ContextVar("given", default=())
"""What the function at work was called with: words in it are the caller's, wherever a message repeats them."""


def overrides(settings: Mapping[str, Any] | None) -> list[str]:
    """Settings such as {"decoding.beam_size": 3} as `--set` takes them."""
    if settings is not None and not isinstance(settings, Mapping):
        raise UsageError(f"settings is {settings!r:.60}; expected a dictionary", hint='{"decoding.beam_size": 3}')
    for name in settings or {}:
        if not isinstance(name, str) or not name or "=" in name:
            raise UsageError(
                f"settings: {what_is(name)} is no name of a setting", hint='write it like {"decoding.beam_size": 3}'
            )
    return [f"{name}={_typed(name, value)}" for name, value in (settings or {}).items()]


def check_name(argument: str, name: object, *, what: str, hint: str | None = None) -> None:
    """UsageError for what is no path, or one that no file can have. what: that was expected."""
    if not isinstance(name, str | PathLike):
        raise UsageError(f"{argument} is {what_is(name)}; expected {what}", hint=hint)
    text = os.fspath(name)
    if (reason := why_impossible(text) if isinstance(text, str) else "is bytes") is not None:
        said = f" '{shorten(text, 60)}'" if isinstance(text, str) and text else ""
        raise UsageError(f"{argument}: the name{said} {reason}", hint=hint)


def in_pythons_words(function: Callable[P, T]) -> Callable[P, T]:
    """Its errors speak of arguments, not of options, and a traceback ends in the hint. An argument that it does not
    have is such an error, too, where Python has a TypeError that names no other; and so is what the system refuses."""
    parameters = signature(function).parameters.values()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)

    @wraps(function)
    def told(*arguments: P.args, **options: P.kwargs) -> T:
        before = _given.set((arguments, options))
        try:
            for name in options:
                if name not in names and not takes_any:
                    raise _no_such(name, function.__qualname__, names)
            return function(*arguments, **options)
        except TxError as error:
            _translate(error)
            raise
        except Exception as error:
            from transformer_cli.cli.failures import of_resources

            if options.get("progress") is not None or (refused := of_resources(error)) is None:
                raise  # it may be the caller's own
            _translate(refused)
            raise refused from error
        finally:
            _given.reset(before)

    return told


def _translate(error: TxError) -> None:
    error.message = _translated(error.message)
    error.args = (error.message,)
    if error.hint is not None and not hasattr(error, "__notes__"):
        error.hint = _translated(error.hint)
        error.add_note(f"hint: {error.hint}")


def warn(text: str) -> None:
    """What nobody should miss, as a warning of Python's."""
    warnings.warn(_translated(text), stacklevel=2)


def _no_such(name: str, function: str, names: Sequence[str]) -> UsageError:
    from transformer_cli.cli.unknown import option_error

    if name == "settings":
        return UsageError("no such option: settings", hint="`tx.load` takes them")
    options = ["--set", *(f"--{one.replace('_', '-')}" for one in names if one != "self")]
    error = option_error(f"--{name}", f"tx {function}", options)
    if error.hint is not None and "--set " in error.hint and "settings" not in names:
        error.hint += ", which `tx.load` takes"
    return error


def _translated(text: str) -> str:
    theirs = {one for given in _texts(_given.get()) if OPTION.search(given) for one in (given, repr(given)[1:-1])}
    kept = "|".join(map(re.escape, sorted(theirs, key=len, reverse=True))) or "(?!)"
    spans = [one.span() for one in re.finditer(kept, text)]

    def said(found: re.Match[str]) -> str:
        command, option, setting = found["command"], found["option"], found["setting"]
        if any(first <= found.start() < end for first, end in spans):
            return found[0]
        if command is not None:
            return f"`help(tx.{FUNCTIONS.get(command, command)})`"
        if setting is not None:
            return _of_setting(setting)
        # Where a run is named, an option says which.
        return {"-m ": "", "--set": "settings"}.get(option, option[2:].replace("-", "_"))

    return OURS.sub(said, text)


def _texts(value: object) -> Iterator[str]:
    """All that are in it, names of files and runs included."""
    if isinstance(value, str | PathLike):
        yield os.fsdecode(value)
    elif isinstance(value, Mapping):
        yield from _texts((*value.keys(), *value.values()))
    elif isinstance(value, Sequence | Set) and not isinstance(value, bytes):
        for one in value:
            yield from _texts(one)
    else:
        yield from (str(run.path) for run in getattr(value, "runs", ()))  # of a model


def _of_setting(said: str) -> str:
    """`name=value` and what follows, as Python writes it; a value that was shortened stands for itself."""
    name, _, rest = said.partition("=")
    try:
        value, length = json.JSONDecoder().raw_decode(rest)
    except ValueError:
        value = re.match(r"[\w.-]*", rest)[0]  # type: ignore[index]  # as it is typed in a shell
        length = len(value)
    if not length:
        return f"settings: {name}={_translated(rest)}"
    written = json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, str) else repr(value)
    return f'settings={{"{name}": {written}}}{_translated(rest[length:])}'


def _typed(name: str, value: object) -> str:
    """A value as it is typed; of a number that no setting can be, its name, so that it is refused by that. UsageError
    for what cannot be typed."""
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except ValueError:
        return str(value)
    except TypeError:
        raise UsageError(
            f"settings: {name} is {what_is(value)}; expected a text, a number, a path, or a list or dictionary of them"
        ) from None


def _plain(value: Any) -> object:
    """A number, truth or array of NumPy's as one of Python's; by its name what has one, such as a path or a device."""
    if isinstance(value, Integral | Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if callable(plain := getattr(value, "tolist", None)):
        return plain()
    if isinstance(value, Set | bytes):
        raise TypeError
    return str(value)
