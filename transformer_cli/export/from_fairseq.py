"""A fairseq checkpoint in tx's terms: the `.pt`, `dict.LANGUAGE.txt` of both sides, and how text was cut.

There sinusoids are tensor2tensor's and begin behind the id of padding, a translation begins with the mark of the end,
and a list numbers the pieces, in the order of their frequency. Names of weights are what Hugging Face made its own of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_cli import files
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.numbering import Marks, numbered, tokenizer_of
from transformer_cli.export.original import (
    COPY,
    SIDES,
    Found,
    Originals,
    Settings,
    as_run,
    is_like,
    refuse,
    settings_of,
)
from transformer_cli.export.unpickling import unpickled
from transformer_cli.tokenizer import merges
from transformer_cli.tokenizer.renumbering import Model

CHECKPOINTS = ("checkpoint_best.pt", "model.pt", "checkpoint_last.pt")
FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""The ids that every dictionary begins with."""
MARKS = Marks(pad=1, unk=3, start=2, eos=2)
LONGEST = 512
LANGUAGES = ("source_lang", "target_lang")
DEFAULTS: dict[str, Any] = {
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "encoder_normalize_before": False,
    "encoder_learned_pos": False,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_normalize_before": False,
    "decoder_learned_pos": False,
    "no_token_positional_embeddings": False,
    "no_scale_embedding": False,
    "share_all_embeddings": False,
    "share_decoder_input_output_embed": False,
    "activation_fn": "relu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "relu_dropout": 0.0,
    "max_source_positions": 1024,
    "max_target_positions": 1024,
}
"""What a checkpoint does not say where it is usual."""
EQUAL = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")
"""Of encoder and decoder: tx has one for both."""
FOREIGN = (
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "base_layers",
    "char_inputs",
    "cross_self_attention",
    "decoder_layers_to_keep",
    "encoder_layers_to_keep",
    "layernorm_embedding",
    "merge_src_tgt_embed",
    "no_cross_attention",
    "no_decoder_final_norm",
)
"""What makes another model of it."""
OVERWRITE = " #fairseq:overwrite"
"""Behind a line of a dictionary: the piece was there before, and is this row from now on."""
CODES = re.compile(r"(.*[-_])?(bpe)?codes?")
"""Of a file's name, between two dots: subword-nmt's and fastBPE's merges are there."""
RENAMED = (
    (r"^(encoder|decoder)\.", r"model.\1."),
    (r"^model\.decoder\.(output_projection\.weight|embed_out)$", "lm_head.weight"),
    (r"^(model\.encoder\..*)\.layer_norms\.0\.", r"\1.self_attn_layer_norm."),
    (r"^(model\.encoder\..*)\.layer_norms\.1\.", r"\1.final_layer_norm."),
    (r"^(model\.decoder\..*)\.layer_norms\.0\.", r"\1.self_attn_layer_norm."),
    (r"^(model\.decoder\..*)\.layer_norms\.1\.", r"\1.encoder_attn_layer_norm."),
    (r"^(model\.decoder\..*)\.layer_norms\.2\.", r"\1.final_layer_norm."),
)
UNUSED = re.compile(r"model\.(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))")
"""What old checkpoints hold that is computed."""
HINT = "tx imports fairseq's encoder-decoder Transformers of one pair of languages"


def is_fairseq(place: Path) -> bool:
    """Whether it is a checkpoint, or a directory of one."""
    return place.suffix == ".pt" or (not (place / "config.json").exists() and any(place.glob("*.pt")))


def read(place: Path, languages: Mapping[str, str]) -> Found:
    """place: the checkpoint, or its directory, where the dictionaries are, too. languages: those that are asked for.

    Raises UsageError with every reason why tx cannot hold this model; ModelError for what is missing or damaged.
    """
    checkpoint = _checkpoint(place)
    said, tensors = unpickled(checkpoint)
    args = _arguments(checkpoint, said)
    pair = {side: languages.get(side) or args.get(f"{side}_lang") for side in ("source", "target")}
    dictionaries = [checkpoint.parent / f"dict.{language}.txt" for language in pair.values()]
    refuse(checkpoint, [*_refusals(args, pair, dictionaries)], hint=HINT)
    originals = Originals(checkpoint, dict(_renamed(tensors)))
    settings = _settings(args, pair)
    rows = [len(table) for table in originals.tables(settings["model"]["tied"]).values()]
    ids = [_dictionary(path, n) for path, n in zip(dictionaries, rows, strict=True)]
    models, name_here = _models(checkpoint.parent, list(map(str, pair.values())), ids)
    here = [{piece if piece in FIRST else name_here(piece): id for piece, id in one.items()} for one in ids]
    numberings = [numbered(one, n, model.pieces, MARKS) for one, n, model in zip(here, rows, models, strict=True)]
    tokenizer, kind = tokenizer_of(models, numberings)
    settings["tokenizer"] = settings_of(tokenizer, kind)
    return as_run("fairseq", settings, tokenizer, originals, numberings)


