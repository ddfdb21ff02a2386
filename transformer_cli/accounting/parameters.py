"""A configuration's parameters in closed form, part by part, each with the product that gives it.

Two conventions. `exact`: what the network holds, a tied matrix once. `weights-only`, that of the lectures: each matrix
where it is used, tied or not, and no biases, norms and positions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from transformer_cli.config.accounting import PROJECTIONS, CountedModel, Projection
from transformer_cli.config.model import Stack
from transformer_cli.errors import ConfigError
from transformer_cli.wording import counted

Convention = Literal["exact", "weights-only"]
By = Literal["component", "layer", "block"]


@dataclass(frozen=True)
class Product:
    """A number, and the factors that give it: `128 x 12,288 x 96 heads`."""

    value: int
    text: str


@dataclass(frozen=True)
class Part:
    """Tensors of one purpose: `copies` of them, alike, each with as many numbers as the product says."""

    component: str
    block: str
    each: Product
    copies: int = 1
    unit: str = "layers"
    stack: Stack | None = None
    """The stack in whose layers they lie; None outside of layers."""
    is_matrix: bool = True
    """Whether it counts in the weights-only convention."""
    trainable: bool = True
    shares: str | None = None
    """The component whose matrix is used here once more; such a part is no tensor of its own."""

    @property
    def parameters(self) -> int:
        return self.each.value * self.copies


@dataclass(frozen=True)
class Group:
    """Parts that are counted together: a component, the layers of a stack, or a block."""

    name: str
    product: str
    parameters: int
    trainable: int
    """How many of them training changes."""
    shares: str | None = None


@dataclass(frozen=True)
class Count:
    """All parts of a model. Totals are those of the exact convention."""

    parts: tuple[Part, ...]
    model: CountedModel

    @cached_property
    def total(self) -> int:
        return sum(part.parameters for part in self.chosen("exact"))

    @cached_property
    def trainable(self) -> int:
        return sum(part.parameters for part in self.chosen("exact") if part.trainable)

    @property
    def frozen(self) -> int:
        return self.total - self.trainable

    @property
    def tied(self) -> int:
        """What tying saves: the parameters of the matrices that are used again."""
        return sum(part.parameters for part in self.parts if part.shares)

    @property
    def weights_only(self) -> int:
        return sum(part.parameters for part in self.chosen("weights-only"))

    def chosen(self, convention: Convention) -> tuple[Part, ...]:
        """The parts that a convention counts."""
        exact = convention == "exact"
        return tuple(part for part in self.parts if (not part.shares if exact else part.is_matrix))

    def groups(self, by: By = "component", convention: Convention = "exact") -> tuple[Group, ...]:
        return grouped(self.chosen(convention), self.model, by)

    def corrections(self) -> tuple[Group, ...]:
        """What comes to the weights-only count, or off it, to make the exact one."""
        again = grouped((part for part in self.parts if part.shares), self.model, "component")
        left_out = grouped((part for part in self.parts if not part.is_matrix), self.model, "component")
        return (*(replace(group, parameters=-group.parameters) for group in again), *left_out)

    def by_component(self) -> dict[str, int]:
        """The parameters of each component of the exact network."""
        return {group.name: group.parameters for group in self.groups()}


def count(model: CountedModel, *, source_vocab: int, target_vocab: int) -> Count:
    """Every part of a model with vocabularies of these sizes; 0: no embedding, vectors come from elsewhere.

    Raises ConfigError for an extra that is called like a part of the network.
    """
    parts = [
        *_embeddings(model, source_vocab, target_vocab),
        *(part for side in model.sides for part in _positions(model, side)),
        *(part for side in model.sides for part in _layers(model, side)),
        *_output(model, target_vocab),
        *_final_norms(model),
    ]
    built = {part.component for part in parts}
    if taken := [extra.name for extra in model.extra if extra.name in built]:
        raise ConfigError(
            f"accounting.extra: the network has parts that are called {', '.join(taken)} already",
            hint="choose other names",
        )
    parts += _extras(model)
    # The matrices first: the table goes from the weights-only count to the exact one.
    parts.sort(key=lambda part: not part.is_matrix)
    return Count(tuple(part for part in parts if part.parameters), model)


# --- the parts ----------------------------------------------------------------------------------------------------


def _embeddings(model: CountedModel, source_vocab: int, target_vocab: int) -> Iterator[Part]:
    def table(name: str, vocab: int, shares: str | None = None) -> Part:
        return Part(f"embedding.{name}", "embedding", product(model.d_model, vocab), shares=shares)

    if model.architecture == "encoder-only":
        yield table("tokens", source_vocab)
    elif model.architecture == "decoder-only":
        yield table("tokens", target_vocab)
    elif model.tied in ("all", "embeddings"):
        yield table("tokens", target_vocab)
        yield table("target", target_vocab, shares="embedding.tokens")
    else:
        yield table("source", source_vocab)
        yield table("target", target_vocab)


def _output(model: CountedModel, target_vocab: int) -> Iterator[Part]:
    if model.architecture != "encoder-only":
        one = model.architecture == "decoder-only" or model.tied == "all"
        tied = model.tied in ("all", "decoder")
        shares = ("embedding.tokens" if one else "embedding.target") if tied else None
        yield Part("unembedding", "unembedding", product(target_vocab, model.d_model), shares=shares)
        if model.output_bias:
            yield Part("output_bias", "unembedding", product(target_vocab), is_matrix=False)


def _layers(model: CountedModel, side: Stack) -> Iterator[Part]:
    """What the layers of a stack hold."""
    depth, d_model = getattr(model.depths, side), model.d_model
    crosses = side == "decoder" and "encoder" in model.sides
    blocks = [f"{side}_self", *(["cross"] if crosses else [])]
    for block in blocks:
        for name, shape in _projections(model).items():
            yield Part(f"{block}.{name}", block, shape, depth, stack=side)
    block = f"{side}_ffn"
    if model.gated:
        yield Part(f"{block}.gate", block, product(model.d_ff, d_model), depth, stack=side)
    yield Part(f"{block}.up", block, product(model.d_ff, d_model), depth, stack=side)
    yield Part(f"{block}.down", block, product(d_model, model.d_ff), depth, stack=side)

    queries, keys = model.n_heads * model.head_width, model.kv_heads * model.head_width
    widths: dict[Projection, int] = {"query": queries, "key": keys, "value": keys, "output": d_model}
    biased = [widths[name] for name in PROJECTIONS if name in model.projections]
    for block in blocks:
        unit = "attentions" if len(model.sides) == 2 else "layers"
        yield Part("attention_bias", block, added(biased), depth, unit, side, is_matrix=False)
    if model.biases.feed_forward:
        biased = [*[model.d_ff] * (1 + model.gated), d_model]
        yield Part("ffn_bias", f"{side}_ffn", added(biased), depth, stack=side, is_matrix=False)
    if model.qk_norm:
        n_norms = 2 * depth * len(blocks)
        yield Part("norm.heads", "norm", product(model.head_width), n_norms, "norms", side, is_matrix=False)
    n_norms = depth * (len(blocks) + 1)
    yield Part("norm.layers", "norm", _norm(model), n_norms, "norms", side, is_matrix=False)


def _projections(model: CountedModel) -> dict[Projection, Product]:
    queries = (model.n_heads, "heads")
    keys = queries if model.kv_heads == model.n_heads else (model.kv_heads, "kv heads")
    return {
        "query": product(model.head_width, model.d_model, queries),
        "key": product(model.head_width, model.d_model, keys),
        "value": product(model.head_width, model.d_model, keys),
        "output": product(model.d_model, model.head_width, queries),
    }


def _norm(model: CountedModel) -> Product:
    """One norm: a scale per feature, and LayerNorm's bias."""
    return added([model.d_model] * (1 + (model.norm == "layer-norm" and model.biases.norm)))


