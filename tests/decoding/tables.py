"""A model that is a table, and searches that are slow and plain: what the fast ones are held against."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_cli.decoding.search import Hypothesis, Symbols

BOS, EOS = 1, 0
"""Marks of the tables' small vocabularies; bos is banned, as in the real ones."""
SYMBOLS = Symbols(bos=BOS, eos=EOS, banned=(BOS,))

Logits = Callable[[int, tuple[int, ...]], list[float]]
"""(sentence, tokens so far) to the next token's logits."""


def random_logits(seed: int, *, vocab: int, spread: float = 2.0, mark: float = 0.0) -> Logits:
    """Independent normal logits for every prefix; `mark` is added to the end mark's."""

    def logits(sentence: int, tokens: tuple[int, ...]) -> list[float]:
        draw = random.Random(f"{seed} {sentence} {tokens}")
        row = [draw.gauss(0, spread) for _ in range(vocab)]
        row[EOS] += mark
        return row

    return logits


@dataclass
class Histories:
    """A state that is nothing but what was read: wrong reordering makes it another history."""

    sentences: list[int]
    tokens: list[list[tuple[int, ...]]]

    def reorder(self, parents_BW: Tensor) -> None:
        assert parents_BW.shape[0] == len(self.sentences)
        self.tokens = [[beams[w] for w in row] for beams, row in zip(self.tokens, parents_BW.tolist(), strict=True)]

    def keep(self, sentences: Tensor) -> None:
        rows = sentences.tolist()
        assert rows == sorted(set(rows))
        self.sentences = [self.sentences[b] for b in rows]
        self.tokens = [self.tokens[b] for b in rows]


class TableModel:
    """Logits by look-up. A sentence is one number, its source."""

    def __init__(self, logits: Logits) -> None:
        self.logits = logits
        self.steps: list[tuple[int, int]] = []

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> Histories:
        sentences = source_BS[:, 0].tolist()
        return Histories(sentences, [[()] for _ in sentences])

    def step(self, tokens_BW: Tensor, state: Histories) -> Tensor:
        assert tokens_BW.shape == (len(state.tokens), len(state.tokens[0]))
        self.steps.append(tuple(tokens_BW.shape))
        state.tokens = [
            [(*past, token) for past, token in zip(beams, row, strict=True)]
            for beams, row in zip(state.tokens, tokens_BW.tolist(), strict=True)
        ]
        rows = [
            [self.logits(sentence, past[1:]) for past in beams]
            for sentence, beams in zip(state.sentences, state.tokens, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64)


def sources(numbers: list[int]) -> tuple[Tensor, Tensor]:
    """What the tables take for a batch of sentences."""
    return torch.tensor(numbers)[:, None], torch.ones(len(numbers), dtype=torch.int64)


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - total for x in row]


def slow_beam_search(
    logits: Logits, sentence: int, *, limit: int, beam_size: int, alpha: float, symbols: Symbols = SYMBOLS
) -> list[Hypothesis]:
    """The definition, with lists and without stopping early: every slot is followed to its end.

    Returns all hypotheses, best first.
    """
    open_ones: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[Hypothesis] = []
    while True:
        candidates = []
        for total, tokens in open_ones:
            for token, logp in enumerate(log_softmax(logits(sentence, tokens))):
                if token not in symbols.banned:
                    candidates.append((total + logp, (*tokens, token)))
        candidates = [c for c in sorted(candidates, key=lambda c: -c[0]) if c[0] > -math.inf]
        following = []
        for total, tokens in candidates[: beam_size - len(ended)]:
            if tokens[-1] == symbols.eos:
                ended.append(Hypothesis(tokens[:-1], total))
            else:
                following.append((total, tokens))
        cut = (not following and not ended) or (bool(following) and len(following[0][1]) > limit)
        if cut:
            known = {hypothesis.ids for hypothesis in ended}
            ended += [Hypothesis(tokens, total, truncated=True) for total, tokens in open_ones if tokens not in known]
        if cut or not following:
            return sorted(ended, key=lambda hypothesis: hypothesis.rank(alpha))
        open_ones = following


def best_of_all(logits: Logits, sentence: int, *, vocab: int, limit: int, alpha: float) -> Hypothesis:
    """Every sequence of at most `limit` tokens, scored; the best."""
    letters = [token for token in range(vocab) if token not in (BOS, EOS)]
    found = []
    for length in range(limit + 1):
        for ids in itertools.product(letters, repeat=length):
            total = sum(log_softmax(logits(sentence, ids[:t]))[token] for t, token in enumerate((*ids, EOS)))
            found.append(Hypothesis(ids, total))
    return min(found, key=lambda hypothesis: hypothesis.rank(alpha))
