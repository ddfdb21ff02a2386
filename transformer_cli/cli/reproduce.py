"""`tx reproduce`: does a result hold?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli import environment
from transformer_cli.cli import console, options
from transformer_cli.cli.options import MODEL, Json, Overrides, Quiet, Traceback
from transformer_cli.cli.results import check_suffix, refuse_own_input
from transformer_cli.config.names import typed
from transformer_cli.errors import Interrupted, ModelError, UsageError
from transformer_cli.files import json_line, shown
from transformer_cli.training.durations import spelled
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.config.run import RunConfig
    from transformer_cli.training.reproduction import KeptRun, Results, Verdict


def reproduce(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            autocompletion=options.models,
            help="A configuration with results beside it, or a run; with -o, runs.",
        ),
    ] = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            "--run-dir",
            metavar="DIR",
            rich_help_panel=MODEL,
            help="The run's directory; runs/NAME-again when not given.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, metavar="N", rich_help_panel=MODEL, help="Use another seed.")
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Train nothing; write these runs' results to a file."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Train and evaluate again, and check whether a result holds.

    The results of a configuration NAME.yaml lie beside it, in NAME.results.json: its settings, the sha256 of each text,
    versions, seeds, machine, and scores with signatures. Text or settings that have changed since are refused. A score
    holds if it is as close to the mean of those runs as another one should be: within three standard deviations, or
    within the bootstrap's 95 % margin if that is more or there is only one run. If a score does not hold, the exit code
    is 4.

    -o writes your own results, from finished runs that `tx evaluate` has scored: several, each with its own seed, are
    worth more than one.

    Examples:
      tx reproduce multi30k-de-en.yaml
      tx reproduce runs/mine --run-dir runs/again --seed 7
      tx reproduce runs/a runs/b runs/c -o mine.results.json
    """
    if not recipes:
        raise UsageError("which result?", hint="for example: tx reproduce multi30k-de-en.yaml")

    from transformer_cli.training import reproduction

    if output is not None:
        if run_dir is not None or seed is not None or overrides:
            raise UsageError(
                "-o trains nothing, and takes no --run-dir, --seed or --set", hint="it writes the results of these runs"
            )
        path = Path(output)
        check_suffix(path, ".json", hint="mine.results.json for mine.yaml")
        refuse_own_input(path)
        found = reproduction.collect(recipes)
        reproduction.write(found, path)
        _tell_claims(found)
        console.say(f"wrote {shown(path)}")
        return
    if len(recipes) > 1:
        raise UsageError(f"{len(recipes)} results are named, but one is tried at a time", hint="only -o takes several")
    config, results = _opened(recipes[0], [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])])
    place = Path(run_dir or f"runs/{config.name}-again")
    if place.resolve() == _directory(recipes[0]):
        raise UsageError(f"{shown(place)} would be its own second run", hint="--run-dir names another directory")
    if changed := results.changed(config):
        raise UsageError(
            "the results are of other settings:\n" + "\n".join(f"  {line}" for line in changed),
            hint="say what was said then, in the configuration or by --set",
        )
    if (then := results.runs[0].processes) != (here := environment.place().size):
        raise UsageError(
            f"the results are of training by {counted(then, 'processes')}, not by {here}: an update learns from as "
            "many times as much text",
            hint=f"tx train --processes {then} -c {typed(recipes[0])}, tx evaluate, and look at the scores",
        )
    results.check_tokenizer(config)
    with console.pulse.doing("reading the text"):
        results.check_text(_digests(config))
    _tell_claims(results)
    _tell_circumstances(results)
    console.say(f"training {shown(place)}")

    from transformer_cli.cli.evaluate import evaluate
    from transformer_cli.cli.live import listener
    from transformer_cli.training.run import train

    try:
        with listener() as listening:
            outcome = train(config, place, listener=listening)
    except Interrupted as end:
        end.hint = "the same command goes on with it"
        raise
    if outcome.was_finished:
        console.say(f"{shown(place)} was trained already; --run-dir names another directory")
    with console.collected():
        evaluate([str(place)], json_output=True)
    run = reproduction.scored(place)
    _tell_parent(results, run)
    found_again = reproduction.verdicts(results, run)
    with console.more_than_results():
        _show(found_again, results, run, as_json=json_output)
    if failed := [one for one in found_again if not one.holds]:
        raise ModelError(
            f"{len(failed)} of {len(found_again)} scores do not hold",
            hint=f"tx compare {typed(place)} with a run that has them; --seed N tries another draw",
        )


