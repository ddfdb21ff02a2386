"""A configuration becomes a module with fresh weights, or with none at all on the meta device."""

from __future__ import annotations

import torch
from torch import nn

from transformer_cli.config.model import ModelConfig
from transformer_cli.model.transformer import Transformer


def build_model(
    config: ModelConfig, *, source_vocab: int, target_vocab: int, device: str | torch.device = "cpu"
) -> Transformer:
    """The module, in fp32; on "meta" it has shapes and takes no memory.

    Fresh weights come from PyTorch's default generator: seed it before.
    """
    with torch.device(device):
        model = Transformer(config, source_vocab=source_vocab, target_vocab=target_vocab)
    if str(device) != "meta":
        initialise(model)
    return model


@torch.no_grad()
def initialise(model: Transformer) -> None:
    """Xavier uniform (Glorot & Bengio 2010) for the matrices, each of W^Q, W^K, W^V by its own shape; biases 0;
    embeddings N(0, 1/D), that of padding 0."""
    d_model = model.config.d_model
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            for block in module.weight.split(_fan_out(name, module)):
                nn.init.xavier_uniform_(block)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=d_model**-0.5)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()


def _fan_out(name: str, module: nn.Linear) -> int:
    """Rows of one of the matrices that were joined into one."""
    joined = {"query_key_value": 3, "key_value": 2}.get(name.rsplit(".", 1)[-1], 1)
    return module.out_features // joined
