"""What can go wrong, by kind; each kind has its exit code."""

from __future__ import annotations


class TxError(Exception):
    """A failure that a user can understand and mend: what, where, what was expected, what to do.

    message: a sentence or several lines. hint: what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, whatever its class is made of: what a process raises, another one is told."""
        return _again, (type(self), self.args), vars(self)


class UsageError(TxError):
    """The command line or the configuration asks for something that cannot be done."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration with mistakes; the message lists all of them with their places."""


class DataError(TxError):
    """Text that is missing, unreadable, misaligned or empty."""

    exit_code = 3


class ModelError(TxError):
    """A run, checkpoint or tokenizer that is missing, damaged or another one than expected."""

    exit_code = 4


class ResourceError(TxError):
    """A missing extra, device, font, or room on disk or in memory."""

    exit_code = 5


class DivergedError(TxError):
    """The numbers are no longer finite."""

    exit_code = 6


class ToldError(TxError):
    """Another process has said why all of them end."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


class Interrupted(TxError):
    """A signal asked the program to stop; what had to be saved is saved. hint: the command that goes on."""

    is_undone = False
    """Whether nothing of it is left: a run had not begun that was to replace another."""

    def __init__(self, message: str, *, signal_number: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signal_number


def _again(kind: type[TxError], arguments: tuple[object, ...]) -> TxError:
    return kind.__new__(kind, *arguments)
