"""A Hugging Face directory in tx's terms: Marian's models, as OPUS-MT has them, and all that tx itself exports.

There a list beside the SentencePiece models numbers the pieces, a translation begins with the mark of padding, and
Marian's sines come before its cosines. Here the pieces, the rows of the embeddings and the features of the residual
stream get tx's order, and the first row of a translation its own vector. What is an id here and was none there is
never written: its bias sees to it, so that all others keep their probabilities.

V pieces there, D d_model
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from transformer_cli import files
from transformer_cli.checkpoints.tensors import from_bytes
from transformer_cli.config.complaints import complaint
from transformer_cli.config.model import ModelConfig, Stack
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.hugging_face_names import is_written, modules
from transformer_cli.model.positions import sinusoids
from transformer_cli.tokenizer import SPECIALS, UNK, Tokenizer
from transformer_cli.tokenizer.renumbering import Model

NEVER = -100.0
"""The bias of what is never written: in fp32 its probability is nothing."""
LONGEST = 512
"""Pieces of a sentence, where there is room for more: Marian's own limit."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
SIDES: tuple[Stack, ...] = ("encoder", "decoder")
SHAPE = {
    "marian": {"norm_position": "post", "positions": "sinusoidal"},
    "m2m_100": {"norm_position": "pre", "positions": "sinusoidal-halves"},
    "blenderbot": {"norm_position": "pre", "positions": "learned"},
}
IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
COPY = "copy it again from where it was saved"
ALWAYS = {"dropout": 0.1, "activation_dropout": 0.0, "tie_word_embeddings": True}
DEFAULTS: dict[str, dict[str, Any]] = {
    "marian": {
        "max_position_embeddings": 1024,
        **{f"{side}_layers": 12 for side in SIDES},
        **{f"{side}_ffn_dim": 4096 for side in SIDES},
        **{f"{side}_attention_heads": 16 for side in SIDES},
        "activation_function": "gelu",
        "d_model": 1024,
        "attention_dropout": 0.0,
        "decoder_start_token_id": 58100,
        "scale_embedding": False,
        "pad_token_id": 58100,
        "eos_token_id": 0,
        "share_encoder_decoder_embeddings": True,
    },
    "m2m_100": {
        "max_position_embeddings": 1024,
        **{f"{side}_layers": 12 for side in SIDES},
        **{f"{side}_ffn_dim": 4096 for side in SIDES},
        **{f"{side}_attention_heads": 16 for side in SIDES},
        "activation_function": "relu",
        "d_model": 1024,
        "attention_dropout": 0.1,
        "decoder_start_token_id": 2,
        "scale_embedding": True,
        "pad_token_id": 1,
        "eos_token_id": 2,
    },
    "blenderbot": {
        "max_position_embeddings": 128,
        "encoder_layers": 2,
        "decoder_layers": 24,
        **{f"{side}_ffn_dim": 10240 for side in SIDES},
        **{f"{side}_attention_heads": 32 for side in SIDES},
        "activation_function": "gelu",
        "d_model": 2560,
        "attention_dropout": 0.0,
        "decoder_start_token_id": 1,
        "scale_embedding": False,
        "pad_token_id": 0,
        "eos_token_id": 2,
    },
}
"""What config.json does not say where it is what the class has anyway."""
CONVERT = (
    "transformers, which may open such files, writes them anew: AutoModelForSeq2SeqLM.from_pretrained(DIR)"
    ".save_pretrained(DIR)"
)


@dataclass(frozen=True)
class Found:
    """A model in tx's terms. settings: of `model:`, `tokenizer:`, `data:` and `decoding:`."""

    kind: str
    settings: dict[str, dict[str, Any]]
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]


