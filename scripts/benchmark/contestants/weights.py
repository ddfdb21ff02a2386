"""tx's weights in another toolkit's model of the same shape: norms before the sublayers and after each stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turn import Turn

Names = dict[str, str]
"""What a module of a layer is called there, by tx's name; the rows of one of tx's may be several, with spaces."""


MARKS = ["<unk>", "<pad>", "<s>", "</s>"]
"""The first four in the order of JoeyNMT, OpenNMT-py and Eole."""


def words(turn: Turn) -> list[str]:
    """The vocabulary in their order."""
    return [*MARKS, *turn.vocabulary[len(MARKS) :]]


def fill(turn: Turn, model: Any, layers: dict[str, str], names: dict[str, Names], *, table: Any) -> None:
    """In place. layers: where the layers of encoder and decoder are. names: of each stack. table: the weight that both
    embeddings and the output share."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(Path(turn.model) / "weights")
    ids = {piece: id for id, piece in enumerate(turn.vocabulary)}
    left = dict(model.named_parameters())
    modules = {f"{side}.norm": f"{side}.layer_norm" for side in layers}
    for side, place in layers.items():
        for index in range(turn.sizes.n_layers):
            for here, there in names[side].items():
                theirs = " ".join(f"{place}.{index}.{name}" for name in there.split())
                modules[f"{side}.layers.{index}.{here}"] = theirs
    with torch.no_grad():
        for here, there in modules.items():
            for kind in ("weight", "bias"):
                parts = tensors.pop(f"{here}.{kind}").chunk(len(there.split()))
                for name, part in zip(there.split(), parts, strict=True):
                    left.pop(f"{name}.{kind}").copy_(part)
        table.copy_(tensors.pop("target_embedding.table.weight")[[ids[piece] for piece in words(turn)]])
        for name in [name for name, one in left.items() if one.dim() == 1]:
            left.pop(name).zero_()  # a bias of the output, which tx's model has not
    if tensors or any(one is not table for one in left.values()):
        raise SystemExit(f"not the same model: {[*tensors]} are left here, {[*left]} there")
