"""What a run begins with and what of that is held: another run's weights and tokenizer, frozen parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import product

from transformer_cli.accounting.weights import stored
from transformer_cli.checkpoints.store import OpenedRun, find_checkpoint, open_found
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import UsageError
from transformer_cli.files import shown

EMBEDDINGS = "embeddings"
_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})")


def parent_of(config: RunConfig) -> OpenedRun | None:
    """The run that training begins with, opened, if there is to be one. ModelError where it is not there or damaged,
    UsageError, naming every setting, where the new run is of another kind.
    """
    if config.training.init_from is None:
        return None
    parent = open_found(partial(find_checkpoint, config.training.init_from))
    data = {"source_eos": (config.data.source_eos, parent.config.data.source_eos)}
    differences = [
        f"  {section}.{key}: {ours} here, {theirs} there"
        for section, pairs in (
            ("model", _pairs(config.model, parent.config.model)),
            ("tokenizer", _pairs(config.tokenizer, parent.config.tokenizer)),
            ("data", data),
        )
        for key, (ours, theirs) in pairs.items()
        if ours != theirs and "dropout" not in key and key != "sampling"
    ]
    if differences:
        raise UsageError(
            f"{shown(parent.path)} does not fit this configuration, which is to begin with it "
            "(training.init_from):\n" + "\n".join(differences),
            hint=f"take them over from {shown(parent.path / 'config.yaml')}: `extends:` it, or the file it came from",
        )
    return parent


def frozen(config: RunConfig) -> frozenset[str]:
    """The names of the tensors that training leaves as they are (training.freeze); UsageError where a part is not one
    of the model's, or nothing would be left to train.
    """
    names = stored(config.counted, source_vocab=1, target_vocab=1).keys()
    held: set[str] = set()
    for part in config.training.freeze:
        for one in _expanded(part):
            found = {name for name in names if _is_in(name, one)}
            if not found:
                tops = sorted({name.split(".")[0] for name in names if not name.endswith("_embedding.table.weight")})
                raise UsageError(
                    f"training.freeze: {part}: the model has no {one}",
                    hint=f"for example {EMBEDDINGS}, {', '.join(tops)}, encoder.layers.0-2; layers count from 0",
                )
            held |= found
    if held >= names:
        raise UsageError("training.freeze leaves nothing to train", hint="name fewer parts")
    return frozenset(held)


def _expanded(part: str) -> Iterator[str]:
    """encoder.layers.0-2 is encoder.layers.0, .1 and .2."""
    choices = [
        [str(n) for n in range(int(found[1]), int(found[2]) + 1)] if (found := _RANGE.fullmatch(word)) else [word]
        for word in part.split(".")
    ]
    return (".".join(words) for words in product(*choices))


def _is_in(name: str, part: str) -> bool:
    if part == EMBEDDINGS:
        return "_embedding." in name or ".positions." in name
    return f"{name}.".startswith(f"{part}.")


def _pairs(ours: object, theirs: object) -> dict[str, tuple[object, object]]:
    return {key: (value, vars(theirs)[key]) for key, value in vars(ours).items()}