def read(place: Path) -> Found:
    """Raises UsageError with every reason why tx cannot hold this model; ModelError for what is missing or damaged."""
    config = _config(place)
    if refusals := list(_refusals(place, config)):
        raise UsageError(
            f"{files.shown(place)} cannot become a run:\n" + "\n".join(f"  {reason}" for reason in refusals),
            hint="tx imports Hugging Face's Marian models, and what `tx export hugging-face` wrote",
        )
    tensors = _Tensors(place)
    for name in IDS:
        if not 0 <= config[name] < min(rows := tensors.pieces(config)):
            raise ModelError(
                f"{files.shown(place / 'config.json')}: {name} is {config[name]}; there are {min(rows)} pieces",
                hint=COPY,
            )
    bias_V = tensors.get("final_logits_bias")
    lists, tokenizer, kind = _vocabularies(place, config, tensors.pieces(config))
    target = lists[-1]
    written = None if bias_V is None else bias_V.flatten()[target.rows]
    if not all(target.own):
        written = torch.zeros(len(target.rows)) if written is None else written
        written[~torch.tensor(target.own)] = NEVER
    has_bias = written is not None and bool(written.any())
    settings = _settings(place, config, tensors, tokenizer, kind)
    settings["model"]["output_bias"] = has_bias
    try:
        model = ModelConfig.model_validate(settings["model"])
    except ValidationError as failure:
        wrong = ", ".join(f"{'.'.join(map(str, entry['loc']))}: {complaint(entry)}" for entry in failure.errors())
        raise ModelError(f"{files.shown(place / 'config.json')} describes no model: {wrong}", hint=COPY) from None
    found = dict(_weights(model, config, tensors, lists))
    if has_bias and written is not None:
        found["output_bias"] = written
    tensors.check_all_read(config)
    return Found(config["model_type"], settings, tokenizer, found)


# --- what is there ------------------------------------------------------------------------------------------------


