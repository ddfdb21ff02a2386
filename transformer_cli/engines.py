"""Which engine translates, and a run as CTranslate2 has it; torch is imported to convert a run, once."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.known import KnownRun
from transformer_cli.checkpoints.manifest import MODEL, Manifest, read_manifest
from transformer_cli.config.run import RunConfig
from transformer_cli.decoding.engine import EngineTranslator
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.environment import processors
from transformer_cli.errors import ModelError, ResourceError, TxError, UsageError
from transformer_cli.export.formats import CTRANSLATE2_ROWS, FORMATS, unknown_there
from transformer_cli.loading import learned_by
from transformer_cli.needs import lacking, needed
from transformer_cli.temporary import temporary_directory

ENGINE = "ctranslate2"
CONVERSION = 1
"""To be raised where the same weights become other files."""
HASHES = "hashes.json"
KEY = re.compile("[0-9a-f]{16}")


def is_wanted(settings: RunConfig, options: SearchOptions, obstacles: Sequence[str]) -> bool:
    """Whether CTranslate2 is to translate. If it is asked for by its name: ResourceError where it is not installed,
    UsageError where it cannot."""
    wanted = settings.decoding.engine
    if wanted != ENGINE:
        return wanted == "auto" and is_installed() and not obstacles and not differs(options)
    needed(ENGINE)
    if obstacles:
        raise UsageError(
            f"decoding.engine: CTranslate2 cannot do this: {', '.join(obstacles)}",
            hint="decoding.engine=auto takes it for what it can do, native never",
        )
    return True


def is_installed() -> bool:
    return lacking(ENGINE) is None


def obstacles(runs: Sequence[KnownRun], settings: RunConfig, options: SearchOptions) -> Iterator[str]:
    """What is asked for that CTranslate2 has not, or finds otherwise than the configuration says."""
    model, decoding = runs[0].config.model, settings.decoding
    if len(runs) > 1:
        yield "an ensemble"
    if options.mbr is not None:
        yield "mbr"
    elif options.search != "beam":
        yield f"search: {options.search}"
    elif decoding.rerank is not None:
        yield "rerank"
    if decoding.shortlist is not None:
        yield "a shortlist"
    if options.min_length or options.no_repeat_ngram:
        yield "min_length" if options.min_length else "no_repeat_ngram"
    if options.beam_size > 1 and options.penalty.family != "power":
        yield f"length_penalty_family: {options.penalty.family}"
    if settings.precision in ("bf16", "fp16"):
        yield f"precision: {settings.precision}"
    if settings.device not in ("auto", "cpu"):
        yield f"device: {settings.device}"
    elif settings.device == "auto" and is_installed() and needed(ENGINE).get_cuda_device_count():
        yield "the GPU that there is"
    yield from (reason.partition(";")[0] for reason in unknown_there(model, "CTranslate2"))
    longest = decoding.max_source_length or runs[0].config.data.max_length
    if (max(1, decoding.max_length_factor) * longest + decoding.max_length_extra) >= CTRANSLATE2_ROWS:
        yield f"texts of more than {CTRANSLATE2_ROWS:,} pieces"


def differs(options: SearchOptions) -> bool:
    """Whether CTranslate2 may find other translations: where a hypothesis ends, its beam takes in another one in its
    place, which tx's does not, and it is over as soon as twice as many have ended as it is wide."""
    return options.search == "beam" and options.beam_size > 1


def engine_of(run: KnownRun, settings: RunConfig, *, tell: Callable[[str], None]) -> EngineTranslator | None:
    """The translator of a run by CTranslate2, in fp32 on the CPU; None where it cannot be had and was not asked for by
    its name: TxError where it was. tell: what is done that takes a while, and why there is none."""
    model, threads, wanted = run.config.model, _threads(settings), settings.decoding.workers
    workers = threads if wanted == "auto" else min(wanted, threads)
    try:
        place, engine = _loaded(run, threads, tell)
    except TxError as failure:
        if settings.decoding.engine == ENGINE:
            raise
        tell(f"engine: native; CTranslate2 cannot be had: {failure.message}")
        return None
    return EngineTranslator(
        engine,
        f"CTranslate2 {needed(ENGINE).__version__} in fp32",
        run.tokenizer,
        settings.decoding,
        rooms={side: model.room(side) for side in model.sides},
        workers=1 if place is None else workers,
        several=None if place is None else partial(_open, place, threads, workers),
        **learned_by([run], settings),
    )


