"""What is made small: the loss of a batch under teacher forcing, with the model as one module.

B batch, S source length, T target length, N target tokens behind one another, D d_model, V vocabulary
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import Batch, collate
from transformer_cli.model.compiled import TiedTable
from transformer_cli.model.layout import sent
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import EOS
from transformer_cli.training.loss import cross_entropy


class Objective(nn.Module):
    """A model and its loss: what a wrapper of modules has to see of a step."""

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> Tensor:
        return loss_of(self.model, batch, smoothing=self.smoothing)


class RDrop(Objective):
    """The mean of two losses, each with its own dropout, and how much the two disagree: half of what Liang et al. 2021
    add up, so that losses stay comparable. alpha: its weight there."""

    def __init__(self, model: Transformer, *, smoothing: float, alpha: float) -> None:
        super().__init__(model, smoothing=smoothing)
        self.alpha = alpha

    def forward(self, batch: Batch) -> Tensor:
        hidden_ND, targets_N, weight_VD = _read(self.model, _twice(batch))
        apart = 0.0
        if n := batch.n_target_tokens:
            hidden_ND, targets_N, apart = hidden_ND[: 2 * n], targets_N[: 2 * n], self.alpha / 2
        return _cross_entropy(self.model, hidden_ND, targets_N, weight_VD, smoothing=self.smoothing, apart=apart) / 2


def objective_of(model: Transformer, options: TrainingConfig) -> Objective:
    """The configured one."""
    if options.r_drop is None:
        return Objective(model, smoothing=options.label_smoothing)
    return RDrop(model, smoothing=options.label_smoothing, alpha=options.r_drop)


def loss_of(model: Transformer, batch: Batch, *, smoothing: float) -> Tensor:
    """Summed loss of a batch: the input is the target shifted right by one."""
    return _cross_entropy(model, *_read(model, batch), smoothing=smoothing)


def _read(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states and targets, behind one another, sentence by sentence; and the weight of the output projection."""
    weight_VD: Tensor = model.output.weight
    source_BS, target_in_BT, target_out_BT = (
        sent(ids, weight_VD.device) for ids in (batch.source_BS, batch.target_in_BT, batch.target_out_BT)
    )
    lengths = batch.source_lengths_B, batch.target_lengths_B
    source, target = (model.layout(lengths_B, weight_VD.device) for lengths_B in lengths)
    tied = None
    if model.compiled and _is_table(model) and weight_VD.requires_grad and torch.is_grad_enabled():
        tied = TiedTable(weight_VD)
        weight_VD = tied.table_VD
    return model.packed(source_BS, target_in_BT, source, target, tied), target.ids(target_out_BT), weight_VD


def _cross_entropy(
    model: Transformer, hidden_ND: Tensor, targets_N: Tensor, weight_VD: Tensor, *, smoothing: float, apart: float = 0.0
) -> Tensor:
    return cross_entropy(
        hidden_ND,
        weight_VD,
        targets_N,
        bias_V=model.output_bias,
        smoothing=smoothing,
        is_table=_is_table(model),
        apart=apart,
        compiled=model.compiled,
    )


def _is_table(model: Transformer) -> bool:
    """Whether the output projection is the embedding, too."""
    return model.output is model.target_embedding.table


def _twice(batch: Batch) -> Batch:
    """The same sentences once more behind themselves; counts are those of one of them."""
    names = ("source_BS", "source_lengths_B", "target_in_BT", "target_out_BT", "target_lengths_B")
    doubled: dict[str, Any] = {name: torch.cat([getattr(batch, name)] * 2) for name in names}
    return replace(batch, **doubled)


def of_nothing() -> Batch:
    """One piece whose target is padding: what a process without a sentence computes, for all have to take part. Its
    loss and every gradient of it are zero."""
    batch = collate([[EOS]], [[]])
    return replace(batch, target_out_BT=torch.zeros_like(batch.target_out_BT), n_source_tokens=0, n_target_tokens=0)
