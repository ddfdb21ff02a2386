"""Translating the Multi30k test set: tx, by itself and by its other engine, beside Hugging Face and CTranslate2, all
with the weights of one tx run.

    python decoding.py --run RUN [--beams 1 5] [--batches 64 1] [--lines 1000] [--rounds 3]

Needs an environment with tx, `transformers>=5,<6`, `ctranslate2>=4.8,<5` and the Multi30k files in TX_MULTI30K or
data/multi30k. The run has the default architecture: pre-norm with a final norm, ReLU, biases, sinusoidal positions.
M2M100 is Hugging Face's class of that shape; only its table of positions is replaced by the run's.

Every figure is a process of its own: seconds from text to text once the model is loaded, and peak memory of the whole
process. Everybody gets the same batches, sorted by length (batch 1: a call per sentence). Contestants take turns, and
ratios are taken within a round, for machines drift. `same` counts the lines that are those of tx in fp32.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTESTANTS = [
    "tx fp32",
    "tx bf16",
    "tx-by-engine fp32",
    "transformers fp32",
    "transformers bf16",
    "ctranslate2 fp32",
    "ctranslate2 int8",
]
LONGEST = 100
PAD, UNK, BOS, EOS = range(4)

Translate = Callable[[list[str]], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 1])
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--who", nargs="+", default=CONTESTANTS, choices=CONTESTANTS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.run = str(Path(options.run).resolve())  # processes of their own begin in another folder
    if options.alone:
        alone(options)
        return
    for beam in options.beams:
        for batch in options.batches:
            compare(options, beam=beam, batch=batch)


def compare(options: argparse.Namespace, *, beam: int, batch: int) -> None:
    """All contestants by turns, then how many times as fast tx's faster precision is."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options.who}
    for _ in range(options.rounds):
        for name in options.who:
            arguments = ["--alone", "--run", options.run, "--who", name, "--beams", str(beam), "--batches", str(batch)]
            arguments += ["--lines", str(options.lines), "--threads", str(options.threads)]
            done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, text=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    ours = next((results[name][0]["translations"] for name in options.who if name == "tx fp32"), None)
    for name, runs in results.items():
        translations = runs[0].pop("translations")
        facts: dict[str, Any] = {"beam": beam, "batch": batch, "lines": len(translations), "who": name}
        facts["sentences_per_s"] = round(len(translations) / statistics.median(run["seconds"] for run in runs), 1)
        facts |= {"seconds": [run["seconds"] for run in runs], "peak_mib": max(run["peak_mib"] for run in runs)}
        if ours is not None:
            facts["same"] = sum(a == b for a, b in zip(ours, translations, strict=True))
        print(json.dumps(facts | {"bleu": runs[0]["bleu"]}), flush=True)
    seconds = {name: [run["seconds"] for run in runs] for name, runs in results.items()}
    for mine in (name for name in seconds if name.startswith("tx")):
        for theirs in (name for name in seconds if not name.startswith("tx")):
            ratios = [b / a for a, b in zip(seconds[mine], seconds[theirs], strict=True)]
            ratio = {"ratio": f"{mine} / {theirs}", "median": round(statistics.median(ratios), 2)}
            print(json.dumps({"beam": beam, "batch": batch, **ratio, "all": [round(r, 2) for r in ratios]}), flush=True)


def alone(options: argparse.Namespace) -> None:
    """One contestant, one line of JSON."""
    from sacrebleu import corpus_bleu

    toolkit, precision = options.who[0].split()
    folder = Path(os.environ.get("TX_MULTI30K", "data/multi30k"))
    source, reference = (
        (folder / f"test_2016_flickr.{side}").read_text().split("\n")[: options.lines] for side in ("de", "en")
    )
    translate = TOOLKITS[toolkit](options.run, precision, options.beams[0], options.threads)
    translate(source[:2])
    size = options.batches[0]
    order = sorted(range(len(source)), key=lambda i: -len(source[i]))
    translations = [""] * len(source)
    start = time.perf_counter()
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        for i, text in zip(rows, translate([source[i] for i in rows]), strict=True):
            translations[i] = text
    seconds = round(time.perf_counter() - start, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    bleu = round(corpus_bleu(translations, [reference]).score, 2)
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "bleu": bleu, "translations": translations}))


