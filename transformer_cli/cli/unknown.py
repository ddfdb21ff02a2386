"""What somebody meant who typed a command or an option that tx does not have."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_cli.errors import UsageError

RUNS_ARE_ARGUMENTS = "tx plot", "tx average", "tx compare", "tx reproduce", "tx count-params"
"""Commands whose runs stand without the `-m` of the others."""


def command_error(name: str, commands: Sequence[str], more: Sequence[str] = ()) -> UsageError:
    """For a command that there is not; with the one that other toolkits call so, or one that is like it. more: what was
    typed behind it."""
    from transformer_cli.config import elsewhere
    from transformer_cli.config.expectations import nearest

    meant = elsewhere.command(name, commands) or nearest(name, commands)
    if name in ("help", "version"):
        meant = f"{more[0]} --help" if more and more[0] in commands else f"--{name}"
    if name in ("presets", "preset"):
        meant = "count-params --list"
    hint = f"did you mean `tx {meant}`?" if meant else f"commands: {', '.join(commands)}."
    return UsageError(f"no such command: {name}", hint=hint)


def option_error(option: str, command: str, options: Sequence[str]) -> UsageError:
    """For an option that a command, `tx train`, does not have.

    Meant may be another one of its options, by its name or by another toolkit's; a setting; what tx does by itself.
    """
    return UsageError(f"no such option: {option}", hint=_option_hint(option, command, options))


def _option_hint(option: str, command: str, options: Sequence[str]) -> str:
    from transformer_cli.config import elsewhere
    from transformer_cli.config.expectations import nearest
    from transformer_cli.config.settings import look_up

    dashed = f"--{option.lstrip('-').replace('_', '-')}"
    spellings = dashed, f"{dashed}s", f"{dashed}es", dashed.removesuffix("s")
    same = next((one for one in spellings if one in options), None)
    begins_so = [one for one in options if one.startswith(f"{dashed}-")]
    if same is None and len(begins_so) == 1:
        same = begins_so[0]
    if meant := same or elsewhere.option(option, options):
        return f"did you mean {meant}?"
    if command == "tx train" and dashed in ("--m", "--model"):
        return "it goes on with a run by that one's configuration: -c RUN/config.yaml --run-dir RUN"
    if command in RUNS_ARE_ARGUMENTS and dashed in ("--m", "--model"):
        return f"name runs without an option: `{command} RUN`"
    if instead := elsewhere.instead(option):
        return f"tx {instead}."
    found = look_up(option.strip("-").replace("-", "_"))
    names = list(dict.fromkeys(setting.name for setting in found.settings if "[]" not in setting.name))
    if names and "--set" in options:
        return f"that is a setting: --set {' or --set '.join(f'{name}=...' for name in names[:3])}"
    if meant := nearest(option, options):
        return f"did you mean {meant}?"
    return f"`{command} --help` shows what is possible."
