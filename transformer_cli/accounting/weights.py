"""The weights as tx stores them: every tensor by name, without making one; and what a file's header says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_cli.config.model import ModelConfig, Side
from transformer_cli.errors import ModelError
from transformer_cli.files import shown

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
DTYPE = "F32"
"""What the format calls the numbers that tx saves."""


@dataclass(frozen=True)
class Stored:
    """A tensor: how many of its rows belong to which component, and the shape of a row."""

    rows: tuple[tuple[str, int], ...]
    row: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(n for _, n in self.rows), *self.row)


def stored(model: ModelConfig, *, source_vocab: int, target_vocab: int) -> dict[str, Stored]:
    """Every tensor of a model that tx builds, a tied one once."""
    return dict(_stored(model, source_vocab, target_vocab))


def _stored(model: ModelConfig, source_vocab: int, target_vocab: int) -> Iterator[tuple[str, Stored]]:
    vocabs = {"encoder": ("source", source_vocab), "decoder": ("target", target_vocab)}
    one_table = len(model.sides) == 1 or model.tied in ("all", "embeddings")
    for side in model.sides[-1:] if one_table else model.sides:
        name, vocab = vocabs[side]
        component = "embedding.tokens" if one_table else f"embedding.{name}"
        yield f"{name}_embedding.table.weight", Stored(((component, vocab),), (model.d_model,))
    for side in model.sides:
        yield from _stack(model, side)
    if "decoder" in model.sides and model.tied in ("embeddings", "none"):
        yield "output.weight", Stored((("unembedding", target_vocab),), (model.d_model,))


def _stack(model: ModelConfig, side: Side) -> Iterator[tuple[str, Stored]]:
    tables = {"learned": "embedding.positions", "sinusoidal-table": "embedding.positions_fixed"}
    if component := tables.get(model.positions_of(side)):
        rows = ((component, model.max_positions_of(side)),)
        yield f"{side}.positions.table.weight", Stored(rows, (model.d_model,))
    for index in range(getattr(model.depths, side)):
        for name, tensor in _layer(model, side):
            yield f"{side}.layers.{index}.{name}", tensor
    if model.ends_in_norm:
        yield from _norm(model, f"{side}.norm", "norm.final")


def _layer(model: ModelConfig, side: Side) -> Iterator[tuple[str, Stored]]:
    queries, keys = model.n_heads * model.head_width, model.kv_heads * model.head_width
    widths = {"query": queries, "key": keys, "value": keys}
    blocks = {"self_attention": (f"{side}_self", [["query", "key", "value"]])}
    if side == "decoder" and "encoder" in model.sides:
        blocks["cross_attention"] = ("cross", [["query"], ["key", "value"]])
    for module, (block, matrices) in blocks.items():
        bias = "attention_bias" if model.biases.projections else None
        for names in matrices:
            rows = tuple((f"{block}.{name}", widths[name]) for name in names)
            yield from _linear(f"{module}.{'_'.join(names)}", rows, model.d_model, bias)
        yield from _linear(f"{module}.output", ((f"{block}.output", model.d_model),), queries, bias)
    bias = "ffn_bias" if model.biases.feed_forward else None
    for name in ("up", "gate") if model.gated else ("up",):
        yield from _linear(f"feed_forward.{name}", ((f"{side}_ffn.{name}", model.d_ff),), model.d_model, bias)
    yield from _linear("feed_forward.down", ((f"{side}_ffn.down", model.d_model),), model.d_ff, bias)
    for index in range(len(blocks) + 1):
        yield from _norm(model, f"residuals.{index}.norm", "norm.layers")


def _linear(name: str, rows: tuple[tuple[str, int], ...], width: int, bias: str | None) -> Iterator[tuple[str, Stored]]:
    """A matrix, outputs first, and the vector of its biases."""
    yield f"{name}.weight", Stored(rows, (width,))
    if bias:
        yield f"{name}.bias", Stored(tuple((bias, n) for _, n in rows))


def _norm(model: ModelConfig, name: str, component: str) -> Iterator[tuple[str, Stored]]:
    yield f"{name}.weight", Stored(((component, model.d_model),))
    if model.norm == "layer-norm" and model.biases.norm:
        yield f"{name}.bias", Stored(((component, model.d_model),))


# --- files --------------------------------------------------------------------------------------------------------


def check_file(path: Path, expected: dict[str, Stored]) -> None:
    """Raise ModelError, naming what differs, unless a safetensors file holds just these tensors; its header is read.

    Source: https://github.com/huggingface/safetensors#format.
    """
    found = _header(path)
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is not part of the model" for name in found if name not in expected]
    known = {name: tensor for name, tensor in found.items() if name in expected}
    wrong += [
        f"{name} is {_described(shape)}, the configuration says {_described(expected[name].shape)}"
        for name, (_, shape) in known.items()
        if shape != expected[name].shape
    ]
    wrong += [f"{name} is kept as {kept}, tx keeps {DTYPE}" for name, (kept, _) in known.items() if kept != DTYPE]
    if wrong:
        rest = [f"... and {len(wrong) - 5:,} more"] if len(wrong) > 5 else []
        lines = "\n".join(f"  {line}" for line in sorted(wrong)[:5] + rest)
        raise ModelError(
            f"{shown(path)} contradicts the configuration of its run:\n{lines}",
            hint="restore the run's config.yaml, or choose another checkpoint",
        )


def _header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The kind of numbers and the shape of each tensor in a safetensors file."""
    damaged = ModelError(
        f"{shown(path)} is damaged: it is not what was saved",
        hint="restore it from a copy, or choose another checkpoint",
    )
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            text = file.read(min(size, MAX_HEADER_BYTES))
            n_bytes = file.seek(0, 2) - 8 - size
    except OSError as error:
        raise ModelError(f"cannot read {shown(path)}: {error.strerror or error}") from None
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        tensors = {
            name: (str(entry["dtype"]), tuple(int(n) for n in entry["shape"])) for name, entry in entries.items()
        }
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError):
        raise damaged from None
    if size > MAX_HEADER_BYTES or end != n_bytes:
        raise damaged
    return tensors


def _described(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{n:,}" for n in shape) or "one number"