def with_tx(run: str, precision: str, beam: int, threads: int) -> Translate:
    import torch

    import transformer_cli

    torch.set_num_threads(threads)
    translator = transformer_cli.load(run, precision=precision)
    return lambda lines: translator.translate(lines, beam_size=beam)


def with_engine(run: str, precision: str, beam: int, threads: int) -> Translate:
    from transformer_cli import engines
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.known import open_known
    from transformer_cli.loading import settings_of

    known = open_known(find_checkpoint(run))
    translator = engines.engine_of(known, settings_of(known, [f"threads={threads}"]), tell=lambda message: None)
    return lambda lines: translator.translate(lines, beam_size=beam)


def with_transformers(run: str, precision: str, beam: int, threads: int) -> Translate:
    import torch

    torch.set_num_threads(threads)
    pieces, model = as_m2m100(run)
    if precision == "bf16":
        model = model.bfloat16()

    @torch.inference_mode()
    def translate(lines: list[str]) -> list[str]:
        ids = [[*row, EOS] for row in pieces.encode_source(lines)]
        width = max(map(len, ids))
        source = torch.tensor([row + [PAD] * (width - len(row)) for row in ids])
        out = model.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=LONGEST,
            early_stopping=False,
            length_penalty=1.0,
            suppress_tokens=[PAD, UNK, BOS],
        )
        rows = [row[1:] for row in out.tolist()]
        return list(pieces.decode_target([row[: row.index(EOS)] if EOS in row else row for row in rows]))

    return translate


