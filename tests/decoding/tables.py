"""A model that is a table: logits by look-up, and a state that is nothing but what was read."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_cli.decoding.options import Symbols

BOS, EOS = 1, 0
"""Marks of the tables' small vocabularies; bos is banned, as in the real ones."""
BANNED = (BOS,)
SYMBOLS = Symbols(bos=BOS, eos=EOS, banned=BANNED)

Logits = Callable[[int, tuple[int, ...]], list[float]]
"""(sentence, tokens so far) to the next token's logits."""


def random_logits(seed: int, *, vocab: int, spread: float = 2.0, mark: float = 0.0, holes: float = 0.0) -> Logits:
    """Independent normal logits for every prefix; `mark` is added to the end mark's, and a share of them is -inf."""

    @functools.cache
    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        draw = random.Random(f"{seed} {sentence} {tokens}")
        row = [draw.gauss(0, spread) for _ in range(vocab)]
        row[EOS] += mark
        whole = draw.randrange(vocab)
        return [-math.inf if draw.random() < holes and id != whole else x for id, x in enumerate(row)]

    return logits


@dataclass
class Histories:
    """A state that is nothing but what was read: wrong reordering makes it another history. None: no beam."""

    sentences: list[int]
    tokens: list[list[tuple[int, ...] | None]]
    exact: Callable[[Tensor], Tensor] | None = None

    def reorder(self, parents_BW: Tensor) -> None:
        assert parents_BW.shape[0] == len(self.sentences)
        pairs = list(zip(self.tokens, parents_BW.tolist(), strict=True))
        assert all(beams[w] is not None for beams, row in pairs for w in row if w >= 0)
        self.tokens = [[None if w < 0 else beams[w] for w in row] for beams, row in pairs]

    def keep(self, sentences: Tensor) -> None:
        rows = sentences.tolist()
        assert rows == sorted(set(rows))
        self.sentences = [self.sentences[b] for b in rows]
        self.tokens = [self.tokens[b] for b in rows]


class TableModel:
    """Logits by look-up. A sentence is one number, its source."""

    def __init__(self, logits: Logits) -> None:
        self.logits = logits
        self.steps: list[tuple[int, int, int]] = []
        """Sentences, places, and beams in them."""

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> Histories:
        sentences = source_BS[:, 0].tolist()
        return Histories(sentences, [[()] for _ in sentences])

    def step(self, tokens_R: Tensor, state: Histories) -> Tensor:
        self.steps.append((len(state.tokens), len(state.tokens[0]), len(tokens_R)))
        tokens = iter(tokens_R.tolist())
        state.tokens = [[None if past is None else (*past, next(tokens)) for past in beams] for beams in state.tokens]
        assert next(tokens, None) is None
        rows = [
            self.logits(sentence, past[1:])
            for sentence, beams in zip(state.sentences, state.tokens, strict=True)
            for past in beams
            if past is not None
        ]
        return torch.tensor(rows, dtype=torch.float64)


class RoundedModel(TableModel):
    """The same by logits of few digits, often equal, but of what may be banned; and by those that were rounded."""

    def step(self, tokens_R: Tensor, state: Histories) -> Tensor:
        logits_RV = super().step(tokens_R, state)
        state.exact = lambda ids_RK: logits_RV.gather(1, ids_RK)
        return torch.cat((logits_RV[:, :3], logits_RV[:, 3:].mul(2).round().div(2)), dim=1)


def sources(numbers: list[int]) -> tuple[Tensor, Tensor]:
    """What the tables take for a batch of sentences."""
    return torch.tensor(numbers)[:, None], torch.ones(len(numbers), dtype=torch.int64)
