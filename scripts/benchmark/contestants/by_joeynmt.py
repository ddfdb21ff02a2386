"""JoeyNMT, fp32: its own loop on the same pieces, as words. It counts padding in a batch, and drops attention weights,
too, as often as everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turn import LONGEST, Pieces, Translate, Turn, Watch, asked, in_batches, translate
from weights import MARKS, fill, words

NAMES = {
    "encoder": {
        "residuals.0.norm": "layer_norm",
        "self_attention.query_key_value": "src_src_att.q_layer src_src_att.k_layer src_src_att.v_layer",
        "self_attention.output": "src_src_att.output_layer",
        "residuals.1.norm": "feed_forward.layer_norm",
        "feed_forward.up": "feed_forward.pwff_layer.0",
        "feed_forward.down": "feed_forward.pwff_layer.3",
    },
    "decoder": {
        "residuals.0.norm": "x_layer_norm",
        "self_attention.query_key_value": "trg_trg_att.q_layer trg_trg_att.k_layer trg_trg_att.v_layer",
        "self_attention.output": "trg_trg_att.output_layer",
        "residuals.1.norm": "dec_layer_norm",
        "cross_attention.query": "src_trg_att.q_layer",
        "cross_attention.key_value": "src_trg_att.k_layer src_trg_att.v_layer",
        "cross_attention.output": "src_trg_att.output_layer",
        "residuals.2.norm": "feed_forward.layer_norm",
        "feed_forward.up": "feed_forward.pwff_layer.0",
        "feed_forward.down": "feed_forward.pwff_layer.3",
    },
}


def configuration(turn: Turn) -> dict[str, Any]:
    sizes = turn.sizes
    side = {"level": "word", "max_length": 256, "min_freq": 1, "voc_file": "vocabulary"}
    layers = {
        "type": "transformer",
        "num_layers": sizes.n_layers,
        "num_heads": sizes.n_heads,
        "hidden_size": sizes.d_model,
        "ff_size": sizes.d_ff,
        "dropout": sizes.dropout,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": sizes.d_model, "scale": True, "dropout": sizes.dropout},
    }
    model = {"encoder": layers, "decoder": layers, "tied_embeddings": True, "tied_softmax": True}
    data = {"train": "train", "dev": "valid", "dataset_type": "plain"}
    data |= {"src": {**side, "lang": "source"}, "trg": {**side, "lang": "target"}}
    training = {
        "batch_size": sizes.tokens,
        "batch_type": "token",
        "label_smoothing": sizes.label_smoothing,
        "normalization": "tokens",
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "scheduling": "warmupinversesquareroot",
        "learning_rate_warmup": 400,
        "clip_grad_norm": 1.0,
        "epochs": 1000,
        "logging_freq": 100_000,
        "validation_freq": 100_000,
    }
    testing = {"beam_size": 1, "batch_size": 64, "eval_metrics": ["bleu"]}
    top = {"name": "benchmark", "joeynmt_version": "2.3.0", "model_dir": "model", "use_cuda": False, "fp16": False}
    return {**top, "data": data, "training": training, "testing": testing, "model": model}


def train(turn: Turn) -> None:
    from joeynmt import training

    for part in ("train", "valid"):
        for side in ("source", "target"):
            Path(f"{part}.{side}").symlink_to(Path(turn.text) / f"{part}.{side}.pieces")
    Path("vocabulary").write_text("".join(f"{word}\n" for word in words(turn)), encoding="utf-8")
    Path("model").mkdir()
    watch, step = Watch(turn), training.TrainManager._train_step

    def watched(manager, batch):
        watch.update(int(batch.src_length.sum()) + int(batch.ntokens))
        return step(manager, batch)

    training.TrainManager._train_step = watched
    training.train(rank=0, world_size=1, cfg=configuration(turn), skip_test=True)


def translator(turn: Turn) -> Translate:
    import torch
    from joeynmt.batch import Batch
    from joeynmt.config import parse_global_args
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.vocabulary import Vocabulary

    configured = configuration(turn)
    parse_global_args(configured)
    vocabulary = Vocabulary(words(turn)[len(MARKS) :], configured["data"]["special_symbols"])
    model = build_model(configured["model"], vocabulary, vocabulary)
    layers = {"encoder": "encoder.layers", "decoder": "decoder.layers"}
    fill(turn, model, layers, NAMES, table=model.src_embed.lut.weight)
    model.eval()
    pieces, pad, end = Pieces(turn), vocabulary.pad_index, vocabulary.eos_index
    ids = {word: id for id, word in enumerate(words(turn))}

    def by(lines: list[str]) -> list[str]:
        sources = [[ids.get(name, vocabulary.unk_index) for name in line] + [end] for line in pieces.names(lines)]
        lengths = torch.tensor([len(source) for source in sources])
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], True, pad)
        order = torch.arange(len(lines))
        batch = Batch(padded, lengths, None, None, None, order, torch.device("cpu"), pad, end, is_train=False)
        found, _, _ = search(model, batch, max_output_length=LONGEST, beam_size=turn.beam, beam_alpha=1.0)
        return [pieces.text(one) for one in vocabulary.arrays_to_sentences(found, cut_at_eos=True)]

    return by


if __name__ == "__main__":
    turn = asked()
    train(turn) if turn.what == "train" else translate(turn, in_batches(turn, translator(turn)))
