"""How long training would take, told from a few updates that are made in a folder that is deleted."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_cli.config.run import RunConfig
from transformer_cli.data import batching, loader
from transformer_cli.data.corpus import Corpus
from transformer_cli.heap import most_taken
from transformer_cli.machine import Machine
from transformer_cli.temporary import temporary_directory
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.training.clock import WARM_UP_S, Horizon, Left
from transformer_cli.training.listening import Listener, Stage
from transformer_cli.training.loop import fit
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.run import Run
from transformer_cli.training.signals import StopRequest
from transformer_cli.training.update import Learner, Update

PAIRS = 20_000
"""Of a text, from all over it, that stand for all of them."""
PLANNED = 200_000
"""Pairs of a plan of batches that is as full as that of any larger text."""
SECONDS = 3.0
"""Of updates that are timed; a few of them, however long they take."""
FEW, MANY = 128, 512
"""Target tokens of each process in two sizes of smaller updates, to tell what a whole one takes; with fewer, products
are not in proportion."""
COSTLY_S = 2.0
"""A whole update that would take longer is not waited for."""
ENDLESS = 10**9
"""Updates."""


@dataclass(frozen=True)
class Length:
    """How long training would take on this machine, and what would end it; left: None for less than a few updates.
    n_updates, n_epochs: as many as the whole run has at most, where that does not depend on how fast it is. n_timed:
    updates that this is told from; of_parts: of some of the sentences of each only; of_pairs: of so many pairs of the
    text. memory: bytes that each process had at most, once it had tried its largest batch; on a GPU of that one's."""

    left: Left | None
    ends: str
    n_updates: int | None
    n_epochs: float | None
    n_timed: int
    of_parts: bool
    of_pairs: int
    memory: list[int]


def length_of(
    config: RunConfig,
    run_dir: Path,
    texts: Mapping[str, Corpus],
    tokenizer: Tokenizer | None,
    progress: Progress,
    world: World,
    stage: Stage,
    *,
    machine: Machine,
    is_thorough: bool,
) -> Length:
    """How long training would take from here. texts: train and valid, as they are used. tokenizer: the one that it
    would have, None where one is still to be trained. machine: what it would compute on. is_thorough: from all of the
    text, and from whole updates."""
    given = {name: texts[name] if is_thorough else texts[name].sample(PAIRS) for name in ("train", "valid")}
    is_all = len(given["train"]) == len(texts["train"])
    (progress := copy.deepcopy(progress)).divide_among(world.size)
    with _folder(run_dir, world) as folder:
        place = folder / "run"
        rehearsed = _rehearsed(config, is_all=is_all, has_tokenizer=tokenizer is not None)
        run = Run(rehearsed, place, Listener(stage=stage), world, StopRequest())
        run.open(overwrite=False, texts=given)
        run.machine = machine.use()
        if tokenizer is not None and world.is_main:
            tokenizer.save(place / "tokenizer")
        world.wait()
        learner = run.prepared()
        horizon = run.horizon if is_all else _of_all(run, config, given, texts)
        waits = f": {WARM_UP_S:.0f} s, or one that takes longer" if is_thorough else ""
        with stage(f"timing updates{waits}"):
            n_parts = 0 if is_thorough or run.machine.kind != "cpu" else _time_parts(run, learner, horizon)
            if not n_parts:
                _time(run, learner)
    clock, begins = run.clock, is_all and not progress.step
    clock.begin(clock.seconds if begins else progress.passed_s)
    # How a run begins tells which epoch may be its last.
    progress = replace(run.progress if begins else progress, finished=None)
    left = (horizon := horizon.since(progress)).left(progress, clock, settled=not progress.owes_validation)
    left = left.after(-clock.seconds) if left is not None and begins else left
    taken = torch.cuda.max_memory_reserved(run.machine.device) if run.machine.kind == "cuda" else most_taken()
    memory = [int(most) for most in world.gather(str(taken))]
    timed = (n_parts or clock.updates, n_parts > 0, len(given["train"]), memory)
    return Length(left, horizon.ends(), horizon.expected_steps, horizon.expected_epochs, *timed)


