"""`tx train`: from text to a model."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Json, Overrides, Quiet, RunDir, Strict, Traceback
from transformer_cli.config.names import typed
from transformer_cli.environment import place
from transformer_cli.errors import Interrupted, ModelError, ResourceError, UsageError
from transformer_cli.files import json_line, shown
from transformer_cli.training.durations import hours_of, spelled
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.training.expense import Disk, Preparing
    from transformer_cli.training.forecast import Forecast
    from transformer_cli.training.outcome import Outcome
    from transformer_cli.training.rehearsal import Length

MORE = {
    "max_epochs": "raise training.max_epochs",
    "patience": "raise training.patience",
    "mean": "lower training.stop_loss",
    "budget": "raise training.budget",
}
"""What lets a finished run go on, by the first word of why it ended."""
ONCE = "/dev/stdin", "/dev/fd/", "/proc/"
"""What a process has that its children have not."""


def train(
    config: Config = None,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start anew; the existing run is deleted as soon as the new one begins."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check configuration and text, and say what would happen and how long it would take."
        ),
    ] = False,
    timed: Annotated[
        bool,
        typer.Option(
            "--time",
            help="With --dry-run: tell the time from all of the text and whole updates, not from parts.",
        ),
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="Train with this many processes on this machine.")
    ] = 1,
    max_time: Annotated[
        str | None,
        typer.Option("--max-time", metavar="TIME", help="Save and stop after this many hours: 11.5, or 11:30:00."),
    ] = None,
    strict: Strict = False,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Train a model, or continue one that was stopped: the same command does both.

    Trains the tokenizer if there is none, encodes the text, trains, validates by loss and by BLEU of real translations,
    and keeps the best and the last checkpoints. When a run begins, your text is checked, if it has at most 200,000
    pairs or with --dry-run or --strict: for pairs that are repeated, misaligned, identical on both sides, of odd
    lengths or in two texts at once, and for invisible characters.

    Examples:
      tx train -c tiny.yaml
      tx train -c tiny.yaml --dry-run
      tx train -c tiny.yaml --run-dir runs/wider --set model.d_model=256
    """
    from transformer_cli.cli.live import listener, stages
    from transformer_cli.config.source import find_config, load_config

    began = time.monotonic()
    if place().rank:  # the main process speaks
        console.be_quiet()
    if config is None:
        raise UsageError("which configuration?", hint="for example: tx train -c tiny.yaml")
    if timed and not dry_run:
        raise UsageError("--time goes with --dry-run", hint="training itself says how long it takes")
    hours = [] if max_time is None else [f"training.max_hours={hours_of(max_time)!r}"]
    loaded = load_config(config, [*(overrides or []), *hours], to_train=True)
    directory = Path(run_dir or f"runs/{loaded.name}")
    if processes > 1 and place().size == 1:
        from transformer_cli.cli.processes import check_room, run_all

        check_room(processes)
        if os.path.abspath(path := find_config(config)).startswith(ONCE) or not path.is_file():
            raise UsageError(
                f"--processes: each process reads {config}, which can be read once",
                hint="save the configuration as a file first",
            )
        raise typer.Exit(run_all(processes, [sys.executable, "-P", "-m", "transformer_cli", *sys.argv[1:]]))
    if processes not in (1, place().size):
        raise UsageError(f"--processes {processes}, but WORLD_SIZE is {place().size}", hint="give one of them")
    if run_dir is None and not any(override.startswith("name=") for override in overrides or ()):
        _tell_of_another(find_config(config), directory)
    if dry_run:
        from transformer_cli.training.forecast import forecast

        with stages() as stage:
            found = forecast(loaded, directory, overwrite=overwrite, timed=timed, stage=stage)
        if not place().rank:
            with console.more_than_results():
                _show(found, as_json=json_output, strict=strict)
        return
    console.say(f"training {shown(directory)}")  # torch takes a while

    from transformer_cli.training.run import train

    try:
        with listener() as listening:
            outcome = train(loaded, directory, overwrite=overwrite, strict=strict, listener=listening, since=began)
    except Interrupted as end:
        end.hint = _command(config, overrides or [], run_dir, processes, max_time, overwrite=end.is_undone)
        raise
    if place().rank:
        return
    if json_output:
        console.result(json_line(outcome.as_json()))
        return
    if outcome.was_finished:
        above = f"raise training.max_steps above {outcome.steps:,}"
        usual = above if loaded.training.budget is None else "raise training.budget"
        more = MORE.get(outcome.reason.partition(" ")[0].rstrip(":"), usual)
        console.say(f"already finished after step {outcome.steps:,} ({outcome.reason}); {more} to go on")
    else:
        console.say(f"finished after step {outcome.steps:,}: {outcome.reason}")
    _tell_scores(outcome)
    console.say(f"best checkpoint: {shown(outcome.best)}")
    named = "" if _is_default(outcome) else f" -m {typed(directory)}"
    line, to = outcome.example
    words = f"{f'--to {shlex.quote(to)} ' if to else ''}{'-i FILE' if line is None else _quoted(line)}"
    valid = "" if loaded.data.tests else " --valid"  # there is nothing else to score
    console.say(f"next: {program()} evaluate{named}{valid}", to_paste=True)
    console.say(f"      {program()} translate{named} {words}", to_paste=True)


