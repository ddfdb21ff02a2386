"""What `tx train` would do, found out without doing it: nothing is written, nothing is trained."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from transformer_cli.accounting.freezing import frozen
from transformer_cli.accounting.parameters import count
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.config.run import RunConfig
from transformer_cli.data import corpus
from transformer_cli.data.checks import Finding, Looked, findings
from transformer_cli.data.used import as_used
from transformer_cli.decoding.texts import banned_ids
from transformer_cli.evaluation.metrics import check_tokenizer
from transformer_cli.files import check_directory
from transformer_cli.machine import device_of
from transformer_cli.tokenizer import Tokenizer, read_tokenizer
from transformer_cli.tokenizer.losses import rewriting
from transformer_cli.training.beginning import machine_of, parent_of
from transformer_cli.training.directory import check_ours, check_same, check_text
from transformer_cli.training.expense import Disk, Preparing, expense
from transformer_cli.training.keeping import newest_whole
from transformer_cli.training.listening import Listener, Stage, unseen
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.progress import Progress, check_unspent, is_over, progress_of
from transformer_cli.training.rehearsal import Length, length_of
from transformer_cli.training.replacing import beside
from transformer_cli.training.schedules import cut_short, peak
from transformer_cli.wording import counted


@dataclass(frozen=True)
class TextSize:
    """A text as it would be used. pairs: training leaves out those with an empty side. parts: pairs by name, where
    it is made of several texts.
    """

    pairs: int
    source_words: int
    target_words: int
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """What would happen.

    step: of the checkpoint that training would continue after, 0 for a new run. finished: why nothing would be left to
    do. owes_validation: that of this step would come first. replaces: a run that is there would be deleted. pieces: of
    source and target; at most, where `tokenizer` would still be trained. peak_step, peak_rate: the update with the
    highest learning rate of the whole run, None where it is a share of a budget, and that rate. findings: what is
    suspicious in the texts. disk, preparing, length: where something is left to do. warning: why the learning rate
    would not do what is meant, as far as the number of updates is known. rewriting: what the tokenizer would make of
    the references. beside: what of others lies in the run's place.
    """

    run: str
    step: int
    finished: str | None
    replaces: bool
    texts: Mapping[str, TextSize]
    tokenizer: str
    pieces: tuple[int, int]
    parameters: int
    peak_step: int | None
    peak_rate: float
    machine: dict[str, Any]
    findings: list[Finding]
    disk: Disk | None = None
    preparing: Preparing | None = None
    length: Length | None = None
    warning: str = ""
    rewriting: str = ""
    beside: str = ""
    owes_validation: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def forecast(
    config: RunConfig, run_dir: Path, *, overwrite: bool = False, timed: bool = False, stage: Stage = unseen
) -> Forecast:
    """What `train` checks of configuration, run, device and text before it cuts pieces, and the data check; raises what
    it would raise. Whether all pairs have room in a table of positions only pieces can tell. timed: how long training
    would take is told from all of the text, not from a sample.

    Where several processes would train, all of them ask; the first one is told all, the others nothing of the texts and
    of the disk."""
    with joined(device_of(config)) as world:
        return _forecast(config, run_dir, world, overwrite=overwrite, timed=timed, stage=stage)


def _forecast(
    config: RunConfig, run_dir: Path, world: World, *, overwrite: bool, timed: bool, stage: Stage
) -> Forecast:
    check_directory(run_dir)
    check_ours(run_dir)
    record = {} if overwrite else check_same(config, run_dir)
    checkpoints = list_checkpoints(run_dir)
    frozen(config)
    check_tokenizer(config.evaluation)
    parent = parent_of(config, replaced=run_dir) if overwrite or not checkpoints else None
    machine = machine_of(config, record, world, Listener())
    with stage("reading the text"):
        start = time.perf_counter()
        texts = corpus.load_all(config.data)
        reading_s = time.perf_counter() - start
    used = as_used(texts, config.data)
    check_text(run_dir, record.get("data", {}), {name: used[name] for name in ("train", "valid") if name in used})
    newest, _ = (None, None) if overwrite else newest_whole(run_dir, with_optimizer=False)
    progress = Progress() if newest is None else progress_of(newest, config.training)
    finished = progress.finished if progress.is_complete and is_over(progress, config.training) else None
    check_unspent(progress, config.training, run_dir)
    place = None if overwrite else run_dir / "tokenizer"
    origin, tokenizer = _tokenizer(config, place if parent is None else parent.path / "tokenizer")
    new = config.tokenizer.extend if parent is not None else 0
    if tokenizer is not None:
        tokenizer.check_sampling(config.tokenizer.sampling)
    if tokenizer is not None and not new:
        banned_ids(config.decoding, tokenizer)
    if new:
        origin = f"of the run, and up to {counted(new, 'new pieces')}, to be trained"
    pieces = _pieces(config, tokenizer, new=new)
    with stage("looking for what is suspicious in the text"):
        looked = {name: Looked(text) for name, text in texts.items()} if world.is_main else {}
    disk = preparing = None
    is_divided = world.size > 1 and config.training.parallel == "fsdp"  # whose weights no code of its own updates
    if finished is None and world.is_main:
        with stage("encoding a sample"):
            disk, preparing = expense(
                config,
                run_dir,
                used,
                tokenizer,
                machine=replace(machine, compiled=machine.compiled and not is_divided),
                pieces=pieces,
                overwrite=overwrite,
                reading_s=reading_s,
            )
    length = None
    if finished is None and "valid" in used:
        known = None if new else tokenizer
        length = length_of(config, run_dir, used, known, progress, world, stage, machine=machine, is_thorough=timed)
    n_updates = config.training.last_step if config.training.max_epochs is None else None
    n_updates = n_updates if length is None else length.n_updates
    peak_step, peak_rate = peak(
        config.training,
        d_model=config.model.d_model,
        total_steps=n_updates if finished is None else progress.step,
        warmed=progress.warmed,
    )
    references = used["valid"].target if "valid" in used else []
    return Forecast(
        run=str(run_dir),
        step=progress.step,
        finished=finished,
        replaces=overwrite and bool(checkpoints),
        texts=_sizes(used, looked) if world.is_main else {},
        tokenizer=origin,
        pieces=pieces,
        parameters=count(config.counted, source_vocab=pieces[0], target_vocab=pieces[1]).total,
        peak_step=peak_step,
        peak_rate=peak_rate,
        machine=machine.as_dict(),
        findings=findings(looked),
        disk=disk,
        preparing=preparing,
        length=length,
        warning=cut_short(config.training, n_updates),
        beside=beside(run_dir),
        owes_validation=progress.owes_validation,
        rewriting=rewriting(
            references,
            config.tokenizer,
            None if tokenizer is None else tokenizer.target,
            is_inherited=config.training.init_from is not None,
        ),
    )


def _tokenizer(config: RunConfig, place: Path | None) -> tuple[str, Tokenizer | None]:
    """Where the tokenizer would come from, and it itself where it is there."""
    if place is not None and (place / "tokenizer.json").exists():
        return "of the run", Tokenizer.load(place)
    if config.tokenizer.given:
        return "given", read_tokenizer(*config.tokenizer.given, tags=config.data.tagged)
    return f"{config.tokenizer.kind}, to be trained", None


def _pieces(config: RunConfig, tokenizer: Tokenizer | None, *, new: int) -> tuple[int, int]:
    """Of source and target, at most. new: that are learned on top of those of the tokenizer."""
    source, target = config.tokenizer.asked(len(config.data.tagged))
    if tokenizer is not None:
        source, target = tokenizer.source_size, tokenizer.target_size
    return source + new, target + new


def _sizes(used: Mapping[str, corpus.Corpus], looked: Mapping[str, Looked]) -> dict[str, TextSize]:
    """used: texts as they are used; looked: as they are. Training has none of what stands beside an empty line, nor of
    what is held out of it."""
    words = {name: (looked[name] if name in looked else Looked(text)).words for name, text in used.items()}
    held_out = [words[name] for name in used if name not in looked]
    words["train"] = words["train"] - looked["train"].words_alone - np.sum(held_out, axis=0, dtype=np.int64)
    sizes = {}
    for name, text in used.items():
        source, target = words[name].tolist()
        parts: Counter[str] = Counter()
        for part in text.parts:
            parts[part.name] += part.pairs
        sizes[name] = TextSize(len(text), source, target, {} if [*parts] == [name] else dict(parts))
    return sizes
