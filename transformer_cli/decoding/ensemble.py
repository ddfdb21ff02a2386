"""Several models as one, by the mean of the probabilities that they give the next token.

B sentences, S source length, W places for beams, R beams of all sentences, V target vocabulary, M models
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor

from transformer_cli.decoding.candidates import log_softmax
from transformer_cli.decoding.stepper import S, Stepper


class Ensemble(Generic[S]):
    """A stepper over steppers that share both vocabularies."""

    def __init__(self, models: Sequence[Stepper[S]]) -> None:
        self.models = models

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> States[S]:
        return States([model.start(source_BS, source_lengths_B) for model in self.models])

    def step(self, tokens_R: Tensor, states: States[S]) -> Tensor:
        """The logarithm of the probabilities' mean, but for a constant, which no softmax sees."""
        pairs = zip(self.models, states.states, strict=True)
        logp_MRV = torch.stack([log_softmax(model.step(tokens_R, state)) for model, state in pairs])
        return logp_MRV.logsumexp(0)


class States(Generic[S]):
    """What each model remembers."""

    def __init__(self, states: Sequence[S]) -> None:
        self.states = states

    def reorder(self, parents_BW: Tensor) -> None:
        for state in self.states:
            state.reorder(parents_BW)

    def keep(self, sentences: Tensor) -> None:
        for state in self.states:
            state.keep(sentences)
