"""CTranslate2 (Klein et al. 2020): a C++ engine for the CPU and GPU; `model.bin`, its vocabularies and `config.json`.

Written through CTranslate2's own specification of a Transformer, whose names of variables are part of its format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import SentencePieceProcessor

from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.config.model import Stack
from transformer_cli.decoding.texts import banned_ids
from transformer_cli.export.formats import CTRANSLATE2_ROWS, Found, Walk, unknown_there, write_vocabularies
from transformer_cli.export.weights import Weights
from transformer_cli.files import writing
from transformer_cli.needs import needed
from transformer_cli.tokenizer import EOS, SPECIALS, UNK

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH", "geglu": "GELU"}


class CTranslate2:
    """The format."""

    quantizations = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")

    def __init__(self) -> None:
        needed("ctranslate2")

    def refusals(self, run: OpenedRun) -> list[str]:
        return unknown_there(run.config.model, "CTranslate2")

    def write(self, run: OpenedRun, place: Path, *, quantization: str | None) -> None:
        spec = _specification(run)
        spec.validate()
        spec.optimize(quantization=quantization)
        with writing(place):
            spec.save(str(place))
        write_vocabularies(run, place)

    def open(self, run: OpenedRun, place: Path) -> Engine:
        return Engine(run, place)

    def typed(self, tag: str, run: OpenedRun) -> str:
        return tag

    def usage(self, run: OpenedRun) -> str:
        files, tokenizer = list(run.tokenizer.models()), run.tokenizer
        first = f"{[tokenizer.source.mark]!r} + " if tokenizer.source.mark else ""
        begins = f"target_prefix=[{[tokenizer.target.mark]!r}], " if tokenizer.target.mark else ""
        search = ", ".join(f"{name}={value!r}" for name, value in _search(run).items())
        return f"""\
import ctranslate2, sentencepiece

source, target = (sentencepiece.SentencePieceProcessor(model_file=name) for name in {(files[0], files[-1])!r})
translator = ctranslate2.Translator(".")
pieces = {first}source.encode("...", out_type=str)
found = translator.translate_batch([pieces], {begins}{search}, disable_unk=True)
print(target.decode(found[0].hypotheses[0]))"""


def _search(run: OpenedRun) -> dict[str, Any]:
    """The run's, as far as there is such an option, where it is not what there is anyway."""
    decoding = run.config.decoding
    names, n_given = run.tokenizer.target.names, len(run.tokenizer.target.given)  # which count there
    options = {
        "length_penalty": decoding.length_penalty if decoding.length_penalty_family == "power" else 1.0,
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "min_decoding_length": decoding.min_length and decoding.min_length + n_given,
        "max_decoding_length": decoding.max_length and decoding.max_length + n_given,
        "suppress_sequences": [[names[id]] for id in banned_ids(decoding, run.tokenizer)],
    }
    usual = {"length_penalty": 1.0, "no_repeat_ngram_size": 0, "min_decoding_length": 1, "max_decoding_length": None}
    said = {name: value for name, value in options.items() if value != usual.get(name, [])}
    return {"beam_size": decoding.beam_size, **said}


class Engine:
    """CTranslate2 on the CPU, on one thread, in the precision that the model was written in."""

    bans = False  # it takes what is forbidden out before the softmax, so that the rest gets more

    def __init__(self, run: OpenedRun, place: Path) -> None:
        ctranslate2 = needed("ctranslate2")
        self._translator = ctranslate2.Translator(str(place), device="cpu", intra_threads=1)
        # What the processor cannot do is computed otherwise, so it has to be said.
        self.name = f"CTranslate2 {ctranslate2.__version__} in {self._translator.compute_type}"
        self._source, self._target = run.tokenizer.source.names, run.tokenizer.target.names
        self._ids = {token: id for id, token in enumerate(self._target)}
        self._ends = run.config.data.source_eos
        self._mark = run.tokenizer.target.mark
        self._first = [self._source[id] for id in run.tokenizer.source.given]
        self._models = [SentencePieceProcessor(model_file=str(place / name)) for name in run.tokenizer.models()]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        ids = {token: id for id, token in enumerate(self._source)}
        cut = self._models[0].encode(list(lines), out_type=str)
        texts = [[*self._first, *tokens] for tokens in cut]
        return [[*(ids.get(token, UNK) for token in tokens), *([EOS] * self._ends)] for tokens in texts]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [str(self._models[-1].decode([self._target[id] for id in one])) if one else "" for one in ids]

    def greedy(self, sources: Sequence[Sequence[int]], *, limit: int) -> list[Walk]:
        found = self._translate(sources, limit, beam_size=1, return_logits_vocab=True)
        walks = []
        for one in found:
            ids, ended = self._read(one.hypotheses[0])
            walks.append(Walk(ids, ended, np.stack([np.asarray(logits) for logits in one.logits[0]])))
        return walks

    def beam(
        self, sources: Sequence[Sequence[int]], *, limit: int, beam_size: int, length_penalty: float
    ) -> list[Found]:
        options = {"beam_size": beam_size, "length_penalty": length_penalty, "return_scores": True}
        found = []
        for one in self._translate(sources, limit, **options):
            ids, ended = self._read(one.hypotheses[0])
            divisor = max(len(ids) + ended, 1) ** length_penalty
            found.append(Found(ids, ended, one.scores[0] * divisor))
        return found

    def _translate(self, sources: Sequence[Sequence[int]], limit: int, **options: Any) -> Any:
        # The engine adds the end mark itself.
        texts = [[self._source[id] for id in ids[: len(ids) - self._ends]] for ids in sources]
        always = {
            "max_decoding_length": limit,
            "max_input_length": 0,
            "min_decoding_length": 0,
            "return_end_token": True,
        }
        prefixes = [[self._mark]] * len(texts) if self._mark else None
        return self._translator.translate_batch(texts, prefixes, **always, **options)

    def _read(self, tokens: Sequence[str]) -> tuple[tuple[int, ...], bool]:
        ids = [self._ids[token] for token in tokens]
        ended = ids[-1:] == [EOS]
        return tuple(ids[: len(ids) - ended]), ended


