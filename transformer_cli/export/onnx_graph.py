"""An encoder and a decoder step as ONNX graphs, written node by node.

B batch, T new positions, P cached positions, S source length, H heads, K d_head, D d_model, V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_cli.config.model import ModelConfig, Stack
from transformer_cli.export.weights import Weights
from transformer_cli.model.positions import sinusoids
from transformer_cli.needs import needed

OPSET = 17
"""The first with LayerNormalization."""
HIDDEN = -1e30
"""Added to scores that must not count; finite, so that a row of nothing else is no NaN."""


class Graph:
    """Nodes, constants, inputs and outputs, in order; a name stands for what a node makes."""

    def __init__(self) -> None:
        self._helper, self._numpy = needed("onnx.helper"), needed("onnx.numpy_helper")
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def __call__(self, kind: str, *inputs: str | np.ndarray | np.generic, n: int = 1, **attributes: Any) -> Any:
        """A node; returns the name of its output, or the names of its n outputs."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        outputs = [f"{kind}_{len(self._nodes)}_{index}" for index in range(n)]
        self._nodes.append(self._helper.make_node(kind, names, outputs, **attributes))
        return outputs[0] if n == 1 else outputs

    def constant(self, array: np.ndarray | np.generic, name: str | None = None) -> str:
        name = f"constant_{len(self._constants)}" if name is None else name
        if name not in self._constants:
            self._constants[name] = self._numpy.from_array(np.asarray(array, order="C"), name)
        return name

    def input(self, name: str, shape: Sequence[str | int], *, integer: bool = False) -> str:
        kind = needed("onnx").TensorProto.INT64 if integer else needed("onnx").TensorProto.FLOAT
        self._inputs.append(self._helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, made: str, shape: Sequence[str | int]) -> None:
        self._nodes.append(self._helper.make_node("Identity", [made], [name]))
        kind = needed("onnx").TensorProto.FLOAT
        self._outputs.append(self._helper.make_tensor_value_info(name, kind, shape))

    def model(self, name: str) -> Any:
        """The whole, checked."""
        onnx = needed("onnx")
        graph = self._helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, initializer=list(self._constants.values())
        )
        made = self._helper.make_model(
            graph, opset_imports=[self._helper.make_opsetid("", OPSET)], ir_version=9, producer_name="tx"
        )
        onnx.checker.check_model(made)
        return made


