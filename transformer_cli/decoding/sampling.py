"""Sampling: each token drawn at random, by the probability that the model gives it.

B sentences, S source length, R draws that go on, of all sentences, V target vocabulary, N likeliest

A line's translation depends on (seed, line, draw) alone, not on who shares its batch: each token's number is a function
of these, the step and the token. That of the largest probability / number is drawn, which is Gumbel's trick with the
logarithm undone (Gumbel 1954, Maddison et al. 2014). So the rounding errors of a batch matter only where two tokens are
level but for these, or where `top_k` or `top_p` ends at one; an interval cut into thousands of shares would move with
all of their errors together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transformer_cli.decoding.candidates import Made, log_probabilities, on_cpu
from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.greedy import follow
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import LINE_BITS, Sampling, Symbols
from transformer_cli.decoding.stepper import S, Stepper

WITHOUT_FP64 = ("mps",)
CACHED_DRAWS = 4
USUALLY_ENOUGH = 64
"""Tokens that are sorted at first to find those that have `top_p` of the probability; sorting all takes long."""


def sample(
    stepper: Stepper[S],
    source_BS: Tensor,
    source_lengths_B: Tensor,
    *,
    limits: Sequence[int],
    symbols: Symbols,
    sampling: Sampling,
    lines: Sequence[int],
    constraints: Sequence[Constraint] = (),
    n_draws: int = 1,
) -> list[list[Hypothesis]]:
    """n_draws hypotheses per sentence, in the order in which they were drawn; two may be the same.

    limits: most pieces per sentence, end mark not counted. lines: what, with the seed, a sentence's draws depend on.
    Raises NotFinite.
    """
    steps = itertools.count()

    def choose(
        logits_RV: Tensor, _: Made, forbidden_RV: Tensor | None, draws_R: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        logp_RV = log_probabilities(logits_RV, symbols, forbidden_RV)
        if logp_RV.device.type in WITHOUT_FP64:
            logp_RV = logp_RV.cpu()
        drawn_by = {"seed": sampling.seed, "step": next(steps), "vocab": logp_RV.size(-1)}
        numbers_RV = torch.stack([exponentials(line=lines[row], draw=draw, **drawn_by) for row, draw in draws_R])
        # On a CPU a few stay in its caches, and hardly any waits for another one's `top_p`.
        parts = logp_RV.split(CACHED_DRAWS if logp_RV.device.type == "cpu" else len(logp_RV))
        weights_RV = torch.cat([weights(sampling, part) for part in parts])
        tokens_R1 = weights_RV.div_(numbers_RV.to(logp_RV.device)).argmax(-1, keepdim=True)
        # Where nothing can be drawn, the highest says why: -inf, no token is possible; NaN, there are no numbers.
        top_R1 = logp_RV.amax(-1, keepdim=True)
        logp_R1 = logp_RV.gather(1, tokens_R1).where(top_R1.isfinite(), top_R1)
        return on_cpu(logp_R1.squeeze(1), tokens_R1.squeeze(1))

    return follow(
        stepper,
        source_BS,
        source_lengths_B,
        limits=limits,
        symbols=symbols,
        constraints=constraints,
        choose=choose,
        n_paths=n_draws,
    )


def weights(sampling: Sampling, logp_RV: Tensor) -> Tensor:
    """What tokens are drawn with (R, V), fp64, not normalised; the likeliest has 1."""
    # In place: fresh memory of this size takes longer than what is computed.
    weights_RV = logp_RV.to(torch.float64, copy=True)
    weights_RV.sub_(weights_RV.amax(-1, keepdim=True)).div_(sampling.temperature).exp_()
    if not sampling.top_k and sampling.top_p == 1:
        return weights_RV
    n_R1, least_R1 = _truncation(sampling, weights_RV)
    more_RV, level_RV = weights_RV > least_R1, weights_RV == least_R1
    # Of equals the first ids come first.
    room_R1 = n_R1 - more_RV.sum(-1, keepdim=True)
    stay_RV = more_RV.logical_or_(level_RV.logical_and_(level_RV.cumsum(-1, dtype=torch.int32) <= room_R1))
    return weights_RV.masked_fill_(stay_RV.logical_not_(), 0)


def _truncation(sampling: Sampling, weights_RV: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the likeliest tokens may be drawn, and the least of their weights, both (R, 1)."""
    V = weights_RV.size(-1)
    n = min(sampling.top_k or (USUALLY_ENOUGH if weights_RV.device.type == "cpu" else V), V)
    while True:
        sorted_RN = weights_RV.topk(n).values if n < V else weights_RV.sort(-1, descending=True).values
        total_R1 = (sorted_RN if sampling.top_k else weights_RV).sum(-1, keepdim=True)
        before_RN = sorted_RN.cumsum(-1) - sorted_RN
        n_R1 = (before_RN < sampling.top_p * total_R1).sum(-1, keepdim=True).clamp_(min=1)
        if sampling.top_k or n == V or not bool((n_R1 == n).any()):
            return n_R1, sorted_RN.gather(-1, n_R1 - 1)
        n = V if 64 * n > V else 16 * n


def exponentials(*, seed: int, line: int, draw: int, step: int, vocab: int) -> Tensor:
    """Independent exponential numbers of mean 1, one for each token (V), fp64 and above 0.

    From Philox (Salmon et al. 2011), whose stream NumPy does not change between versions: the seed is its key, all else
    where its counter begins.
    """
    generator = np.random.Philox(key=seed, counter=line << 192 | draw << 128 | step << 64)
    # In the middle of 2^52 equal parts: neither 0 nor 1 comes out.
    uniforms_V = ((generator.random_raw(vocab) >> np.uint64(12)) + 0.5) * 2.0**-52
    return torch.from_numpy(-np.log(uniforms_V))


def drawn_as(line: int, place: int) -> int:
    """The line that sampling takes a part of a line for: each draws differently, and by nothing but its place."""
    return line + (place << LINE_BITS)
