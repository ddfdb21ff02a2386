"""JoeyNMT, fp32: its own loop on the same pieces, as words. It counts padding in a batch, and drops attention weights,
too, as often as everything else."""

from __future__ import annotations

from pathlib import Path

from turn import Turn, Watch, asked

MARKS = ["<unk>", "<pad>", "<s>", "</s>"]
"""In its own order."""


def configuration(turn: Turn, sizes: object) -> dict[str, object]:
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
    words = [*MARKS, *turn.vocabulary[len(MARKS) :]]
    Path("vocabulary").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    Path("model").mkdir()
    watch, step = Watch(turn), training.TrainManager._train_step

    def watched(manager, batch):
        watch.update(int(batch.src_length.sum()) + int(batch.ntokens))
        return step(manager, batch)

    training.TrainManager._train_step = watched
    training.train(rank=0, world_size=1, cfg=configuration(turn, turn.sizes), skip_test=True)


if __name__ == "__main__":
    train(asked())
