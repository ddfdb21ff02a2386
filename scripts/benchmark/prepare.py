"""What contestants open: the text in tx's pieces, and one run's weights as each of them reads it.

    python prepare.py text FOLDER [TOKENS]        of Multi30k, as small.yaml names it; and its two shapes, and how
                                                  many tokens a side batches have, if other than there
    python prepare.py model FOLDER RUN NAME...    tx's own, and those of EXPORTS, which `tx export` writes

Called by `all`, in a process of its own, so that `all` itself stays small.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SMALL = Path(__file__).with_name("small.yaml")
SHAPES = {
    "small": {},
    "base": {"d_model": 512, "n_heads": 8, "d_ff": 2048, "n_layers": 6},
}
EXPORTS = {
    "hugging-face": ("hugging-face",),
    "ctranslate2-fp32": ("ctranslate2",),
    "ctranslate2-int8": ("ctranslate2", "--quantization", "int8"),
    "onnx": ("onnx",),
}
FILES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def settings(shape: str = "small", tokens: str | int | None = None) -> list[str]:
    """KEY=VALUE for small.yaml, so that it finds Multi30k, and has this shape and batches of so many tokens a side."""
    folder = Path(os.environ.get("TX_MULTI30K", "data/multi30k")).resolve()
    sizes = [f"model.{name}={value}" for name, value in SHAPES[shape].items()]
    if tokens is not None:
        sizes.append(f"training.budget_tokens={tokens}")
    return [f"data.{key}={folder / name}" for key, name in FILES.items()] + sizes


def text(folder: Path, tokens: str | None = None) -> None:
    """PART.source and PART.target, the same .pieces, `vocabulary` in the order of its ids, shapes.json."""
    import numpy as np

    from transformer_cli.config.source import load_config
    from transformer_cli.data import corpus
    from transformer_cli.tokenizer import train_tokenizer
    from transformer_cli.training.utilisation import training_flops

    config = load_config(str(SMALL), settings())
    texts = {"train": corpus.load_training(config.data), "valid": corpus.load_validation(config.data)}
    tokenizer, _ = train_tokenizer(config.tokenizer, texts["train"].source, texts["train"].target, seed=config.seed)
    vocabulary = tokenizer.source
    assert tokenizer.joint
    names = write_vocabulary(folder, vocabulary)
    lengths = {}
    for part, pairs in texts.items():
        for side, lines in (("source", pairs.source), ("target", pairs.target)):
            ids = vocabulary.encode(list(lines))
            lengths[part, side] = [len(one) + 1 for one in ids]
            cut = "".join(" ".join(names[id] for id in one) + "\n" for one in ids)
            (folder / f"{part}.{side}.pieces").write_text(cut, encoding="utf-8")
    multi30k = Path(os.environ.get("TX_MULTI30K", "data/multi30k"))
    for side, language in (("source", config.data.source), ("target", config.data.target)):
        lines = (multi30k / f"{FILES['test']}.{language}").read_text(encoding="utf-8")
        (folder / f"test.{side}").write_text(lines.rstrip("\n"), encoding="utf-8")
    pairs = np.array([lengths["train", "source"], lengths["train", "target"]]).T
    shapes = {}
    for name in SHAPES:
        shaped = load_config(str(SMALL), settings(name, tokens))
        flops = training_flops(shaped.model, pairs, target_vocab=vocabulary.size)
        shapes[name] = {**settings_of(shaped), "flops_per_token": flops / int(pairs.sum())}
    (folder / "shapes.json").write_text(json.dumps(shapes), encoding="utf-8")


def write_vocabulary(folder: Path, vocabulary: Any) -> list[str]:
    names = [vocabulary.piece(id) for id in range(vocabulary.size)]
    (folder / "vocabulary").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return names


def settings_of(config: Any) -> dict[str, Any]:
    """What a peer has to know, to have the same model and the same batches."""
    found = {key: getattr(config.model, key) for key in ("d_model", "n_heads", "d_ff", "dropout")}
    return {
        **found,
        "n_layers": config.model.depths.encoder,
        "tokens": config.training.budget_tokens,
        "label_smoothing": config.training.label_smoothing,
    }


def asked_of_ctranslate2(decoding: Any) -> dict[str, Any]:
    """How it searches by beams where `decoding.engine` names it."""
    from transformer_cli.decoding.engine import PATIENCE

    names = ("length_penalty", "max_length_factor", "max_length_extra")
    return {"patience": PATIENCE, **{name: getattr(decoding, name) for name in names}}


def model(folder: Path, run: str, *names: str) -> None:
    """`weights` (safetensors), spm.model, `vocabulary`, shapes.json for those who read tx's; beside them its exports,
    each compared by tx itself."""
    from safetensors.torch import save_file

    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.store import open_run
    from transformer_cli.checkpoints.tensors import weights

    opened = open_run(find_checkpoint(run))
    save_file({name: one.float().contiguous() for name, one in weights(opened.model).items()}, folder / "weights")
    (folder / "spm.model").write_bytes(opened.tokenizer.source.model)
    write_vocabulary(folder, opened.tokenizer.source)
    about = {**settings_of(opened.config), "asked": asked_of_ctranslate2(opened.config.decoding)}
    (folder / "shapes.json").write_text(json.dumps({"run": about}), encoding="utf-8")
    for name in names:
        command = [sys.executable, "-m", "transformer_cli", "export", *EXPORTS[name], "-m", run, "--quiet"]
        done = subprocess.run(
            [*command, "-o", str(folder / name)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            print(f"{name}: {done.stderr.strip()}", file=sys.stderr)


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    Path(place).mkdir(parents=True, exist_ok=True)
    {"text": text, "model": model}[what](Path(place), *rest)
