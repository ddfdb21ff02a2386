"""The weights as tx stores them: every tensor by name, without making one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transformer_cli.config.accounting import CountedModel
from transformer_cli.config.model import Stack

FIXED = "embedding.positions_fixed"
"""The component of a table that no training changes."""
DTYPE = "F32"
"""What the format calls the numbers that tx saves."""


@dataclass(frozen=True)
class Stored:
    """A tensor: how many of its rows belong to which component, and the shape of a row."""

    rows: tuple[tuple[str, int], ...]
    row: tuple[int, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether no training changes it."""
        return self.rows[0][0] == FIXED

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(n for _, n in self.rows), *self.row)


def stored(model: CountedModel, *, source_vocab: int, target_vocab: int) -> dict[str, Stored]:
    """Every tensor of a model that tx builds, a tied one once."""
    return dict(_stored(model, source_vocab, target_vocab))


def _stored(model: CountedModel, source_vocab: int, target_vocab: int) -> Iterator[tuple[str, Stored]]:
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
    if "decoder" in model.sides and model.output_bias:
        yield "output_bias", Stored((("output_bias", target_vocab),))


def _stack(model: CountedModel, side: Stack) -> Iterator[tuple[str, Stored]]:
    tables = {"learned": "embedding.positions", "sinusoidal-table": FIXED}
    if component := tables.get(model.positions_of(side)):
        rows = ((component, model.max_positions_of(side)),)
        yield f"{side}.positions.table.weight", Stored(rows, (model.d_model,))
    for index in range(getattr(model.depths, side)):
        for name, tensor in _layer(model, side):
            yield f"{side}.layers.{index}.{name}", tensor
    if model.ends_in_norm:
        yield from _norm(model, f"{side}.norm", "norm.final")


def _layer(model: CountedModel, side: Stack) -> Iterator[tuple[str, Stored]]:
    queries, keys = model.n_heads * model.head_width, model.kv_heads * model.head_width
    widths = {"query": queries, "key": keys, "value": keys}
    blocks = {"self_attention": (f"{side}_self", [["query", "key", "value"]])}
    if side == "decoder" and "encoder" in model.sides:
        blocks["cross_attention"] = ("cross", [["query"], ["key", "value"]])
    for module, (block, matrices) in blocks.items():
        bias = "attention_bias" if model.projections else None
        for names in matrices:
            rows = tuple((f"{block}.{name}", widths[name]) for name in names)
            yield from _linear(f"{module}.{'_'.join(names)}", rows, model.d_model, bias)
        yield from _linear(f"{module}.output", ((f"{block}.output", model.d_model),), queries, bias)
        for name in ("query", "key") if model.qk_norm else ():
            yield f"{module}.{name}_norm.weight", Stored((("norm.heads", model.head_width),))
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


def _norm(model: CountedModel, name: str, component: str) -> Iterator[tuple[str, Stored]]:
    yield f"{name}.weight", Stored(((component, model.d_model),))
    if model.norm == "layer-norm" and model.biases.norm:
        yield f"{name}.bias", Stored(((component, model.d_model),))
