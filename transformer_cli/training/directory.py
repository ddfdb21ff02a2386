"""A run's directory: whose it is, and what may change when it continues."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli import files
from transformer_cli.checkpoints import manifest
from transformer_cli.checkpoints.events import METRICS
from transformer_cli.checkpoints.find import POINTERS, list_checkpoints, step_of
from transformer_cli.checkpoints.known import check_settings
from transformer_cli.checkpoints.manifest import DamagedError, read_manifest
from transformer_cli.checkpoints.record import read_config, read_record
from transformer_cli.checkpoints.standing import LOCK
from transformer_cli.config.dotted import flat, is_among, settled
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.data.corpus import Corpus
from transformer_cli.errors import DataError, ModelError, ResourceError, TxError, UsageError
from transformer_cli.tokenizer import Tokenizer, read_tokenizer
from transformer_cli.training.replacing import ASIDE, MEMORY, is_run, put_back, taken, undone
from transformer_cli.wording import some

if TYPE_CHECKING:
    from transformer_cli.training.parallel import World

PATIENCE_S = 0.5
"""How long whoever only looks may hold a directory."""

MAY_DIFFER = {
    "name",
    "device",
    "deterministic",
    "data.train",
    "data.valid",
    "data.test",
    "training.budget",
    "training.max_steps",
    "training.max_epochs",
    "training.max_hours",
    "training.max_skipped",
    "training.stop_loss",
    "training.patience",
    "training.log_every",
    "training.tensorboard",
    "training.keep_best",
    "training.keep_last",
    "training.parallel",
    "training.recompute",
    "decoding.engine",
    "decoding.workers",
    "evaluation.metrics",
    "evaluation.comet",
    "evaluation.resamples",
    "evaluation.trials",
    "evaluation.seed",
    "serving",
}
"""What may change when a run continues: its length, logging, retention, device, what is held where, where the same text
lies, what `tx evaluate` computes, what a service takes."""

UNTIL_TRAINED = {"precision", "matmul_precision", "threads", "training", "decoding", "evaluation"}
"""What may change too while no update was made, as of a model that was imported; but not `training.init_from`, for
its weights are there, or its tokenizer is."""

UNTIL_SAVED = UNTIL_TRAINED | {
    *("data.max_length", "data.source_eos", "data.temperature", "tokenizer.sampling", "model", "accounting")
}
"""And while there is no checkpoint: all that a tokenizer does not depend on, as it does on the training text."""

ENDS = {"training.max_steps", "training.budget"}
"""Where training ends, and with it a learning rate that falls until then."""

OF_TRAINING = ("device", "deterministic", "training")
"""Of what may change, what says how a run was trained, which is over once it is finished."""

PLACES = {"data.train", "data.valid", "data.test", "tokenizer.model"}
"""Where texts, and a tokenizer that is given, lie."""


@contextmanager
def claimed(run_dir: Path, tell: Callable[[str], None] = lambda words: None) -> Iterator[None]:
    """Nobody else trains here meanwhile; the claim ends with the process, however that ends. UsageError where somebody
    does. Where the system or its disk knows no such locks, nothing is claimed, and that is told.

    Once the directory is no longer where it was, every write below its name raises ResourceError: it would make half a
    run there. Folders that were made for it, and are still empty in the end, are removed.
    """
    with _opened(run_dir, tell) as descriptor, _held(run_dir, descriptor):
        yield


@contextmanager
def trained_in(run_dir: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """`claimed`, by a run that may replace another: whatever ends it before it begins leaves the other as it was, or
    the next start does."""
    with claimed(run_dir, tell), undone(run_dir, tell):
        if put_back(run_dir):
            tell(f"a run that was to replace the one in {files.shown(run_dir)} had not begun: that is there again")
        manifest.put_back(run_dir)
        yield


@contextmanager
def _opened(run_dir: Path, tell: Callable[[str], None]) -> Iterator[int]:
    """The directory, open, with it and LOCK in it locked. Both are made where they are missing, and made once more
    where whoever had the lock removed them in the end, as is done here."""
    made = [place for place in (run_dir, *run_dir.parents) if not os.path.lexists(place)]
    for is_last in (False, True):
        files.make_directory(run_dir)
        with ExitStack() as directory, ExitStack() as file:
            descriptor = _open(run_dir, os.O_RDONLY, directory)
            lock = _locked(run_dir, descriptor, file, tell)
            if not is_last and not (_is_at(run_dir, descriptor) and (lock is None or _is_at(run_dir / LOCK, lock))):
                continue
            try:
                yield descriptor
            finally:
                with suppress(OSError):  # is not empty, or not where it was
                    if _is_at(run_dir, descriptor):
                        (run_dir / LOCK).unlink()
                    file.close()  # what is open, NFS keeps
                    for place in made:
                        place.rmdir()
            return


def _locked(run_dir: Path, directory: int, file: ExitStack, tell: Callable[[str], None]) -> int | None:
    """Lock the directory that is open, and LOCK in it; the latter, open until `file` is closed, or None where it cannot
    be made. Told where there are no locks."""
    lock = None
    try:
        _lock(directory, run_dir)
        with suppress(OSError):  # what is written there will say why
            lock = _open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, file)
        if lock is not None:
            _lock(lock, run_dir)
    except OSError as failure:
        why = f"locks are refused there ({failure.strerror})"
        tell(f"nothing keeps a second `tx train` out of {files.shown(run_dir)}: {why}")
    return lock


def _open(path: Path, flags: int, opened: ExitStack) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    opened.callback(os.close, descriptor)
    return descriptor


def _is_at(place: Path, descriptor: int) -> bool:
    """Whether that is what is open, not another directory of its name."""
    with suppress(OSError):
        return os.path.samestat(os.stat(place), os.fstat(descriptor))
    return False


def _lock(descriptor: int, run_dir: Path) -> None:
    """Take the lock, within PATIENCE_S: whoever only asks whether somebody trains here holds it for a moment.
    UsageError where somebody keeps it, OSError where there are no locks."""
    import fcntl

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise UsageError(
                    f"another `tx train` is at work in {files.shown(run_dir)}",
                    hint="wait for it, or give this run another name (--set name=... or --run-dir)",
                ) from None
            time.sleep(0.02)


@contextmanager
def _held(run_dir: Path, descriptor: int) -> Iterator[None]:
    """Writes below the directory are refused once its name means another than the one that is open, or nothing."""
    place = Path(os.path.abspath(run_dir))
    within = os.path.join(place, "")

    def guard(path: Path) -> None:
        if not os.path.join(os.path.abspath(path), "").startswith(within):
            return
        if _is_at(place, descriptor):
            return
        raise ResourceError(
            f"{files.shown(run_dir)} is not there any more: it was moved or deleted while it was written to",
            hint="move it back and run the same command again, which goes on from its last checkpoint",
        )

    files.guards.append(guard)
    try:
        yield
    finally:
        files.guards.remove(guard)


def check_same(now: RunConfig, run_dir: Path) -> dict[str, Any]:
    """What the run recorded (run.json), {} for a new one; UsageError, naming every key, where a run would continue
    under another configuration, and ModelError where it is its own that was edited, or its checkpoints are gone.
    """
    checkpoints = list_checkpoints(run_dir)
    steps = [step_of(path.name) for path in checkpoints]
    is_whole = not (run_dir / ASIDE).exists()  # what is set aside is put back by whoever trains
    if not checkpoints and is_whole and any((named := run_dir / pointer).exists() for pointer in POINTERS):
        raise ModelError(
            f"{files.shown(named)} names a checkpoint, and {files.shown(run_dir)} has none: what was trained is gone",
            hint="restore its folder checkpoints from a copy, or start anew with --overwrite",
        )
    if not steps and not (run_dir / "tokenizer" / "tokenizer.json").exists():
        return {}  # whatever failed there before left nothing that a setting could contradict
    record = read_record(run_dir)
    # Of the settings only the seed is known elsewhere, too.
    unknown = now.model_copy(update={"seed": record.get("seed", now.seed)})
    saved = read_config(run_dir) if (run_dir / "config.yaml").exists() else unknown
    for checkpoint in checkpoints[-1:] if any(steps) else ():
        with suppress(DamagedError):  # another one is gone on from
            check_settings(checkpoint, read_manifest(checkpoint), saved, record.get("seed"))
    free = MAY_DIFFER if any(steps) else MAY_DIFFER | (UNTIL_TRAINED if steps else UNTIL_SAVED)
    if saved.data.held_out != now.data.held_out:
        free = free - {"data.valid"}  # it says which text, not where it lies
    if now.evaluation.tokenize == "auto":
        free = free | {"evaluation.tokenize"}  # the default was 13a, which it is for all text that 13a is right for
    if _is_given_again(now, saved, run_dir):
        free = free | {"tokenizer.model"}
    before, after = settled(saved), settled(now)
    keys = [key for key in before | after if key == "training.init_from" or not is_among(key, free)]
    keys = [key for key in keys if before.get(key) != after.get(key)]
    differences = [f"  {key}: {before.get(key)} in the run, {after.get(key)} now" for key in keys]
    if differences:
        how = "" if len(keys) > FEW or not before.keys() >= {*keys} else f": {_settings(before, keys)}"
        raise UsageError(
            f"{files.shown(run_dir)} is a run with another configuration:\n" + "\n".join(differences),
            hint=f"to continue it, use its settings{how}; give a new run another name (--set name=... or --run-dir), "
            "or start this one anew with --overwrite",
        )
    if not any(steps):
        record.pop("machine", None)  # nothing was learned on it: what is configured now decides anew
    elif now.training.looks_ahead:
        ends = {key: before.get(key) for key in before | after if is_among(key, ENDS)}
        note_change(record, steps[-1] or 0, {key: value for key, value in ends.items() if value != after.get(key)})
    train = {name: text | {"is_seen": False} for name, text in record.get("data", {}).items() if name == "train"}
    return record if steps else {"data": train}


def note_change(record: dict[str, Any], step: int, before: Mapping[str, Any]) -> None:
    """What a run that went on otherwise after this step had been until then; what was noted of that step stays."""
    if step and before:
        changed = record.setdefault("changed", {})
        changed[str(step)] = {**before, **changed.get(str(step), {})}


def as_trained(now: RunConfig, run_dir: Path) -> str:
    """config.yaml of a finished run: what is said now, but how it was trained, where that is still known."""
    saved = read_config(run_dir) if (run_dir / "config.yaml").exists() else now
    return dump_config(now.model_copy(update={name: getattr(saved, name) for name in OF_TRAINING}))


def _is_given_again(now: RunConfig, saved: RunConfig, run_dir: Path) -> bool:
    """Whether a run's tokenizer is the one that is given, wherever that lies, if it is still anywhere."""
    there, given = run_dir / "tokenizer", now.tokenizer.given
    if not given or not saved.tokenizer.given or not (there / "tokenizer.json").exists():
        return False
    if not all(os.path.exists(path) for path in given):
        return True
    return read_tokenizer(*given, tags=now.data.tagged).fingerprint == Tokenizer.load(there).fingerprint


