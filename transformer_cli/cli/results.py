"""Results as they are written: where to, as text, JSON or in Moses' format; and what is said of them in the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli import console
from transformer_cli.errors import DataError, UsageError
from transformer_cli.files import json_line

if TYPE_CHECKING:
    from transformer_cli.cli.lines import Request
    from transformer_cli.decoding.translator import Candidate, Translation


def refuse_own_input(output_file: str | None, *inputs: str | Path | None) -> None:
    """UsageError where the result would replace what it is made from."""
    if output_file is None or not os.path.isfile(output_file):
        return
    if any(os.path.isfile(name) and os.path.samefile(name, output_file) for name in inputs if name is not None):
        raise UsageError(f"{output_file} is read and would be replaced", hint="give -o another name")


@contextmanager
def writer(output_file: str | None) -> Iterator[Callable[[str], object]]:
    """Takes one line at a time; a file appears only when all of them are there, a pipe or device has them at once."""
    if output_file is None or output_file == "-":
        yield console.result
        return
    from transformer_cli.files import atomic_file, shown

    path = Path(output_file)
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe or a device
        with path.open("wb", buffering=0) as opened:
            sink = console.Sink(opened.fileno(), shown(path))
            yield lambda line: sink.write(f"{line}\n".encode())
        return
    # Of a file, what a link names is replaced, and not the link.
    with atomic_file(os.path.realpath(path)) as file:
        yield lambda line: file.write(f"{line}\n".encode())


class Tally:
    """What happened to how many lines."""

    def __init__(self) -> None:
        self.n_lines = self.n_empty = self.n_truncated = 0
        self.flags: Counter[str] = Counter()

    def add(self, found: Sequence[Translation]) -> None:
        self.n_lines += len(found)
        self.n_empty += sum(translation.is_of_nothing for translation in found)
        self.n_truncated += sum(translation.truncated for translation in found)
        self.flags.update(flag for translation in found for flag in translation.flags)

    def tell(self, counts: Mapping[str, int]) -> None:
        """On stderr; counts: lines that were touched, by reason."""
        for reason, n in counts.items():
            console.warn(f"{n:,} x {reason}")
        of_all = f"of {self.n_lines:,}"
        if self.n_empty:
            console.say(f"without text, so the translation is empty: {self.n_empty:,} {of_all} lines")
        if n := self.flags["split"]:
            console.warn(f"too long for the model, so translated in parts and joined: {n:,} {of_all} lines")
        if n := self.flags["refused"]:
            console.warn(f"too long for the model, so the translation is empty: {n:,} {of_all} lines")
        if self.n_truncated:
            console.warn(f"did not end and were cut at the longest length: {self.n_truncated:,} {of_all} translations")
        signs = [f"{self.flags[flag]:,} {flag}" for flag in ("looped", "copied", "short") if self.flags[flag]]
        if signs:
            console.warn(f"look wrong, {of_all} translations: {', '.join(signs)} (--json says which)")

    def refuse(self, limit: int | None, *, splits: bool) -> None:
        """DataError where a line was refused. limit: pieces of a source; splits: whether long lines are to be split."""
        if n := self.flags["refused"]:
            raise DataError(
                f"{n:,} of {self.n_lines:,} lines have more pieces than the model translates at once ({limit:,}); "
                "their translations are empty",
                hint=None if splits else "--set decoding.long=split translates them in parts",
            )


def as_text(number: int, request: Request, translation: Translation) -> list[str]:
    if translation.alignment is None:
        return [translation.text]
    from transformer_cli.attention_maps.alignment import pharaoh

    return [f"{translation.text} ||| {pharaoh(translation.alignment)}"]


def as_moses(number: int, request: Request, translation: Translation) -> list[str]:
    """Moses' format: line ||| text ||| features ||| score; lines are numbered from 0."""
    return [
        f"{number} ||| {one.text} ||| LogProbability= {one.log_probability:.6f} ||| {one.score:.6f}"
        for one in translation.n_best
    ]


def as_json(number: int, request: Request, translation: Translation) -> list[str]:
    """One object; fields that came with the line stay, unless they have the name of one of ours."""
    fields = {
        **request.fields,
        "source": request.source,
        **_fields(translation),
        "flags": list(translation.flags),
        **({} if translation.alignment is None else {"alignment": sorted(translation.alignment)}),
        "n_best": [_fields(one) for one in translation.n_best],
    }
    return [json_line(fields)]


JSON_FIELDS = frozenset(
    {"source", "translation", "score", "log_probability", "tokens", "truncated", "flags", "n_best", "alignment"}
)
"""Names that the input's own fields cannot keep."""


def _fields(one: Candidate) -> dict[str, Any]:
    return {
        "translation": one.text,
        "score": one.score,
        "log_probability": one.log_probability,
        "tokens": list(one.tokens),
        "truncated": one.truncated,
    }
