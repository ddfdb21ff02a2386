"""`tx average`: the mean of checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli import console, options
from transformer_cli.cli.options import Json, Quiet, Traceback
from transformer_cli.cli.results import refuse_inside_a_run
from transformer_cli.config.names import typed
from transformer_cli.errors import ModelError, ResourceError, UsageError
from transformer_cli.files import atomic_file, json_line, read_bytes, shown
from transformer_cli.wording import counted


def average(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN", autocompletion=options.runs, help="One run, with --best or --last; or checkpoints."
        ),
    ] = None,
    best: Annotated[
        int | None, typer.Option("--best", min=1, metavar="N", help="The N best of the run, by validation.")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, metavar="N", help="The N newest of the run.")] = None,
    output_dir: Annotated[
        str | None,
        typer.Option("--output-dir", "-o", metavar="DIR", help="The new run; RUN-average when not given."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Average checkpoints into a run of its own.

    Averages the best or the last checkpoints of one run, which training keeps with training.keep_best and keep_last, or
    the checkpoints that are named. The mean is summed in fp64 and rounded once; its manifest names the parents.
    Checkpoints that do not fit together are refused; of runs that began with other weights, not with one another's
    (training.init_from), a mean is of no use as a rule, and a warning says so.

    Examples:
      tx average runs/tiny --best 5
      tx average runs/tiny --last 5 -o runs/smooth
      tx average runs/a/checkpoints/step-00000500 runs/b -o runs/a-and-b
    """
    if not runs:
        raise UsageError("which run?", hint="for example: tx average runs/tiny --last 2")
    if best is not None and last is not None:
        raise UsageError("--best and --last are two choices", hint="give one of them")
    if best is None and last is None and len(runs) < 2:
        raise UsageError("one checkpoint is its own mean", hint="name others, or give --best N or --last N of a run")
    if (best or last) and len(runs) > 1:
        raise UsageError(
            f"{len(runs)} runs are named, but --best and --last choose from one", hint="name the checkpoints themselves"
        )
    if output_dir is None and best is None and last is None:
        raise UsageError("the new run has no name: the checkpoints may be of several runs", hint="name it with -o")

    from transformer_cli.checkpoints.find import find_checkpoint, find_run, run_of
    from transformer_cli.data.fingerprints import LINES
    from transformer_cli.evaluation.words import WORD_COUNTS

    if best is not None or last is not None:
        run_dir = find_run(runs[0])
        choose = partial(_best, run_dir, best) if best is not None else partial(_last, run_dir, last or 0)
        place = Path(output_dir or _beside(run_dir, f"{run_dir.resolve().name}-average"))
    else:
        named, place = [find_checkpoint(name) for name in runs], Path(output_dir or "")
        choose = partial(list, named)
    refuse_inside_a_run(place.parent)

    from transformer_cli.checkpoints.average import average as write
    from transformer_cli.checkpoints.known import open_found

    with console.pulse.doing("averaging"):
        made, parents = open_found(choose, lambda parents: (write(parents, place, warn=console.warn), parents))
        _copy_lexicon(run_of(parents[0]), place)
        if len({run_of(parent).resolve() for parent in parents}) == 1:
            _copy(run_of(parents[0]), place, WORD_COUNTS, LINES)
    console.say(f"the mean of {', '.join(shown(parent) for parent in parents)}")
    if json_output:
        console.result(json_line({"checkpoint": str(made), "parents": [str(parent) for parent in parents]}))
        return
    console.result(str(made))
    console.say(f"next: tx evaluate -m {typed(place)}", to_paste=True)


def _beside(run_dir: Path, name: str) -> Path:
    """Of that name, where the run is; `.` and `..` have no name to be replaced."""
    return (run_dir if run_dir.name not in ("", "..") else run_dir.resolve()).with_name(name)


def _copy_lexicon(run_dir: Path, place: Path) -> None:
    """What decoding.shortlist needs and only a run with its text could learn."""
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.known import open_known
    from transformer_cli.data.lexicon import LEXICON, lexicon_of

    known = open_known(find_checkpoint(str(place)))
    if known.config.decoding.shortlist is not None:
        try:
            lexicon_of([run_dir], known.tokenizer)
        except (UsageError, ModelError, ResourceError) as failure:
            console.warn(failure.message)  # the mean is there all the same, and who translates with it is told again
            return
    _copy(run_dir, place, LEXICON)


def _copy(run_dir: Path, place: Path, *names: str) -> None:
    """What a run knows of its text, where it knows it; a mean does without, too."""
    for name in names:
        if (run_dir / name).exists():
            try:
                content = read_bytes(run_dir / name, error=ModelError)
            except ModelError as failure:
                console.warn(f"not copied to {shown(place)}: {failure.message}")
                continue
            with atomic_file(place / name) as file:
                file.write(content)


def _best(run_dir: Path, n: int) -> list[Path]:
    from transformer_cli.checkpoints.find import list_checkpoints, step_name
    from transformer_cli.checkpoints.manifest import Validated, read_validated
    from transformer_cli.checkpoints.record import read_config
    from transformer_cli.checkpoints.standing import ranked

    there = {path.name: path for path in list_checkpoints(run_dir)}
    newest = [*there.values()][-1:]
    said = read_validated(newest[0]) if newest else Validated()
    scores = said.scores
    steps = [step for step in ranked(scores, said.losses) if step_name(int(step)) in there]
    paths = [there[step_name(int(step))] for step in steps]
    found = _enough(paths, n, run_dir, "kept as best by validation", "keep_best")
    by = read_config(run_dir).training.best_by
    each = (f"{int(step):,} ({_shown(scores[step], 2 if by == 'bleu' else 3)})" for step in steps[:n])
    console.say(f"best by {'BLEU' if by == 'bleu' else by} in validation: steps {', '.join(each)}")
    return found


def _shown(score: float, digits: int) -> str:
    return f"{abs(score):.{digits}f}" if abs(score) < sys.float_info.max else "not finite"


def _last(run_dir: Path, n: int) -> list[Path]:
    from transformer_cli.checkpoints.find import list_checkpoints

    return _enough(list_checkpoints(run_dir)[::-1], n, run_dir, "", "keep_last")


def _enough(found: Sequence[Path], n: int, run_dir: Path, kind: str, setting: str) -> list[Path]:
    """The first n; ModelError where there are not so many."""
    if len(found) < n:
        there = ", ".join(path.name for path in found)
        fewer = f"--{setting.removeprefix('keep_')} {len(found)} takes all that are there; " if len(found) > 1 else ""
        kind = f" {kind}" * bool(kind)
        lacks = f"fewer than {counted(n, 'checkpoints')}{kind}: {there}" if found else f"no checkpoint{kind}"
        raise ModelError(
            f"{shown(run_dir)} has {lacks}",
            hint=f"{fewer}--set training.{setting}={n} makes training keep that many, and training.validate_every has "
            "it validate as often; a run that continues may change the first, a finished one with more max_steps",
        )
    return list(found[:n])
