"""What every search does with a step's logits: leave out what may not come next, pick the likeliest of the rest.

B sentences, W places for beams, T tokens so far, R beams of all sentences, V target vocabulary, K candidates per beam
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.options import Symbols
from transformer_cli.model import compiled

Exact = Callable[[Tensor], Tensor]
"""Ids (R, K) to their logits, where those that a step returned are rounded."""
CACHED_BEAMS = 32
SPARE = 2
"""So many more than are wanted are looked at again where logits are rounded: bf16 has 8 digits, and ties abound."""
ONE_BY_ONE = 8
"""Up to so many numbers NumPy finds one after the other faster than PyTorch all at once: its maximum takes a tenth of
the time."""
MOST = 64
"""So many of a row compiled code finds: it keeps them in order, one by one."""


NOISE = 1e-6
"""Of a sum of probabilities in fp32."""


@dataclass(frozen=True)
class Made:
    """How a step made its logits. exact: what they are where they are rounded. compiled: whether code of ours may read
    them."""

    exact: Exact | None = None
    compiled: bool = False


AS_THEY_ARE = Made()


def forbidden(
    constraints: Sequence[Constraint], logits_RV: Tensor, prefixes_BWT: Tensor, rows_B: Tensor, taken_BW: Tensor
) -> Tensor | None:
    """Where a constraint forbids a token (R, V), of the beams that there are; None where there is no constraint."""
    if not constraints:
        return None
    forbidden_BWV = logits_RV.new_zeros(*taken_BW.shape, logits_RV.size(1), dtype=torch.bool)
    for constraint in constraints:
        constraint.forbid(forbidden_BWV, prefixes_BWT, rows_B)
    places_R = taken_BW.flatten().nonzero().flatten()
    return forbidden_BWV.flatten(0, 1).index_select(0, places_R.to(logits_RV.device))


def likeliest(
    logits_RV: Tensor, symbols: Symbols, n: int, forbidden_RV: Tensor | None = None, *, made: Made = AS_THEY_ARE
) -> tuple[Tensor, Tensor]:
    """The log-probabilities and ids of the n likeliest tokens per beam, best first, both (R, K) on the CPU.

    Sums of them are fp64, hence this dtype. Where logits are no numbers, the result is NaN.
    """
    exact, n = made.exact, min(n, logits_RV.size(-1))
    wanted = min(n if exact is None else n + SPARE, logits_RV.size(-1))
    if made.compiled and forbidden_RV is None and wanted <= MOST:
        parts = {} if exact is None else vars(exact)
        return compiled.likeliest(logits_RV, n, _index(symbols.banned, logits_RV.device), n_looked_at=wanted, **parts)
    logp_RK, ids_RK = _found(logits_RV, symbols, wanted, forbidden_RV)
    if exact is not None:
        logp_RK = _corrected(logp_RK, logits_RV.gather(1, ids_RK), exact(ids_RK))
        logp_RK, places_RK = largest(logp_RK, n)
        ids_RK = ids_RK.gather(1, places_RK)
    return on_cpu(logp_RK, ids_RK)


def _found(logits_RV: Tensor, symbols: Symbols, n: int, forbidden_RV: Tensor | None) -> tuple[Tensor, Tensor]:
    # On a CPU, a few beams at a time stay in its caches: several times as fast as all of them in bf16.
    n_rows = CACHED_BEAMS if logits_RV.device.type == "cpu" else len(logits_RV)
    rows = logits_RV.split(n_rows) if len(logits_RV) > n_rows else (logits_RV,)
    masks = [None] * len(rows) if forbidden_RV is None else forbidden_RV.split(n_rows)
    parts = (log_probabilities(part, symbols, mask) for part, mask in zip(rows, masks, strict=True))
    found = [largest(logp_RV, n) for logp_RV in parts]
    logp_RK, ids_RK = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    return logp_RK, ids_RK


def _corrected(logp_RK: Tensor, rounded_RK: Tensor, exact_RK: Tensor) -> Tensor:
    """Log-probabilities by exact logits in place of rounded ones, whose part in the sum of all is corrected, too."""
    better_RK = torch.where(logp_RK == -torch.inf, logp_RK, logp_RK + (exact_RK - rounded_RK))
    more_R1 = (better_RK.exp() - logp_RK.exp()).sum(-1, keepdim=True)
    # Large logits are rounded by more than 1. Then nothing of the old sum is left in the new one but what others hold.
    others_R1 = 1 - logp_RK.exp().sum(-1, keepdim=True)
    others_R1 = others_R1.masked_fill(others_R1 < NOISE, 0.0)
    anew_R1 = torch.logaddexp(others_R1.log(), better_RK.logsumexp(-1, keepdim=True))
    is_small_R1 = (more_R1 > -0.5) & (more_R1 < 1 / NOISE)
    return (better_RK - torch.where(is_small_R1, more_R1.log1p(), anew_R1)).clamp_(max=0.0)


def largest(x_RV: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """What `topk` gives; x may be overwritten. Of equals the first one comes first where numbers are found one by one
    (ONE_BY_ONE), else in PyTorch's order. Behind the last number of a row that is not -inf, ids mean nothing."""
    if x_RV.device.type != "cpu" or n > ONE_BY_ONE:
        return x_RV.topk(n)
    table, every = x_RV.numpy(), np.arange(len(x_RV))
    found, places = np.empty((len(x_RV), n), dtype=table.dtype), np.empty((len(x_RV), n), dtype=np.int64)
    for rank in range(n):
        places[:, rank] = place = table.argmax(-1)
        found[:, rank] = table[every, place]
        table[every, place] = -np.inf
    return torch.from_numpy(found), torch.from_numpy(places)


