"""The research's records of known models, in the words of tx's own configuration.

Their file lies beside the checkout where a developer has it; `known_models.yaml` here holds the same facts for
everybody.
"""

from __future__ import annotations

from pathlib import Path

import yaml

RECORDS = Path(__file__).parents[3] / "shared" / "research" / "known_params.yaml"


def read_records():
    """The whole file, or None where it isn't there."""
    return yaml.safe_load(RECORDS.read_text("utf-8")) if RECORDS.is_file() else None


def components(record):
    """A record's components: the only embedding of two stacks is the decoder's."""
    hears = _hears(record["config"])
    return {
        "embedding.target" if hears and name == "embedding.tokens" else name: n
        for name, n in record["components"].items()
    } | record.get("stored_non_trainable_components", {})


def merged(below, above):
    """A record's configuration with another one's settings on top."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and key != "vocab":
            both[key] = merged(below[key], above[key])
    return both


def adapted(config):
    """`accounting:` and `model:` together, as tx would have them, of a record's `config`."""
    layers = {"encoder": config["encoder_layers"], "decoder": config["decoder_layers"]}
    sides = [side for side, depth in layers.items() if depth]
    embedding, norm, attention = config["embedding"], config["norm"], config["attention"]
    kinds = {side: config["positions"].get(side, {"kind": "none"}) for side in layers}
    stored = config["positions"].get("stored", False)
    biased = [p for p in ("query", "key", "value", "output") if attention[f"bias_{p[0]}"]]
    model = {key: config[key] for key in ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff") if key in config}
    return model | {
        "architecture": "encoder-decoder" if len(sides) == 2 else f"{sides[0]}-only",
        "n_layers": layers,
        "activation": "swiglu" if config["ffn"]["gated"] else "relu",
        "norm": {"layernorm": "layer-norm", "rmsnorm": "rms-norm"}[norm["kind"]],
        "norm_position": norm["placement"],
        "final_norm": norm["final"],
        "bias": {
            "attention": bool(biased),
            "feed_forward": config["ffn"]["bias"],
            "norm": norm.get("bias", True),
        },
        "attention_biases": biased if len(biased) in (1, 2, 3) else None,
        "positions": {side: _kind(position["kind"], stored) for side, position in kinds.items()},
        "max_positions": {side: position.get("length", 1) for side, position in kinds.items()},
        "tied": "decoder" if _hears(config) else _tied(embedding, len(sides)),
        "vocab": _vocab(config),
        "extra": list(_extras(config, sides)),
    }


def _kind(kind, stored):
    if kind == "sinusoidal" and stored:
        return "sinusoidal-table"
    return "none" if kind == "relative_bias" else kind


def _tied(embedding, n_sides):
    ties = embedding.get("tie_output", True)
    if n_sides == 1:
        return "all" if ties else "none"
    shares = embedding.get("share_source_target", True)
    return {(True, True): "all", (True, False): "embeddings", (False, True): "decoder", (False, False): "none"}[
        shares, ties
    ]


def _vocab(config):
    if config["embedding"].get("input") == "none":
        return 0
    vocab = config["vocab"].get("size", config["vocab"])
    return {"source": 0, "target": vocab} if _hears(config) else vocab


def _hears(config):
    """Whether only the decoder has an embedding."""
    return "conv_stem" in config.get("frontend", {})


def _extras(config, sides):
    """What only some models have; a component of several tensors is several extras, `conv_stem.1` and so on."""
    d_model, embedding = config["d_model"], config["embedding"]
    heads, frontend = config.get("heads", {}), config.get("frontend", {})
    for side in sides:
        position = config["positions"].get(side, {})
        if position.get("kind") == "relative_bias":
            yield {"name": f"relative_bias.{side}", "shape": [position["buckets"], config["n_heads"]]}
    if embedding.get("norm"):
        for side in sides:
            yield {"name": f"norm.embedding.{side}", "shape": [d_model], "bias": True}
    if embedding.get("segment_types"):
        yield {"name": "embedding.segments", "shape": [embedding["segment_types"], d_model]}
    if embedding.get("output_bias"):
        yield {"name": "unembedding_bias", "shape": [config["vocab"]["size"]]}
    if heads.get("pooler"):
        yield {"name": "pooler", "shape": [d_model, d_model], "bias": True}
    if heads.get("mlm"):
        yield {"name": "mlm_head.dense", "shape": [d_model, d_model], "bias": True}
        yield {"name": "mlm_head.norm", "shape": [d_model], "bias": True}
        yield {"name": "mlm_head.bias", "shape": [config["vocab"]["size"]]}
    if stem := frontend.get("conv_stem"):
        yield {"name": "conv_stem.1", "shape": [d_model, stem["in"], stem["kernel"]], "bias": True}
        yield {"name": "conv_stem.2", "shape": [d_model, d_model, stem["kernel"]], "bias": True}
    for side in sides if "value_conv" in frontend else ():
        conv = frontend["value_conv"]
        yield {"name": f"value_embedding.{side}", "shape": [d_model, conv["in"], conv["kernel"]]}
        yield {"name": f"time_embedding.{side}", "shape": [d_model, frontend["time_features"]]}
    if n := frontend.get("output_features"):
        yield {"name": "output_projection", "shape": [n, d_model], "bias": True}