@contextmanager
def _folder(run_dir: Path, world: World) -> Iterator[Path]:
    """For a while, one that all processes see: those of several machines see that of the run, or what it is to be
    in."""
    is_of_one = len(world.first_of_each_machine()) == 1
    there = None if is_of_one else next(path for path in (run_dir, *run_dir.parents) if path.is_dir())
    with temporary_directory(there) as folder:
        yield Path(world.share(str(folder)))


def _rehearsed(config: RunConfig, *, is_all: bool, has_tokenizer: bool) -> RunConfig:
    """What a few updates are made with. Of a part of a text an epoch is over soon, which ends nothing. With a tokenizer
    no other run is needed to begin with: how fast a model is does not depend on its weights. That of a part of a text
    may lack a piece that is banned."""
    changes: dict[str, Any] = {"init_from": None} if has_tokenizer else {}
    if not is_all:
        changes |= {"budget": None, "max_epochs": None, "stop_loss": None, "max_steps": ENDLESS}
    sections = {"training": config.training.model_copy(update=changes)}
    return config.model_copy(update={**sections, "decoding": config.decoding.model_copy(update={"banned": []})})


def _of_all(run: Run, config: RunConfig, given: Mapping[str, Corpus], texts: Mapping[str, Corpus]) -> Horizon:
    """What a run of all of a text has to do, where this one is of a part. A plan of few batches is emptier than one of
    many, so the part is planned as often as it takes."""
    lengths = run.material.epoch(0)[0].lengths
    trained, validated = (len(texts[name]) / len(given[name]) for name in ("train", "valid"))
    n = max(1, min(int(trained), PLANNED // len(lengths)))
    plan = batching.plan(np.tile(lengths, (n, 1)), budget=config.training.budget_tokens, seed=config.seed, epoch=0)
    return replace(
        run.horizon,
        options=config.training,
        updates_per_epoch=math.ceil(len(plan) * trained / n / config.training.accumulation / run.world.size),
        tokens_per_epoch=round(run.horizon.tokens_per_epoch * trained),
        validation_tokens=round(run.horizon.validation_tokens * validated),
        is_rough=True,
    )


def _time(run: Run, learner: Learner) -> None:
    """Have the clock know the pace of whole updates."""

    def is_enough(update: Update) -> bool:
        run.clock.update(update.target_tokens)
        [waiting] = run.world.sum(run.clock.seconds < SECONDS or run.clock.pace is None)
        return not waiting

    fit(learner, run.progress, run.epoch, is_enough)


def _time_parts(run: Run, learner: Learner, horizon: Horizon) -> int:
    """Have the clock know the pace of whole updates from smaller ones, of some sentences of each batch: two sizes tell
    apart what an update takes whatever its size. Returns how many; 0 where whole ones are soon made."""
    whole = horizon.tokens_per_epoch / horizon.updates_per_epoch
    if whole <= MANY * run.world.size:
        return 0
    shares = [tokens * run.world.size / whole for tokens in (FEW, MANY)]
    _of_a_part(run, learner, shares[0])  # the very first one takes memory, too
    (few, few_s), (many, many_s) = (_of_a_part(run, learner, share, n=2) for share in shares)
    each = max(0.0, many_s - few_s) / max(1.0, many - few)
    whole_s = each * whole + max(0.0, many_s - each * many)
    if whole_s <= COSTLY_S:
        return 0
    run.clock.expected = whole_s / whole
    return 4


def _of_a_part(run: Run, learner: Learner, share: float, n: int = 1) -> tuple[float, float]:
    """Target tokens and seconds of an update of such a share of its sentences, as n of them have it."""
    found: list[int] = []

    def epoch(number: int, first: int) -> tuple[int, Iterator[loader.Batch]]:
        text, plan = run.material.epoch(number)
        parts = [batch[: math.ceil(share * len(batch))] for batch in plan]
        return len(parts), loader.batches(text, parts, start=first)

    def is_enough(update: Update) -> bool:
        found.append(update.target_tokens)
        return len(found) == n

    begin = time.perf_counter()
    fit(learner, Progress(processes=run.world.size), epoch, is_enough)
    [all_s] = run.world.sum(time.perf_counter() - begin)
    return sum(found) / len(found), all_s / len(found) / run.world.size