def on_cpu(logp: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities, in fp64, and the ids that they belong to, in one copy: a device is waited for once."""
    if logp.device.type != "cpu":
        dtype, words = logp.dtype, torch.int64 if logp.dtype == torch.float64 else torch.int32
        logp, ids = torch.stack((logp.view(words), ids.to(words))).cpu()
        logp, ids = logp.view(dtype), ids.long()
    return logp.double(), ids


def log_probabilities(logits_RV: Tensor, symbols: Symbols, forbidden_RV: Tensor | None) -> Tensor:
    """Of every token, as `log_softmax`.

    Tokens that may not come next keep their share of the probability but get no log-probability of their own (-inf),
    so that a sentence's score is what the model gives it however it was found.
    """
    logp_RV = log_softmax(logits_RV)
    logp_RV.index_fill_(-1, _index(symbols.banned, logp_RV.device), -torch.inf)
    return logp_RV if forbidden_RV is None else logp_RV.masked_fill_(forbidden_RV, -torch.inf)


@cache
def _index(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Made once: a step would else send the same few numbers to the device again."""
    with torch.inference_mode(False):
        return torch.tensor(ids, dtype=torch.int64, device=device)


def log_softmax(logits_RV: Tensor) -> Tensor:
    """The model's own log-probabilities, in fp32 at least."""
    return logits_RV.log_softmax(-1, dtype=torch.promote_types(logits_RV.dtype, torch.float32))


def placed(x_R: Tensor, taken_BW: Tensor, fill: float) -> Tensor:
    """From beams to places (B, W, ...), with `fill` where there is none; on the CPU."""
    x_BW = x_R.new_full((*taken_BW.shape, *x_R.shape[1:]), fill)
    x_BW[taken_BW] = x_R
    return x_BW


def worth_removing(done_B: Tensor | npt.NDArray[np.bool_]) -> bool:
    """Whether copying what the open sentences need costs less than attention to the finished ones, where they leave no
    row to be stepped: a third of all are finished, or more, but not all."""
    return len(done_B) <= 3 * int(done_B.sum()) < 3 * len(done_B)