def _loaded(run: KnownRun, threads: int, tell: Callable[[str], None]) -> tuple[Path | None, Any]:
    """From a directory of the run's, which comes along where there is one; converted before, where that was not done
    yet or is no longer what it was."""
    place = run.path / ENGINE / _key(run.manifest)
    if not _is_whole(place):
        again = f"again: what is in {files.shown(place)} is damaged" if os.path.exists(place) else "once"
        tell(f"converting the weights for CTranslate2, {again}")
        try:
            with files.atomic_directory(place) as aside:
                _convert(run, aside)
                if not _is_whole(place):
                    files.remove(place)
            _forget(run.path, kept=place.name)
        except ResourceError as failure:
            if not _is_whole(place):  # else another process was as quick
                tell(f"{failure.message}: converted for this time alone")
                with temporary_directory() as folder:
                    _convert(run, folder)
                    return None, _open(folder, threads)
    return place, _open(place, threads)


def _key(manifest: Manifest) -> str:
    """Of all that the files depend on."""
    said = manifest.model_dump(mode="json", include={"tokenizer", "model", "data"})
    weights = manifest.files[MODEL].sha256
    return hashlib.sha256(files.json_text([CONVERSION, said, weights]).encode()).hexdigest()[:16]


def _is_whole(place: Path) -> bool:
    try:
        hashes = files.read_json(place / HASHES, error=ModelError)
        return (
            isinstance(hashes, dict)
            and {"config.json", "model.bin"} <= hashes.keys()
            and all(files.sha256(place / name, error=ModelError) == value for name, value in hashes.items())
        )
    except TxError:
        return False


def _convert(run: KnownRun, place: Path) -> None:
    assert not unknown_there(run.config.model, "CTranslate2"), "an obstacle, which was looked for"
    from transformer_cli.checkpoints.store import open_run

    FORMATS.load(ENGINE)().write(open_run(run.checkpoint), place, quantization=None)
    files.write_json(place / HASHES, {path.name: files.sha256(path) for path in sorted(place.iterdir())})


def _forget(run_dir: Path, *, kept: str) -> None:
    """Delete conversions of checkpoints that there are no more, and what a process that was killed left an hour ago;
    nothing where something cannot be read or deleted, for somebody waits for a translation."""
    with suppress(TxError, OSError):
        keys = {kept, *(_key(read_manifest(checkpoint)) for checkpoint in list_checkpoints(run_dir))}
        for path in (run_dir / ENGINE).iterdir():
            is_left = path.name.startswith((files.ASIDE, files.DOOMED)) and path.stat().st_mtime < time.time() - 3600
            if is_left or (KEY.fullmatch(path.name) and path.name not in keys):
                files.remove(path)


def _open(place: Path, threads: int, at_once: int = 1) -> Any:
    # By oneDNN, as on other processors, also on Intel's, unless the user says otherwise: two threads of MKL's took nine
    # times as long for a line (docs/measurements.md). Read once, when the process opens its first engine.
    os.environ.setdefault("CT2_USE_MKL", "0")
    each = {"inter_threads": at_once, "intra_threads": max(1, threads // at_once)}
    try:
        return needed(ENGINE).Translator(str(place), device="cpu", compute_type="float32", **each)
    except RuntimeError as failure:
        raise ModelError(f"CTranslate2 does not open {files.shown(place)}: {failure}") from failure


def _threads(settings: RunConfig) -> int:
    """As torch counts them."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return min(settings.threads or (int(given) if given.isdecimal() and int(given) else processors()), processors())