def as_m2m100(run: str) -> tuple[Any, Any]:
    """The run's tokenizer, and its model as Hugging Face's M2M100."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    import transformer_cli
    from transformer_cli.model.positions import sinusoids

    translator = transformer_cli.load(run, precision="fp32", device="cpu")
    shape, tokenizer, weights = translator.model.config, translator.tokenizer, translator.model.state_dict()
    config = M2M100Config(
        vocab_size=tokenizer.target_size,
        d_model=shape.d_model,
        encoder_layers=shape.depths.encoder,
        decoder_layers=shape.depths.decoder,
        encoder_attention_heads=shape.n_heads,
        decoder_attention_heads=shape.n_heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        max_position_embeddings=1024,
        attn_implementation="sdpa",
    )
    model = M2M100ForConditionalGeneration(config).eval()
    names = {"q_proj": 0, "k_proj": 1, "v_proj": 2}
    renamed: dict[str, Any] = {"model.shared.weight": weights["target_embedding.table.weight"]}
    for side in ("encoder", "decoder"):
        renamed[f"model.{side}.embed_tokens.weight"] = renamed["model.shared.weight"]
        for kind in ("weight", "bias"):
            renamed[f"model.{side}.layer_norm.{kind}"] = weights[f"{side}.norm.{kind}"]
            for n in range(getattr(shape.depths, side)):
                ours, theirs = f"{side}.layers.{n}", f"model.{side}.layers.{n}"
                joined = weights[f"{ours}.self_attention.query_key_value.{kind}"].chunk(3)
                for name, part in names.items():
                    renamed[f"{theirs}.self_attn.{name}.{kind}"] = joined[part]
                renamed[f"{theirs}.self_attn.out_proj.{kind}"] = weights[f"{ours}.self_attention.output.{kind}"]
                norms = ["self_attn_layer_norm", "final_layer_norm"]
                if side == "decoder":
                    norms.insert(1, "encoder_attn_layer_norm")
                    key, value = weights[f"{ours}.cross_attention.key_value.{kind}"].chunk(2)
                    query = weights[f"{ours}.cross_attention.query.{kind}"]
                    for name, part in (("q_proj", query), ("k_proj", key), ("v_proj", value)):
                        renamed[f"{theirs}.encoder_attn.{name}.{kind}"] = part
                    renamed[f"{theirs}.encoder_attn.out_proj.{kind}"] = weights[f"{ours}.cross_attention.output.{kind}"]
                for number, norm in enumerate(norms):
                    renamed[f"{theirs}.{norm}.{kind}"] = weights[f"{ours}.residuals.{number}.norm.{kind}"]
                renamed[f"{theirs}.fc1.{kind}"] = weights[f"{ours}.feed_forward.up.{kind}"]
                renamed[f"{theirs}.fc2.{kind}"] = weights[f"{ours}.feed_forward.down.{kind}"]
    renamed["lm_head.weight"] = renamed["model.shared.weight"]
    model.load_state_dict(renamed)
    for stack in (model.model.encoder, model.model.decoder):
        table = stack.embed_positions.weights  # row 0 is padding's, the first position's comes after it
        table[1:] = sinusoids(len(table) - 1, shape.d_model).to(table)
    return tokenizer, model


def with_ctranslate2(run: str, precision: str, beam: int, threads: int) -> Translate:
    import ctranslate2

    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as place:
        # Converted by a process of its own: what that takes does not count.
        code = "import sys, decoding; decoding.convert(sys.argv[1], sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, run, place], check=True, cwd=Path(__file__).parent)
        compute_type = {"fp32": "float32", "int8": "int8_float32"}[precision]  # bf16 it has on GPUs alone
        model = ctranslate2.Translator(place, device="cpu", compute_type=compute_type, intra_threads=threads)
    if model.compute_type != compute_type:
        raise SystemExit(f"CTranslate2 computes in {model.compute_type} here, not in {compute_type}")
    tokenizer = Tokenizer.load(find_checkpoint(run).parent.parent / "tokenizer")
    ids_of = {tokenizer.target.piece(id): id for id in range(tokenizer.target_size)}

    def translate(lines: list[str]) -> list[str]:
        pieces = [[tokenizer.source.piece(id) for id in row] for row in tokenizer.encode_source(lines)]
        found = model.translate_batch(
            pieces, max_batch_size=len(lines), beam_size=beam, length_penalty=1.0, max_decoding_length=LONGEST
        )
        return list(tokenizer.decode_target([[ids_of[piece] for piece in one.hypotheses[0]] for one in found]))

    return translate


def convert(run: str, folder: str) -> None:
    """The run as a CTranslate2 model, in fp32."""
    from ctranslate2.specs import TransformerSpec

    import transformer_cli
    from transformer_cli.model.positions import sinusoids

    translator = transformer_cli.load(run, precision="fp32", device="cpu")
    shape, tokenizer = translator.model.config, translator.tokenizer
    weights = {name: tensor.numpy() for name, tensor in translator.model.state_dict().items()}
    spec = TransformerSpec.from_config((shape.depths.encoder, shape.depths.decoder), shape.n_heads)

    def linear(ours: str, theirs: Any) -> None:
        theirs.weight, theirs.bias = weights[f"{ours}.weight"], weights[f"{ours}.bias"]

    def norm(ours: str, theirs: Any) -> None:
        theirs.gamma, theirs.beta = weights[f"{ours}.weight"], weights[f"{ours}.bias"]

    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight, stack.scale_embeddings = weights["target_embedding.table.weight"], True
        stack.position_encodings.encodings = sinusoids(1024, shape.d_model).float().numpy()
        norm(f"{side}.norm", stack.layer_norm)
        for n, layer in enumerate(stack.layer):
            ours = f"{side}.layers.{n}"
            linear(f"{ours}.self_attention.query_key_value", layer.self_attention.linear[0])
            linear(f"{ours}.self_attention.output", layer.self_attention.linear[1])
            norms = [layer.self_attention.layer_norm, layer.ffn.layer_norm]
            if side == "decoder":
                norms.insert(1, layer.attention.layer_norm)
                linear(f"{ours}.cross_attention.query", layer.attention.linear[0])
                linear(f"{ours}.cross_attention.key_value", layer.attention.linear[1])
                linear(f"{ours}.cross_attention.output", layer.attention.linear[2])
            for number, theirs in enumerate(norms):
                norm(f"{ours}.residuals.{number}.norm", theirs)
            linear(f"{ours}.feed_forward.up", layer.ffn.linear_0)
            linear(f"{ours}.feed_forward.down", layer.ffn.linear_1)
    spec.decoder.projection.weight = weights["target_embedding.table.weight"]
    vocabulary = [tokenizer.target.piece(id) for id in range(tokenizer.target_size)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "decoder_start_token": "<s>"}
    for name, value in {**marks, "add_source_bos": False, "add_source_eos": True}.items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization="float32")
    spec.save(folder)


TOOLKITS: dict[str, Callable[[str, str, int, int], Translate]] = {
    "tx": with_tx,
    "tx-by-engine": with_engine,
    "transformers": with_transformers,
    "ctranslate2": with_ctranslate2,
}


if __name__ == "__main__":
    main()
