"""What fairseq computes, written down anew from its documentation: the weights by its names, a plain loop, no cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

PAD, EOS = 1, 2


def weights(args: dict, n_source: int, n_target: int) -> dict[str, Tensor]:
    """A checkpoint's `model`, drawn at random."""
    torch.manual_seed(11)
    width, inner = args["encoder_embed_dim"], args["encoder_ffn_embed_dim"]
    found = {"encoder.version": torch.tensor([3.0]), "decoder.version": torch.tensor([3.0])}

    def linear(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"] = torch.randn(rows, columns) * 0.3
        found[f"{name}.bias"] = torch.randn(rows) * 0.3

    def norm(name: str) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = 1 + torch.randn(width) * 0.3, torch.randn(width) * 0.3

    for side, n in (("encoder", n_source), ("decoder", n_target)):
        found[f"{side}.embed_tokens.weight"] = torch.randn(n, width) * 0.3
        if args.get(f"{side}_learned_pos"):
            rows = args[f"max_{'source' if side == 'encoder' else 'target'}_positions"] + PAD + 1
            found[f"{side}.embed_positions.weight"] = torch.randn(rows, width)
        for layer in range(args[f"{side}_layers"]):
            name = f"{side}.layers.{layer}"
            attentions = ["self_attn", "encoder_attn"] if side == "decoder" else ["self_attn"]
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{name}.{attention}.{part}", width, width)
                norm(f"{name}.{attention}_layer_norm")
            linear(f"{name}.fc1", inner, width)
            linear(f"{name}.fc2", width, inner)
            norm(f"{name}.final_layer_norm")
        if args.get("encoder_normalize_before"):
            norm(f"{side}.layer_norm")
    if args.get("share_all_embeddings"):
        found["decoder.embed_tokens.weight"] = found["encoder.embed_tokens.weight"]
    is_shared = args.get("share_all_embeddings") or args.get("share_decoder_input_output_embed")
    own = torch.randn(n_target, width) * 0.3
    found["decoder.output_projection.weight"] = found["decoder.embed_tokens.weight"] if is_shared else own
    return found


def logits(args: dict, model: dict[str, Tensor], source: list[int], target_in: list[int]) -> Tensor:
    """Of each position (T, V)."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ model[f"{name}.weight"].T + model[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], model[f"{name}.weight"], model[f"{name}.bias"], 1e-5)

    def embedded(side: str, ids: list[int]) -> Tensor:
        table = model[f"{side}.embed_tokens.weight"]
        x = table[ids] * (1 if args.get("no_scale_embedding") else math.sqrt(table.size(1)))
        if args.get("no_token_positional_embeddings"):
            return x
        places = range(PAD + 1, PAD + 1 + len(ids))  # positions begin behind the id of padding
        if args.get(f"{side}_learned_pos"):
            return x + model[f"{side}.embed_positions.weight"][list(places)]
        half = table.size(1) // 2
        rates = [math.exp(-math.log(10000) / (half - 1) * i) for i in range(half)]
        waves = [[wave(place * rate) for wave in (math.sin, math.cos) for rate in rates] for place in places]
        return x + torch.tensor(waves)

    def attention(name: str, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        n_heads = args["encoder_attention_heads"]
        query, key, value = (
            linear(f"{name}.{part}", of).view(len(of), n_heads, -1).transpose(0, 1)
            for part, of in (("q_proj", x), ("k_proj", memory), ("v_proj", memory))
        )
        scores = query @ key.transpose(1, 2) / math.sqrt(query.size(-1))
        if hidden is not None:
            scores = scores + hidden
        read = (scores.softmax(-1) @ value).transpose(0, 1).reshape(len(x), -1)
        return linear(f"{name}.out_proj", read)

    def feed_forward(name: str, x: Tensor) -> Tensor:
        inner = getattr(functional, args.get("activation_fn", "relu"))(linear(f"{name}.fc1", x))
        return linear(f"{name}.fc2", inner)

    def residual(name: str, x: Tensor, sublayer) -> Tensor:
        if args.get("encoder_normalize_before"):
            return x + sublayer(norm(name, x))
        return norm(name, x + sublayer(x))

    def stack(side: str, ids: list[int], memory: Tensor | None = None) -> Tensor:
        x = embedded(side, ids)
        future = torch.full((len(ids), len(ids)), -math.inf).triu(1) if side == "decoder" else None
        for layer in range(args[f"{side}_layers"]):
            name = f"{side}.layers.{layer}"
            here = f"{name}.self_attn"
            x = residual(f"{here}_layer_norm", x, lambda y, here=here: attention(here, y, y, future))
            if memory is not None:
                across = f"{name}.encoder_attn"
                x = residual(f"{across}_layer_norm", x, lambda y, across=across: attention(across, y, memory, None))
            x = residual(f"{name}.final_layer_norm", x, lambda y, name=name: feed_forward(name, y))
        return norm(f"{side}.layer_norm", x) if f"{side}.layer_norm.weight" in model else x

    return stack("decoder", target_in, stack("encoder", source)) @ model["decoder.output_projection.weight"].T
