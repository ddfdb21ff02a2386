"""A shortlist: the target pieces that the pieces of a sentence are translated by, in place of the whole vocabulary.

The last product and the softmax are as wide as that (Jean et al. 2015, section 3.2). A search over a shortlist counts
in places of it; no sentence's translation depends on what the others of its batch may write.

B batch, S source length, N target pieces per source piece, V target vocabulary, U places: what any sentence may write,
W places for beams, R beams of all sentences, K target pieces that are known of each source piece
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_cli.decoding.candidates import Exact
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import Symbols
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.steps import Steps
from transformer_cli.tokenizer import EOS, PAD


class Shortlist:
    """What each source piece may become."""

    def __init__(self, ranked_VK: npt.NDArray[np.int32], *, n: int, n_targets: int) -> None:
        """ranked_VK: see `likeliest_targets`. n: how many of these, and of the most frequent. n_targets: V."""
        self.targets_VN = torch.from_numpy(ranked_VK[:, :n].astype(np.int64))
        self.n_targets = n_targets

    def of(self, source_BS: Tensor, prefixes: Sequence[Sequence[int]], symbols: Symbols) -> Listed:
        """Of these sentences, which may write what they are to begin with, too."""
        B = len(source_BS)
        may_BV = torch.zeros(B, self.n_targets, dtype=torch.bool)
        may_BV.scatter_(1, self.targets_VN[source_BS].flatten(1), value=True)
        may_BV[:, self.targets_VN[PAD]] = True
        may_BV[:, : EOS + 1] = True
        if symbols.first is not None:
            may_BV[:, symbols.first] = True
        for row_V, prefix in zip(may_BV, prefixes, strict=True):
            row_V[list(prefix)] = True
        ids_U = may_BV.any(0).nonzero().flatten()
        return Listed(ids_U, ~may_BV[:, ids_U])


@dataclass(frozen=True)
class Listed:
    """What the sentences of a batch may write. ids_U: ascending, so marks keep their ids. hidden_BU: what each of them
    may not."""

    ids_U: Tensor
    hidden_BU: Tensor

    def symbols(self, symbols: Symbols) -> Symbols:
        """In places."""
        first = None if symbols.first is None else self.places([symbols.first])[0]
        return replace(symbols, banned=tuple(self.places(symbols.banned)), first=first)

    def places(self, ids: Sequence[int]) -> list[int]:
        """Of those that have one."""
        wanted = torch.tensor(list(ids), dtype=torch.int64)
        wanted = wanted[torch.isin(wanted, self.ids_U)]
        found: list[int] = torch.searchsorted(self.ids_U, wanted).tolist()
        return found

    def found(self, hypotheses: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """In ids again."""
        ids = self.ids_U.tolist()
        return [[replace(one, ids=tuple(ids[place] for place in one.ids)) for one in several] for several in hypotheses]


class Shortlisted:
    """A stepper whose tokens and logits are places of a shortlist."""

    def __init__(self, model: Prepared, listed: Listed) -> None:
        self.model, self.listed = model, listed

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> ListedSteps:
        ids_U, hidden_BU = (tensor.to(source_BS.device) for tensor in (self.listed.ids_U, self.listed.hidden_BU))
        return ListedSteps(self.model.start(source_BS, source_lengths_B, ids_U), ids_U, hidden_BU)

    def step(self, tokens_R: Tensor, state: ListedSteps) -> Tensor:
        sentences_R = state.inner.taken_BW.nonzero()[:, 0].to(tokens_R.device)
        logits_RU = self.model.step(state.ids_U[tokens_R], state.inner)
        state.exact, state.compiled = state.inner.exact, state.inner.compiled
        return logits_RU.masked_fill_(state.hidden_BU[sentences_R], -torch.inf)


@dataclass
class ListedSteps:
    """What the model remembers, and what may be written."""

    inner: Steps
    ids_U: Tensor
    hidden_BU: Tensor
    exact: Exact | None = None
    compiled: bool = False

    def reorder(self, parents_BW: Tensor) -> None:
        self.inner.reorder(parents_BW)

    def keep(self, sentences: Tensor) -> None:
        self.inner.keep(sentences)
        self.hidden_BU = self.hidden_BU[sentences.to(self.hidden_BU.device)]
