"""Hugging Face transformers: `config.json`, `model.safetensors`, the tokenizer, and how to generate.

Three of its architectures are ours under other names: Marian's is post-norm with sinusoids, M2M100's pre-norm with
tensor2tensor's sinusoids from position 1 on, Blenderbot's pre-norm with a table, which can hold whatever tx adds to
embeddings. Biases that a model of ours does without are written as zeros, shared keys and values once per head.

A trap: CTranslate2's own converter cuts M2M100's table of positions as if padding had id 1. It has id 0 here, and what
that converter makes of such a directory is one position off; tx writes CTranslate2's format itself.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.config.model import ModelConfig, Stack
from transformer_cli.data.loader import padded
from transformer_cli.decoding.texts import banned_ids
from transformer_cli.export.formats import Found, Walk
from transformer_cli.export.hugging_face_names import is_written, modules
from transformer_cli.export.hugging_face_tokenizer import code_of, languages_of, write_tokenizer
from transformer_cli.export.weights import Weights
from transformer_cli.files import create_file, write_json
from transformer_cli.model.positions import sinusoids
from transformer_cli.needs import needed
from transformer_cli.tokenizer import BOS, EOS, PAD

ROWS = 2048
"""Rows of a table for positions that have none in tx."""
CLASSES = {
    "marian": "MarianMTModel",
    "m2m_100": "M2M100ForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
}
ADDED = ("sinusoidal", "sinusoidal-table", "sinusoidal-halves", "learned", "none")


class HuggingFace:
    """The format."""

    quantizations = ()

    def __init__(self) -> None:
        needed("transformers")

    def refusals(self, run: OpenedRun) -> list[str]:
        return list(_refusals(run))

    def write(self, run: OpenedRun, place: Path, *, quantization: str | None) -> None:
        from safetensors.numpy import save

        weights = Weights(run)
        kind = kind_of(run.config.model)
        tensors = dict(_tensors(weights, kind, _order(run, "encoder") if kind == "marian" else None))
        rows = _rows(tensors) if kind == "blenderbot" else ROWS
        with create_file(place / "model.safetensors") as file:
            file.write(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, {"format": "pt"}))
        write_json(place / "config.json", _config(run, kind, rows))
        write_json(place / "generation_config.json", _generation(run, rows))
        write_tokenizer(run, place, longest=rows)

    def open(self, run: OpenedRun, place: Path) -> Engine:
        return Engine(run, place)

    def typed(self, tag: str, run: OpenedRun) -> str:
        return code_of(tag, run.tokenizer)

    def usage(self, run: OpenedRun) -> str:
        return f"""\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")
batch = tokenizer(["{_code(run)}..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)[0])"""


class Engine:
    """transformers on the CPU, in fp32, as whoever loads the directory has it."""

    bans = True

    def __init__(self, run: OpenedRun, place: Path) -> None:
        transformers = needed("transformers")
        self.name = f"transformers {transformers.__version__}"
        self._n_given = len(run.tokenizer.target.given)
        self._banned = list(run.tokenizer.banned_target_ids)
        self._code = _code(run)
        with _quiet(transformers):
            self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(place)).eval()
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(place))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self._tokenizer([self._code + line for line in lines]).input_ids] if lines else []

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [
            str(text)
            for text in self._tokenizer.batch_decode([[BOS, *one, EOS] for one in ids], skip_special_tokens=True)
        ]

    def greedy(self, sources: Sequence[Sequence[int]], *, limit: int) -> list[Walk]:
        made = self._generate(sources, limit, num_beams=1, output_logits=True)
        found = []
        for index, sequence in enumerate(made.sequences.tolist()):
            ids, ended = _read(sequence)
            logits = [step[index].numpy() for step in made.logits[: len(ids) + ended]]
            found.append(Walk(ids, ended, np.stack(logits)))
        return found

    def beam(
        self, sources: Sequence[Sequence[int]], *, limit: int, beam_size: int, length_penalty: float
    ) -> list[Found]:
        options = {"num_beams": beam_size, "length_penalty": length_penalty, "output_scores": True}
        if beam_size == 1:  # there is no beam search of one
            return [
                Found(walk.ids, walk.ended, _total(walk, self._n_given)) for walk in self.greedy(sources, limit=limit)
            ]
        made = self._generate(sources, limit, **options)
        found = []
        for sequence, score in zip(made.sequences.tolist(), made.sequences_scores.tolist(), strict=True):
            ids, ended = _read(sequence)
            found.append(Found(ids, ended, score * (len(ids) + ended) ** length_penalty))
        return found

    def _generate(self, sources: Sequence[Sequence[int]], limit: int, **options: Any) -> Any:
        ids_BS, lengths_B = padded(sources)
        mask_BS = (torch.arange(ids_BS.size(1)) < lengths_B[:, None]).long()
        return self._model.generate(
            ids_BS,
            attention_mask=mask_BS,
            max_length=limit + 1,  # with the mark that it starts from
            do_sample=False,
            return_dict_in_generate=True,
            # The models are compared, not what is asked of a search beyond them.
            suppress_tokens=self._banned,
            no_repeat_ngram_size=0,
            min_length=0,
            **options,
        )