class _Tensors:
    """The weights by their names there, in fp32, and which of them were read."""

    def __init__(self, place: Path) -> None:
        self._place = place
        index = place / "model.safetensors.index.json"
        names = {"model.safetensors"}
        if index.exists():
            names = set(files.read_json(index, error=ModelError)["weight_map"].values())
        self._tensors: dict[str, Tensor] = {}
        for name in sorted(names):
            try:
                self._tensors |= from_bytes(files.read_bytes(place / Path(name).name, error=ModelError))
            except ValueError:
                raise ModelError(f"{files.shown(place / name)} is damaged: it is no safetensors file") from None
        self._read: set[str] = set()

    def get(self, *names: str) -> Tensor | None:
        """The first of these that is there; all of them count as read, for they are the same."""
        self._read |= set(names)
        return next((self._tensors[name].float() for name in names if name in self._tensors), None)

    def __getitem__(self, names: str | tuple[str, ...]) -> Tensor:
        names = (names,) if isinstance(names, str) else names
        found = self.get(*names)
        if found is None:
            raise ModelError(f"the weights in {files.shown(self._place)} have no {names[0]}", hint="copy it again")
        return found

    def pieces(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Rows of the embeddings of both sides."""
        return len(self[_table(config, "encoder")]), len(self[_table(config, "decoder")])

    def check_all_read(self, config: Mapping[str, Any]) -> None:
        """ModelError for weights that have no place here: without them it would be another model."""
        if left := sorted(self._tensors.keys() - self._read):
            kind = config["model_type"]
            raise ModelError(
                f"{files.shown(self._place)} has weights that no {kind} model has: {', '.join(left[:5])}",
                hint="tx would leave them out, and compute something else",
            )


def _config(place: Path) -> dict[str, Any]:
    """config.json, with what it leaves out."""
    path = place / "config.json"
    found = files.read_json(path, error=ModelError, hint="name the directory that has a config.json and weights")
    if not isinstance(found, dict):
        raise ModelError(f"{files.shown(path)} does not describe a model")
    usual = ALWAYS | DEFAULTS.get(str(found.get("model_type")), {})
    for name, value in (usual | {"model_type": ""}).items():
        if name not in IDS and name in found and not _is_like(found[name], value):
            raise ModelError(f"{files.shown(path)}: {name} is {found[name]!r:.60}, which no such model has", hint=COPY)
    return usual | found


def _is_like(value: Any, usual: Any) -> bool:
    """Whether it is of the same kind; every whole number is a number."""
    return type(value) is type(usual) or (type(usual) is float and type(value) is int)


def _refusals(place: Path, config: Mapping[str, Any]) -> Iterator[str]:
    kind = config.get("model_type")
    if kind not in SHAPE:
        yield f"model_type: {kind}; tx reads {', '.join(SHAPE)}"
        return
    if config["activation_function"] not in ACTIVATIONS:
        yield f"activation_function: {config['activation_function']}; there are {', '.join(ACTIVATIONS)}"
    for name in ("attention_heads", "ffn_dim"):
        there = [config[f"{side}_{name}"] for side in SIDES]
        if there[0] != there[1]:
            yield f"encoder_{name} {there[0]}, decoder_{name} {there[1]}; tx has one for both"
    for name in IDS:
        if not isinstance(config[name], int):
            yield f"{name}: {config[name]}; it has to be one number"
    for name in ("source.spm", "target.spm", "vocab.json"):
        if not (place / name).is_file():
            marks = "; M2M100's and NLLB's tokenizers mark languages, which tx's does not" * (kind == "m2m_100")
            yield f"{name} is missing{marks}"
    if not any((place / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        yield f"model.safetensors is missing, and other weights are programs, which tx never runs; {CONVERT}"


# --- pieces -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _List:
    """tx's ids of a side. rows: the row that each is read by there. own: whether it is written there, too. pieces: from
    id 4 on. marks: those of them that are no text."""

    rows: list[int]
    own: list[bool]
    pieces: list[str]
    marks: frozenset[str]


def _vocabularies(place: Path, config: Mapping[str, Any], n_rows: Sequence[int]) -> tuple[list[_List], Tokenizer, str]:
    """The lists of both sides, the tokenizer that has them, and what kind of SentencePiece model it is."""
    settings = _tokenizer_settings(place)
    names = ["vocab.json", "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"]
    paths = [place / f"{side}.spm" for side in ("source", "target")]
    given = [Model(files.read_bytes(path, error=ModelError), name=files.shown(path)) for path in paths]
    cut = [model.pieces for model in given]
    if names[0] == names[1]:
        cut = [tuple(dict.fromkeys((*cut[0], *cut[1])))] * 2
    lists = []
    for name, n, pieces in zip(names, n_rows, cut, strict=True):
        ids = files.read_json(place / name, error=ModelError)
        lists.append(_list(place / name, ids, n, pieces, config, settings.get("unk_token", SPECIALS[UNK])))
    kinds = {model.kind for model in given}
    foreign = any(set(one.pieces) - one.marks - set(model.pieces) for one, model in zip(lists, given, strict=True))
    if len(kinds) > 1 or "char" in kinds or (foreign and kinds != {"unigram"}):
        found = ", ".join(sorted(kinds))
        raise UsageError(
            f"{files.shown(place)} cannot become a run:\n  its SentencePiece models ({found}) do not have all "
            "pieces of its list; tx can add them to unigram models only"
        )
    sides = [model.numbered(one.pieces, one.marks) for model, one in zip(given, lists, strict=True)]
    same = sides[0].model == sides[1].model
    return lists, Tokenizer(sides[0], None if same else sides[1]), kinds.pop()


def _list(path: Path, ids: Any, n_rows: int, cut: Sequence[str], config: Mapping[str, Any], unk: str) -> _List:
    """cut: the pieces that text becomes; those that the list lacks are read as unknown ones are."""
    numbers = list(ids.values()) if isinstance(ids, dict) else [None]
    if not all(isinstance(id, int) and 0 <= id < n_rows for id in numbers) or len(set(numbers)) < len(numbers):
        raise ModelError(f"{files.shown(path)} is no list of {n_rows:,} pieces and their numbers", hint="copy it again")
    if unk not in ids:
        raise ModelError(f"{files.shown(path)} has no {unk}")
    if languages := [piece for piece in ids if piece.startswith(">>") and piece.endswith("<<")]:
        raise UsageError(
            f"{files.shown(path)} has marks of languages, such as {languages[0]}: a model of several target languages, "
            "which is told in the text which one is meant; tx has one pair of languages for each run"
        )
    pad, eos, start = (int(config[f"{name}_token_id"]) for name in ("pad", "eos", "decoder_start"))
    marks = [pad, ids[unk], start, eos]
    named = {id: piece for piece, id in ids.items() if piece not in SPECIALS}
    others = [id for id in range(n_rows) if id not in marks]
    pieces = [named.get(id, f"<there {id}>") for id in others]
    lacking = [piece for piece in cut if piece not in ids and piece not in SPECIALS]
    return _List(
        rows=[*marks, *others, *[ids[unk]] * len(lacking)],
        own=[True, True, start not in (pad, ids[unk], eos), *[True] * (1 + len(others)), *[False] * len(lacking)],
        pieces=[*pieces, *lacking],
        marks=frozenset(name for id, name in zip(others, pieces, strict=True) if id not in named),
    )


def _tokenizer_settings(place: Path) -> dict[str, Any]:
    path = place / "tokenizer_config.json"
    return dict(files.read_json(path, error=ModelError)) if path.exists() else {}


# --- weights ------------------------------------------------------------------------------------------------------


def _table(config: Mapping[str, Any], side: Stack) -> tuple[str, ...]:
    """What a side's table may be called."""
    own, shared = f"model.{side}.embed_tokens.weight", "model.shared.weight"
    head = ("lm_head.weight",) if config["tie_word_embeddings"] and (side == "decoder" or _is_shared(config)) else ()
    others = tuple(f"model.{other}.embed_tokens.weight" for other in SIDES) if _is_shared(config) else ()
    return tuple(dict.fromkeys((own, shared, *others, *head)))


def _is_shared(config: Mapping[str, Any]) -> bool:
    """Whether both sides have one table."""
    return bool(config.get("share_encoder_decoder_embeddings", config["tie_word_embeddings"]))


def _weights(
    model: ModelConfig, config: Mapping[str, Any], tensors: _Tensors, lists: Sequence[_List]
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name here."""
    width = model.d_model
    moved = torch.arange(width)
    halves = torch.cat((moved[0::2], moved[1::2]))
    if model.positions == "sinusoidal":  # Marian has the sines first, then the cosines
        moved = halves.argsort()
    for side, name, one in zip(SIDES, ("source", "target"), lists, strict=True):
        table = tensors[_table(config, side)]
        if side == "decoder" or model.tied != "all":
            yield f"{name}_embedding.table.weight", table[one.rows][:, moved]
        positions = tensors.get(f"model.{side}.embed_positions.weight")
        if model.positions == "learned" and positions is not None:
            yield f"{side}.positions.table.weight", positions
        elif positions is not None and model.positions == "sinusoidal":
            expected = sinusoids(len(positions), width)[:, halves].float()
            if not torch.allclose(positions, expected, atol=1e-3):
                raise UsageError(f"{side}: its positions are not the sinusoids that Marian's models have")
    if model.tied == "none":
        yield "output.weight", tensors["lm_head.weight"][lists[-1].rows][:, moved]
    for ours, theirs in modules(model):
        weight = torch.cat([tensors[f"{name}.weight"] for name in theirs])
        bias = torch.cat([tensors[f"{name}.bias"] for name in theirs])
        yield f"{ours}.weight", weight[moved] if is_written(ours) else weight[:, moved]
        yield f"{ours}.bias", bias[moved] if is_written(ours) else bias


def _settings(
    place: Path, config: Mapping[str, Any], tensors: _Tensors, tokenizer: Tokenizer, kind: str
) -> dict[str, dict[str, Any]]:
    said = _tokenizer_settings(place)
    path = place / "generation_config.json"
    generation = {"num_beams": 1, **config} | (files.read_json(path, error=ModelError) if path.exists() else {})
    tied = {(True, True): "all", (False, True): "decoder"}
    positions = SHAPE[config["model_type"]]["positions"]
    room = config["max_position_embeddings"]
    sizes = {"source": tokenizer.source_size, "target": tokenizer.target_size}
    languages = {side: said.get(f"{side}_lang") for side in ("source", "target")}
    return {
        "model": {
            "d_model": config["d_model"],
            "n_heads": config["encoder_attention_heads"],
            "d_ff": config["encoder_ffn_dim"],
            "n_layers": {side: config[f"{side}_layers"] for side in SIDES},
            **SHAPE[config["model_type"]],
            "activation": ACTIVATIONS[config["activation_function"]],
            "first_position": config["pad_token_id"] + 1 if positions == "sinusoidal-halves" else 0,
            "max_positions": room,
            "tied": tied.get((_is_shared(config), config["tie_word_embeddings"]), "none"),
            "embedding_scale": config["scale_embedding"],
            **{name: config[name] for name in ("dropout", "attention_dropout", "activation_dropout")},
        },
        "tokenizer": {
            "kind": kind,
            "joint": tokenizer.shares_ids,
            "vocab_size": sizes["source"] if tokenizer.shares_ids else sizes,
        },
        "data": {
            "train": None,
            "max_length": min(LONGEST, room),
            **{side: language for side, language in languages.items() if language},
        },
        "decoding": {"beam_size": generation["num_beams"], "length_penalty": generation.get("length_penalty", 1.0)},
    }
