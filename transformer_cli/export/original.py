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
from transformer_cli.accounting.weights import stored
from transformer_cli.config.accounting import CountedModel
from transformer_cli.config.complaints import complaints
from transformer_cli.config.model import Stack
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.hugging_face_names import is_written, modules
from transformer_cli.export.numbering import Numbering
from transformer_cli.model.positions import sinusoids
from transformer_cli.tokenizer import Tokenizer

NEVER = -100.0
"""The bias of what is never written: in fp32 its probability is nothing."""
SIDES: tuple[Stack, ...] = ("encoder", "decoder")
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
SHARED, BIAS = "model.shared.weight", "final_logits_bias"
TWO = (
    "; or say in its config.json that they are two: tie_word_embeddings and share_encoder_decoder_embeddings are false"
)
COPY = "copy it again from where it was saved"

Settings = dict[str, dict[str, Any]]
"""Of `model:`, `tokenizer:`, `data:` and `decoding:`."""


@dataclass(frozen=True)
class Found:
    """A model in tx's terms. left: settings that tx has not, with their values."""

    kind: str
    settings: Settings
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]
    left: tuple[str, ...] = ()


class Originals:
    """The weights by their names in Hugging Face, in fp32, and which of them were read."""

    def __init__(self, place: Path, tensors: Mapping[str, Tensor]) -> None:
        """place: where they lie, for errors."""
        self._place, self._tensors = place, tensors
        self._read: set[str] = set()

    def get(self, *names: str, shape: Sequence[int]) -> Tensor | None:
        """The first of these that is there; all of them count as read.

        ModelError where it has another shape (-1 is any length) or numbers that are none, and where others of these
        are not the same. In a bias of logits -inf is `NEVER`.
        """
        self._read |= set(names)
        name = next((name for name in names if name in self._tensors), None)
        if name is None:
            return None
        found = self._tensors[name].float()
        if name == BIAS:
            found = found.masked_fill(found == -torch.inf, NEVER)
        if not torch.isfinite(found).all():
            raise ModelError(f"the weights in {files.shown(self._place)}: {name} holds NaN or infinity", hint=COPY)
        for other in sorted(self._tensors.keys() & {*names} - {name}):
            if not torch.equal(self._tensors[other].float(), found):
                raise ModelError(
                    f"the weights in {files.shown(self._place)}: {name} and {other} differ; the configuration there "
                    "says that they are one",
                    hint=COPY + TWO * self._place.is_dir(),
                )
        if found.ndim != len(shape) or any(wanted not in (-1, n) for n, wanted in zip(found.shape, shape, strict=True)):
            raise ModelError(
                f"the weights in {files.shown(self._place)}: {name} is {_described(found.shape)}, the configuration "
                f"there says {_described(shape)}",
                hint=COPY,
            )
        return found

    def need(self, *names: str, shape: Sequence[int]) -> Tensor:
        """The same; ModelError where none is there."""
        found = self.get(*names, shape=shape)
        if found is None:
            raise ModelError(f"the weights in {files.shown(self._place)} have no {names[0]}", hint="copy it again")
        return found

    def tables(self, tied: str, width: int = -1) -> dict[Stack, Tensor]:
        """The embeddings of both sides."""
        self._read.add(SHARED)  # where each side has its own, that is neither
        found = {}
        for side in SIDES:
            names = _table(tied, side)
            is_there = any(name in self._tensors for name in names)
            found[side] = self.need(*(names if is_there else (SHARED,)), shape=(-1, width))
        return found

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
    n_rows = len(originals.tables(settings["model"]["tied"])["decoder"])
    there_V = originals.get(BIAS, shape=(1, n_rows))
    bias_V = torch.zeros(len(target.rows)) if there_V is None else there_V.flatten()[target.rows]
    bias_V[~torch.tensor(target.own)] = NEVER
    settings["model"]["output_bias"] = has_bias = bool(bias_V.any())
    try:
        model = CountedModel.model_validate(settings["model"])
    except ValidationError as failure:
        raise ModelError(f"the configuration there describes no model: {complaints(failure)}", hint=COPY) from None
    found = dict(_weights(model, originals, numberings)) | ({"output_bias": bias_V} if has_bias else {})
    originals.check_all_read(kind)
    return Found(kind, settings, tokenizer, found)


def settings_of(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """What `tokenizer:` says of one that was made elsewhere."""
    sizes = {"source": tokenizer.source_size, "target": tokenizer.target_size}
    joint = tokenizer.shares_ids
    return {"kind": kind, "joint": joint, "vocab_size": sizes["source"] if joint else sizes}


def _described(shape: Sequence[int]) -> str:
    return " x ".join("..." if n < 0 else f"{n:,}" for n in shape) or "one number"


def _table(tied: str, side: Stack) -> tuple[str, ...]:
    """What a side's table is called, by all its names."""
    is_shared, is_output = tied in ("all", "embeddings"), tied in ("all", "decoder")
    own = f"model.{side}.embed_tokens.weight"
    head = ("lm_head.weight",) if is_output and (side == "decoder" or is_shared) else ()
    others = (SHARED, *(f"model.{other}.embed_tokens.weight" for other in SIDES)) if is_shared else ()
    return tuple(dict.fromkeys((own, *others, *head)))


def _weights(
    model: CountedModel, originals: Originals, numberings: Sequence[Numbering]
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name here."""
    moved = torch.arange(model.d_model)
    halves = torch.cat((moved[0::2], moved[1::2]))
    if model.positions == "sinusoidal":  # Marian has the sines first, then the cosines
        moved = halves.argsort()
    tables = originals.tables(model.tied, model.d_model)
    for side, name, one in zip(SIDES, ("source", "target"), numberings, strict=True):
        if side == "decoder" or model.tied in ("decoder", "none"):
            yield f"{name}_embedding.table.weight", tables[side][one.rows][:, moved]
        positions = originals.get(f"model.{side}.embed_positions.weight", shape=(-1, model.d_model))
        if model.positions_of(side) == "learned" and positions is not None:
            yield f"{side}.positions.table.weight", positions
        elif positions is not None and model.positions == "sinusoidal":
            expected = sinusoids(len(positions), model.d_model)[:, halves].float()
            if not torch.allclose(positions, expected, atol=1e-3):
                raise UsageError(f"{side}: its positions are not the sinusoids that Marian's models have")
    if model.tied in ("embeddings", "none"):
        head = originals.need("lm_head.weight", shape=tables["decoder"].shape)
        yield "output.weight", head[numberings[-1].rows][:, moved]
    shapes = stored(model, source_vocab=len(tables["encoder"]), target_vocab=len(tables["decoder"]))
    for ours, theirs in modules(model):
        (n, *width), axis = shapes[f"{ours}.weight"].shape, 0 if is_written(ours) else 1
        parts = [(name, n // len(theirs)) for name in theirs]
        weight = torch.cat([originals.need(f"{name}.weight", shape=(rows, *width)) for name, rows in parts])
        bias = torch.cat([originals.need(f"{name}.bias", shape=(rows,)) for name, rows in parts])
        yield f"{ours}.weight", weight.index_select(axis, moved)
        yield f"{ours}.bias", bias[moved] if is_written(ours) else bias
