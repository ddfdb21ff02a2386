"""Cross-attention to a single sentence as two small products.

W beams, H heads, K d_head, D d_model, S source length, X positions of all heads (H * S)
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_cli.model.attention import CrossAttention

LONGEST = 64
"""Source positions. Where there are more than numbers in a head, there is more to read than before."""


class Folded:
    """The query and output projections, multiplied once with a sentence's keys and values: a step reads H * S rows of D
    numbers in place of H * K, and heads matter in the softmax alone."""

    def __init__(self, layer: CrossAttention, hidden_11S: Tensor, keys_HKS: Tensor, values_HSK: Tensor) -> None:
        """layer: whose heads have keys and values of their own, and no norms. hidden_11S: what is added to scores."""
        H, K, self.length = keys_HKS.shape
        self.scale = K**-0.5
        query, output, none = layer.query, layer.output, keys_HKS.new_zeros(H * K)
        query_bias_H1K = (none if query.bias is None else query.bias).view(H, 1, K)
        self.keys_DX = torch.bmm(keys_HKS.transpose(1, 2), query.weight.view(H, K, -1)).flatten(0, 1).t()
        self.bias_X = torch.baddbmm(hidden_11S, query_bias_H1K, keys_HKS, alpha=self.scale).flatten()
        values_HSD = torch.bmm(values_HSK, output.weight.t().view(H, K, -1))
        if output.bias is not None:  # the weights of each head are 1 together
            values_HSD.add_(output.bias, alpha=1 / H)
        self.values_XD = values_HSD.flatten(0, 1)

    def onto(self, x_WD: Tensor, entered_WD: Tensor) -> Tensor:
        """x + attention of what has entered it; x is overwritten."""
        scores_WX = torch.addmm(self.bias_X, entered_WD, self.keys_DX, alpha=self.scale)
        weights_WX = scores_WX.view(-1, self.length).softmax(-1).view(scores_WX.shape)
        return x_WD.addmm_(weights_WX, self.values_XD)
