"""What a run begins with: the weights and the tokenizer of another."""

from __future__ import annotations

from functools import partial

from transformer_cli.checkpoints.store import OpenedRun, find_checkpoint, open_found
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import UsageError
from transformer_cli.files import shown


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


def _pairs(ours: object, theirs: object) -> dict[str, tuple[object, object]]:
    return {key: (value, vars(theirs)[key]) for key, value in vars(ours).items()}
