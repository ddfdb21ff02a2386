"""Which run, and which of its checkpoints, is meant; nothing here imports torch or writes."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transformer_cli.config.names import typed
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError
from transformer_cli.files import read_text, shown
from transformer_cli.trouble import missing

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
WEIGHTS: Final = "model.safetensors"
LATEST = "latest"
POINTERS = ("best", "last")

BEFORE = "before-"
"""What the name of a checkpoint begins with while another takes its place: it is that checkpoint until then."""

_STEP = re.compile(rf"(?:{BEFORE})?(step-(\d{{8,18}}))")


def step_name(step: int) -> str:
    """The directory of a checkpoint, zero-padded so that a listing is in order too."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a directory's name says; None for a name that is not ours."""
    match = _STEP.fullmatch(name)
    if match is None or step_name(int(match[2])) != match[1]:
        return None
    return int(match[2])


def list_checkpoints(run_dir: str | Path) -> list[Path]:
    """The complete checkpoints of a run, by step; without its manifest a checkpoint does not exist."""
    folder = Path(run_dir) / CHECKPOINTS
    steps = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():  # what is replaced comes before what replaces it
        step = step_of(path.name)
        if step is not None and (path / MANIFEST).is_file():
            steps[step] = path
    return [steps[step] for step in sorted(steps)]


def pointed(run_dir: str | Path, pointer: str) -> Path | None:
    """The checkpoint that `best` or `last` names, whether or not it is there; None without such a file."""
    path = Path(run_dir) / pointer
    if not os.path.lexists(path):
        return None
    name = read_text(path, error=ModelError, hint=_choose(list_checkpoints(run_dir)))
    name = _bare(name)
    if step_of(name) is None:
        raise ModelError(
            f"{shown(path)} should name a checkpoint such as {step_name(1200)}, and says {name[:60]!r}",
            hint=_choose(list_checkpoints(run_dir)),
        )
    return path.parent / CHECKPOINTS / name


def find_run(
    model: str | None, *, config: RunConfig | None = None, config_path: str | None = None, option: str = "-m "
) -> Path:
    """The directory of a run: the one that `model` is (or holds that checkpoint), else the one that `config`
    names, else the one of `default_run`. config_path: what the user typed for it. ModelError says what there is and
    what to type, with the option before it by which the command is told a run.
    """
    if model is not None:
        path = Path(model)
        return run_of(path) if _is_checkpoint(path) else _existing(path)
    if config is not None:
        named = config_path or f"{config.name}.yaml"
        run_dir = RUNS / (config.name or "")
        if config.name is None or not run_dir.is_dir():
            raise ModelError(
                f"{shown(named)} has not been trained: there is no run {shown(run_dir)}",
                hint=f"train it: tx train -c {typed(named)}; or name a run that lies elsewhere: {option}"
                f"FOLDER/{typed(run_dir)}",
            )
        return run_dir
    return default_run(option).path


@dataclass(frozen=True)
class Default:
    """The run that is taken where none is named.

    passed_over: the latest, where another one is taken. n_runs: how many have a checkpoint.
    """

    path: Path
    passed_over: Path | None
    n_runs: int


def default_run(option: str = "-m ") -> Default:
    """The latest run; where it was never validated, the one of those that were which was saved last, if there is any.

    Raises ModelError where there is no latest run.
    """
    latest, runs = _latest(option), _runs()
    better = [] if is_validated(latest) else [run for run in runs if is_validated(run)]
    n_runs = len({os.path.realpath(run) for run in (latest, *runs)})
    if not better:
        return Default(latest, None, n_runs)
    return Default(max(better, key=lambda run: (run / "best").stat().st_mtime_ns), latest, n_runs)


def is_validated(run_dir: Path) -> bool:
    """Whether a validation has said which checkpoint of the run is the best."""
    return (run_dir / "best").exists()


def find_checkpoint(model: str | None, *, config: RunConfig | None = None, config_path: str | None = None) -> Path:
    """The checkpoint to use: the one that `model` is, else of the run (see `find_run`) the best, else the last."""
    if model is not None and _is_checkpoint(Path(model)):
        return Path(model)
    run_dir = find_run(model, config=config, config_path=config_path)
    for pointer in POINTERS:
        path = pointed(run_dir, pointer)
        while path is not None and not (path / MANIFEST).is_file():
            before, path = path, pointed(run_dir, pointer)  # training moves a pointer, then deletes what it named
            if path != before:
                continue
            if ((replaced := path.with_name(BEFORE + path.name)) / MANIFEST).is_file():
                return replaced
            if not (path / MANIFEST).is_file():  # it may have been replaced by now
                found = f"{shown(run_dir / pointer)} names {path.name}, which is not there"
                raise ModelError(found, hint=_choose(list_checkpoints(run_dir)))
        if path is not None:
            return path
    complete = list_checkpoints(run_dir)
    if not complete:
        how = f"train it: tx train -c {typed(config_path)}" if config_path else "the `tx train` that began it goes on"
        raise ModelError(f"{shown(run_dir)} has no checkpoint yet", hint=how)
    return complete[-1]