def _positions(model: CountedModel, side: Stack) -> Iterator[Part]:
    names = {"learned": "embedding.positions", "sinusoidal-table": "embedding.positions_fixed"}
    if name := names.get(kind := model.positions_of(side)):
        table = product(model.max_positions_of(side), model.d_model)
        yield Part(name, "embedding", table, unit="tables", is_matrix=False, trainable=kind == "learned")


def _final_norms(model: CountedModel) -> Iterator[Part]:
    if model.ends_in_norm:
        yield Part("norm.final", "norm", _norm(model), len(model.sides), "norms", is_matrix=False)


def _extras(model: CountedModel) -> Iterator[Part]:
    """What tx does not build."""
    for extra in model.extra:
        block, is_matrix = extra.name.partition(".")[0], len(extra.shape) > 1
        yield Part(extra.name, block, product(*extra.shape), is_matrix=is_matrix, trainable=extra.trainable)
        if extra.bias:
            bias = product(extra.shape[0])
            yield Part(extra.name, block, bias, is_matrix=False, trainable=extra.trainable)


# --- products -----------------------------------------------------------------------------------------------------


def product(*factors: int | tuple[int, str]) -> Product:
    """Factors multiplied, each a number or a number of things: `128 x 12,288 x 96 heads`."""
    pairs = [(factor, "") if isinstance(factor, int) else factor for factor in factors]
    return Product(math.prod(n for n, _ in pairs), " x ".join(counted(n, unit) for n, unit in pairs))


