"""How much of what the machine can multiply training makes use of: MFU (Chowdhery et al. 2022, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from transformer_cli.accounting.flops import Pass, terms
from transformer_cli.accounting.hardware import of_device
from transformer_cli.config.accounting import CountedModel
from transformer_cli.machine import Machine, product_rate
from transformer_cli.processor import imitates

PART = 1 << 16
"""Sentences whose lengths are multiplied at a time."""


@dataclass(frozen=True)
class Utilisation:
    """flops_per_token: of training, for each target token, with its share of the source; padding and what is computed
    twice count for nothing. peak: FLOPs per second of all processes together, None where nobody knows.
    """

    flops_per_token: float
    peak: float | None

    def share(self, target_tokens: int, seconds: float) -> float | None:
        """Model FLOPs utilisation; None, too, where it would exceed 1: the peak was measured in a bad moment."""
        share = 0.0 if self.peak is None else self.flops_per_token * target_tokens / seconds / self.peak
        return share if 0 < share <= 1 else None


def utilisation_of(
    machine: Machine,
    n_processes: int,
    model: CountedModel,
    lengths: npt.NDArray[np.integer],
    *,
    target_vocab: int,
    learns_all: bool = True,
) -> Utilisation:
    """That of training on such a text, by so many processes. lengths: see `training_flops`. learns_all: whether nothing
    is frozen: of what is then left out of the products nobody keeps count."""
    flops = training_flops(model, lengths, target_vocab=target_vocab)
    peak = peak_flops(machine, n_processes=n_processes) if learns_all else None
    return Utilisation(flops / int(lengths[:, 1].sum()), peak)


def training_flops(model: CountedModel, lengths: npt.NDArray[np.integer], *, target_vocab: int) -> int:
    """Forward and backward of sentences as long as they are. lengths: (sentences, 2), source and target pieces.

    Scores and mixtures grow with each sentence's own lengths, everything else with the tokens there are.
    """
    sums, products = np.zeros(2, dtype=np.int64), np.zeros((2, 2), dtype=np.int64)
    for start in range(0, len(lengths), PART):  # what is computed for a part takes no room
        sides = np.ascontiguousarray(lengths[start : start + PART].T, dtype=np.int64)
        sums += sides.sum(axis=1)
        products += sides @ sides.T
    (n_source, n_target), ((own, cross), (_, target)) = sums.tolist(), products.tolist()
    tokens = Pass(0, 0, encoded=n_source, decoded=n_target, projected=n_target)
    linear = sum(term.flops for term in terms(model, tokens, target_vocab=target_vocab))
    pairs = model.depths.encoder * own + model.depths.decoder * (target + cross)
    return int(3 * (linear + 2 * 2 * model.n_heads * model.head_width * pairs))


def peak_flops(machine: Machine, *, n_processes: int) -> float | None:
    """Of a GPU what its data sheet says, of a CPU what its products make now, which takes a twentieth of a second, but
    seconds where they are imitated, and in fp16, in which nobody trains there."""
    if machine.kind == "cpu":
        if machine.precision == "fp16" or imitates(machine.precision, "cpu"):
            return None
        return product_rate(machine.dtype) * 1e9 * n_processes
    if machine.kind == "cuda" and (hardware := of_device(torch.cuda.get_device_name(machine.device))):
        peak = hardware.peak_flops_per_s.get(machine.precision)
        return None if peak is None else float(peak * n_processes)
    return None
