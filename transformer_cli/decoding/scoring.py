"""What a model thinks of a translation that somebody else wrote: teacher forcing, all pieces of it at once.

The numbers are those that a search gives to the same pieces: natural logarithms under the model's own softmax over its
whole vocabulary, the end mark counted.

B batch, S source length, T target length with its end mark, R positions of any sentence, D d_model, V target
vocabulary, M models
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.data.loader import collate
from transformer_cli.decoding import batches
from transformer_cli.decoding.candidates import log_softmax
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError, DivergedError
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import EOS, UNK
from transformer_cli.trouble import halved, in_halves

LOGITS_AT_A_TIME = 8 * 1024 * 1024
"""As many as in the loss of training."""


@dataclass(frozen=True)
class Pair:
    """A source as the model reads it, end mark included if it has one, and a target without marks, in ids.

    ended: whether the target's end mark is counted; not for a hypothesis that was cut.
    """

    source: Sequence[int]
    target: Sequence[int]
    ended: bool = True


@dataclass(frozen=True)
class Likelihood:
    """The log-probabilities of a target's pieces; the end mark, if it is counted, is the last of them."""

    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    n_unknown: int = 0
    """Pieces among them that the vocabulary does not have."""

    @property
    def log_probability(self) -> float:
        """Of the whole target."""
        return math.fsum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """Per piece."""
        return perplexity(self.log_probability, len(self.log_probabilities))

    def as_json(self) -> dict[str, Any]:
        """What `tx score --json` says, but for the texts."""
        return {
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "tokens": list(self.tokens),
            "log_probabilities": list(self.log_probabilities),
            "unknown": self.n_unknown,
        }


def perplexity(log_probability: float, n_pieces: int) -> float:
    """exp of the mean negative log-probability; infinite where that is beyond all numbers, 1 where there is nothing."""
    mean = -log_probability / max(n_pieces, 1)
    return math.exp(mean) if mean < 700 else math.inf


def score_texts(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    progress: Callable[[int], object] | None = None,
) -> list[Likelihood | None]:
    """One score per pair of lines, in order.

    A source without text is never shown to a model, for it translates to nothing: an empty target is certain then, its
    score without pieces; any other has none. Of the empty target of another source, the end mark is scored.
    progress: called with the number of pairs that are newly done. Raises DataError as `pairs_of` does.
    """
    pairs = pairs_of(translator, sources, targets)
    asked = [index for index, pair in enumerate(pairs) if pair.source]
    found: list[Likelihood | None] = [None if pair.target else Likelihood((), ()) for pair in pairs]
    if progress is not None:
        progress(len(pairs) - len(asked))
    scored = score_ids(translator, [pairs[index] for index in asked], progress=progress)
    for index, score in zip(asked, scored, strict=True):
        if any(math.isnan(one) for one in score.log_probabilities):
            raise DivergedError(
                f"line {index + 1:,}: the model's scores are not finite numbers",
                hint="the weights have diverged or overflow in this precision: try another checkpoint, or fp32",
            )
        found[index] = score
    return found


def pairs_of(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[Pair]:
    """The lines in ids, as the model can read them. Raises DataError for one that is too long, naming it.

    A source has the limit of sources that are translated at once; a target that of what a search may write of the
    longest of them, which is more than training has seen. Where the source has no text, nothing is read. A target
    without text has the mark that a search would begin it with.
    """
    given = list(translator.tokenizer.target.given)
    pairs = [
        Pair(source, target or (given if source else []))
        for source, target in zip(
            translator.encode_source(sources), translator.tokenizer.encode_target(targets), strict=True
        )
    ]
    rooms = {"source": translator.room("encoder"), "target": translator.room("decoder")}
    limits = {"source": translator.max_source_length, "target": translator.max_target_length}
    for number, pair in enumerate(pairs, start=1):
        for side, length in (("source", len(pair.source)), ("target", len(pair.target) + 1)):
            limit = limits[side]
            if pair.source and limit is not None and length > limit:
                is_room = limit == rooms[side]
                way_out = ": the model has no more positions" if is_room else ", or raise decoding.max_source_length"
                raise DataError(
                    f"line {number:,}: the {side} has {length:,} pieces, end mark included; "
                    f"at most {limit:,} are possible",
                    hint=f"score its sentences one by one{way_out}",
                )
    return pairs


@torch.inference_mode()
def score_ids(
    translator: Translator, pairs: Sequence[Pair], *, progress: Callable[[int], object] | None = None
) -> list[Likelihood]:
    """One score per pair, in order."""
    found = [Likelihood((), ())] * len(pairs)
    plan = batches.by_length(
        [max(len(pair.source), len(pair.target) + 1) for pair in pairs],
        batch_size=translator.config.batch_size,
        budget_tokens=translator.config.budget_tokens,
    )
    piece = translator.tokenizer.target.piece
    with evaluating(translator.models):
        for batch in plan:
            chosen: Sequence[Pair] = [pairs[index] for index in batch]
            parts = in_halves(lambda some: _log_probabilities(translator, some).tolist(), chosen, halved)
            for index, pair, logp_T in zip(batch, chosen, chain.from_iterable(parts), strict=True):
                ids = [*pair.target, EOS][: len(pair.target) + pair.ended]
                found[index] = Likelihood(tuple(map(piece, ids)), tuple(logp_T[: len(ids)]), ids.count(UNK))
            if progress is not None:
                progress(len(batch))
    return found


def _log_probabilities(translator: Translator, pairs: Sequence[Pair]) -> Tensor:
    """Of each target's pieces and of its end mark: (B, T), fp64, without meaning beyond a target's length."""
    batch = collate([pair.source for pair in pairs], [pair.target for pair in pairs])
    source_BS, target_in_BT, target_out_BT = (
        ids.to(translator.device) for ids in (batch.source_BS, batch.target_in_BT, batch.target_out_BT)
    )
    logp_MBT = torch.stack(
        [
            _chosen(model, model(source_BS, batch.source_lengths_B, target_in_BT), target_out_BT).cpu().double()
            for model in translator.models
        ]
    )
    logp_BT = logp_MBT.logsumexp(0) - math.log(len(translator.models))
    if (mark := translator.symbols.first) is not None:
        logp_BT[:, 0].masked_fill_(batch.target_out_BT[:, 0] == mark, 0)  # it is given, where there is a text
    return logp_BT


def _chosen(model: Transformer, hidden_BTD: Tensor, ids_BT: Tensor) -> Tensor:
    """The log-probability of each id (B, T) after what was read: a few positions at a time, for logits are large."""
    parts = []
    rows = max(1, LOGITS_AT_A_TIME // model.output.weight.size(0))
    for hidden_RD, ids_R in zip(hidden_BTD.flatten(0, 1).split(rows), ids_BT.flatten().split(rows), strict=True):
        logp_RV = log_softmax(model.project(hidden_RD))
        parts.append(logp_RV.gather(1, ids_R[:, None]).flatten())
    return torch.cat(parts).view_as(ids_BT)


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Within, no dropout; afterwards the models are as they were."""
    were_training = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, was_training in zip(models, were_training, strict=True):
            model.train(was_training)
