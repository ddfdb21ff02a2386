"""A run's directory: whose it is, and what may change when it continues."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.data.corpus import Corpus
from transformer_cli.errors import DataError, ModelError, TxError, UsageError
from transformer_cli.evaluation.words import WORD_COUNTS
from transformer_cli.training.reporting import METRICS

MAY_DIFFER = {
    "name",
    "device",
    "data.train",
    "data.valid",
    "data.test",
    "training.max_steps",
    "training.max_epochs",
    "training.stop_loss",
    "training.patience",
    "training.log_every",
    "training.keep_best",
    "training.keep_last",
    "evaluation.metrics",
    "evaluation.resamples",
    "evaluation.trials",
    "evaluation.seed",
}
"""What may change when a run continues: its length, logging, retention, device, where the same text lies, what
`tx evaluate` computes."""

UNTIL_TRAINED = {
    "precision",
    "threads",
    "data.max_length",
    "data.source_eos",
    "model",
    "training",
    "decoding",
    "evaluation",
}
"""What may change too while there is no checkpoint: all that a tokenizer does not depend on."""

CONTENTS = {
    "tokenizer": r"(spm|source|target)\.model|tokenizer\.json",
    "data": r"[a-z-]+-[0-9a-f]{16}",
    "checkpoints": r"step-\d{8,18}",
}
"""The folders of a run, and the names of what tx puts there."""


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """Nobody else trains here meanwhile; the claim ends with the process, however that ends. UsageError if somebody
    does. Where the system or its disk knows no such locks, nothing is claimed.
    """
    files.make_directory(run_dir)
    try:
        import fcntl  # not on Windows
    except ImportError:
        yield
        return
    descriptor = os.open(run_dir, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another `tx train` is at work in {files.shown(run_dir)}",
                    hint="wait for it, or give this run another name (--set name=... or --run-dir)",
                ) from None
        yield
    finally:
        os.close(descriptor)


def check_same(now: RunConfig, run_dir: Path) -> dict[str, Any]:
    """What the run recorded (run.json), {} for a new one; UsageError, naming every key, where a run would continue
    under another configuration.
    """
    is_trained = bool(list_checkpoints(run_dir))
    if not is_trained and not (run_dir / "tokenizer" / "tokenizer.json").exists():
        return {}  # whatever failed there before left nothing that a setting could contradict
    path = run_dir / "config.yaml"
    saved = load_config(path) if path.exists() else now
    free = MAY_DIFFER if is_trained else MAY_DIFFER | UNTIL_TRAINED
    before, after = flat(saved.model_dump()), flat(now.model_dump())
    keys = [key for key in before | after if not any(key == name or key.startswith(f"{name}.") for name in free)]
    differences = [
        f"  {key}: {before.get(key)} in the run, {after.get(key)} now"
        for key in keys
        if before.get(key) != after.get(key)
    ]
    if differences:
        raise UsageError(
            f"{files.shown(run_dir)} is a run with another configuration:\n" + "\n".join(differences),
            hint="give the new run another name (--set name=... or --run-dir), or start this one anew with --overwrite",
        )
    record = read_record(run_dir)
    return record if is_trained else {"data": record.get("data", {})}


def check_text(run_dir: Path, known: Mapping[str, Any], texts: Mapping[str, Corpus]) -> None:
    """DataError where a text is no longer the one of that name that the run recorded as known."""
    for name, text in texts.items():
        if name in known and known[name]["sha256"] != text.sha256:
            raise DataError(
                f"data.{name} is no longer the text that {files.shown(run_dir)} began with",
                hint="restore it, or start anew with --overwrite or another name",
            )


def read_record(run_dir: Path) -> dict[str, Any]:
    """The content of run.json, {} where there is none; ModelError where it is damaged."""
    path = run_dir / "run.json"
    if not path.exists():
        return {}
    hint = "restore it from a copy; without it the run goes on, but its choices are made anew"
    record = files.read_json(path, error=ModelError, hint=hint)
    if not _is_record(record):
        raise ModelError(f"{files.shown(path)} is damaged: it does not describe a run", hint=hint)
    return record


def _is_record(value: Any) -> bool:
    """Whether all that a run reads again has the right shape."""
    if not isinstance(value, dict):
        return False
    data = value.get("data", {})
    texts = data.values() if isinstance(data, dict) else [None]
    return all(isinstance(text, dict) and "sha256" in text for text in texts) and all(
        isinstance(value.get(key, {}), dict) for key in ("machine", "scores")
    )


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one mapping of dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def refuse_foreign(run_dir: Path) -> None:
    """UsageError where there is no run but a config.yaml that somebody wrote: a run would replace it by its own."""
    path = run_dir / "config.yaml"
    traces = ("run.json", "checkpoints", "tokenizer/tokenizer.json")
    if not path.exists() or any((run_dir / trace).exists() for trace in traces):
        return
    try:
        is_ours = files.read_text(path) == dump_config(load_config(path))
    except TxError:
        is_ours = False
    if not is_ours:
        raise UsageError(
            f"{files.shown(run_dir)} is not a run, but has a config.yaml, which a run would replace",
            hint="choose another --run-dir, or move that file away",
        )


def discard(run_dir: Path) -> None:
    """Delete what a run consists of, and nothing else that may lie there."""
    for name in ("run.json", METRICS, WORD_COUNTS, "best", "last"):
        files.remove(run_dir / name)
    for folder, names in CONTENTS.items():
        there = run_dir / folder
        for path in sorted(there.iterdir()) if there.is_dir() and not there.is_symlink() else ():
            if re.fullmatch(names, path.name):
                files.remove(path)
        with suppress(OSError):  # something else lies in it
            there.rmdir()
