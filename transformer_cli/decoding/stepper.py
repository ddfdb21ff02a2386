"""The seam between model and search: what a search needs of a model, and nothing else.

B sentences, S source length, W places for beams (hypotheses of a sentence), R beams of all sentences, V target
vocabulary

A search starts with one beam per sentence and the begin mark as its token; reordering may change the number of places
before any step, and leave some of them empty. A step is of the beams that there are, sentence by sentence. Whatever has
these methods can be searched: a prepared Transformer, several of them, a table in a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from transformer_cli.decoding.candidates import Exact, Made

S = TypeVar("S", bound="State")


class Stepper(Protocol[S]):
    """A model that writes one token per call."""

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> S:
        """Read the source, ids padded with 0; the lengths lie on the CPU. Every sentence has one beam."""

    def step(self, tokens_R: Tensor, state: S) -> Tensor:
        """Read one more token per beam; returns the logits (R, V) of the token after it."""


class State(Protocol):
    """What a model remembers of the hypotheses read so far."""

    def reorder(self, parents_BW: Tensor) -> None:
        """Let each new beam continue the old one of its sentence at the place that parents_BW names; W may change.

        parents_BW: on the CPU; -1 where there is to be no beam.
        """

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these, given by their rows (int64) in ascending order."""


class Marked(Generic[S]):
    """A model whose translations all begin with one mark: it is read like any other token, and its probability is 1."""

    def __init__(self, stepper: Stepper[S], mark: int) -> None:
        self.stepper, self.mark = stepper, mark

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> _Begun[S]:
        return _Begun(self.stepper.start(source_BS, source_lengths_B))

    def step(self, tokens_R: Tensor, state: _Begun[S]) -> Tensor:
        logits_RV = self.stepper.step(tokens_R, state.inner)
        state.exact = made_of(state.inner).exact if state.has_mark else None
        state.compiled = made_of(state.inner).compiled
        if not state.has_mark:
            state.has_mark = True
            logits_RV = torch.full_like(logits_RV, -torch.inf)
            logits_RV[:, self.mark] = 0
        return logits_RV


@dataclass
class _Begun(Generic[S]):
    """What the model remembers, and whether the mark was written."""

    inner: S
    has_mark: bool = False
    exact: Exact | None = None
    compiled: bool = False

    def reorder(self, parents_BW: Tensor) -> None:
        self.inner.reorder(parents_BW)

    def keep(self, sentences: Tensor) -> None:
        self.inner.keep(sentences)


def made_of(state: State) -> Made:
    """How the latest step made its logits, as far as the state tells."""
    return Made(getattr(state, "exact", None), getattr(state, "compiled", False))
