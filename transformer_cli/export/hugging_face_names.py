"""What tx's modules are called in Hugging Face's Marian, M2M100 and Blenderbot, which agree."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_cli.config.model import ModelConfig

ATTENTIONS = ("q_proj", "k_proj", "v_proj")
NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def modules(config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each matrix or norm of the layers by its name here, and the names of what it is there: one or several."""
    for side in config.sides:
        for index in range(getattr(config.depths, side)):
            here, there = f"{side}.layers.{index}", f"model.{side}.layers.{index}"
            query, key, value = (f"{there}.self_attn.{name}" for name in ATTENTIONS)
            yield f"{here}.self_attention.query_key_value", (query, key, value)
            yield f"{here}.self_attention.output", (f"{there}.self_attn.out_proj",)
            if side == "decoder":
                query, key, value = (f"{there}.encoder_attn.{name}" for name in ATTENTIONS)
                yield f"{here}.cross_attention.query", (query,)
                yield f"{here}.cross_attention.key_value", (key, value)
                yield f"{here}.cross_attention.output", (f"{there}.encoder_attn.out_proj",)
            yield f"{here}.feed_forward.up", (f"{there}.fc1",)
            yield f"{here}.feed_forward.down", (f"{there}.fc2",)
            for n, name in enumerate(NORMS[side]):
                yield f"{here}.residuals.{n}.norm", (f"{there}.{name}",)
        if config.ends_in_norm:
            yield f"{side}.norm", (f"model.{side}.layer_norm",)


def is_written(name: str) -> bool:
    """Whether the rows of a module are features of the residual stream; of the others its columns are."""
    return name.endswith((".output", ".down", ".norm"))
