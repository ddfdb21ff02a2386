"""What every search does with a step's logits: leave out what may not come next, pick the likeliest of the rest.

B sentences, W beams, T tokens so far, R rows (beams of any sentence), V target vocabulary, K candidates per beam
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_cli.decoding.constraints import Constraint
from transformer_cli.decoding.options import NotFinite, Symbols

CACHED_BEAMS = 32


def forbidden(
    constraints: Sequence[Constraint], logits_BWV: Tensor, prefixes_BWT: Tensor, rows_B: Tensor
) -> Tensor | None:
    """Where a constraint forbids a token (B, W, V); None where there is no constraint."""
    if not constraints:
        return None
    forbidden_BWV = torch.zeros_like(logits_BWV, dtype=torch.bool)
    for constraint in constraints:
        constraint.forbid(forbidden_BWV, prefixes_BWT, rows_B)
    return forbidden_BWV


def likeliest(
    logits_BWV: Tensor, symbols: Symbols, n: int, forbidden_BWV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The log-probabilities and ids of the n likeliest tokens per beam, best first, both (B, W, K) on the CPU.

    Sums of them are fp64, hence this dtype. Where logits are no numbers, the result is NaN.
    """
    B, W, _ = logits_BWV.shape
    # On a CPU, a few beams at a time stay in its caches: several times as fast as all of them in bf16.
    n_rows = CACHED_BEAMS if logits_BWV.device.type == "cpu" else B * W
    rows = logits_BWV.flatten(0, 1).split(n_rows)
    masks = [None] * len(rows) if forbidden_BWV is None else forbidden_BWV.flatten(0, 1).split(n_rows)
    found = [
        (logp_RV := log_probabilities(part, symbols, mask)).topk(min(n, logp_RV.size(-1)))
        for part, mask in zip(rows, masks, strict=True)
    ]
    logp_BWK, ids_BWK = (torch.cat(parts).unflatten(0, (B, W)) for parts in zip(*found, strict=True))
    return on_cpu(logp_BWK, ids_BWK)


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
    logp_RV[..., list(symbols.banned)] = -torch.inf
    return logp_RV if forbidden_RV is None else logp_RV.masked_fill_(forbidden_RV, -torch.inf)


def log_softmax(logits_RV: Tensor) -> Tensor:
    """The model's own log-probabilities, in fp32 at least."""
    return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32)).log_softmax(-1)


def refuse_nan(logp_BWK: Tensor, rows: Tensor) -> None:
    """Raise NotFinite, with the number in `rows`, for the first sentence that has a NaN."""
    if bool((bad := logp_BWK.isnan()).any()):
        raise NotFinite(int(rows[bad.flatten(1).any(1)][0]))


def worth_removing(done_B: Tensor) -> bool:
    """Whether copying what the open sentences need costs less than carrying the finished ones along."""
    return 0 < len(done_B) <= 8 * int(done_B.sum()) < 8 * len(done_B)
