"""A Hugging Face directory in tx's terms: Marian's models, as OPUS-MT has them, M2M100's and NLLB's, and all that tx
itself exports.

There a list beside the SentencePiece models numbers the pieces, a translation begins with the mark of padding or of the
end, and Marian's sines come before its cosines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_cli import files
from transformer_cli.checkpoints.tensors import from_bytes
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export.languages import MODEL, Multilingual, multilingual, settings_in
from transformer_cli.export.numbering import Marks, Numbering, numbered, tokenizer_of
from transformer_cli.export.original import (
    ACTIVATIONS,
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
from transformer_cli.tokenizer import EOS, PAD, SPECIALS, UNK, Tokenizer
from transformer_cli.tokenizer.renumbering import Model

LONGEST = 512
"""Pieces of a sentence, where there is room for more: Marian's own limit."""
SHAPE = {
    "marian": {"norm_position": "post", "positions": "sinusoidal"},
    "m2m_100": {"norm_position": "pre", "positions": "sinusoidal-halves"},
    "blenderbot": {"norm_position": "pre", "positions": "learned"},
}
IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
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
UNHEEDED: dict[str, Any] = {
    "begin_suppress_tokens": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
}
"""What decides there how a text is generated and tx has not, each with the value that decides nothing."""
PICKLED = "pytorch_model.bin"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", PICKLED)
COMPUTED = ".embed_positions.weights"
"""Sinusoids that old files hold."""


def read(place: Path, languages: Mapping[str, str]) -> Found:
    """languages: the `source` and the `target` that are asked for; one of them, or none, where the model says it.

    Raises UsageError with every reason why tx cannot hold this model; ModelError for what is missing or damaged.
    """
    config, several = _config(place), multilingual(place)
    reasons = [*_refusals(place, config, several), *(several.refusals(languages) if several else ())]
    refuse(
        place,
        reasons,
        hint="tx imports Hugging Face's Marian, M2M100 and NLLB models, and what `tx export hugging-face` wrote",
    )
    originals = Originals(place, _tensors(place))
    n_rows = [len(table) for table in originals.tables(_tied(config)).values()]
    for name in IDS:
        if not 0 <= config[name] < min(n_rows):
            raise ModelError(
                f"{files.shown(place / 'config.json')}: {name} is {config[name]}; there are {min(n_rows)} pieces",
                hint=COPY,
            )
    if several:
        said = {side: several.language(side, languages) for side in ("source", "target")}
        numberings, tokenizer, kind = _of_many_languages(place, config, n_rows, several, said)
    else:
        settings = settings_in(place / "tokenizer_config.json")
        said = {side: settings.get(f"{side}_lang") for side in ("source", "target")}
        numberings, tokenizer, kind = _of_two_languages(place, config, n_rows, settings)
    path = place / "generation_config.json"  # older models have none, and it in their configuration
    generation = {"num_beams": 1} | (settings_in(path) if path.exists() else config)
    if several:
        generation["forced_bos_token_id"] = None  # the mark of the language, with which translations begin here, too
    try:
        search, left = _search(generation, numberings[-1], tokenizer)
    except TypeError:
        words = "bad_words_ids, suppress_tokens, min_length or min_new_tokens, which say how to generate, is damaged"
        raise ModelError(f"{files.shown(place)}: one of {words}", hint=COPY) from None
    settings = _settings(config, tokenizer, kind, said) | {"decoding": search}
    return replace(as_run(config["model_type"], settings, tokenizer, originals, numberings), left=left)


# --- what is there ------------------------------------------------------------------------------------------------


def _tensors(place: Path) -> dict[str, Tensor]:
    index = place / "model.safetensors.index.json"
    if not index.exists() and not (place / "model.safetensors").exists():
        return {name: tensor for name, tensor in unpickled(place / PICKLED)[1].items() if not name.endswith(COMPUTED)}
    names = {"model.safetensors"}
    if index.exists():
        listed = settings_in(index).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise ModelError(
                f"{files.shown(index)} is damaged: it does not say which file has which weights", hint=COPY
            )
        names = set(listed.values())
    found: dict[str, Tensor] = {}
    for name in sorted(names):
        try:
            found |= from_bytes(files.read_bytes(place / Path(name).name, error=ModelError))
        except ValueError:
            raise ModelError(f"{files.shown(place / name)} is damaged: it is no safetensors file") from None
    return found


def _config(place: Path) -> dict[str, Any]:
    """config.json, with what it leaves out."""
    path = place / "config.json"
    found = files.read_json(path, error=ModelError, hint="name the directory that has a config.json and weights")
    if not isinstance(found, dict):
        raise ModelError(f"{files.shown(path)} does not describe a model")
    usual = ALWAYS | DEFAULTS.get(str(found.get("model_type")), {})
    for name, value in (usual | {"model_type": ""}).items():
        if name not in IDS and name in found and not is_like(found[name], value):
            raise ModelError(f"{files.shown(path)}: {name} is {found[name]!r:.60}, which no such model has", hint=COPY)
    return usual | found


def _refusals(place: Path, config: Mapping[str, Any], several: Multilingual | None) -> Iterator[str]:
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
    for name in () if several else ("source.spm", "target.spm", "vocab.json"):
        if not (place / name).is_file():
            yield f"{name} is missing{f', or {MODEL}' * (kind == 'm2m_100')}"
    if not any((place / name).is_file() for name in WEIGHTS):
        yield f"there are no weights; one of {', '.join(WEIGHTS)} has them"


