"""The mean of checkpoints: a run of its own, with its parents named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from transformer_cli import files
from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import step_name, whole_run_of
from transformer_cli.checkpoints.fit import check_kinds
from transformer_cli.checkpoints.known import open_known
from transformer_cli.checkpoints.manifest import MODEL, OWES, Parent
from transformer_cli.checkpoints.tensors import kinds, portion
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.files import shown
from transformer_cli.wording import counted

UNRELATED = 0.1
"""The cosine of two runs' matrices that is not reached where they began with other weights: of tiny after 100 and after
300 updates it is 0.87, of two seeds below 0.01."""


def average(parents: Sequence[Path], place: Path, *, warn: Callable[[str], None] = lambda line: None) -> Path:
    """Write a run whose one checkpoint is the mean of these, summed in fp64 and rounded once; returns that checkpoint.

    Its configuration, tokenizer and record are those of the first parent's run, its step and what training says are the
    newest parent's. It is its own best: parents are chosen by their validations, or by whoever names them.
    Raises UsageError where something is in its place, ModelError, naming what differs, for parents that do not fit
    together, or a first one that does not fit its run. warn: told of runs that have nothing in common.
    """
    store.check_vacant(place, option="-o")
    there = [path.resolve() for path in parents]
    for path, place_of_it in zip(parents, there, strict=True):
        if there.count(place_of_it) > 1:
            raise UsageError(f"{shown(path)} is named more than once", hint="name each checkpoint once")
    known = open_known(parents[0])
    sums: dict[str, Tensor] = {}
    alike: dict[Path, float] = {}
    named, newest = [], store.load_checkpoint(parents[0], with_optimizer=False)
    first = newest
    for path in parents:
        one = store.load_checkpoint(path, with_optimizer=False)
        _check_same(first, one)
        if whole_run_of(path) != whole_run_of(parents[0]):
            alike[path] = _cosine(*(_learned(tensors, known.config) for tensors in (first.model, one.model)))
        _add(sums, one.model)
        newest = one if one.step > newest.step else newest
        digest = files.sha256(path / MODEL, error=ModelError)
        named.append(Parent(run=shown(whole_run_of(path).resolve().name), step=one.step, sha256=digest))
    model = {name: _mean(sums[name], len(parents), tensor) for name, tensor in first.model.items()}
    with files.atomic_directory(place) as aside:
        known.tokenizer.save(aside / "tokenizer")
        files.write_text(aside / "config.yaml", dump_config(known.config))
        record = {key: value for key, value in known.record.items() if key != "scores"}
        files.write_json(aside / "run.json", record | {"average": [parent.model_dump() for parent in named]})
        origin = f"the mean of {counted(len(parents), 'checkpoints')}"
        store.save_checkpoint(
            aside,
            step=newest.step,
            model=portion(model),
            optimizer=portion({}),
            state=newest.state | {"scores": {}, "finished": origin, OWES: False},
            config=known.config,
            tokenizer=known.tokenizer.fingerprint,
            parents=tuple(named),
        )
        store.point(aside, "best", newest.step)
    for path in (path for path, cosine in alike.items() if cosine < UNRELATED):
        warn(
            f"{shown(path)} has nothing in common with {shown(parents[0])} (the cosine of their weights is "
            f"{alike[path]:.2f}): the mean of trainings that began with other weights is of no use as a rule; "
            "translate with both of them, `-m A -m B`"
        )
    return place / "checkpoints" / step_name(newest.step)


def _check_same(first: store.Checkpoint, one: store.Checkpoint) -> None:
    """ModelError, naming what differs, where a checkpoint is not of the first one's kind."""
    if one.tokenizer != first.tokenizer:
        raise ModelError(
            f"{shown(one.path)} was trained with another tokenizer than {shown(first.path)}: their mean would mix "
            "different pieces",
            hint="average checkpoints of one run, or of runs with the same tokenizer",
        )
    sections = (("model", first.config.settled, one.config.settled), ("data", first.data, one.data))
    differences = [
        f"  {section}.{key}: {value} and {getattr(theirs, key)}"
        for section, ours, theirs in sections
        if ours is not None and theirs is not None
        for key, value in ours
        if value != getattr(theirs, key) and "dropout" not in key
    ]
    if differences:
        raise ModelError(
            f"{shown(first.path)} and {shown(one.path)} are not of the same kind:\n" + "\n".join(differences),
            hint="average checkpoints of one run, or of runs that began with the same weights (training.init_from)",
        )
    check_kinds(kinds(one.model), kinds(first.model), origin=shown(one.path))


def _add(sums: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        sums[name] = tensor.to(torch.float64) + sums.get(name, 0.0)


def _learned(tensors: Mapping[str, Tensor], config: RunConfig) -> dict[str, Tensor]:
    """Without tables of sinusoids, which are the same in every training."""
    model = config.model
    tables = {
        f"{side}.positions.table.weight" for side in model.sides if model.positions_of(side) == "sinusoidal-table"
    }
    return {name: tensor for name, tensor in tensors.items() if name not in tables}


def _cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Of all their matrices: norms and biases begin alike in every training."""
    products = torch.zeros(3, dtype=torch.float64)
    for name in (name for name, tensor in one.items() if tensor.dim() > 1):
        x, y = (tensors[name].to(torch.float64).flatten() for tensors in (one, other))
        products += torch.stack([x @ y, x @ x, y @ y])
    own, first, second = products.tolist()
    return float(own / math.sqrt(first * second)) if first and second else 1.0


def _mean(total: Tensor, n: int, like: Tensor) -> Tensor:
    return (total / n).to(like.dtype)