def lost(run_dir: Path, record: Mapping[str, Any], step: int) -> Iterator[str]:
    """What a run that was saved after this step lacks, and what follows from that."""
    if "versions" not in record:
        yield "run.json is missing: the run's choices are made anew, and its text is not checked"
    if not (run_dir / "config.yaml").exists():
        yield "config.yaml is missing: nobody can tell whether the run had other settings so far"
    if step and not (run_dir / METRICS).exists() and "average" not in record:
        yield f"{METRICS} is missing: what was measured up to step {step:,} is lost"


def unchecked(run_dir: Path, record: Mapping[str, Any], texts: Iterable[str]) -> str:
    """Which texts of a run that learned from them nobody can check, in words; empty where all can be, or where nothing
    is known of the run."""
    lacking = [f"data.{name}" for name in texts if name not in record.get("data", {})]
    is_trained = any(step_of(path.name) for path in list_checkpoints(run_dir))
    if not lacking or not is_trained or "versions" not in record:
        return ""
    return f"run.json does not say what {' and '.join(lacking)} was: what there is now is not checked, and noted"


def _settings(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """As options of a command."""
    texts = ((key, value if isinstance(value, str) else files.json_line(value)) for key, value in values.items())
    return " ".join(f"--set {shlex.quote(f'{key}={text}')}" for key, text in texts if key in keys)


FEW = 3
"""So many settings are spelled out."""


def parts_of(run_dir: Path, *, most: int) -> int:
    """In how many parts each batch is learned from, since memory was not enough at an earlier start; 1 where it was.
    Raises ModelError where what says so is damaged, or more than `most`."""
    if not (path := run_dir / MEMORY).exists():
        return 1
    found = files.read_json(path, error=ModelError)
    n = found.get("parts") if isinstance(found, dict) else None
    if type(n) is not int or not 1 <= n <= most:  # a truth value is no number
        raise ModelError(
            f"{files.shown(path)} does not say in how many parts batches are learned from",
            hint="delete it: then they are tried whole again",
        )
    return n


def leave_parts(run_dir: Path, n: int) -> None:
    """For the next start."""
    files.write_json(run_dir / MEMORY, {"parts": n})


def check_alike(world: World, facts: Mapping[str, Any]) -> None:
    """UsageError, naming the facts, where they are others on another process. Where a text lies may differ."""
    all_facts = [flat(json.loads(text)) for text in world.gather(files.json_line(facts))]
    for rank, theirs in enumerate(all_facts):
        differences = [
            f"  {key}: {theirs.get(key)} there, {ours} here"
            for key, ours in all_facts[0].items()
            if theirs.get(key) != ours and not is_among(key.removeprefix("settings."), PLACES)
        ]
        if differences and world.is_main:
            raise UsageError(
                f"process {rank} of {world.size} is not like process 0:\n" + "\n".join(differences),
                hint="start all processes with the same command, configuration, text and packages",
            )
    world.wait()


def check_text(run_dir: Path, known: Mapping[str, Any], texts: Mapping[str, Corpus]) -> dict[str, Any]:
    """What each text is, wherever it lies; DataError where it is no longer the one of that name that the run recorded
    as known.
    """
    found = {name: _identity(text.as_json()) for name, text in texts.items()}
    for name, now in found.items():
        if name not in known:
            continue
        before = _identity(known[name])
        if what := next((key for key, value in now.items() if before.get(key, value) != value), None):
            are = "is no longer the text" if what == "sha256" else f"has no longer the {what}"
            raise DataError(
                f"data.{name} {are} that {files.shown(run_dir)} began with",
                hint="restore it, or train anew with --overwrite or another name",
            )
    return found


def _identity(text: Mapping[str, Any]) -> dict[str, Any]:
    """What a text is, how often an epoch sees which stretches of it, unless no model saw it yet, and in which
    directions; called whatever they are."""
    parts = text.get("parts", ())
    if len(parts) == 1 and parts[0]["weight"] == 1 and not parts[0].get("direction"):
        parts = ()  # a list of one text is that text
    weights = [(part["pairs"], part["weight"]) for part in parts]
    directions = [(part["pairs"], part["direction"]) for part in parts if part.get("direction")]
    seen = {"weights": weights} if text.get("is_seen", True) else {}
    return {"sha256": text["sha256"], **seen, "directions": directions}


def check_ours(run_dir: Path) -> None:
    """UsageError where the directory is no run, and yet holds something of a name that a run would write."""
    if is_run(run_dir):
        return
    theirs = [name for name in taken(run_dir) if name != "config.yaml" or not _is_dumped(run_dir / name)]
    if theirs:
        raise UsageError(
            f"{files.shown(run_dir)} is not a run, but has {some(theirs, 5)}, which a run would replace",
            hint="choose another --run-dir, or move that away",
        )


def _is_dumped(path: Path) -> bool:
    """Whether a configuration is one that tx wrote out, and nobody changed since."""
    try:
        return files.read_text(path) == dump_config(load_config(path))
    except TxError:
        return False
