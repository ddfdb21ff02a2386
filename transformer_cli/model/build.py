"""A configuration becomes a module with fresh weights, or with none at all on the meta device."""

from __future__ import annotations

import torch
from torch import nn

from transformer_cli.config.model import ModelConfig
from transformer_cli.model.attention import MultiHeadAttention, stacked
from transformer_cli.model.blocks import FeedForward
from transformer_cli.model.positions import PositionEncoding
from transformer_cli.model.transformer import Decoder, Embedding, Encoder, Model, Transformer


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
def initialise(model: Model) -> None:
    """Xavier uniform (Glorot & Bengio 2010) for the matrices, each of W^Q, W^K, W^V by its own shape; biases 0.

    What a sublayer adds to the residual stream starts smaller by the square root of the number of sublayers in its
    stack (Radford et al. 2019, section 2.3). Embeddings are normal, that of padding 0: of variance 1/D where they are
    scaled by sqrt(D) or are the output projection, too, else of variance 1, so that what enters the first layer has
    unit variance.
    """
    blocks = stacked(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            for block in module.weight.split(blocks.get(module, module.out_features)):
                nn.init.xavier_uniform_(block)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Embedding):
            wide = not model.config.embedding_scale and module.table is not getattr(model, "output", None)
            nn.init.normal_(module.table.weight, std=1.0 if wide else model.config.d_model**-0.5)
            module.table.weight[module.table.padding_idx].zero_()
        elif isinstance(module, PositionEncoding):
            module.initialise()
    bias = getattr(model, "output_bias", None)
    if bias is not None:
        nn.init.zeros_(bias)
    for stack in model.children():
        if not isinstance(stack, Encoder | Decoder):
            continue
        sublayers = [sublayer for layer in stack.layers for sublayer in layer.children()]
        outputs = [s.output for s in sublayers if isinstance(s, MultiHeadAttention)]
        outputs += [s.down for s in sublayers if isinstance(s, FeedForward)]
        for output in outputs:
            output.weight.mul_(len(outputs) ** -0.5)