def _checkpoint(place: Path) -> Path:
    if place.suffix == ".pt":
        return place
    found = [place / name for name in CHECKPOINTS if (place / name).is_file()] or sorted(place.glob("*.pt"))
    if len(found) > 1 and found[0].name not in CHECKPOINTS:
        raise UsageError(f"{files.shown(place)} has {len(found)} checkpoints", hint="name one of them")
    return found[0]


def _arguments(checkpoint: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Of the model and its task: from `args`, as older versions have it, or from `cfg`, whose parts may have parts.

    ModelError where there is neither: shapes do not tell how many heads there are.
    """
    args = dict(_part(checkpoint, said, "args"))
    for section, kind in (("task", "task"), ("model", "arch")):
        for name, value in _part(checkpoint, _part(checkpoint, said, "cfg"), section).items():
            name = kind if name == "_name" else name
            args |= {f"{name}_{one}": it for one, it in value.items()} if isinstance(value, Mapping) else {name: value}
    args = {name: value for name, value in args.items() if value is not None}
    if "encoder_attention_heads" not in args and _is_transformer(args):
        raise ModelError(
            f"{files.shown(checkpoint)} does not say its settings, such as the number of heads",
            hint="fairseq 0.10 saves them as OmegaConf's objects, which are not opened: load the checkpoint where both "
            "are installed, make its `cfg` a dict by `OmegaConf.to_container`, and save it again",
        )
    for name, usual in (DEFAULTS | dict.fromkeys(LANGUAGES, "")).items():
        if name in args and not is_like(args[name], usual):
            raise _damaged(checkpoint, name, args[name])
    args = DEFAULTS | args
    for name in EQUAL:
        args.setdefault(f"decoder_{name}", args[f"encoder_{name}"])
    return args


def _part(checkpoint: Path, said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Settings by their names; none where there is no such part."""
    part = said.get(name)
    if not isinstance(part, Mapping | None):
        raise _damaged(checkpoint, name, part)
    return part or {}


def _damaged(checkpoint: Path, name: str, value: object) -> ModelError:
    return ModelError(f"{files.shown(checkpoint)}: {name} is {value!r:.60}, which no such model has", hint=COPY)


def _is_transformer(args: Mapping[str, Any]) -> bool:
    """Of an encoder and a decoder, in one of its sizes."""
    arch = str(args.get("arch", "transformer"))
    return arch.startswith("transformer") and "lm" not in arch.split("_")


def _refusals(args: Mapping[str, Any], pair: Mapping[str, Any], dictionaries: list[Path]) -> Iterator[str]:
    if not _is_transformer(args):
        yield f"arch: {args['arch']}; there is transformer, in all of its sizes"
    if (task := args.get("task", "translation")) != "translation":
        yield f"task: {task}; there is translation, of one pair of languages"
    for name in FOREIGN:
        if args.get(name):
            yield f"{name}: {args[name]}"
    for name in EQUAL:
        there = [args[f"{side}_{name}"] for side in SIDES]
        if there[0] != there[1]:
            yield f"encoder_{name} {there[0]}, decoder_{name} {there[1]}; tx has one for both"
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if args.get(name, args["encoder_embed_dim"]) != args["encoder_embed_dim"]:
            yield f"{name}: {args[name]}; there is encoder_embed_dim, {args['encoder_embed_dim']}"
    if args["activation_fn"] not in ("relu", "gelu"):
        yield f"activation_fn: {args['activation_fn']}; there are relu, gelu"
    for side, language in pair.items():
        if not language:
            yield f"it does not say what its {side} language is; add --set data.{side}=..., such as de"
    for path in dict.fromkeys(dictionaries) if all(pair.values()) else ():
        if not path.is_file():
            yield f"{files.shown(path)} is missing; copy it from where fairseq's binarised text lies"


def _renamed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights by Hugging Face's names; what old versions had as one matrix cut in three."""
    for name, tensor in tensors.items():
        for old, new in RENAMED:
            name = re.sub(old, new, name)
        if UNUSED.fullmatch(name):
            continue
        if ".in_proj_" in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace(".in_proj_", f".{part}_proj."), piece
        else:
            yield name, tensor


def _dictionary(path: Path, n_rows: int) -> dict[str, int]:
    """The ids of a list of pieces, each with its count: every line is a row."""
    ids = {name: id for id, name in enumerate(FIRST)}
    lines = files.read_bytes(path, error=ModelError).decode("utf-8", "replace").rstrip("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        entry = line.rstrip().removesuffix(OVERWRITE)
        piece, _, count = entry.rpartition(" ")
        if not piece or not count.isdecimal():
            raise ModelError(f"{files.shown(path)}, line {number:,}: expected a piece and its count, not {line!r:.60}")
        if piece in ids and entry == line.rstrip():
            raise ModelError(
                f"{files.shown(path)}, line {number:,}: {piece!r:.60} is there already",
                hint=f"fairseq refuses it, too; with{OVERWRITE} behind its count it is a row of its own",
            )
        ids[piece] = len(FIRST) + number - 1
    if len(FIRST) + len(lines) != n_rows:
        raise ModelError(
            f"{files.shown(path)} has {len(FIRST) + len(lines):,} pieces, the weights {n_rows:,}",
            hint="copy the dictionaries from where this very model was trained",
        )
    return ids


def _settings(args: Mapping[str, Any], pair: Mapping[str, Any]) -> Settings:
    """All but `tokenizer:`."""
    longest = {"encoder": args["max_source_positions"], "decoder": args["max_target_positions"]}
    positions = {
        side: "none"
        if args["no_token_positional_embeddings"]
        else ("learned" if args[f"{side}_learned_pos"] else "sinusoidal-halves")
        for side in SIDES
    }
    tied = "decoder" if args["share_decoder_input_output_embed"] else "none"
    return {
        "model": {
            "d_model": args["encoder_embed_dim"],
            "n_heads": args["encoder_attention_heads"],
            "d_ff": args["encoder_ffn_embed_dim"],
            "n_layers": {side: args[f"{side}_layers"] for side in SIDES},
            "norm_position": "pre" if args["encoder_normalize_before"] else "post",
            "activation": args["activation_fn"],
            "positions": positions["encoder"] if len({*positions.values()}) == 1 else positions,
            "first_position": MARKS.pad + 1,
            "max_positions": {side: n + MARKS.pad + 1 for side, n in longest.items()},
            "tied": "all" if args["share_all_embeddings"] else tied,
            "embedding_scale": not args["no_scale_embedding"],
            "dropout": args["dropout"],
            "attention_dropout": args["attention_dropout"],
            "activation_dropout": args["activation_dropout"] or args["relu_dropout"],
        },
        "data": {"train": None, "max_length": min(LONGEST, *longest.values()), **pair},
    }


def _models(place: Path, pair: list[str], ids: list[dict[str, int]]) -> tuple[list[Model], Callable[[str], str]]:
    """How each side cuts text, by SentencePiece, by a file of codes, or at blanks; and what a piece is called there."""
    text = sorted(path for path in place.iterdir() if path.suffix != ".pt")
    if found := [path for path in text if path.suffix == ".model"]:
        models = {path: Model(files.read_bytes(path, error=ModelError), name=files.shown(path)) for path in found}
        return [models[path] for path in _of_sides(place, found, pair)], str
    if found := [path for path in text if any(map(CODES.fullmatch, path.name.split(".")))]:
        listed = {piece for one in ids for piece in one if piece not in FIRST}
        codes = {path: files.read_bytes(path, error=ModelError).decode("utf-8", "replace") for path in found}
        models = {path: merges.merged(text, listed, name=files.shown(path)) for path, text in codes.items()}
        return [models[path] for path in _of_sides(place, found, pair)], merges.renamed
    return [merges.words([piece for piece in one if piece not in FIRST]) for one in ids], merges.SPACE.__add__


def _of_sides(place: Path, found: list[Path], pair: list[str]) -> list[Path]:
    """One for both, or one of each, with its language in the name."""
    named = [[path for path in found if language in path.name.split(".")] for language in pair]
    if len(found) > 1 and [len(one) for one in named] != [1, 1]:
        names = ", ".join(path.name for path in found)
        raise UsageError(
            f"{files.shown(place)} has {names}: which of them are of {' and '.join(pair)}?",
            hint=f"keep one for both, or one of each with its language in the name, such as spm.{pair[0]}.model",
        )
    return found * 2 if len(found) == 1 else [one for [one] in named]
