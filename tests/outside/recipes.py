"""A package of somebody else's, with a recipe of each kind; tx knows of it what its entry points say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transformer_cli.config.model import ModelConfig, Stack
from transformer_cli.model.positions import PositionEncoding


class Relative(PositionEncoding):
    """A trained number per head for each distance, the far ones alike (after Raffel et al. 2020, section 2.1)."""

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        self.far = 3
        self.table = nn.Embedding.from_pretrained(torch.empty(2 * self.far + 1, config.n_heads), freeze=False)

    def initialise(self) -> None:
        nn.init.normal_(self.table.weight)

    def relate(self, queries_T: Tensor, keys_S: Tensor) -> Tensor:
        distance_TS = (keys_S - queries_T[:, None]).clamp(-self.far, self.far) + self.far
        return self.table(distance_TS).permute(2, 0, 1)
