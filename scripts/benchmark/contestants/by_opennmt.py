"""OpenNMT-py, fp32: its own loop on the same pieces, as words. Its batches hold tokens with padding, of both sides the
longer; its sources have no end mark."""

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
    return {
        "data": {"corpus": corpus},
        "src_vocab": "vocabulary",
        "share_vocab": True,
        "save_data": "data",
        "save_model": "model",
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "enc_layers": sizes.n_layers,
        "dec_layers": sizes.n_layers,
        "heads": sizes.n_heads,
        "hidden_size": sizes.d_model,
        "word_vec_size": sizes.d_model,
        "transformer_ff": sizes.d_ff,
        "position_encoding": True,
        "add_qkvbias": True,
        "add_ffnbias": True,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "param_init": 0,
        "param_init_glorot": True,
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
        "train_steps": 1_000_000,
        "save_checkpoint_steps": 1_000_000,
        "report_every": 100_000,
        "seed": 1,
    }


def train(turn: Turn) -> None:
    from onmt import trainer
    from onmt.bin.train import _get_parser, train

    Path("configuration.yaml").write_text(yaml.safe_dump(configuration(turn)), encoding="utf-8")
    watch, accumulate = Watch(turn), trainer.Trainer._gradient_accumulation

    def watched(self, batches, *rest):
        pad = self.train_loss.padding_idx
        targets = sum(int(batch["tgt"][:, 1:].ne(pad).sum()) for batch in batches)
        watch.update(targets + sum(int(batch["srclen"].sum()) for batch in batches))
        return accumulate(self, batches, *rest)

    trainer.Trainer._gradient_accumulation = watched
    options, _ = _get_parser().parse_known_args(["-config", "configuration.yaml"])
    train(options)


if __name__ == "__main__":
    train(asked())