def _tell_scores(outcome: Outcome) -> None:
    """How the validations went, as a curve."""
    from transformer_cli.cli.live import MOST_SCORES, sparkline

    scores = outcome.scores[-MOST_SCORES:]
    if len(scores) > 1:
        ends = f"{scores[0]:.2f} to {scores[-1]:.2f}"
        console.say(f"{outcome.score_name} {sparkline(scores)} {ends}, best {outcome.score:.2f}")


def _tell_of_another(path: Path, directory: Path) -> None:
    """That the configuration is a run's own, where it is another run that is trained: it was renamed, or lies
    elsewhere."""
    from transformer_cli.checkpoints.find import is_run

    own = path.parent
    if path.name == "config.yaml" and is_run(own) and os.path.realpath(own) != os.path.realpath(directory):
        console.warn(
            f"{shown(path)} is the configuration of a run, and {shown(directory)} is what is trained: "
            f"--run-dir {typed(own)} goes on with that run"
        )


def program() -> str:
    """What to type for `tx`: where that is on no path, as in `scripts/demo`, the file that was run."""
    runs_as = Path(sys.argv[0])
    return "tx" if shutil.which("tx") or runs_as.name != "tx" else shlex.quote(shown(runs_as))


def _command(
    config: str, overrides: list[str], run_dir: str | None, processes: int, max_time: str | None, *, overwrite: bool
) -> str:
    """What goes on with the run. overwrite: it has not begun, and another one is there again; else that would begin
    anew."""
    options = ["-c", config, *(word for override in overrides for word in ("--set", override))]
    options += ["--run-dir", run_dir] if run_dir else []
    options += ["--processes", str(processes)] if processes > 1 else []
    options += ["--max-time", max_time] if max_time else []
    options += ["--overwrite"] if overwrite else []
    return f"{program()} train {shlex.join(options)}"


def _is_default(outcome: Outcome) -> bool:
    """Whether the other commands take this run when none is named."""
    from transformer_cli.checkpoints.find import find_checkpoint

    try:
        return find_checkpoint(None).resolve() == outcome.best.resolve()
    except ModelError:
        return False


