"""What a run consists of on the disk, and another run in its place.

What was there is set aside, in the same folder, until the new run has all that it needs to begin; where that fails, it
is put back: at once, or by the next start after a process that was killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.checkpoints import manifest
from transformer_cli.checkpoints.events import METRICS
from transformer_cli.checkpoints.find import MANIFEST, list_checkpoints
from transformer_cli.checkpoints.record import is_record
from transformer_cli.data import volumes
from transformer_cli.data.fingerprints import LINES
from transformer_cli.data.lexicon import LEXICON
from transformer_cli.errors import Interrupted, ResourceError, TxError, UsageError
from transformer_cli.evaluation.words import WORD_COUNTS
from transformer_cli.wording import some

MEMORY = "memory.json"
"""In how many parts each batch is learned from, where memory was not enough for whole ones."""
NO_METRICS = "metrics.damaged"
"""Lines that were found among what was measured, and are none of it."""

FILES = ("best", "last", METRICS, NO_METRICS, WORD_COUNTS, LINES, LEXICON, MEMORY, "config.yaml", "run.json")
"""The files of a run, in the order in which they are deleted: the last proves that the others are a run's."""

LITTER = r"\.DS_Store|\._.+"
"""Of a Mac's, in every folder that somebody looks into: what goes with the rest of it."""

FOLDERS = {
    "tokenizer": (r"(spm|source|target)\.model|tokenizer\.json", ""),
    "data": (
        rf"(train|valid){volumes.NAME}",
        rf"(pairs|numbers|(source|target)(_offsets)?)\.npy|index\.json|words\.jsonl|{LITTER}",
    ),
    "checkpoints": (
        r"(before-)?step-\d{8,18}|damaged-step-\d{8,18}(-\d+)?",
        rf"{manifest.FILES}|{LITTER}",
    ),
    "tensorboard": (r"events\.out\.tfevents\.\d+\.tx", ""),
    "ctranslate2": (r"[0-9a-f]{16}", rf"model\.bin|(spm|source|target)\.model|\w+\.json|{LITTER}"),
}
"""The folders of a run: the names of what tx puts there, and the names in that, where it is a folder itself."""

OURS = {*FILES, *FOLDERS}
FEW = 5
"""So many names of what is not ours are told."""
ASIDE = ".replaced"
"""What was there, all of it; beside it lies what belongs to the new run."""
ON_ITS_WAY = ".replacing"
"""Some of what was there; beside it lies the rest."""


def taken(run_dir: Path) -> list[str]:
    """What is there under the names of a run's parts."""
    found = [name for name in FILES if os.path.lexists(run_dir / name)]
    for folder in FOLDERS:
        found += [f"{folder}/{path.name}" for path in _parts(run_dir, folder)]
        if os.path.lexists(run_dir / folder) and not (run_dir / folder).is_dir():
            found.append(folder)
    return found


def beside(run_dir: Path) -> str:
    """What is to be said where a run begins among the files of others, which nothing of it touches; "" where it does
    not. Hidden ones are passed over."""
    if is_run(run_dir) or not run_dir.is_dir():
        return ""
    found = sorted(path.name for path in run_dir.iterdir() if path.name[0] != "." and path.name not in OURS)
    if not found:
        return ""
    named = some([*map(files.shown, found)], FEW)
    stays = (
        "is no part of a run: it stays as it is" if len(found) == 1 else "are no part of a run: they stay as they are"
    )
    return f"{files.shown(run_dir)} holds {named}, which {stays}"


def is_run(run_dir: Path) -> bool:
    """Whether tx made this directory, told by what only tx writes: the record of a run, or a checkpoint's manifest."""
    return _is_ours(run_dir / "run.json", _tells_of_a_run) or any(
        _is_ours(path / MANIFEST, lambda value: {"tx", "step", "tokenizer", "files", "sha256"} <= value.keys())
        for path in list_checkpoints(run_dir)
    )


def sweep(run_dir: Path) -> None:
    """Delete what killed writers left half-written anywhere in a run; but for CTranslate2's folder, where somebody who
    translates may be at work, and cleans up (engines.py)."""
    for folder in ("", *FOLDERS.keys() - {"ctranslate2"}):
        files.sweep(run_dir / folder)
    for part in sorted((run_dir / "data").glob("*-*")):
        files.sweep(part)


