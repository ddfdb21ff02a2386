"""One token's journey: its shape at every stage, from its number to a probability for each that may come next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transformer_cli.accounting.parameters import product
from transformer_cli.config.accounting import CountedModel
from transformer_cli.config.model import Stack


@dataclass(frozen=True)
class Stage:
    """A station on the way.

    shape: of one token there; () is a single number. how: what made it. layers: how often it is passed where it lies
    inside the layers, 0 where it does not.
    """

    name: str
    shape: tuple[int, ...]
    how: str = ""
    layers: int = 0


def journeys(
    model: CountedModel, *, vocabs: tuple[int, int], source_length: int, target_length: int
) -> dict[Stack, list[Stage]]:
    """The way of a token through each stack that the model has; vocabs are those of source and target."""
    found: dict[Stack, list[Stage]] = {}
    if model.depths.encoder:
        found["encoder"] = list(_encoder(model, vocabs[0], source_length))
    if model.depths.decoder:
        found["decoder"] = list(_decoder(model, vocabs[1], source_length, target_length))
    return found


def _encoder(model: CountedModel, vocab: int, length: int) -> Iterator[Stage]:
    layers = model.depths.encoder
    yield from _entrance(model, "encoder", vocab)
    yield from _attention(model, layers, keys=length, rotary=model.positions_of("encoder") == "rotary")
    yield from _feed_forward(model, layers)
    if model.ends_in_norm:
        yield Stage("norm", (model.d_model,))
    if model.depths.decoder:
        yield Stage("memory", (length, model.d_model), "all source tokens: what the decoder looks at")


def _decoder(model: CountedModel, vocab: int, source_length: int, target_length: int) -> Iterator[Stage]:
    layers = model.depths.decoder
    yield from _entrance(model, "decoder", vocab)
    yield from _attention(model, layers, keys=target_length, rotary=model.positions_of("decoder") == "rotary")
    if model.depths.encoder:
        yield from _attention(model, layers, keys=source_length, memory=True)
    yield from _feed_forward(model, layers)
    if model.ends_in_norm:
        yield Stage("norm", (model.d_model,))
    if vocab:
        yield Stage("logits", (vocab,), product(model.d_model, vocab).text)
        yield Stage("probabilities", (vocab,), "softmax; the next token is one of them")


def _entrance(model: CountedModel, side: Stack, vocab: int) -> Iterator[Stage]:
    width = (model.d_model,)
    if vocab:
        scaled = f", times sqrt({model.d_model:,})" if model.embedding_scale else ""
        yield Stage("id", (), f"one of {vocab:,}")
        yield Stage("embedding", width, f"a row of {product(vocab, model.d_model).text}{scaled}")
    else:
        yield Stage("vector", width, "made elsewhere")
    positions = model.positions_of(side)
    if positions in ("learned", "sinusoidal-table"):
        yield Stage("+ position", width, f"a row of {product(model.max_positions_of(side), model.d_model).text}")
    elif positions in ("sinusoidal", "sinusoidal-halves"):
        yield Stage("+ position", width, "sines and cosines")


def _attention(
    model: CountedModel, layers: int, *, keys: int, rotary: bool = False, memory: bool = False
) -> Iterator[Stage]:
    """keys: how many tokens it looks at; those of the memory, or those of its own side."""
    d_model, d_head = model.d_model, model.head_width
    wide, narrow = (model.n_heads, d_head), (model.kv_heads, d_head)
    prefix, origin = ("cross-", " of the memory") if memory else ("", "")
    turned = ", normalised" * model.qk_norm + ", turned by the position" * rotary
    if model.norm_position == "pre":
        yield Stage("norm", (d_model,), layers=layers)
    yield Stage(f"{prefix}query", wide, product(d_model, *wide).text + turned, layers)
    yield Stage(f"{prefix}key", narrow, product(d_model, *narrow).text + origin + turned, layers)
    yield Stage(f"{prefix}value", narrow, product(d_model, *narrow).text + origin, layers)
    yield Stage(f"{prefix}weights", (model.n_heads, keys), f"query times keys / sqrt({d_head:,}), softmax", layers)
    yield Stage(f"{prefix}mixture", wide, "weights times values", layers)
    yield Stage(f"{prefix}output", (d_model,), product(*wide, d_model).text, layers)
    yield from _residual(model, layers)


def _feed_forward(model: CountedModel, layers: int) -> Iterator[Stage]:
    d_model, d_ff = model.d_model, model.d_ff
    if model.norm_position == "pre":
        yield Stage("norm", (d_model,), layers=layers)
    if model.gated:
        yield Stage("gate", (d_ff,), f"{product(d_model, d_ff).text}, then {GATES[model.activation]}", layers)
        yield Stage("up", (d_ff,), f"{product(d_model, d_ff).text}, times the gate", layers)
    else:
        yield Stage("up", (d_ff,), f"{product(d_model, d_ff).text}, then {model.activation}", layers)
    yield Stage("down", (d_model,), product(d_ff, d_model).text, layers)
    yield from _residual(model, layers)


GATES = {"swiglu": "silu", "geglu": "gelu"}


def _residual(model: CountedModel, layers: int) -> Iterator[Stage]:
    yield Stage("+ what entered", (model.d_model,), layers=layers)
    if model.norm_position == "post":
        yield Stage("norm", (model.d_model,), layers=layers)
