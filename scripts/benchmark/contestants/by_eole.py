"""Eole: its own loop on the same pieces, as words. Its batches hold tokens with padding, of both sides the longer; its
sources have no end mark."""

from __future__ import annotations

from pathlib import Path

import yaml
from turn import Turn, Watch, asked


def configuration(turn: Turn) -> dict[str, object]:
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


def train(turn: Turn) -> None:
    import sys

    from eole import trainer
    from eole.bin.main import main

    Path("configuration.yaml").write_text(yaml.safe_dump(configuration(turn)), encoding="utf-8")
    watch, step = Watch(turn), trainer.Trainer._train_step

    def watched(self, batches, *rest, **options):
        pad = self.train_loss.padding_idx
        targets = sum(int(batch["tgt"][:, 1:].ne(pad).sum()) for batch in batches)
        watch.update(targets + sum(int(batch["srclen"].sum()) for batch in batches))
        return step(self, batches, *rest, **options)

    trainer.Trainer._train_step = watched
    sys.argv = ["eole", "train", "-config", "configuration.yaml"]
    main()


if __name__ == "__main__":
    train(asked())
