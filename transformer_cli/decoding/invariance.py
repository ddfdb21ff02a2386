"""A promise that can be checked: in fp32 a sentence's translation does not depend on who else is in the batch.

Sums of floating-point numbers depend on their order, and that on the shape of a batch. So two hypotheses between which
there are but rounding errors may take turns: they are a tie. Anything else is a difference, and an error of ours. For
samples, which the line's number goes into, two tokens may take turns, one at which `top_k` or `top_p` ends may be left
out, and the order of the lines stays.

B one sentence, S its length, W its one place, R its one beam, T tokens so far, D d_model, V target vocabulary, M models
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from transformer_cli.data.loader import collate
from transformer_cli.decoding.candidates import forbidden, log_probabilities, log_softmax
from transformer_cli.decoding.hypothesis import LengthPenalty
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.sampling import drawn_as, exponentials, weights
from transformer_cli.decoding.scoring import Likelihood, Pair, evaluating, score_ids
from transformer_cli.decoding.search import constraints_of
from transformer_cli.decoding.translation import Part, Translation
from transformer_cli.decoding.translator import Translator
from transformer_cli.tokenizer import EOS

TIE = 1e-4
"""Two translations whose scores are no further apart are equally good."""


@dataclass(frozen=True)
class Deviation:
    """A line that was translated in two ways. line: counted from 1. batching: what the second way was."""

    line: int
    batching: str
    texts: tuple[str, str]
    scores: tuple[float, float]
    """What `tx score` gives them, divided by the length penalty of the search; of samples, what the first tokens that
    differ were drawn by."""
    at_edge: bool = False
    """Whether rounding errors decide if the token with the better of them may be drawn at all."""

    @property
    def is_tie(self) -> bool:
        return self.at_edge or abs(self.scores[0] - self.scores[1]) <= TIE


@dataclass(frozen=True)
class BatchingReport:
    """What became of the lines when they were batched in other ways than one by one."""

    n_lines: int
    batchings: tuple[str, ...]
    differences: tuple[Deviation, ...]
    """Ties left out."""
    ties: tuple[Deviation, ...]


def check_batching(
    translator: Translator,
    lines: Sequence[str],
    *,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    batch_sizes: Sequence[int] = (7, 64),
    seed: int = 1,
    progress: Callable[[int], object] | None = None,
) -> BatchingReport:
    """Translate the lines as configured one by one, then in batches, in order and shuffled, and compare.

    progress: called with the number of lines that are newly done; there are as many times the lines as ways.
    """

    config = translator.config
    alpha = config.length_penalty if length_penalty is None else length_penalty
    penalty = LengthPenalty(alpha, config.length_penalty_family)

    def translated(batch_size: int, order: Sequence[int]) -> list[Translation]:
        batching = copy.copy(translator)
        batching.config = config.model_copy(update={"batch_size": batch_size})
        found = batching.translate_all(
            [lines[index] for index in order],
            beam_size=beam_size,
            length_penalty=length_penalty,
            progress=progress,
        )
        back = dict(zip(order, found, strict=True))
        return [back[index] for index in range(len(lines))]

    alone = translated(1, range(len(lines)))
    shuffled = random.Random(seed).sample(range(len(lines)), len(lines))
    ways: dict[str, tuple[int, Sequence[int]]] = {
        f"batches of {size}": (size, range(len(lines))) for size in batch_sizes
    }
    if config.search != "sampling":
        ways[f"batches of {batch_sizes[-1]}, shuffled"] = (batch_sizes[-1], shuffled)
    found = []
    for name, (size, order) in ways.items():
        others = translated(size, order)
        changed = [index for index in range(len(lines)) if alone[index].text != others[index].text]
        if config.search == "sampling":
            compared = [_drawn_by(translator, alone[index], others[index], line=index) for index in changed]
        else:
            before = _rescored(translator, [alone[index] for index in changed], penalty)
            after = _rescored(translator, [others[index] for index in changed], penalty)
            compared = [(both, False) for both in zip(before, after, strict=True)]
        found += [
            Deviation(index + 1, name, (alone[index].text, others[index].text), both, at_edge)
            for index, (both, at_edge) in zip(changed, compared, strict=True)
        ]
    return BatchingReport(
        n_lines=len(lines),
        batchings=tuple(ways),
        differences=tuple(one for one in found if not one.is_tie),
        ties=tuple(one for one in found if one.is_tie),
    )


def _rescored(translator: Translator, found: Sequence[Translation], penalty: LengthPenalty) -> list[float]:
    """What each translation is worth by teacher forcing, divided by the penalty."""
    pairs = [[_pair(translator, part) for part in one.parts] for one in found]
    scores = iter(score_ids(translator, [pair for one in pairs for pair in one]))
    return [_worth(list(islice(scores, len(one))), penalty) for one in pairs]


def _worth(scores: Sequence[Likelihood], penalty: LengthPenalty) -> float:
    n_tokens = sum(len(score.log_probabilities) for score in scores)
    return sum(score.log_probability for score in scores) / penalty(n_tokens)


def _drawn_by(
    translator: Translator, one: Translation, other: Translation, *, line: int
) -> tuple[tuple[float, float], bool]:
    """What won where two samples of a line part: log-probability + temperature x Gumbel noise of the token. And whether
    the better one is at the edge of what may be drawn."""
    pairs = enumerate(zip(one.parts, other.parts, strict=True))
    place, parts = next((place, both) for place, both in pairs if both[0].ids != both[1].ids)
    ids = [(*part.ids, EOS) for part in parts]
    step = next(step for step, (first, second) in enumerate(zip(*ids, strict=False)) if first != second)
    numbers_V = exponentials(
        seed=translator.seed, line=drawn_as(line, place), draw=0, step=step, vocab=translator.tokenizer.target_size
    )
    first, second = (
        score.log_probabilities[step] - translator.config.temperature * math.log(numbers_V[tokens[step]])
        for score, tokens in zip(score_ids(translator, [_pair(translator, part) for part in parts]), ids, strict=True)
    )
    better = int(second > first)
    return (first, second), _is_at_edge(translator, parts[better], step, ids[better][step])


def _is_at_edge(translator: Translator, part: Part, step: int, token: int) -> bool:
    """Whether `top_k` and `top_p` leave the token in or out as it, and where they end, are moved by a TIE."""
    options = SearchOptions.of(translator.config, seed=translator.seed)
    logp_RV, sampling, stays = _may_follow(translator, options, part, step), options.sampling, []
    for moved in (TIE, -TIE):
        near_RV = logp_RV.clone()
        near_RV[0, token] += moved
        near = replace(sampling, top_p=min(sampling.top_p + moved, 1.0)) if sampling.top_p < 1 else sampling
        stays.append(bool(weights(near, near_RV)[0, token] > 0))
    return stays == [True, False]


@torch.inference_mode()
def _may_follow(translator: Translator, options: SearchOptions, part: Part, step: int) -> Tensor:
    """The log-probabilities (R, V) that a sample's token was drawn by, on the CPU."""
    constraints = constraints_of(options, [translator.limit(len(part.source_ids))], translator.symbols)
    batch = collate([_pair(translator, part).source], [part.ids[:step]])
    source_BS, target_BT = (ids.to(translator.device) for ids in (batch.source_BS, batch.target_in_BT))
    with evaluating(translator.models):
        hidden_MRD = [model(source_BS, batch.source_lengths_B, target_BT)[:, -1] for model in translator.models]
    pairs = zip(translator.models, hidden_MRD, strict=True)
    logits_RV = torch.stack([log_softmax(model.project(hidden_RD)) for model, hidden_RD in pairs]).logsumexp(0)
    written_BWT, here_BW = torch.tensor([[part.ids[:step]]], dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool)
    forbidden_RV = forbidden(constraints, logits_RV, written_BWT, torch.arange(1), here_BW)
    return log_probabilities(logits_RV, translator.symbols, forbidden_RV).cpu()


def _pair(translator: Translator, part: Part) -> Pair:
    return Pair([*part.source_ids, *[EOS] * translator.source_eos], part.ids, ended=not part.truncated)