def _specification(run: OpenedRun) -> Any:
    """The model in CTranslate2's terms."""
    specs = needed("ctranslate2.specs")
    weights, config = Weights(run), run.config.model
    shape = {
        "num_heads": config.n_heads,
        "pre_norm": config.norm_position == "pre",
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.gated,
        "rms_norm": config.norm == "rms-norm",
        "num_heads_kv": config.kv_heads if config.kv_heads < config.n_heads else None,
        "head_dim": config.head_width,
        "no_final_norm": True,
    }
    rotary_dim = {side: 0 if config.positions_of(side) == "rotary" else None for side in config.sides}
    encoder = specs.transformer_spec.TransformerEncoderSpec(
        config.depths.encoder, **shape, rotary_dim=rotary_dim["encoder"]
    )
    decoder = specs.transformer_spec.TransformerDecoderSpec(
        config.depths.decoder, **shape, rotary_dim=rotary_dim["decoder"]
    )
    encoder.embeddings[0].weight = weights.embedding("encoder")
    decoder.embeddings.weight = weights.embedding("decoder")
    decoder.projection.weight = weights.output
    if (bias := weights.get("output_bias")) is not None:
        decoder.projection.bias = bias
    _fill_stack(encoder, weights, "encoder", specs)
    _fill_stack(decoder, weights, "decoder", specs)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(run.tokenizer.source.names)
    spec.register_target_vocabulary(run.tokenizer.target.names)
    marks = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIALS[1:], strict=True))
    for name, value in marks.items():
        setattr(spec.config, name, value)
    spec.config.decoder_start_token = marks["bos_token"]
    spec.config.add_source_eos = run.config.data.source_eos
    return spec


def _fill_stack(stack: Any, weights: Weights, side: Stack, specs: Any) -> None:
    config = weights.config
    stack.scale_embeddings = config.embedding_scale
    if config.positions_of(side) == "rotary":
        if hasattr(stack, "position_encodings"):
            del stack.position_encodings
    else:
        # Without a table the engine would make sinusoids of its own.
        stack.position_encodings.encodings = weights.positions(side, rows=CTRANSLATE2_ROWS)
    for index, layer in enumerate(stack.layer):
        name = f"{side}.layers.{index}"
        _fill_layer(layer, weights, name)
    if config.ends_in_norm:
        norm = specs.common_spec.LayerNormSpec(rms_norm=config.norm == "rms-norm")
        _fill_norm(norm, weights, f"{side}.norm")
        vars(stack)["layer_norm"] = norm  # the specification lets only pre-norm stacks have one; the engine knows more


def _fill_layer(layer: Any, weights: Weights, name: str) -> None:
    attention = layer.self_attention
    _fill_linear(attention.linear[0], weights, f"{name}.self_attention.query_key_value")
    _fill_linear(attention.linear[1], weights, f"{name}.self_attention.output")
    sublayers = [attention, layer.ffn]
    if hasattr(layer, "attention"):
        sublayers.insert(1, layer.attention)
        for linear, part in zip(layer.attention.linear, ("query", "key_value", "output"), strict=True):
            _fill_linear(linear, weights, f"{name}.cross_attention.{part}")
    gated = weights.config.gated
    _fill_linear(layer.ffn.linear_0, weights, f"{name}.feed_forward.{'gate' if gated else 'up'}")
    if gated:
        _fill_linear(layer.ffn.linear_0_noact, weights, f"{name}.feed_forward.up")
    _fill_linear(layer.ffn.linear_1, weights, f"{name}.feed_forward.down")
    for index, sublayer in enumerate(sublayers):
        _fill_norm(sublayer.layer_norm, weights, f"{name}.residuals.{index}.norm")


def _fill_linear(linear: Any, weights: Weights, name: str) -> None:
    linear.weight = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        linear.bias = bias


def _fill_norm(norm: Any, weights: Weights, name: str) -> None:
    norm.gamma = weights[f"{name}.weight"]
    if weights.config.norm == "layer-norm":
        bias = weights.get(f"{name}.bias")
        # Without one the engine would take it for an RMSNorm.
        norm.beta = np.zeros_like(norm.gamma) if bias is None else bias
