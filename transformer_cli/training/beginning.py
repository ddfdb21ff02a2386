"""What a run begins with: what suits the machine; the weights and the tokenizer of another, or a new tokenizer; batches
whole, or in parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.known import open_found
from transformer_cli.checkpoints.manifest import MODEL
from transformer_cli.checkpoints.store import OpenedRun, open_run
from transformer_cli.checkpoints.tensors import load_weights, weights
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import preset_names
from transformer_cli.data.corpus import Corpus
from transformer_cli.decoding.texts import banned_ids
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.files import json_line, shown
from transformer_cli.machine import Machine, begin_or_resume, compiler_trouble
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import SPECIALS, Tokenizer, cut_before, extended, tag_of, train_tokenizer
from transformer_cli.training.directory import leave_parts, parts_of
from transformer_cli.training.listening import Listener
from transformer_cli.training.parallel import World
from transformer_cli.training.replacing import MEMORY
from transformer_cli.training.update import Portions
from transformer_cli.wording import counted

VOCABULARIES = {
    "source_embedding.table.weight": "source",
    "target_embedding.table.weight": "target",
    "output.weight": "target",
    "output_bias": "target",
}
"""The tensors with a row for each piece, and of which side's."""


def parent_of(config: RunConfig, *, replaced: Path) -> OpenedRun | None:
    """The run that training begins with, opened, if there is to be one. ModelError where it is not there or damaged,
    UsageError where it is the one that the new run replaces, or, naming every setting, of another kind.
    """
    if (wanted := config.training.init_from) is None:
        return None
    if not Path(wanted).exists():
        its_name = Path(wanted).name
        command = f": tx train -c {its_name}.yaml" if its_name in preset_names() else ""
        raise ModelError(
            f"{shown(Path(wanted).absolute())}, which training begins with (training.init_from), does not exist",
            hint=f"train it first{command}; or name another run: --set training.init_from=RUN",
        )
    parent = open_found(partial(find_checkpoint, wanted), open_run)
    if replaced.exists() and replaced.samefile(parent.path):
        raise UsageError(
            f"{shown(parent.path)} is the run that training would begin with (training.init_from), and the one that it "
            "would replace",
            hint="choose another --run-dir for the new run",
        )
    data = {"source_eos": (config.data.source_eos, parent.config.data.source_eos)}
    differences = [
        f"  {section}.{key}: {ours} here, {theirs} there"
        for section, pairs in (
            ("model", _pairs(config.model.settled, parent.config.model.settled)),
            ("tokenizer", _pairs(config.tokenizer, parent.config.tokenizer)),
            ("data", data),
        )
        for key, (ours, theirs) in pairs.items()
        if ours != theirs and "dropout" not in key and key not in ("sampling", "extend")
    ]
    differences += [f"  data.tags: {ours}" for ours in _strange_tags(config, parent)]
    if differences:
        raise UsageError(
            f"{shown(parent.path)} does not fit this configuration, which is to begin with it "
            "(training.init_from):\n" + "\n".join(differences),
            hint=f"take them over from {shown(parent.path / 'config.yaml')}: `extends:` it, or the file it came from",
        )
    return parent


def machine_of(config: RunConfig, record: Mapping[str, Any], world: World, listener: Listener) -> Machine:
    """The choices that a run keeps, as far as this device has them, else new ones. The first process chooses for all,
    but for the number of its GPU. record: what run.json says, if there is one."""
    is_shared_anew, kept = record.get("processes", world.size) != world.size, record.get("machine")
    own, change = begin_or_resume(config, kept, is_shared_anew=is_shared_anew)
    if change is not None:
        listener.warn(f"{change}; bits will differ")
    if trouble := compiler_trouble(own, kept):
        listener.warn(f"training is slower than it could be, for the C++ compiler failed: {trouble}")
    shared = Machine.from_dict(json.loads(world.share(json_line(own.as_dict()))))
    compiled = shared.compiled and own.compiled  # some may have no compiler
    return replace(shared, device=own.device, deterministic=own.deterministic, compiled=compiled)


def tokenizer_of(
    place: Path, config: RunConfig, parent: OpenedRun | None, text: Corpus, world: World, listener: Listener
) -> Tokenizer:
    """The one that a run has there; made now if there is none. UsageError where it lacks a piece that is banned,
    ModelError where it cannot sample, and is to."""
    if world.is_main and parent is not None:
        begin_tokenizer(parent, config, text, place, listener)
    elif world.is_main and not (place / "tokenizer.json").exists():
        learn_tokenizer(config, text, place, listener)
    world.wait()
    tokenizer = Tokenizer.load(place)
    banned_ids(config.decoding, tokenizer)  # a validation would be late for it
    tokenizer.check_sampling(config.tokenizer.sampling)
    return tokenizer


