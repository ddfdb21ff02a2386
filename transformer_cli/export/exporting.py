"""A run becomes another engine's model: written aside, translated with, compared, and only then there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from transformer_cli import __version__, files
from transformer_cli.checkpoints.store import OpenedRun, refuse_here
from transformer_cli.config import elsewhere
from transformer_cli.config.expectations import nearest
from transformer_cli.errors import DataError, ModelError, UsageError
from transformer_cli.export.card import card
from transformer_cli.export.comparison import TOLERANCE, Comparison, Probe, compare
from transformer_cli.export.formats import FORMATS, Format
from transformer_cli.tokenizer import EOS, tag_of
from transformer_cli.wording import counted

LINES = 100
"""Of the text to compare on, at most."""
STEPS = 200
"""Of a translation to compare, at most."""
COMPARISON = "comparison.json"
"""What an exported directory keeps of the comparison."""
CARD = "README.md"


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares: `rounded`, of quantised weights, by `engine`; `exact` by `exact_engine`,
    which may compute in another precision."""

    format: str
    place: Path
    engine: str
    exact_engine: str
    quantization: str | None
    exact: Comparison
    rounded: Comparison | None

    def as_json(self) -> dict[str, Any]:
        """The content of comparison.json."""
        return {
            "format": self.format,
            "tx": __version__,
            "engine": self.engine,
            "quantization": self.quantization,
            "tolerance": TOLERANCE,
            "exact": self.exact.as_json(),
            "rounded": None if self.rounded is None else self.rounded.as_json(),
        }


def check_format(name: str, quantization: str | None) -> Format:
    """The format of that name. UsageError where there is none, or where it has no such quantisation."""
    if name not in FORMATS:
        meant = elsewhere.export_format(name, FORMATS.names) or nearest(name, FORMATS.names)
        hint = f"did you mean {meant}?" if meant else f"choose one of {', '.join(FORMATS.names)}"
        raise UsageError(f"there is no format {name!r}", hint=hint)
    made: Format = FORMATS.load(name)()
    if quantization is not None and quantization not in made.quantizations:
        known = ", ".join(made.quantizations)
        raise UsageError(
            f"--quantization: {name} knows no {quantization!r}",
            hint=f"choose one of {known}" if known else f"{name} has fp32 only",
        )
    return made


def check_place(place: Path) -> None:
    """UsageError where something is there, or a link, which no directory replaces, or where a `..` follows a name;
    ResourceError where nothing can be written."""
    named = dropwhile(lambda part: part in ("..", place.anchor), place.parts)
    if place.is_symlink() or ".." in named:  # whose folders are made for it, those that it leaves again, too
        raise UsageError(
            f"{files.shown(place)} is a link or goes up by `..`", hint="name the directory itself, which need not exist"
        )
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise UsageError(
            f"{files.shown(place)} is there already: an export never replaces anything",
            hint="name another directory, or delete this one",
        )
    refuse_here(place, option="-o")
    files.check_directory(place)


def export(
    run: OpenedRun, name: str, place: str | Path, *, lines: Sequence[str], quantization: str | None = None
) -> Exported:
    """Write the run in this format into a new directory, once the other engine has said the same.

    run: opened, in fp32 on the CPU. lines: source text to compare on. quantization: what weights are rounded to; the
    unrounded ones are compared first, so that what rounding costs is known from what is wrong.
    Raises UsageError with every reason why the format cannot hold this model; ModelError where the engines differ, and
    then nothing is left behind; ResourceError where the engine is not installed.
    """
    place = Path(place)
    format = check_format(name, quantization)
    check_place(place)
    if refusals := format.refusals(run):
        others = [other for other in FORMATS.names if not FORMATS.load(other)().refusals(run)]
        raise UsageError(
            f"{name} cannot hold this model:\n" + "\n".join(f"  {reason}" for reason in refusals),
            hint=f"{' and '.join(others)} can" if others else "no format can: only tx reads such a model",
        )
    probe = probe_of(run, lines)
    with files.atomic_directory(place) as aside:
        exact_place = aside / "exact" if quantization else aside
        if quantization:
            files.make_directory(exact_place)
        format.write(run, exact_place, quantization=None)
        exact_engine, exact = _compared(run, format, exact_place, probe, rounded=False)
        engine, rounded = exact_engine, None
        if quantization:
            files.remove(exact_place)
            format.write(run, aside, quantization=quantization)
            engine, rounded = _compared(run, format, aside, probe, rounded=True)
        found = Exported(name, place, engine, exact_engine, quantization, exact, rounded)
        files.write_json(aside / COMPARISON, found.as_json())
        tags = {format.typed(tag_of(language), run): id for language, id in run.tokenizer.tags.items()}
        files.write_text(aside / CARD, card(run, found.engine, rounded or exact, usage=format.usage(run), tags=tags))
    return found


def probe_of(run: OpenedRun, lines: Sequence[str]) -> Probe:
    """At most LINES of these lines, spread over all of them, that the model can read at once. DataError for none."""
    encoded = run.tokenizer.encode_source(lines)
    end = [EOS] * run.config.data.source_eos
    room = min(filter(None, (run.config.data.max_length, run.config.model.room("encoder"))))
    usable = [
        (line, ids + end) for line, ids in zip(lines, encoded, strict=True) if ids and len(ids) + len(end) <= room
    ]
    if not usable:
        raise DataError("there is no line to compare the engines on", hint="name a text with -i; a few lines will do")
    n = min(LINES, len(usable))
    chosen = [usable[place * len(usable) // n] for place in range(n)]
    texts, sources = zip(*chosen, strict=True)
    steps = min(STEPS, 2 * max(map(len, sources)) + 10)
    room_there = run.config.model.room("decoder")
    decoding = run.config.decoding
    return Probe(
        texts=texts,
        sources=sources,
        limit=steps if room_there is None else min(steps, room_there),
        beam_size=decoding.beam_size,
        length_penalty=decoding.length_penalty if decoding.length_penalty_family == "power" else 1.0,
    )


def _compared(run: OpenedRun, format: Format, place: Path, probe: Probe, *, rounded: bool) -> tuple[str, Comparison]:
    """The engine's name, and how it compares; ModelError where it differs."""
    engine = format.open(run, place)
    found = compare(run, engine, probe)
    if complaints := found.complaints(rounded=rounded):
        raise ModelError(
            f"{engine.name} does not say what tx says, on {counted(len(probe.sources), 'lines')}:\n"
            + "\n".join(f"  {complaint}" for complaint in complaints),
            hint="nothing was written; please report it, with both versions and the run's `model:`"
            if not rounded
            else "nothing was written; a finer quantization, or none, keeps more",
        )
    return engine.name, found