def _code(run: OpenedRun) -> str:
    """What each source begins with, as text."""
    mark = run.tokenizer.source.mark
    return code_of(mark, run.tokenizer) if mark is not None and run.tokenizer.tags else ""


def kind_of(model: ModelConfig) -> str:
    """Which of the architectures is nearest."""
    if model.norm_position == "post":
        return "marian"
    halves = {model.positions_of(side) for side in model.sides} == {"sinusoidal-halves"}
    fits = halves and model.first_position == PAD + 1 and not model.output_bias
    return "m2m_100" if fits else "blenderbot"


def _refusals(run: OpenedRun) -> Iterator[str]:
    model, kind = run.config.model, kind_of(run.config.model)
    if model.norm == "rms-norm":
        yield "model.norm: rms-norm; its encoder-decoders have layer-norm"
    if model.gated:
        yield f"model.activation: {model.activation} has a gate; there are relu, gelu and silu"
    if model.head_width * model.n_heads != model.d_model:
        yield f"model.d_head: {model.head_width}; there it is d_model / n_heads"
    if model.ends_in_norm != (model.norm_position == "pre"):
        yield f"model.final_norm: {str(model.ends_in_norm).lower()}; it belongs to pre-norm, and to nothing else"
    if model.qk_norm:
        yield "model.qk_norm: true; its encoder-decoders have no norms of heads"
    for side in model.sides:
        if model.positions_of(side) not in ADDED:
            yield f"model.positions: {model.positions_of(side)} in the {side}; there they are added to embeddings"
        elif kind == "marian" and _order(run, side) is None:
            yield f"model.positions: {model.positions_of(side)} in the {side}; post-norm has sinusoids there, from 0 on"
    if kind != "marian" and run.tokenizer.source_size != run.tokenizer.target_size:
        yield "tokenizer.joint: false; pre-norm has one size of vocabulary there"
    if (mark := run.tokenizer.target.mark) and languages_of(run.tokenizer) is None:
        yield f"tokenizer: {mark} before every text; of the tokenizers that are written, M2M100's has such marks"
    if not run.config.data.source_eos:
        yield "data.source_eos: false; its tokenizer ends every source in </s>"


def _order(run: OpenedRun, side: Stack) -> np.ndarray | None:
    """Marian has the sines first, then the cosines: where each feature of ours goes; None for other positions."""
    if run.config.model.d_model % 2:
        return None
    width, added = run.config.model.d_model, Weights(run).positions(side, rows=64)
    ours = sinusoids(len(added), width).float().numpy()
    halves = np.concatenate((np.arange(0, width, 2), np.arange(1, width, 2)))
    for order, expected in ((halves, ours), (np.arange(width), ours[:, halves])):
        if np.allclose(added, expected, atol=1e-6):
            return order
    return None