def learn_tokenizer(config: RunConfig, text: Corpus, place: Path, listener: Listener) -> None:
    """Save a tokenizer of the text."""
    wanted, tags = config.tokenizer, config.data.tagged
    what = f"training the tokenizer on {2 * len(text):,} lines" if wanted.model is None else "reading the tokenizer"
    with listener.stage(what):
        tokenizer, report = train_tokenizer(wanted, text.source, text.target, seed=config.seed, tags=tags)
    tokenizer.save(place)
    pieces = " + ".join(f"{n:,}" for n in report.pieces.values())
    asked = f" ({' + '.join(f'{n:,}' for n in report.asked.values())} asked for)" if report.fitted else ""
    of = f", from {counted(report.lines_used, 'lines')}" if wanted.model is None else ""
    listener.say(f"tokenizer: {report.kind}, {pieces} pieces{asked}{of}")
    for reason, n in report.lines_skipped.items():
        listener.warn(f"tokenizer: {n:,} {reason}")


def begin_tokenizer(parent: OpenedRun, config: RunConfig, text: Corpus, place: Path, listener: Listener) -> None:
    """Save the parent's tokenizer, extended where that is asked for."""
    tokenizer, asked = parent.tokenizer, config.tokenizer.extend
    if asked:
        with listener.stage("learning new pieces"):
            tokenizer = extended(tokenizer, asked, text.source, text.target, seed=config.seed)
        sides = zip(tokenizer.models().values(), parent.tokenizer.models().values(), strict=True)
        new = [now.size - before.size for now, before in sides]
        of = f" of {asked:,} that were asked for" if min(new) < asked else ""
        listener.say(f"tokenizer: that of {shown(parent.path)}, and {' + '.join(f'{n:,}' for n in new)} new pieces{of}")
    tokenizer.save(place)


def inherited(parent: OpenedRun, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The parent's weights for a tokenizer that extends its own. What belongs to a new piece is the mean of what
    belongs to those that it was cut into; to a character that was unknown, the mean of all (Hewitt 2021)."""
    tensors = weights(parent.model)
    for name, side in VOCABULARIES.items():
        if name in tensors:
            before, now = getattr(parent.tokenizer, side), getattr(tokenizer, side)
            table = tensors[name]
            means = [table[ids or slice(len(SPECIALS), None)].mean(0) for ids in cut_before(now, before)]
            tensors[name] = torch.cat([table, *(mean[None] for mean in means)])
    return tensors


def begin_weights(parent: OpenedRun, model: Transformer, tokenizer: Tokenizer, listener: Listener) -> dict[str, str]:
    """Give a model its parent's weights; returns what is recorded of that."""
    origin = parent.checkpoint
    load_weights(model, inherited(parent, tokenizer), origin=shown(origin))
    listener.say(f"beginning with the weights of {origin}")
    return {
        "checkpoint": str(origin),
        "sha256": parent.manifest.files[MODEL].sha256,
        "tokenizer": tokenizer.fingerprint,
    }


def _strange_tags(config: RunConfig, parent: OpenedRun) -> list[str]:
    """Why sources here could not begin as those there."""
    here, there = config.data.tagged, parent.tokenizer.tags
    if there and not here:
        return [f"sources begin without a tag here, with {' or '.join(map(tag_of, there))} there; true is what fits"]
    lacking = [tag_of(language) for language in here if language not in there]
    return [f"sources begin with {' or '.join(lacking)} here, of which nothing is known there"] if lacking else []


def _pairs(ours: object, theirs: object) -> dict[str, tuple[object, object]]:
    return {key: (value, vars(theirs)[key]) for key, value in vars(ours).items()}


def portions_of(run_dir: Path, world: World, listener: Listener, *, budget: int) -> Portions:
    """In how many parts each process learns from a batch: in one, unless memory was not enough for all before. budget:
    tokens of a batch; no more parts than these are of any use."""
    n = int(world.share(str(parts_of(run_dir, most=budget)) if world.is_main else ""))
    if n > 1:
        place = shown(run_dir / MEMORY)
        listener.say(f"each batch is learned from in {n} parts: memory was not enough before ({place})")
    return Portions(listener.warn, n, partial(leave_parts, run_dir))


def parameters_in_words(model: nn.Module, held: Collection[str], *, is_drawn: bool) -> str:
    """How many there are, and how many are held as they are. is_drawn: at random, not by another run."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    n_held = sum(n for name, n in sizes.items() if name in held)
    drawn = " as they were drawn, at random" if is_drawn else ""
    return f"{sum(sizes.values()):,} parameters{f', {n_held:,} of them frozen{drawn}' if n_held else ''}"