def discard(run_dir: Path) -> None:
    """Delete what a run consists of, and nothing else that may lie there. UsageError for a folder that is a link."""
    _refuse_links(run_dir)
    for folder, (_, inner_names) in FOLDERS.items():
        for path in _parts(run_dir, folder):
            if path.is_dir() and not path.is_symlink():
                manifest.remove_only(path, inner_names)
            else:
                files.remove(path)
        with suppress(OSError):  # something else lies in it
            (run_dir / folder).rmdir()
    for name in FILES:
        if not (run_dir / name).is_dir():  # of those, tx writes none
            files.remove(run_dir / name)


def set_aside(run_dir: Path, tell: Callable[[str], None]) -> None:
    """Make room for another run; where what is there lies from now on is told. UsageError where a folder is a link."""
    _refuse_links(run_dir)
    if not taken(run_dir):
        return
    _move(run_dir, run_dir / ON_ITS_WAY)
    files.rename(run_dir / ON_ITS_WAY, run_dir / ASIDE)
    tell(f"what was there lies in {files.shown(run_dir / ASIDE)} until training begins")


def put_back(run_dir: Path) -> bool:
    """Delete the run that did not begin, if one has been set aside for it, and have that, or what of it was moved so
    far, where it was. Whether there was anything."""
    if is_aside := (run_dir / ASIDE).is_dir() and (is_run(run_dir) or not taken(run_dir)):
        discard(run_dir)
        files.rename(run_dir / ASIDE, run_dir / ON_ITS_WAY)
    if is_on_its_way := (there := run_dir / ON_ITS_WAY).is_dir():
        _move(there, run_dir)
        with suppress(OSError):
            there.rmdir()
    return is_aside or is_on_its_way


def forget(run_dir: Path) -> None:
    """Delete what the run has replaced: from here on it is not put back, even if deleting fails half-way."""
    if (run_dir / ASIDE).exists():
        with suppress(ResourceError):
            files.remove(run_dir / ASIDE)
    if (run_dir / ASIDE).exists():
        files.remove(run_dir / ASIDE)


@contextmanager
def undone(run_dir: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Within, whatever ends the program before what was set aside is forgotten puts it back, and tells so."""
    try:
        yield
    except BaseException as end:
        try:
            is_back = put_back(run_dir)
        except (TxError, OSError) as failure:
            why = failure.message if isinstance(failure, TxError) else failure
            tell(f"what was in {files.shown(run_dir)} could not be put back, the next start will: {why}")
        else:
            if is_back:
                tell(f"the new run has not begun: the one that was in {files.shown(run_dir)} is there again")
            if isinstance(end, Interrupted):
                end.is_undone = is_back
        raise


def _refuse_links(run_dir: Path) -> None:
    for folder in FOLDERS:
        if (run_dir / folder).is_symlink():
            raise UsageError(
                f"{files.shown(run_dir / folder)} is a symbolic link: what it leads to is not deleted",
                hint="remove the link, or choose another --run-dir",
            )


def _parts(run_dir: Path, folder: str) -> list[Path]:
    """What of a run is in a folder of it."""
    names, there = FOLDERS[folder][0], run_dir / folder
    return [path for path in sorted(there.iterdir()) if re.fullmatch(names, path.name)] if there.is_dir() else []


def _move(old: Path, new: Path) -> None:
    """What belongs to a run, and nothing that others put among it."""
    for folder, (_, inner_names) in FOLDERS.items():
        for path in _parts(old, folder):
            inside = sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
            ours = [one for one in inside if re.fullmatch(inner_names, one.name)]
            is_whole = len(ours) == len(inside) and not (new / folder / path.name).exists()
            for one in [path] if is_whole else ours:
                there = new / one.relative_to(old)
                files.make_directory(there.parent)
                if not os.path.lexists(there):
                    files.rename(one, there)
            with suppress(OSError):
                path.rmdir()
        with suppress(OSError):
            (old / folder).rmdir()
    files.make_directory(new)
    for name in FILES:
        if os.path.lexists(old / name) and not (old / name).is_dir() and not os.path.lexists(new / name):
            files.rename(old / name, new / name)


def _is_ours(path: Path, shape: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether a file holds a JSON object of this shape."""
    try:
        value = files.read_json(path)
    except TxError:
        return False
    return isinstance(value, dict) and shape(value)


def _tells_of_a_run(record: dict[str, Any]) -> bool:
    """Whether it is a run.json: of a run that was trained, or of one that has its text so far."""
    versions, texts = record.get("versions"), record.get("data")
    if isinstance(versions, dict):
        return "tx" in versions
    return record.keys() == {"data"} and isinstance(texts, dict) and bool(texts) and is_record(record)