def _tensors(weights: Weights, kind: str, order: np.ndarray | None) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by its name there, the features of the residual stream in this order."""
    config = weights.config
    moved = slice(None) if order is None else order
    embeddings = {side: weights.embedding(side)[:, moved] for side in config.sides}
    if config.tied == "all":
        yield "model.shared.weight", embeddings["decoder"]
    else:
        if kind != "marian":
            yield "model.shared.weight", embeddings["encoder"]
        yield "model.encoder.embed_tokens.weight", embeddings["encoder"].copy()
        yield "model.decoder.embed_tokens.weight", embeddings["decoder"].copy()
        yield "lm_head.weight", weights.output[:, moved].copy()
    if kind != "m2m_100":
        bias = weights.get("output_bias")
        yield "final_logits_bias", np.zeros((1, len(weights.output)), np.float32) if bias is None else bias[None]
    if kind == "blenderbot":
        for side in config.sides:
            yield f"model.{side}.embed_positions.weight", weights.positions(side, rows=ROWS)
    for ours, theirs in modules(config):
        for name, (weight, bias) in zip(theirs, weights.linears(ours), strict=True):
            writes, own = is_written(ours), np.zeros(len(weight), np.float32) if bias is None else bias
            yield f"{name}.weight", weight[moved] if writes else weight[:, moved]
            yield f"{name}.bias", own[moved] if writes else own


def _rows(tensors: dict[str, np.ndarray]) -> int:
    """Rows of both tables of positions: as many as the shorter has, the other is cut."""
    names = [name for name in tensors if name.endswith("embed_positions.weight")]
    rows = min(len(tensors[name]) for name in names)
    for name in names:
        tensors[name] = tensors[name][:rows]
    return rows


def _config(run: OpenedRun, kind: str, rows: int) -> dict[str, Any]:
    model, depths = run.config.model, run.config.model.depths
    sides = {"encoder": depths.encoder, "decoder": depths.decoder}
    shared = model.tied == "all"
    own: dict[str, Any] = {}
    if kind == "marian":
        own = {
            "share_encoder_decoder_embeddings": shared,
            "decoder_vocab_size": run.tokenizer.target_size,
            "tie_word_embeddings": shared or model.tied == "decoder",
        }
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": run.tokenizer.source_size,
        "d_model": model.d_model,
        **{f"{side}_layers": n for side, n in sides.items()},
        **{f"{side}_ffn_dim": model.d_ff for side in sides},
        **{f"{side}_attention_heads": model.n_heads for side in sides},
        **{f"{side}_layerdrop": 0.0 for side in sides},
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "scale_embedding": model.embedding_scale,
        "max_position_embeddings": rows,
        "tie_word_embeddings": shared,
        "is_encoder_decoder": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        **({"encoder_no_repeat_ngram_size": 0} if kind == "blenderbot" else {}),
        **own,
        "dtype": "float32",
    }


def _generation(run: OpenedRun, rows: int) -> dict[str, Any]:
    decoding = run.config.decoding
    power = decoding.length_penalty_family == "power"
    n_first = 1 + len(run.tokenizer.target.given)  # what each begins with, which is counted there
    longest = 2 * run.config.data.max_length + 10 if decoding.max_length is None else decoding.max_length + n_first
    return {
        "decoder_start_token_id": BOS,
        "forced_bos_token_id": run.tokenizer.target.mark_id,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "num_beams": decoding.beam_size,
        **({"length_penalty": decoding.length_penalty if power else 1.0} if decoding.beam_size > 1 else {}),
        "max_length": min(rows, longest),
        "suppress_tokens": [*run.tokenizer.banned_target_ids, *banned_ids(decoding, run.tokenizer)],
        **({"no_repeat_ngram_size": decoding.no_repeat_ngram} if decoding.no_repeat_ngram else {}),
        **({"min_length": decoding.min_length + n_first} if decoding.min_length else {}),
    }


def _read(sequence: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Ids without marks, and whether they end."""
    ids = list(sequence[1:])  # the mark that a translation starts with
    return (tuple(ids[: ids.index(EOS)]), True) if EOS in ids else (tuple(ids), False)


def _total(walk: Walk, n_given: int) -> float:
    """The log-probability, but for that of the n_given first pieces."""
    logits_TV = walk.logits_TV.astype(np.float64)
    shifted_TV = logits_TV - logits_TV.max(axis=1, keepdims=True)
    logp_TV = shifted_TV - np.log(np.exp(shifted_TV).sum(axis=1, keepdims=True))
    pieces = [*walk.ids, EOS][: walk.written]
    return float(logp_TV[np.arange(len(pieces)), pieces][n_given:].sum())


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """What transformers has to say while it loads is said by an error of ours, or by nobody."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
