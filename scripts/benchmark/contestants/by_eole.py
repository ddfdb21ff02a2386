"""Eole: its own loop on the same pieces, as words. Its batches hold tokens with padding, of both sides the longer; its
sources have no end mark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from turn import LONGEST, Pieces, Translate, Turn, Watch, asked, in_batches, translate
from weights import fill

NAMES = {
    "encoder": {
        "residuals.0.norm": "input_layernorm",
        "self_attention.query_key_value": "self_attn.linear_query self_attn.linear_keys self_attn.linear_values",
        "self_attention.output": "self_attn.final_linear",
        "residuals.1.norm": "post_attention_layernorm",
        "feed_forward.up": "mlp.gate_up_proj",
        "feed_forward.down": "mlp.down_proj",
    },
    "decoder": {
        "residuals.0.norm": "input_layernorm",
        "self_attention.query_key_value": "self_attn.linear_query self_attn.linear_keys self_attn.linear_values",
        "self_attention.output": "self_attn.final_linear",
        "residuals.1.norm": "precontext_layernorm",
        "cross_attention.query": "context_attn.linear_query",
        "cross_attention.key_value": "context_attn.linear_keys context_attn.linear_values",
        "cross_attention.output": "context_attn.final_linear",
        "residuals.2.norm": "post_attention_layernorm",
        "feed_forward.up": "mlp.gate_up_proj",
        "feed_forward.down": "mlp.down_proj",
    },
}


def configuration(turn: Turn) -> dict[str, Any]:
    sizes = turn.sizes
    words = "".join(f"{word}\t1\n" for word in turn.vocabulary[4:])
    Path("vocabulary").write_text(words, encoding="utf-8")
    text = Path(turn.text)
    corpus = {"path_src": str(text / "train.source.pieces"), "path_tgt": str(text / "train.target.pieces"), "weight": 1}
    model = {
        "architecture": "transformer",
        "layers": sizes.n_layers,
        "heads": sizes.n_heads,
        "hidden_size": sizes.d_model,
        "transformer_ff": sizes.d_ff,
        "embeddings": {
            "word_vec_size": sizes.d_model,
            "position_encoding": True,
            "position_encoding_type": "SinusoidalInterleaved",
        },
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
    }
    training = {
        "model_path": "model",
        "param_init_method": "xavier_uniform",
        "dropout": [sizes.dropout],
        "attention_dropout": [0.0],
        "label_smoothing": sizes.label_smoothing,
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 1.0,
        "decay_method": "noam",
        "warmup_steps": 400,
        "max_grad_norm": 1.0,
        "batch_type": "tokens",
        "batch_size": sizes.tokens,
        "normalization": "tokens",
        "bucket_size": 30_000,
        "num_workers": 0,
        "compute_dtype": turn.precision,
        "log_attention_entropy": False,
        "train_steps": 1_000_000,
        "valid_steps": 1_000_000,
        "save_checkpoint_steps": 1_000_000,
    }
    return {
        "data": {"corpus": corpus},
        "src_vocab": "vocabulary",
        "share_vocab": True,
        "save_data": "data",
        "report_every": 100_000,
        "seed": 1,
        "model": model,
        "training": training,
    }


def run(configured: dict[str, Any]) -> None:
    from eole.bin.main import main

    Path("configuration.yaml").write_text(yaml.safe_dump(configured), encoding="utf-8")
    sys.argv = ["eole", "train", "-config", "configuration.yaml"]
    main()


def train(turn: Turn) -> None:
    from eole import trainer

    watch, step = Watch(turn), trainer.Trainer._train_step

    def watched(self, batches, *rest, **options):
        pad = self.train_loss.padding_idx
        targets = sum(int(batch["tgt"][:, 1:].ne(pad).sum()) for batch in batches)
        watch.update(targets + sum(int(batch["srclen"].sum()) for batch in batches))
        return step(self, batches, *rest, **options)

    trainer.Trainer._train_step = watched
    run(configuration(turn))


def convert(turn: Turn) -> None:
    """What it saves after one update, with tx's weights."""
    from eole.models.model_saver import TrainingModelSaver

    save = TrainingModelSaver._save

    def filled(self, step):
        layers = {side: f"{side}.transformer_layers" for side in NAMES}
        fill(turn, self.model, layers, NAMES, table=self.model.src_emb.embeddings.weight)
        return save(self, step)

    TrainingModelSaver._save = filled
    configured = configuration(turn)
    once = {"train_steps": 1, "bucket_size": 100, "batch_type": "sents", "batch_size": 4, "normalization": "sents"}
    configured["training"] |= {**once, "model_path": str(Path(turn.model) / "eole")}
    run(configured)


def translator(turn: Turn) -> Translate:
    from eole.config.run import PredictConfig
    from eole.inference_engine import InferenceEnginePY

    engine = InferenceEnginePY(
        PredictConfig(
            model_path=str(Path(turn.model) / "eole"),
            src="none",
            beam_size=turn.beam,
            batch_size=turn.batch,
            max_length=LONGEST,
            compute_dtype=turn.precision,
        )
    )
    pieces = Pieces(turn)

    def by(lines: list[str]) -> list[str]:
        _, _, found = engine.infer_list([" ".join([*names, "</s>"]) for names in pieces.names(lines)])
        return [pieces.text(one[0].split()) for one in found]

    return by


if __name__ == "__main__":
    turn = asked()
    if turn.what == "translate":
        translate(turn, in_batches(turn, translator(turn)))
    else:
        {"train": train, "convert": convert}[turn.what](turn)
