"""How the program ends: every failure becomes words on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from transformer_cli.cli import console, signals
from transformer_cli.errors import Interrupted, ResourceError, ToldError, TxError, UsageError
from transformer_cli.heap import is_limited
from transformer_cli.temporary import ELSEWHERE
from transformer_cli.trouble import barred, hint_of, is_of_memory

BUG, USAGE = 1, 2

_traceback_wanted = False


def show_tracebacks() -> None:
    """From now on a failure shows where in the code it happened."""
    global _traceback_wanted
    _traceback_wanted = True


def exit_code(main: Callable[[], int]) -> int:
    """Runs the program and says how it ended; returns the exit code."""
    try:
        code = _exit_code(main)
        signals.die_by_signals()
        return code
    except signals.Ended as end:
        number = end.number
    except KeyboardInterrupt:  # Python's own handler, where somebody else began the process
        number = signal.SIGINT
    if signals.speaks():
        console.farewell(signals.WORDS[number])
    return 128 + number


def _exit_code(main: Callable[[], int]) -> int:
    try:
        code = main()
        sys.stdout.flush()
        return code
    except console.ReaderIsGone:
        return 0
    except Exception as error:
        code = _report(error)
        if _traceback_wanted:
            traceback.print_exception(error)
        return code


def _report(error: Exception) -> int:
    if isinstance(error, Interrupted):
        console.farewell(error.message, command=error.hint)
        return error.exit_code
    if isinstance(error, ToldError):
        return error.exit_code
    if isinstance(error, TxError):
        console.error(error.message, hint=error.hint)
        return error.exit_code
    if (told := misunderstood(error) or of_resources(error)) is not None:
        return _report(told)
    words = " ".join(str(error).split())
    kind = type(error).__name__
    console.error(
        f"a bug in tx: {kind}: {words}" if words else f"a bug in tx: {kind}",
        hint=None if _traceback_wanted else "the same command with --traceback shows where; please report it.",
    )
    return BUG


def of_resources(error: Exception) -> ResourceError | None:
    """What the system or a library refuses as one of ours; None for any other."""
    if isinstance(error, ImportError) and not (error.name or "").startswith("transformer_cli"):
        return ResourceError(
            f"a library cannot be loaded: {error}",
            hint="it has to be installed anew."
            if isinstance(error, ModuleNotFoundError)
            else "there is too little memory for it (`ulimit -v` shows a limit), or it has to be installed anew.",
        )
    if "can't start new thread" in str(error):
        return ResourceError(
            "no more threads can be started",
            hint="`ulimit -u`, the container (pids.max) or too little memory limits them.",
        )
    if is_of_memory(error) or (_may_be_of_memory(error) and is_limited()):
        return ResourceError(
            "not enough memory", hint="a smaller training.budget_tokens or decoding.batch_size needs less."
        )
    if not isinstance(error, OSError) or not error.strerror:
        return None
    if error.errno == errno.ENOENT and not error.filename and _is_nowhere():
        return ResourceError("the current folder is not there any more", hint="`cd` into one that is.")
    if str(error.strerror).startswith("No usable temporary"):  # as Python says it to a library
        return ResourceError(error.strerror, hint=ELSEWHERE)
    hides = isinstance(error, PermissionError)
    name = barred(error.filename) if hides and isinstance(error.filename, str) else error.filename
    return ResourceError(f"{name}: {error.strerror}" if name else error.strerror, hint=hint_of(error, reads=hides))


def misunderstood(error: Exception) -> UsageError | None:
    """The command line library's own error as one of ours; None for any other."""
    if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):  # its class moves between versions
        return None
    context = getattr(error, "ctx", None)
    if context is not None and hasattr(error, "possibilities"):  # of an option that there is not
        from transformer_cli.cli.unknown import option_error

        there = [name for parameter in context.command.params for name in parameter.opts]
        return option_error(getattr(error, "option_name", ""), context.command_path, there)
    message = _in_our_words(error)
    return UsageError(message, hint=_usage_hint(message, context))


def _in_our_words(error: Any) -> str:
    """What the command line library says, but for what it has from pydantic."""
    if hasattr(error.__cause__, "errors"):
        from transformer_cli.config.complaints import complaint

        error.message = "; ".join(map(complaint, error.__cause__.errors()))
    return str(error.format_message())


def _usage_hint(message: str, context: typer.Context | None) -> str | None:
    """What to type instead; a configuration among the arguments is what most people mean by one too many."""
    if context is None:
        return None
    stray = re.search(r"unexpected extra argument.*?([^\s()]+\.ya?ml)\b", message)
    if stray and any("--config" in parameter.opts for parameter in context.command.params):
        return f"a configuration is named by -c: {context.command_path} -c {stray[1]}"
    apart = next((one for one in context.params.get("overrides") or () if "=" not in one), None)
    if apart and (value := re.search(r"unexpected extra argument.* \((\S+)\)$", message)):
        return f"a setting and its value are one word: --set {apart}={value[1]}"
    return f"`{context.command_path} --help` shows what is possible."


def _is_nowhere() -> bool:
    """Whether the folder that the program works in was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _may_be_of_memory(error: Exception) -> bool:
    """An extension has not looked at what it was given; or oneDNN, which does not say why, had no room for code."""
    return isinstance(error, SystemError) or "could not create a primitive" in str(error)