def _tied(config: Mapping[str, Any]) -> str:
    """What is one table there, as `model.tied` says it."""
    tied = config["tie_word_embeddings"]
    if config.get("share_encoder_decoder_embeddings", tied):
        return "all" if tied else "embeddings"
    return "decoder" if tied else "none"


# --- pieces -------------------------------------------------------------------------------------------------------


def _of_two_languages(
    place: Path, config: Mapping[str, Any], n_rows: Sequence[int], said: Mapping[str, Any]
) -> tuple[list[Numbering], Tokenizer, str]:
    """Marian's tokenizer: the numberings of both sides, the tokenizer, and what kind of SentencePiece model it is."""
    names = ["vocab.json", "target_vocab.json" if said.get("separate_vocabs") else "vocab.json"]
    paths = [place / f"{side}.spm" for side in ("source", "target")]
    models = [Model(files.read_bytes(path, error=ModelError), name=files.shown(path)) for path in paths]
    cut = [model.pieces for model in models]
    if names[0] == names[1]:
        cut = [tuple(dict.fromkeys((*cut[0], *cut[1])))] * 2
    lists: list[tuple[dict[str, int], int, tuple[str, ...], Marks]] = []
    for side, name, n, pieces in zip(SIDES, names, n_rows, cut, strict=True):
        ids = files.read_json(place / name, error=ModelError)
        marks = _marks(place / name, ids, n, config, said.get("unk_token", SPECIALS[UNK]))
        if side == "encoder" and names[0] != names[1]:  # config.json has the numbers of the other list
            pad = ids.get(said.get("pad_token", SPECIALS[PAD]), marks.pad)
            marks = Marks(pad, marks.unk, pad, ids.get(said.get("eos_token", SPECIALS[EOS]), marks.eos))
        if languages := [piece for piece in ids if piece.startswith(">>") and piece.endswith("<<")]:
            raise UsageError(
                f"{files.shown(place / name)} has language tags, such as {languages[0]}: a model of several target "
                "languages, which reads in the text which one is meant",
                hint="tx imports Marian's models of one pair of languages",
            )
        lists.append((ids, n, pieces, marks))
    try:
        numberings = [numbered(*one) for one in lists]
        return numberings, *tokenizer_of(models, numberings)
    except UsageError as failure:
        refuse(place, [failure.message], hint="")
        raise


def _of_many_languages(
    place: Path, config: Mapping[str, Any], n_rows: Sequence[int], several: Multilingual, said: Mapping[str, str | None]
) -> tuple[list[Numbering], Tokenizer, str]:
    """M2M100's or NLLB's tokenizer, for one pair of languages."""
    marks = _marks(place / MODEL, several.ids, min(n_rows), config, SPECIALS[UNK])
    one = numbered(several.ids, min(n_rows), several.model.pieces, marks, others=several.marks.values())
    pair = [several.marks[str(language)] for language in said.values()]
    return [one, one], *tokenizer_of([several.model] * 2, [one, one], pair)


def _marks(path: Path, ids: Any, n_rows: int, config: Mapping[str, Any], unk: Any) -> Marks:
    """The ids that mean something; ModelError where the list is none."""
    numbers = list(ids.values()) if isinstance(ids, dict) else [None]
    if not all(isinstance(id, int) and 0 <= id < n_rows for id in numbers) or len(set(numbers)) < len(numbers):
        raise ModelError(f"{files.shown(path)} is no list of {n_rows:,} pieces and their numbers", hint="copy it again")
    if not isinstance(unk, str) or unk not in ids:
        raise ModelError(f"{files.shown(path)} has no {unk}")
    pad, eos, start = (int(config[f"{name}_token_id"]) for name in ("pad", "eos", "decoder_start"))
    return Marks(pad, ids[unk], start, eos)


# --- settings -----------------------------------------------------------------------------------------------------


def _settings(
    config: Mapping[str, Any], tokenizer: Tokenizer, kind: str, languages: Mapping[str, str | None]
) -> Settings:
    positions = SHAPE[config["model_type"]]["positions"]
    room = config["max_position_embeddings"]
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
            "tied": _tied(config),
            "embedding_scale": config["scale_embedding"],
            **{name: config[name] for name in ("dropout", "attention_dropout", "activation_dropout")},
        },
        "tokenizer": settings_of(tokenizer, kind),
        "data": {
            "train": None,
            "max_length": min(LONGEST, room),
            **{side: language for side, language in languages.items() if language},
        },
    }


def _search(
    generation: Mapping[str, Any], target: Numbering, tokenizer: Tokenizer
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """`decoding:`, and what of theirs has no place in it."""
    given = {name: value for name, value in generation.items() if value is not None}
    left = [f"{name}: {given[name]!r:.60}" for name, usual in UNHEEDED.items() if given.get(name, usual) != usual]
    least = given.get("min_length", 0)
    if type(least) is int:  # there the beginning is counted, too, and the mark of the language
        least = max(0, max(least - 1, given.get("min_new_tokens", 0)) - len(tokenizer.target.given))
    never, banned = {*range(len(SPECIALS)), *tokenizer.banned_target_ids}, []
    for words in [*given.get("bad_words_ids", []), *([id] for id in given.get("suppress_tokens", []))]:
        if len(words) != 1 or words[0] not in target.rows:
            left.append(f"bad_words_ids: {words!r:.60}")
        elif (id := target.rows.index(words[0])) not in never:
            banned.append(target.pieces[id - len(SPECIALS)])
    search = {"beam_size": given.get("num_beams", 1), "length_penalty": given.get("length_penalty", 1.0)}
    search |= {"no_repeat_ngram": given.get("no_repeat_ngram_size", 0), "min_length": least}
    return search | {"banned": list(dict.fromkeys(banned))}, tuple(left)
