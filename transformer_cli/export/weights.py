"""A run's weights as other engines take them: numpy, fp32, each matrix cut into what its rows are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from transformer_cli.accounting.weights import stored
from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.checkpoints.tensors import weights
from transformer_cli.config.model import Stack


class Weights:
    """The tensors by the names under which tx stores them."""

    def __init__(self, run: OpenedRun) -> None:
        self.config = run.config.model
        self._model = run.model
        # Copies: engines round what they are given in place.
        self._arrays = {name: tensor.float().cpu().numpy().copy() for name, tensor in weights(run.model).items()}
        self._stored = stored(
            run.config.counted, source_vocab=run.tokenizer.source_size, target_vocab=run.tokenizer.target_size
        )
        assert self._arrays.keys() == self._stored.keys()

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def get(self, name: str) -> np.ndarray | None:
        """A tensor; None for one that this model does without."""
        return self._arrays.get(name)

    def parts(self, name: str) -> list[np.ndarray]:
        """A tensor cut by its rows' components, such as queries, keys and values; none where there is no tensor."""
        if name not in self._arrays:
            return []
        ends = np.cumsum([n for _, n in self._stored[name].rows])
        return np.split(self._arrays[name], ends[:-1])

    def linears(self, name: str) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """The matrices that are one in tx, each with its bias; heads that several queries share once for each."""
        biases: Sequence[np.ndarray | None] = self.parts(f"{name}.bias")
        matrices, rows = self.parts(f"{name}.weight"), self._stored[f"{name}.weight"].rows
        return [
            (self._repeated(matrix, component), None if bias is None else self._repeated(bias, component))
            for matrix, bias, (component, _) in zip(matrices, biases or [None] * len(matrices), rows, strict=True)
        ]

    def _repeated(self, array: np.ndarray, component: str) -> np.ndarray:
        copies = self.config.n_heads // self.config.kv_heads
        if copies == 1 or not component.endswith((".key", ".value", "attention_bias")):
            return array
        if len(array) != self.config.kv_heads * self.config.head_width:  # a bias of queries, which are all there
            return array
        return np.repeat(array.reshape(-1, self.config.head_width, *array.shape[1:]), copies, axis=0).reshape(
            -1, *array.shape[1:]
        )

    def embedding(self, side: Stack) -> np.ndarray:
        """The table that a side reads its pieces from."""
        own = self.get("source_embedding.table.weight") if side == "encoder" else None
        return self["target_embedding.table.weight"] if own is None else own

    @property
    def output(self) -> np.ndarray:
        """The matrix of the logits."""
        own = self.get("output.weight")
        return self["target_embedding.table.weight"] if own is None else own

    def positions(self, side: Stack, *, rows: int) -> np.ndarray:
        """What is added to the embeddings of a stack, from its first position on: so many rows at most."""
        n_rows = min(rows, self.config.room(side) or rows)
        stack = getattr(self._model, side)
        return stack.positions.add(torch.zeros(1, n_rows, self.config.d_model))[0].detach().numpy().copy()
