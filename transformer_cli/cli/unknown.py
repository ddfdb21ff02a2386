"""What somebody meant who typed a command or an option that tx does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from transformer_cli.errors import UsageError

LIKE = 0.7
"""How like a name has to be: with the library's 0.6, `serve` is like `score`."""


def command_error(name: str, commands: Sequence[str]) -> UsageError:
    """For a command that there is not; with the one that other toolkits call so, or one that is like it."""
    from transformer_cli.config import elsewhere

    meant = elsewhere.command(name, commands) or _nearest(name, commands)
    hint = f"did you mean `tx {meant}`?" if meant else f"commands: {', '.join(commands)}."
    return UsageError(f"no such command: {name}", hint=hint)


def option_error(option: str, command: str, options: Sequence[str]) -> UsageError:
    """For an option that a command, `tx train`, does not have.

    Meant may be another one of its options, by its name or by another toolkit's; a setting; what tx does by itself.
    """
    return UsageError(f"no such option: {option}", hint=_option_hint(option, command, options))


def _option_hint(option: str, command: str, options: Sequence[str]) -> str:
    from transformer_cli.config import elsewhere
    from transformer_cli.config.settings import look_up

    dashed = option.replace("_", "-")
    if meant := dashed if dashed in options else elsewhere.option(option, options):
        return f"did you mean {meant}?"
    if instead := elsewhere.instead(option):
        return f"tx {instead}."
    found = look_up(option.strip("-").replace("-", "_"))
    if found.settings and "--set" in options:
        names = list(dict.fromkeys(setting.name for setting in found.settings))
        return f"that is a setting: --set {' or --set '.join(f'{name}=...' for name in names[:3])}"
    if meant := _nearest(option, options):
        return f"did you mean {meant}?"
    return f"`{command} --help` shows what is possible."


def _nearest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name[:100], list(names), n=1, cutoff=LIKE)), None)
