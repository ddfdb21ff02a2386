"""What commands share that need a trained model: finding the run that -m, -c or neither means, and opening it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli import console
from transformer_cli.cli.options import refuse_two_runs
from transformer_cli.files import shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.config.run import RunConfig
    from transformer_cli.decoding.texts import TextTranslator


def open_trained(
    model: str | None, config: str | None, overrides: Sequence[str] | None, *, precise: bool = False
) -> tuple[OpenedRun, RunConfig]:
    """The run with its best weights, and its configuration with the overrides on top.

    precise: in fp32 whatever the run says, unless the overrides name a precision. Raises UsageError for both -m and -c;
    ModelError, saying what to type and before torch is imported, where there is no such run.
    """
    [opened], settings = open_several(None if model is None else [model], config, overrides, precise=precise)
    return opened, settings


def open_several(
    models: Sequence[str] | None, config: str | None, overrides: Sequence[str] | None, *, precise: bool = False
) -> tuple[list[OpenedRun], RunConfig]:
    """The runs with their best weights, and the first one's configuration with the overrides on top; see above."""
    finders, origin = _finders(models, config, overrides)

    from transformer_cli.loading import settings_of

    opened = _opened(finders, origin)
    settings = settings_of(opened[0], [*(["precision=fp32"] if precise else []), *(overrides or ())])
    _tell_precision(opened[0], settings)
    return opened, settings


def open_translator(
    models: Sequence[str] | None,
    config: str | None,
    overrides: Sequence[str] | None,
    *,
    also: Sequence[str] = (),
    **search: Any,
) -> tuple[TextTranslator, Sequence[KnownRun], RunConfig]:
    """What translates, by the engine that `decoding.engine` means, of which runs, under which configuration.

    also: what is asked for that only tx itself has. search: what the command line says of it, as in SearchOptions.of.
    """
    finders, origin = _finders(models, config, overrides)

    from transformer_cli import engines
    from transformer_cli.checkpoints.known import open_found, open_known
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.loading import settings_of

    known = [open_found(find, open_known) for find in finders]
    settings = settings_of(known[0], overrides or ())
    options = SearchOptions.of(settings.decoding, seed=settings.seed, **search)
    obstacles = [*also, *engines.obstacles(known, settings, options)]
    beam = f"a beam of {options.beam_size}"
    if is_wanted := engines.is_wanted(settings, options, obstacles):
        _tell_model(known[0], origin)
        if (translator := engines.engine_of(known[0], settings, tell=console.say)) is not None:
            console.say(f"engine: {translator.name}")
            if engines.differs(options):
                console.warn(f"CTranslate2 prunes {beam} otherwise than tx: now and then it finds another translation")
            return translator, known, settings
    from transformer_cli.loading import translator_of

    opened = _opened(finders, None if is_wanted else origin)
    if settings.decoding.engine == "auto" and engines.is_installed() and not is_wanted:
        reasons = [*obstacles, *([beam] if engines.differs(options) else [])]
        console.say(f"engine: native; CTranslate2 differs with {', '.join(reasons)}")
    _tell_precision(opened[0], settings)
    tell_compiler(opened, settings)
    return translator_of(opened, settings), opened, settings


def _finders(
    models: Sequence[str] | None, config: str | None, overrides: Sequence[str] | None
) -> tuple[list[Callable[[], Path]], str]:
    """What finds the checkpoint of each run, which is there, and what to say of a run that nobody named."""
    from transformer_cli.checkpoints.find import find_checkpoint, run_of
    from transformer_cli.config.source import load_config

    refuse_two_runs(models, config)
    wanted = load_config(config, overrides or ()) if config is not None else None
    names: Sequence[str | None] = models or [None]
    if len(names) > 1:
        console.say(f"an ensemble of {len(names)} models, which translate together:")
    origin = tell_default() if names == [None] and wanted is None else ""
    finders = [partial(find_checkpoint, model, config=wanted, config_path=config) for model in names]
    for model, find in zip(names, finders, strict=True):
        checkpoint = find()  # an error that takes no torch to be told
        if model is None or Path(model).resolve() != checkpoint.resolve():  # whoever names one means that one
            tell_unfinished(run_of(checkpoint))
    return [*finders], origin


def _opened(finders: Sequence[Callable[[], Path]], origin: str | None) -> list[OpenedRun]:
    """The runs, each told once it is open. origin: None where that was told before."""
    from transformer_cli.checkpoints.known import open_found
    from transformer_cli.checkpoints.store import open_run

    opened = []
    for find in finders:
        with console.pulse.doing("opening the model"):
            opened.append(run := open_found(find, open_run))
        if origin is not None:
            _tell_model(run, origin)
    return opened


def _tell_model(run: KnownRun, origin: str) -> None:
    console.say(f"model: {shown(run.checkpoint)}, {run.languages}{origin}")


def _tell_precision(run: KnownRun, settings: RunConfig) -> None:
    """Where it is not the one that the run was trained in, or one that this processor lacks."""
    from transformer_cli.loading import machine_of
    from transformer_cli.machine import CONFIGURED

    machine, kept = machine_of(run, settings), run.record.get("machine", {})
    if machine.reason not in (CONFIGURED, kept.get("reason")):
        trained = f"trained on {kept.get('device')} in {kept.get('precision')}, " if kept else ""
        console.say(f"{trained}now on {machine.device} in {machine.precision}: {machine.reason}")


def tell_compiler(runs: Sequence[OpenedRun], settings: RunConfig) -> None:
    """Where it fails, of what tx itself is to translate by; it compiles what it never did here."""
    from transformer_cli.loading import machine_of
    from transformer_cli.model.compiled import code_to_keep
    from transformer_cli.model.compiled_steps import suits

    if machine_of(runs[0], settings).kind != "cpu" or not any(suits(run.model) for run in runs):
        return
    with console.pulse.doing("compiling for this processor"):
        trouble = code_to_keep().trouble
    if trouble:
        said = f"this is slower than it could be, for the C++ compiler failed (CXX= leaves it out): {trouble}"
        console.warn(said, even_collected=True)


def tell_default() -> str:
    """What to say of the run that is taken where none is named: ", latest of 5 runs", or "" for the only one.

    Warns where it is not the latest one; ModelError where there is none.
    """
    from transformer_cli.checkpoints.find import default_run, list_checkpoints
    from transformer_cli.checkpoints.standing import standing_of

    default = default_run()
    if default.passed_over is None:
        return f", latest of {default.n_runs:,} runs" if default.n_runs > 1 else ""
    latest = shown(default.passed_over)
    if list_checkpoints(default.passed_over):
        why = f" ({standing_of(default.passed_over) or 'never validated'}), which -m {latest} would take"
    else:
        why = ", which has no checkpoint"
    console.warn(f"{shown(default.path)} is taken, not the latest run, {latest}{why}", even_quiet=True)
    return f", one of {default.n_runs:,} runs"


def tell_unfinished(run_dir: Path) -> None:
    """Even when quiet: a translation by such a model reads like any other."""
    from transformer_cli.checkpoints.standing import standing_of

    standing = standing_of(run_dir)
    if standing is not None and not (standing.is_finished and standing.is_validated):
        console.warn(f"{shown(run_dir)} is at {standing}", even_quiet=True)
