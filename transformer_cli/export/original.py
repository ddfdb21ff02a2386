"""The model of another toolkit, as it is there and as tx has it: the weights by their names, rows and features.

Here the pieces, the rows of the embeddings and the features of the residual stream get tx's order, and the first row of
a translation its own vector. What is an id here and was none there is never written: its bias sees to it, so that all
others keep their probabilities.

D d_model
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from transformer_cli import files
from transformer_cli.config.complaints import complaint
from transformer_cli.config.model import ModelConfig, Stack
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.hugging_face_names import is_written, modules
from transformer_cli.export.numbering import Numbering
from transformer_cli.model.positions import sinusoids
from transformer_cli.tokenizer import Tokenizer

NEVER = -100.0
"""The bias of what is never written: in fp32 its probability is nothing."""
SIDES: tuple[Stack, ...] = ("encoder", "decoder")
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
COPY = "copy it again from where it was saved"

Settings = dict[str, dict[str, Any]]
"""Of `model:`, `tokenizer:`, `data:` and `decoding:`."""


@dataclass(frozen=True)
class Found:
    """A model in tx's terms."""

    kind: str
    settings: Settings
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]


class Originals:
    """The weights by their names in Hugging Face, in fp32, and which of them were read."""

    def __init__(self, place: Path, tensors: Mapping[str, Tensor]) -> None:
        """place: where they lie, for errors."""
        self._place, self._tensors = place, tensors
        self._read: set[str] = set()

    def get(self, *names: str) -> Tensor | None:
        """The first of these that is there; all of them count as read, for they are the same."""
        self._read |= set(names)
        return next((self._tensors[name].float() for name in names if name in self._tensors), None)

    def __getitem__(self, names: str | tuple[str, ...]) -> Tensor:
        names = (names,) if isinstance(names, str) else names
        found = self.get(*names)
        if found is None:
            raise ModelError(f"the weights in {files.shown(self._place)} have no {names[0]}", hint="copy it again")
        return found

    def tables(self, tied: str) -> dict[Stack, Tensor]:
        """The embeddings of both sides."""
        return {side: self[_table(tied, side)] for side in SIDES}

    def check_all_read(self, kind: str) -> None:
        """ModelError for weights that have no place here: without them it would be another model."""
        if left := sorted(self._tensors.keys() - self._read):
            raise ModelError(
                f"{files.shown(self._place)} has weights that no {kind} model has: {', '.join(left[:5])}",
                hint="tx would leave them out, and compute something else",
            )


def refuse(place: Path, reasons: Sequence[str], *, hint: str) -> None:
    """UsageError with every reason, if there is one."""
    if reasons:
        raise UsageError(
            f"{files.shown(place)} cannot become a run:\n" + "\n".join(f"  {reason}" for reason in reasons), hint=hint
        )


def is_like(value: Any, usual: Any) -> bool:
    """Whether a setting is of the kind that it usually is; every whole number is a number."""
    return type(value) is type(usual) or (type(usual) is float and type(value) is int)


def as_run(
    kind: str, settings: Settings, tokenizer: Tokenizer, originals: Originals, numberings: Sequence[Numbering]
) -> Found:
    """The model in tx's terms. settings: without `model.output_bias`. numberings: of both sides' pieces.

    Raises ModelError for weights that are missing, of another shape, or too many; UsageError for foreign positions.
    """
    target = numberings[-1]
    there_V = originals.get("final_logits_bias")
    bias_V = torch.zeros(len(target.rows)) if there_V is None else there_V.flatten()[target.rows]
    bias_V[~torch.tensor(target.own)] = NEVER
    settings["model"]["output_bias"] = has_bias = bool(bias_V.any())
    try:
        model = ModelConfig.model_validate(settings["model"])
    except ValidationError as failure:
        wrong = ", ".join(f"{'.'.join(map(str, entry['loc']))}: {complaint(entry)}" for entry in failure.errors())
        raise ModelError(f"the configuration there describes no model: {wrong}", hint=COPY) from None
    found = dict(_weights(model, originals, numberings)) | ({"output_bias": bias_V} if has_bias else {})
    originals.check_all_read(kind)
    return Found(kind, settings, tokenizer, found)


def settings_of(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """What `tokenizer:` says of one that was made elsewhere."""
    sizes = {"source": tokenizer.source_size, "target": tokenizer.target_size}
    joint = tokenizer.shares_ids
    return {"kind": kind, "joint": joint, "vocab_size": sizes["source"] if joint else sizes}


def _table(tied: str, side: Stack) -> tuple[str, ...]:
    """What a side's table may be called."""
    is_shared, is_output = tied in ("all", "embeddings"), tied in ("all", "decoder")
    own, shared = f"model.{side}.embed_tokens.weight", "model.shared.weight"
    head = ("lm_head.weight",) if is_output and (side == "decoder" or is_shared) else ()
    others = tuple(f"model.{other}.embed_tokens.weight" for other in SIDES) if is_shared else ()
    return tuple(dict.fromkeys((own, shared, *others, *head)))


def _weights(model: ModelConfig, originals: Originals, numberings: Sequence[Numbering]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name here."""
    moved = torch.arange(model.d_model)
    halves = torch.cat((moved[0::2], moved[1::2]))
    if model.positions == "sinusoidal":  # Marian has the sines first, then the cosines
        moved = halves.argsort()
    tables = originals.tables(model.tied)
    for side, name, one in zip(SIDES, ("source", "target"), numberings, strict=True):
        if side == "decoder" or model.tied in ("decoder", "none"):
            yield f"{name}_embedding.table.weight", tables[side][one.rows][:, moved]
        positions = originals.get(f"model.{side}.embed_positions.weight")
        if model.positions_of(side) == "learned" and positions is not None:
            yield f"{side}.positions.table.weight", positions
        elif positions is not None and model.positions == "sinusoidal":
            expected = sinusoids(len(positions), model.d_model)[:, halves].float()
            if not torch.allclose(positions, expected, atol=1e-3):
                raise UsageError(f"{side}: its positions are not the sinusoids that Marian's models have")
    if model.tied in ("embeddings", "none"):
        yield "output.weight", originals["lm_head.weight"][numberings[-1].rows][:, moved]
    for ours, theirs in modules(model):
        weight = torch.cat([originals[f"{name}.weight"] for name in theirs])
        bias = torch.cat([originals[f"{name}.bias"] for name in theirs])
        yield f"{ours}.weight", weight[moved] if is_written(ours) else weight[:, moved]
        yield f"{ours}.bias", bias[moved] if is_written(ours) else bias