class Layers:
    """The parts of a stack as nodes of a graph."""

    def __init__(self, graph: Graph, weights: Weights, side: Stack, *, rows: int) -> None:
        self.graph, self.weights, self.side, self.rows = graph, weights, side, rows
        self.config: ModelConfig = weights.config

    def embed(self, ids: str, offset: str, end: str) -> str:
        """Vectors of ids (B, T) that lie at the positions from offset to end."""
        table = self.weights.embedding(self.side)
        scale = math.sqrt(self.config.d_model) if self.config.embedding_scale else 1.0
        x = self.graph("Gather", table * np.float32(scale), ids)
        added = self.weights.positions(self.side, rows=self.rows)
        if not added.any():
            return str(x)
        return str(self.graph("Add", x, self.graph("Slice", added, offset, end, _ints(0))))

    def self_attention(
        self, name: str, x: str, bias: str, offset: str, end: str, past: tuple[str, str] | None = None
    ) -> tuple[str, str, str]:
        """The output, and the keys and values to remember."""
        query, key, value = (self._heads(one) for one in self._linears(f"{name}.query_key_value", x))
        if self.config.positions_of(self.side) == "rotary":
            query, key = (self._rotated(one, offset, end) for one in (query, key))
        if past is not None:
            key, value = (self.graph("Concat", old, new, axis=2) for old, new in zip(past, (key, value), strict=True))
        return self._attended(name, query, key, value, bias), key, value

    def cross_attention(self, name: str, x: str, memory: tuple[str, str], bias: str) -> str:
        [query] = self._linears(f"{name}.query", x)
        return self._attended(name, self._heads(query), *memory, bias)

    def remember(self, name: str, memory: str) -> list[str]:
        """Keys and values of the memory."""
        return [self._heads(one) for one in self._linears(f"{name}.key_value", memory)]

    def feed_forward(self, name: str, x: str) -> str:
        [up] = self._linears(f"{name}.up", x)
        if self.config.gated:
            [gate] = self._linears(f"{name}.gate", x)
            inner = self.graph("Mul", self._activated(gate), up)
        else:
            inner = self._activated(up)
        [down] = self._linears(f"{name}.down", inner)
        return down

    def norm(self, name: str, x: str) -> str:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if self.config.norm == "layer-norm":
            bias = np.zeros_like(weight) if bias is None else bias
            return str(self.graph("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-5))
        mean = self.graph("ReduceMean", self.graph("Mul", x, x), axes=[-1], keepdims=1)
        root = self.graph("Sqrt", self.graph("Add", mean, np.float32(1e-6)))
        return str(self.graph("Mul", self.graph("Div", x, root), weight))

    def residual(self, name: str, x: str, sublayer: Any) -> Any:
        """x and what the sublayer makes of it, the first of several things that it returns."""
        if self.config.norm_position == "pre":
            made = sublayer(self.norm(f"{name}.norm", x))
            return _with_first(made, lambda one: self.graph("Add", x, one))
        return _with_first(sublayer(x), lambda one: self.norm(f"{name}.norm", self.graph("Add", x, one)))

    def _linears(self, name: str, x: str) -> list[str]:
        """The products of x with each part of a matrix."""
        made = []
        for weight, bias in self.weights.linears(name):
            product = self.graph("MatMul", x, weight.T)
            made.append(product if bias is None else self.graph("Add", product, bias))
        return made

    def _heads(self, x: str) -> str:
        """(B, T, H * K) to (B, H, T, K)."""
        split = self.graph("Reshape", x, _ints(0, 0, self.config.n_heads, self.config.head_width))
        return str(self.graph("Transpose", split, perm=[0, 2, 1, 3]))

    def _attended(self, name: str, query: str, key: str, value: str, bias: str) -> str:
        scaled = self.graph("Mul", query, np.float32(1 / math.sqrt(self.config.head_width)))
        scores = self.graph("MatMul", scaled, self.graph("Transpose", key, perm=[0, 1, 3, 2]))
        chosen = self.graph("Softmax", self.graph("Add", scores, bias), axis=-1)
        merged = self.graph("Transpose", self.graph("MatMul", chosen, value), perm=[0, 2, 1, 3])
        flat = self.graph("Reshape", merged, _ints(0, 0, self.config.n_heads * self.config.head_width))
        [output] = self._linears(f"{name}.output", flat)
        return output

    def _rotated(self, x: str, offset: str, end: str) -> str:
        first, width = self.config.first_position, self.config.head_width
        table = sinusoids(first + self.rows, width)[first:].float().numpy()
        sin, cos = (self.graph("Slice", table[:, start::2], offset, end, _ints(0)) for start in (0, 1))
        pairs = self.graph("Reshape", x, _ints(0, 0, 0, width // 2, 2))
        even, odd = (self.graph("Gather", pairs, np.int64(index), axis=4) for index in (0, 1))
        left = self.graph("Sub", self.graph("Mul", even, cos), self.graph("Mul", odd, sin))
        right = self.graph("Add", self.graph("Mul", even, sin), self.graph("Mul", odd, cos))
        both = [self.graph("Unsqueeze", one, _ints(4)) for one in (left, right)]
        return str(self.graph("Reshape", self.graph("Concat", *both, axis=4), _ints(0, 0, 0, width)))

    def _activated(self, x: str) -> str:
        kind = self.config.activation
        if kind == "relu":
            return str(self.graph("Relu", x))
        if kind in ("silu", "swiglu"):
            return str(self.graph("Mul", x, self.graph("Sigmoid", x)))
        erf = self.graph("Erf", self.graph("Mul", x, np.float32(math.sqrt(0.5))))
        half = self.graph("Mul", x, np.float32(0.5))
        return str(self.graph("Mul", half, self.graph("Add", erf, np.float32(1))))


def encoder(weights: Weights, *, rows: int) -> Any:
    """input_ids, attention_mask (B, S) to each decoder layer's memory.N.key and .value (B, H, S, K)."""
    graph, config = Graph(), weights.config
    ids = graph.input("input_ids", ("batch", "source"), integer=True)
    mask = graph.input("attention_mask", ("batch", "source"), integer=True)
    layers = Layers(graph, weights, "encoder", rows=rows)
    start, end = graph.constant(_ints(0)), _length(graph, ids, 1)
    x, bias = layers.embed(ids, start, end), _padding(graph, mask)
    for index in range(config.depths.encoder):
        name = f"encoder.layers.{index}"
        x = layers.residual(
            f"{name}.residuals.0",
            x,
            lambda x, name=name: layers.self_attention(f"{name}.self_attention", x, bias, start, end),
        )[0]
        x = layers.residual(
            f"{name}.residuals.1", x, lambda x, name=name: layers.feed_forward(f"{name}.feed_forward", x)
        )
    if config.ends_in_norm:
        x = layers.norm("encoder.norm", x)
    for index in range(config.depths.decoder):
        made = layers.remember(f"decoder.layers.{index}.cross_attention", x)
        for kind, one in zip(("key", "value"), made, strict=True):
            graph.output(f"memory.{index}.{kind}", one, ("batch", config.n_heads, "source", config.head_width))
    return graph.model("encoder")


def decoder(weights: Weights, *, rows: int) -> Any:
    """input_ids (B, T), what was remembered and the source's attention_mask to logits (B, T, V) and what to remember
    next: past.N.key and .value (B, H, P, K) become present.N.key and .value (B, H, P + T, K)."""
    graph, config = Graph(), weights.config
    ids = graph.input("input_ids", ("batch", "target"), integer=True)
    mask = graph.input("attention_mask", ("batch", "source"), integer=True)
    names = {
        kind: [
            tuple(
                graph.input(f"{kind}.{index}.{part}", ("batch", config.n_heads, length, config.head_width))
                for part in ("key", "value")
            )
            for index in range(config.depths.decoder)
        ]
        for kind, length in (("past", "past"), ("memory", "source"))
    }
    layers = Layers(graph, weights, "decoder", rows=rows)
    offset = _length(graph, names["past"][0][0], 2)
    end = graph("Add", offset, _length(graph, ids, 1))
    x, bias, memory_bias = layers.embed(ids, offset, end), _causal(graph, offset, end), _padding(graph, mask)
    for index in range(config.depths.decoder):
        name, past, memory = f"decoder.layers.{index}", names["past"][index], names["memory"][index]
        x, *present = layers.residual(
            f"{name}.residuals.0",
            x,
            lambda x, name=name, past=past: layers.self_attention(f"{name}.self_attention", x, bias, offset, end, past),
        )
        x = layers.residual(
            f"{name}.residuals.1",
            x,
            lambda x, name=name, memory=memory: layers.cross_attention(
                f"{name}.cross_attention", x, memory, memory_bias
            ),
        )
        x = layers.residual(
            f"{name}.residuals.2", x, lambda x, name=name: layers.feed_forward(f"{name}.feed_forward", x)
        )
        for part, one in zip(("key", "value"), present, strict=True):
            graph.output(f"present.{index}.{part}", one, ("batch", config.n_heads, "present", config.head_width))
    if config.ends_in_norm:
        x = layers.norm("decoder.norm", x)
    logits = graph("MatMul", x, weights.output.T)
    if (added := weights.get("output_bias")) is not None:
        logits = graph("Add", logits, added)
    graph.output("logits", logits, ("batch", "target", len(weights.output)))
    return graph.model("decoder")


def _with_first(made: Any, change: Any) -> Any:
    return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)


def _length(graph: Graph, x: str, axis: int) -> str:
    """One of a shape's numbers, (1)."""
    return str(graph("Slice", graph("Shape", x), _ints(axis), _ints(axis + 1)))


def _padding(graph: Graph, mask: str) -> str:
    """(B, S) of 1 and 0 to what is added to scores, (B, 1, 1, S)."""
    hidden = graph("Sub", np.float32(1), graph("Cast", mask, to=1))
    return str(graph("Unsqueeze", graph("Mul", hidden, np.float32(HIDDEN)), _ints(1, 2)))


def _causal(graph: Graph, offset: str, end: str) -> str:
    """What is added to scores (T, P + T): a query at position P + t sees the keys up to it."""
    zero, one = np.int64(0), np.int64(1)
    first, last = (graph("Squeeze", name, _ints(0)) for name in (offset, end))
    keys = graph("Unsqueeze", graph("Range", zero, last, one), _ints(0))
    queries = graph("Unsqueeze", graph("Range", first, last, one), _ints(1))
    later = graph("Cast", graph("Greater", keys, queries), to=1)
    return str(graph("Mul", later, np.float32(HIDDEN)))


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)
