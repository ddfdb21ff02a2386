"""Results as they are written: where to, as text, JSON or in Moses' format; and what is said of them in the end."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from transformer_cli.cli import console
from transformer_cli.cli.lines import Where
from transformer_cli.cli.signals import Ended
from transformer_cli.cli.unseen import UNSEEN
from transformer_cli.decoding.doubt import SHARE, UNSURE
from transformer_cli.decoding.quality import SIGNS
from transformer_cli.errors import DataError, UsageError
from transformer_cli.files import check_file, json_line, shown
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.cli.lines import Request
    from transformer_cli.decoding.translation import Translation


def refuse_own_input(output: str | Path | None, *inputs: str | Path | None, config: str | None = None) -> None:
    """UsageError where the result would replace what it is made from, or be read again, or replace a file of a run;
    ResourceError where it could not be written.

    output, inputs: files, or what they are links to; `-` and, for an output, None are the standard streams. config:
    one that is read, with all that it extends.
    """
    from transformer_cli.config.source import files_of

    output = "-" if output is None else output
    written = _identity(output, standard=1)
    for name in (*inputs, *(() if config is None else files_of(config))):
        if name is not None and written is not None and _identity(name, standard=0) == written:
            if output == "-":
                raise UsageError(
                    f"{'stdin' if name == '-' else shown(name)} is read, and is the file that stdout is written to",
                    hint="let the results go into another file",
                )
            raise UsageError(f"{shown(output)} is read and would be replaced", hint="give -o another name")
    if output != "-":
        _refuse_run_file(Path(os.path.realpath(output)))
        if not _is_device(Path(output)):
            check_file(os.path.realpath(output))


def _identity(name: str | Path, *, standard: int) -> tuple[int, int] | None:
    """What two names of one file have in common; None where there is no file, or a pipe or terminal in its place."""
    try:
        status = os.fstat(standard) if name == "-" else os.stat(name)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _refuse_run_file(path: Path) -> None:
    """path: absolute, without links."""
    from transformer_cli.checkpoints.find import RUNS
    from transformer_cli.training.replacing import FILES, FOLDERS, is_run

    for folder in path.parents:
        first, *inside = path.relative_to(folder).parts
        if first in (FOLDERS if inside else FILES) and is_run(folder):
            raise UsageError(f"{shown(path)} belongs to the run {shown(folder)}", hint="give -o another name")
    if path == Path(os.path.realpath(RUNS / "latest")):
        raise UsageError(f"{shown(path)} names the latest run", hint="give -o another name")


@contextmanager
def result_file(name: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for results: it appears, whole, when the block ends without an error, and is compressed if its name
    ends in .gz, as it is when it is read. What a link names is replaced, not the link. A pipe or device, and what
    /dev/stdout names, has at once what is written.
    """
    from gzip import GzipFile

    from transformer_cli.files import atomic_file

    path = Path(name)
    with ExitStack() as opened:
        if _is_device(path):
            if (own := _own_descriptor(path)) is None:
                descriptor = opened.enter_context(path.open("ab", buffering=0)).fileno()
            else:
                descriptor = _copied(own, path)
                opened.callback(os.close, descriptor)
            file = cast("IO[bytes]", console.Sink(descriptor, shown(path)))
        else:
            file = cast("IO[bytes]", opened.enter_context(atomic_file(os.path.realpath(path))))
        if path.suffix == ".gz":
            file = cast("IO[bytes]", opened.enter_context(GzipFile("", "wb", fileobj=file, mtime=0)))
        try:
            yield file
        except Ended:
            if not _is_device(path):
                console.say(f"{shown(path)} was not written: it would have been half of it")
            raise


def write_result(path: Path, content: bytes) -> None:
    """A whole `result_file`, and that it is there."""
    with result_file(path) as file:
        file.write(content)
    console.say(f"wrote {shown(path)} ({len(content) / 1000:,.0f} kB)")


def check_suffix(path: Path, *suffixes: str, hint: str | None = None) -> None:
    """UsageError for an output of another kind, told by its name."""
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"-o {shown(path)}: expected a name that ends in {', '.join(suffixes)}", hint=hint)


def _is_device(path: Path) -> bool:
    """Whether it is written to as it is: a pipe, a device, or an open file by its number."""
    is_special = path.exists() and not path.is_file() and not path.is_dir()
    return is_special or _DESCRIPTOR.fullmatch(str(path)) is not None


_DESCRIPTOR = re.compile(r"/dev/(?P<name>stdout|stderr)|(/dev/fd|/proc/(?P<process>self|\d+)/fd)/(?P<number>\d+)")