def _directory(recipe: str) -> Path:
    """Of a run that is named, or a checkpoint of one."""
    from transformer_cli.checkpoints.find import find_run

    return (find_run(recipe) if Path(recipe).is_dir() else Path(recipe)).resolve()


def _opened(recipe: str, overrides: Sequence[str]) -> tuple[RunConfig, Results]:
    """A configuration, and what its runs came to; of a run, itself."""
    from transformer_cli.training import reproduction

    if Path(recipe).is_dir():
        from transformer_cli.checkpoints.record import read_config

        return read_config(_directory(recipe), overrides), reproduction.collect([recipe])
    from transformer_cli.config.source import find_config, load_config

    path = find_config(recipe)
    results = path.with_name(path.stem + reproduction.SUFFIX)
    if not results.is_file():
        raise ModelError(
            f"{path.name} has no results beside it: {results.name} is not there",
            hint="train and evaluate it, then `tx reproduce RUN -o FILE` writes them; or name a run itself",
        )
    return load_config(recipe, overrides, to_train=True), reproduction.read(results)


def _digests(config: RunConfig) -> dict[str, str]:
    """Of each text as a run uses it."""
    from transformer_cli.data.corpus import load_both, load_tests

    train, valid = load_both(config.data)
    tests = {f"test set {name}": corpus.sha256 for name, corpus in load_tests(config.data).items()}
    return {"train": train.sha256, **({} if valid is None else {"valid": valid.sha256}), **tests}


def _tell_claims(results: Results) -> None:
    for claim in results.claims():
        runs = f"{claim.n} runs" if claim.n > 1 else "one run"
        console.say(f"{claim.test}: {claim.name} {claim.value:.2f} ± {claim.tolerance:.2f}, of {runs}")


def _tell_circumstances(results: Results) -> None:
    """How long it took there, and what is another version here."""
    from transformer_cli.checkpoints.record import other_versions

    first = results.runs[0]
    machine = ", ".join(str(first.machine[key]) for key in ("device", "precision") if key in first.machine)
    console.say(f"{spelled(max(run.elapsed_s for run in results.runs))} of training then, on {machine}")
    if others := other_versions(first.versions):
        console.say(f"other versions: {others}")


def _tell_parent(results: Results, run: KeptRun) -> None:
    """Where it began with other weights than those that the results are of."""
    then = {one.init_from.sha256 for one in results.runs if one.init_from is not None} - {None}
    if run.init_from is not None and then and run.init_from.sha256 not in then:
        console.warn(
            f"{run.init_from.checkpoint}, which it begins with, has other weights than then, by sha256: "
            "trained on another machine, or otherwise"
        )


def _show(found: Sequence[Verdict], results: Results, run: KeptRun, *, as_json: bool) -> None:
    if as_json:
        kept = run.model_dump(mode="json", include={"seed", "versions", "machine", "elapsed_s"})
        scores = [one.as_json() for one in found]
        console.result(json_line({"holds": all(one.holds for one in found), **kept, "scores": scores}))
        return
    from transformer_cli.cli.tables import Column, Table, show

    rows = []
    for one in found:
        now, says = "", "not there, or another metric by its signature"
        if one.found is not None:
            now, says = f"{one.found:.2f}", "holds" if one.holds else "does not hold"
        rows.append((one.claim.test, one.claim.name, f"{one.claim.value:.2f} ± {one.claim.tolerance:.2f}", now, says))
    numbers = (Column("then", "right"), Column("now", "right"))
    show([Table("", (Column("set"), Column("score"), *numbers, Column("")), tuple(rows))])
    console.result("")
    for signature in dict.fromkeys(one.claim.signature for one in found):
        console.result(signature)
    for twin in results.runs:
        if twin.seed == run.seed:
            same = "all scores are the same" if twin.values == run.values else "not the same"
            console.result(f"seed {run.seed} was tried then, too: {same} to the last digit")
