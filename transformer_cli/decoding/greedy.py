"""Greedy search: the likeliest token, again and again.

B sentences, S source length, T tokens so far
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_cli.decoding.search import Hypothesis, Symbols, likeliest, refuse_nan, worth_removing
from transformer_cli.decoding.stepper import S, Stepper


def greedy_search(
    stepper: Stepper[S],
    source_BS: Tensor,
    source_lengths_B: Tensor,
    *,
    limits: Sequence[int],
    symbols: Symbols,
) -> list[Hypothesis]:
    """One hypothesis per sentence; what beam search finds with a single beam.

    limits: most pieces per sentence, end mark not counted. Raises NotFinite.
    """
    found: dict[int, Hypothesis] = {}
    rows_B = torch.arange(source_BS.size(0))
    limits_B = torch.as_tensor(limits)
    totals_B = torch.zeros(len(rows_B), dtype=torch.float64)
    prefixes_BT = torch.empty(len(rows_B), 0, dtype=torch.int64)
    done_B = torch.zeros(len(rows_B), dtype=torch.bool)
    tokens_B = torch.full_like(rows_B, symbols.bos)
    state = stepper.start(source_BS, source_lengths_B)
    while not done_B.all():
        logits_B1V = stepper.step(tokens_B[:, None].to(source_BS.device), state)
        logp_B11, tokens_B11 = likeliest(logits_B1V, symbols, 1)
        logp_B, tokens_B = logp_B11.flatten().masked_fill_(done_B, 0), tokens_B11.flatten()
        refuse_nan(logp_B[:, None], rows_B)
        # A hypothesis ends with the end mark; at its limit, or where no token is possible, it is cut.
        cut_B = (logp_B == -torch.inf) | ((tokens_B != symbols.eos) & (prefixes_BT.size(1) >= limits_B))
        totals_B = torch.where(cut_B, totals_B, totals_B + logp_B)
        for b in ((cut_B | (tokens_B == symbols.eos)) & ~done_B).nonzero().flatten().tolist():
            done_B[b] = True
            found[int(rows_B[b])] = Hypothesis(tuple(prefixes_BT[b].tolist()), float(totals_B[b]), bool(cut_B[b]))
        prefixes_BT = torch.cat((prefixes_BT, tokens_B[:, None]), dim=1)
        if worth_removing(done_B):
            stay = (~done_B).nonzero().flatten()
            rows_B, limits_B, done_B, tokens_B = rows_B[stay], limits_B[stay], done_B[stay], tokens_B[stay]
            totals_B, prefixes_BT = totals_B[stay], prefixes_BT[stay]
            state.keep(stay)
    return [found[row] for row in range(source_BS.size(0))]