def _own_descriptor(path: Path) -> int | None:
    """The number of an open file of this process, which is not to be opened anew: it would begin elsewhere."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None or found["process"] not in (None, "self", str(os.getpid())):
        return None
    return ("", "stdout", "stderr").index(found["name"]) if found["name"] else int(found["number"])


def _copied(descriptor: int, path: Path) -> int:
    try:
        return os.dup(descriptor)
    except OSError as failure:  # nobody has opened it
        raise OSError(failure.errno, failure.strerror, str(path)) from failure


@contextmanager
def writer(output_file: str | None) -> Iterator[Callable[[str], object]]:
    """Takes one line at a time, for stdout or a `result_file`."""
    if output_file is None or output_file == "-":
        yield console.result
        return
    with result_file(output_file) as file:
        yield lambda line: file.write(f"{line}\n".encode())


UNSURE_OF_THIS = "the model is less sure of this translation than it usually is"


SPLIT = "--set decoding.long=split translates them in parts"
"""What to do with lines that are too long."""


class Tally:
    """What happened to how many lines."""

    def __init__(self) -> None:
        self.n_lines = self.n_empty = self.n_truncated = 0
        self.flags: Counter[str] = Counter()
        self.odd, self.unsure = Where(), Where()

    def add(self, found: Sequence[Translation]) -> None:
        for number, one in enumerate(found, start=self.n_lines + 1):
            if not set(SIGNS).isdisjoint(one.flags):
                self.odd.add(number)
            if UNSURE in one.flags:
                self.unsure.add(number)
        self.n_lines += len(found)
        self.n_empty += sum(translation.is_of_nothing for translation in found)
        self.n_truncated += sum(translation.truncated for translation in found)
        self.flags.update(flag for translation in found for flag in translation.flags)

    def tell(self, counts: Mapping[str, int]) -> None:
        """On stderr; counts: lines that were touched, by reason."""
        for reason, n in counts.items():
            console.warn(f"{n:,} x {reason}")
        of_lines, of_all = (f"of {counted(self.n_lines, what)}" for what in ("lines", "translations"))
        if self.n_empty:
            console.say(f"without text, so the translation is empty: {self.n_empty:,} {of_lines}")
        if n := self.flags["split"]:
            console.warn(f"longer than the model is used to, so translated in parts and joined: {n:,} {of_lines}")
        if n := self.flags["refused"]:
            console.warn(f"too long for the model, so the translation is empty: {n:,} {of_lines}")
        if self.n_truncated:
            console.warn(f"did not end and were cut at the longest length: {self.n_truncated:,} {of_all}")
        if signs := [f"{self.flags[flag]:,} {flag}" for flag in SIGNS if self.flags[flag]]:
            console.warn(f"look wrong, {of_all}: {', '.join(signs)} ({self.odd})")
        if (n := self.unsure.n) and (self.n_lines > 1 or not self.flags[UNSEEN]):  # a word of the one line is named
            tell = console.warn if n > 2 * SHARE * self.n_lines else console.say
            several = f"the model is less sure than it usually is of {n:,} {of_all} ({self.unsure})"
            tell(UNSURE_OF_THIS if self.n_lines == 1 else several)

    def refuse(self, limit: int | None, *, splits: bool) -> None:
        """DataError where a line was refused. limit: pieces of a source; splits: whether long lines are to be split."""
        if said := self.refusal(limit):
            raise DataError(said, hint=None if splits else SPLIT)

    def refusal(self, limit: int | None) -> str:
        """What that error says; nothing where no line was refused."""
        if not (n := self.flags["refused"]):
            return ""
        return (
            f"{n:,} of {counted(self.n_lines, 'lines')} {'has' if n == 1 else 'have'} more pieces than the model "
            f"translates at once ({limit:,}); {'its translation is' if n == 1 else 'their translations are'} empty"
        )


def as_text(number: int, request: Request, translation: Translation) -> list[str]:
    if translation.alignment is None:
        return [translation.text]
    from transformer_cli.attention_maps.alignment import pharaoh

    return [f"{translation.text} ||| {pharaoh(translation.alignment)}"]


def as_moses(number: int, request: Request, translation: Translation) -> list[str]:
    """Moses' format: line ||| text ||| features ||| score; lines are numbered from 0."""
    return [
        f"{number} ||| {one.text} ||| LogProbability= {one.log_probability:.6f} "
        f"||| {one.score if one.utility is None else one.utility:.6f}"
        for one in translation.n_best
    ]


def as_json(number: int, request: Request, translation: Translation) -> list[str]:
    """One object; fields that came with the line stay, unless they have the name of one that can be ours."""
    own = {"source": request.source, **translation.as_json()}
    kept = {name: text for name, text in request.fields.items() if name not in JSON_FIELDS or name in own}
    fields = kept | {name: json_line(value) for name, value in own.items()}
    return ["{" + ", ".join(f"{json_line(name)}: {text}" for name, text in fields.items()) + "}"]


JSON_FIELDS = frozenset(
    {
        "source",
        "translation",
        "score",
        "log_probability",
        "tokens",
        "truncated",
        "flags",
        "n_best",
        "alignment",
        "utility",
    }
)
"""Names that the input's own fields cannot keep."""


def refuse_inside_a_run(place: Path) -> None:
    """UsageError for a directory among a run's own files, which training writes and deletes."""
    from transformer_cli.training.replacing import is_run

    resolved = place.resolve()
    run = next((folder for folder in (resolved, *resolved.parents) if is_run(folder)), None)
    if run is not None:
        raise UsageError(f"{shown(place)} lies in the run {shown(run)}", hint="name a directory outside of it")