def added(widths: list[int]) -> Product:
    """Vectors side by side: `4 x 12,288` where they are equally wide, else `(49,152 + 12,288)`."""
    if len(widths) < 2:
        return Product(sum(widths), f"{sum(widths):,}")
    if len(set(widths)) == 1:
        return product(len(widths), widths[0])
    return Product(sum(widths), f"({' + '.join(f'{width:,}' for width in widths)})")


# --- groups -------------------------------------------------------------------------------------------------------


def grouped(parts: Iterable[Part], model: CountedModel, by: By) -> tuple[Group, ...]:
    """Parts counted together, in the order in which each group first appears."""
    together: dict[str, list[Part]] = {}
    for part in parts:
        together.setdefault(_name(part, by), []).append(part)
    terms = _alike if by == "component" else _per_layer
    return tuple(
        Group(
            name,
            " + ".join(terms(members, model)),
            sum(part.parameters for part in members),
            sum(part.parameters for part in members if part.trainable),
            members[0].shares,
        )
        for name, members in together.items()
    )


def _name(part: Part, by: By) -> str:
    if by == "component":
        return part.component
    if by == "block":
        return part.block
    if part.stack:
        return f"{part.stack} layers"
    return "final norms" if part.component == "norm.final" else part.block


def _alike(parts: list[Part], model: CountedModel) -> Iterator[str]:
    """A product for each kind of tensor: `4 x 512 x 18 attentions`."""
    for (text, unit), alike in groupby(parts, key=lambda part: (part.each.text, part.unit)):
        copies = sum(part.copies for part in alike)
        yield f"{text} x {counted(copies, unit)}" if copies > 1 else text


def _per_layer(parts: list[Part], model: CountedModel) -> Iterator[str]:
    """What one layer of each stack holds, times its layers, and the number of what lies outside of layers."""
    for side in model.sides:
        if inside := sum(part.parameters for part in parts if part.stack == side):
            depth = getattr(model.depths, side)
            yield f"{inside // depth:,} x {counted(depth, 'layers')}"
    outside = [part for part in parts if not part.stack]
    if len(outside) == 1 and len(parts) == 1:
        yield from _alike(outside, model)
    else:
        sizes = Counter(part.parameters for part in outside)
        yield from (f"{n:,} x {size:,}" if n > 1 else f"{size:,}" for size, n in sizes.items())