def _quoted(text: str) -> str:
    """As one word for the shell: in double quotes, as people write, where nothing in it means anything to a shell."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def _show(found: Forecast, *, as_json: bool, strict: bool) -> None:
    """What would happen, and what is suspicious."""
    from transformer_cli.cli.parameter_tables import binary
    from transformer_cli.cli.tables import Column, Table, show
    from transformer_cli.data.checks import refuse
    from transformer_cli.training.schedules import peak_in_words

    if as_json:
        console.result(json_line(found.as_json()))
    else:
        sizes = []
        for name, size in found.texts.items():
            sizes.append((name, f"{size.pairs:,}", f"{size.source_words:,}", f"{size.target_words:,}"))
            sizes += [(f"  {part}", f"{pairs:,}", "", "") for part, pairs in size.parts.items()]
        headings = ("pairs", "source words", "target words")
        show([Table("", (Column("text"), *(Column(name, "right") for name in headings)), tuple(sizes))])
        source, target = found.pieces
        pieces = f"{source:,}" if source == target else f"{source:,} + {target:,}"
        at_most = "at most " * found.tokenizer.endswith("to be trained")
        facts = {
            "tokenizer": f"{found.tokenizer}, {at_most}{pieces} pieces",
            "parameters": f"{at_most}{found.parameters:,}",
            "rate": peak_in_words(found.peak_step, found.peak_rate),
            "machine": ", ".join(
                [f"{key} {found.machine[key]}" for key in ("device", "precision", "attention", "threads")]
                + ["compiled"] * found.machine["compiled"]
            ),
            "run": f"{found.run}: {_would(found)}",
        }
        if found.disk is not None and found.preparing is not None:
            facts |= {"disk": _on_disk(found.disk), "preparing": _before(found.preparing)}
        if (length := found.length) is not None:
            if (n := length.n_epochs) is not None:
                often = f"{n:.2g}" if n < 10 else f"{n:,.0f}"
                facts["epochs"] = f"about {often}: so many times the text is learned from"
            each = f", of each of {n} processes" if (n := len(length.memory)) > 1 else ""
            facts["memory"] = (
                f"at most {binary(max(length.memory))} in an update{each}; validating and saving take some more"
            )
            facts["time"] = f"{_takes(length)}; training ends {length.ends}"
        console.result("")
        for name, fact in facts.items():
            console.result(f"{name:<11} {fact}")
        console.result(f"suspicious  {len(found.findings) or 'nothing'}")
        for finding in found.findings:
            console.result(f"  {finding}")
    for words in filter(None, (found.beside, found.warning)):
        console.warn(words)
    if found.rewriting:
        console.warn(f"validation text: {found.rewriting}")
    if strict:
        refuse(found.findings)
    if found.disk is not None and found.disk.needed > found.disk.free:
        raise ResourceError(
            f"{found.run} would have no room: {_size(found.disk.needed)} are still to be written there, "
            f"{_size(found.disk.free)} are free",
            hint="free some space on that disk, name another with --run-dir, or keep fewer checkpoints "
            "(training.keep_best, training.keep_last)",
        )


def _on_disk(disk: Disk) -> str:
    """What a run takes of it, and what is free."""
    parts = [
        f"text {_size(disk.text)}",
        f"{counted(disk.checkpoints, 'checkpoints')} of {_size(disk.checkpoint)} at most",
        f"tokenizer {_size(disk.tokenizer)}",
    ]
    there = f", {_size(disk.there)} of it there" if disk.there else ""
    return f"about {', '.join(parts)}{there}; {_size(disk.free)} free"


def _before(preparing: Preparing) -> str:
    """How long it takes until there can be an update."""
    parts = {"reading": preparing.reading, "tokenizer": preparing.tokenizer, "encoding": preparing.encoding}
    named = ", ".join(f"{name} {spelled(seconds)}" for name, seconds in parts.items() if seconds)
    return f"about {spelled(preparing.seconds)}: {named}"


def _takes(length: Length) -> str:
    """How long training takes, and what that is told from."""
    if length.left is None:
        return "too short to be timed"
    parts = "parts of " * length.of_parts
    basis = f"from {parts}{counted(length.n_timed, 'updates')}, of {counted(length.of_pairs, 'pairs')}"
    return f"{length.left.in_words()}, estimated {basis}"


def _size(n_bytes: int) -> str:
    """In the units of disks."""
    unit, size = next(((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6)) if n_bytes >= size), ("kB", 1e3))
    return f"{n_bytes / size:,.1f} {unit}"


def _would(found: Forecast) -> str:
    if found.replaces:
        return "would be deleted, and a new one trained"
    if found.finished:
        return f"finished after step {found.step:,} ({found.finished}); nothing would be done"
    first = ", whose validation comes first" if found.owes_validation else ""
    return f"would continue after step {found.step:,}{first}" if found.step else "would be trained anew"