def run_of(checkpoint: Path) -> Path:
    """The run directory in which a checkpoint lies."""
    if checkpoint.is_symlink() or ".." in checkpoint.parts[-2:]:
        checkpoint = checkpoint.resolve()
    elif len(checkpoint.parts) < 3:
        checkpoint = Path.cwd() / checkpoint
    return checkpoint.parent.parent


def whole_run_of(checkpoint: Path) -> Path:
    """The same; ModelError unless the run has what a model needs besides its weights."""
    run_dir = run_of(checkpoint)
    lacking = [path for path in (run_dir / "config.yaml", run_dir / "tokenizer") if not path.exists()]
    if len(lacking) == 2 and checkpoint.resolve().parent.name != CHECKPOINTS:
        raise ModelError(
            f"{shown(checkpoint)} lies in no run, whose config.yaml and tokenizer it needs",
            hint=f"name a run, or a checkpoint in one: {RUNS / 'NAME' / CHECKPOINTS / checkpoint.resolve().name}",
        )
    if lacking:
        whole = (
            f"a checkpoint needs its run: copy the whole directory {shown(run_dir)}, with config.yaml and tokenizer/"
        )
        raise ModelError(f"{shown(lacking[0])} {missing(lacking[0])}", hint=whole)
    return run_dir


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and (step_of(path.resolve().name) is not None or (path / MANIFEST).is_file())


def _existing(path: Path) -> Path:
    """`path`, if it is a run."""
    if not path.exists():
        raise ModelError(f"{shown(path)} {missing(path)}", hint=_offer())
    if path.name == LATEST and path.is_file():
        raise ModelError(
            f"{shown(path)} is no run, but a file that names one: {_bare(read_text(path, error=ModelError))!r:.60}",
            hint=_offer(),
        )
    if not is_run(path):
        raise ModelError(f"{shown(path)} is neither a run nor a checkpoint directory", hint=_offer())
    return path


def is_run(path: Path) -> bool:
    """Whether it is one by what it has, be that damaged: a file that runs have, or checkpoints by their names."""
    if any((path / name).is_file() for name in ("config.yaml", "run.json", "metrics.jsonl")):
        return True
    folder = path / CHECKPOINTS
    return folder.is_dir() and any(step_of(name) is not None for name in os.listdir(folder))


def _latest(option: str) -> Path:
    pointer, hint = RUNS / LATEST, _offer(option)
    if not os.path.lexists(pointer) and not _runs():
        raise ModelError(f"there is no trained model in {shown(RUNS)}/", hint=hint)
    text = read_text(pointer, error=ModelError, hint=hint)
    for name in (text.removesuffix("\n"), bare := _bare(text)):  # a name may end in a space
        if name and os.path.isdir(RUNS / name) and is_run(RUNS / name):
            return RUNS / name
    if not bare:
        raise ModelError(f"{shown(pointer)} is empty: it should name a run", hint=hint)
    wrong = "no run" if os.path.isdir(RUNS / bare) else "not there"
    raise ModelError(f"{shown(pointer)} names the run {bare[:200]!r}, which is {wrong}", hint=hint)


def _bare(text: str) -> str:
    """A name without what editors put around it."""
    return text.removeprefix("\ufeff").strip()


def _runs() -> list[Path]:
    """The runs that have a checkpoint, of those that may be read."""
    found = []
    for path in sorted(RUNS.iterdir()) if RUNS.is_dir() else ():
        with suppress(PermissionError):
            if path.name != LATEST and path.name[0] != "." and list_checkpoints(path):
                found.append(path)
    return found


def _offer(option: str = "") -> str:
    """What to type, from what there is. option: that comes before it, where nothing was named."""
    runs = _runs()
    if not runs:
        return f"train one: tx train -c tiny.yaml; or name one that lies elsewhere: {option}FOLDER/runs/NAME"
    shown_runs = ", ".join(shown(path) for path in runs[:10]) + (", ..." if len(runs) > 10 else "")
    return f"there is {shown_runs}: name one, for example {option}{typed(runs[-1])}"


def _choose(checkpoints: list[Path]) -> str:
    if not checkpoints:
        return "this run has no complete checkpoint: restore one from a copy, or train it anew with --overwrite"
    return f"there is {', '.join(path.name for path in checkpoints)}: name one, for example {typed(checkpoints[-1])}"
