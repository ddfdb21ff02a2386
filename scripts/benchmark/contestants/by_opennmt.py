"""OpenNMT-py, fp32: its own loop on the same pieces, as words. Its batches hold tokens with padding, of both sides the
longer; its sources have no end mark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from turn import LONGEST, Pieces, Translate, Turn, Watch, asked, in_batches, translate
from weights import fill

NAMES = {
    "encoder": {
        "residuals.0.norm": "layer_norm",
        "self_attention.query_key_value": "self_attn.linear_query self_attn.linear_keys self_attn.linear_values",
        "self_attention.output": "self_attn.final_linear",
        "residuals.1.norm": "feed_forward.layer_norm",
        "feed_forward.up": "feed_forward.w_1",
        "feed_forward.down": "feed_forward.w_2",
    },
    "decoder": {
        "residuals.0.norm": "layer_norm_1",
        "self_attention.query_key_value": "self_attn.linear_query self_attn.linear_keys self_attn.linear_values",
        "self_attention.output": "self_attn.final_linear",
        "residuals.1.norm": "layer_norm_2",
        "cross_attention.query": "context_attn.linear_query",
        "cross_attention.key_value": "context_attn.linear_keys context_attn.linear_values",
        "cross_attention.output": "context_attn.final_linear",
        "residuals.2.norm": "feed_forward.layer_norm",
        "feed_forward.up": "feed_forward.w_1",
        "feed_forward.down": "feed_forward.w_2",
    },
}


def configuration(turn: Turn) -> dict[str, Any]:
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


def run(configured: dict[str, Any]) -> None:
    from onmt.bin.train import _get_parser, train

    Path("configuration.yaml").write_text(yaml.safe_dump(configured), encoding="utf-8")
    options, _ = _get_parser().parse_known_args(["-config", "configuration.yaml"])
    train(options)


def train(turn: Turn) -> None:
    from onmt import trainer

    watch, accumulate = Watch(turn), trainer.Trainer._gradient_accumulation

    def watched(self, batches, *rest):
        pad = self.train_loss.padding_idx
        targets = sum(int(batch["tgt"][:, 1:].ne(pad).sum()) for batch in batches)
        watch.update(targets + sum(int(batch["srclen"].sum()) for batch in batches))
        return accumulate(self, batches, *rest)

    trainer.Trainer._gradient_accumulation = watched
    run(configuration(turn))


def convert(turn: Turn) -> None:
    """What it saves after one update, with tx's weights."""
    from onmt.models.model_saver import ModelSaver

    save = ModelSaver._save

    def filled(self, step, model):
        layers = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
        fill(turn, model, layers, NAMES, table=model.encoder.embeddings.word_lut.weight)
        return save(self, step, model)

    ModelSaver._save = filled
    once = {"train_steps": 1, "bucket_size": 100, "batch_type": "sents", "batch_size": 4, "normalization": "sents"}
    run({**configuration(turn), **once, "save_model": str(Path(turn.model) / "opennmt")})


def translator(turn: Turn) -> Translate:
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # its checkpoints are pickled, and this one is ours
    from onmt.bin.translate import _get_parser
    from onmt.inference_engine import InferenceEnginePY
    from onmt.utils.parse import ArgumentParser

    options = ["-model", str(Path(turn.model) / "opennmt_step_1.pt"), "-src", "none", "-output", "output"]
    options += ["-beam_size", str(turn.beam), "-batch_size", str(turn.batch), "-max_length", str(LONGEST)]
    parsed = _get_parser().parse_args(options)
    ArgumentParser.validate_translate_opts(parsed)
    ArgumentParser._get_all_transform_translate(parsed)
    ArgumentParser._validate_transforms_opts(parsed)
    ArgumentParser.validate_translate_opts_dynamic(parsed)
    engine, pieces = InferenceEnginePY(parsed), Pieces(turn)

    def by(lines: list[str]) -> list[str]:
        _, found = engine.infer_list([" ".join([*names, "</s>"]) for names in pieces.names(lines)])
        return [pieces.text(one[0].split()) for one in found]

    return by


if __name__ == "__main__":
    turn = asked()
    if turn.what == "translate":
        translate(turn, in_batches(turn, translator(turn)))
    else:
        {"train": train, "convert": convert}[turn.what](turn)
