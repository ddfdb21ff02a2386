"""How many multiply-adds a pass takes, product by product; a multiply-add is two FLOPs.

Counted are products of matrices: with weights, of queries with keys, of attention weights with values. Left out, as
usual: norms, biases, softmax, activations, dropout, look-ups; together below 1 % from d_model 512 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transformer_cli.accounting.parameters import Count, Part, Product, product
from transformer_cli.config.accounting import CountedModel


@dataclass(frozen=True)
class Work:
    """What is asked of a model: so many sentences of so many tokens, each written by so many beams.

    drawn: these are draws, none of which knows of the others; they take as much.
    """

    batch_size: int
    source_length: int
    target_length: int
    beam_size: int = 1
    drawn: bool = False

    @property
    def path(self) -> str:
        """What one of its beams is called."""
        return "draw" if self.drawn else "beam"


@dataclass(frozen=True)
class Pass:
    """What goes through the network at once; all but the lengths count over the whole batch."""

    source_length: int
    """Source tokens that one token attends to."""
    target_length: int
    """Target tokens that one token attends to, those that a mask hides included."""
    encoded: int = 0
    """Source tokens that go through the encoder, and whose keys and values cross-attention gets."""
    decoded: int = 0
    """Target tokens that go through the decoder."""
    projected: int = 0
    """Target tokens whose logits are made."""


def training(work: Work) -> Pass:
    """All tokens at once, the target under teacher forcing."""
    sources, targets = work.batch_size * work.source_length, work.batch_size * work.target_length
    return Pass(work.source_length, work.target_length, encoded=sources, decoded=targets, projected=targets)


def prefill(model: CountedModel, work: Work) -> Pass:
    """What is read before the first token is written: the source; by a decoder alone, a prompt."""
    a_pass = training(work)
    if model.depths.encoder:
        return Pass(work.source_length, work.target_length, encoded=a_pass.encoded)
    return Pass(work.source_length, work.target_length, decoded=a_pass.decoded, projected=work.batch_size)


def step(work: Work) -> Pass:
    """One more token per beam, the last of the target: it attends to its own past and to itself."""
    beams = work.batch_size * work.beam_size
    return Pass(work.source_length, work.target_length, decoded=beams, projected=beams)


@dataclass(frozen=True)
class Term:
    """Products of one kind: how many multiply-adds they are, and the factors that give them."""

    part: str
    macs: Product

    @property
    def flops(self) -> int:
        return 2 * self.macs.value


def terms(model: CountedModel, a_pass: Pass, *, target_vocab: int) -> list[Term]:
    """Every product of a pass forward, in the order of the network.

    Backward takes twice as much: two products for each, one for the gradient of either factor.
    """
    encoded, decoded = a_pass.encoded, a_pass.decoded
    source, target = (encoded, a_pass.source_length), (decoded, a_pass.target_length)
    encoder, decoder = model.depths.encoder, model.depths.decoder
    found = [
        *attention("encoder_self", model, layers=encoder, queries=encoded, memory=source),
        *feed_forward("encoder_ffn", model, layers=encoder, tokens=encoded),
        *attention("decoder_self", model, layers=decoder, queries=decoded, memory=target),
    ]
    if encoder and decoder:
        found += attention("cross", model, layers=decoder, queries=decoded, memory=source)
    found += feed_forward("decoder_ffn", model, layers=decoder, tokens=decoded)
    if decoder:
        found.append(Term("unembedding", product((a_pass.projected, "tokens"), model.d_model, target_vocab)))
    return [term for term in found if term.macs.value]


def attention(name: str, model: CountedModel, *, layers: int, queries: int, memory: tuple[int, int]) -> Iterator[Term]:
    """One attention per layer. queries: tokens that ask. memory: tokens whose keys and values are made, and how many
    of them a token asks.

    For one layer over itself, B sentences of L tokens, heads together as wide as d and as many of keys and values, this
    is 4 B d L (2 d + L) FLOPs, whatever their number.
    """
    remembered, keys = memory
    asking, asked, depth = (queries, "tokens"), (remembered, "tokens"), (layers, "layers")
    heads, kv_heads = (model.n_heads, "heads"), (model.kv_heads, "kv heads")
    if model.kv_heads == model.n_heads:
        kv_heads = heads
    d_model, d_head = model.d_model, model.head_width
    yield Term(f"{name}.query", product(asking, d_model, d_head, heads, depth))
    yield Term(f"{name}.key", product(asked, d_model, d_head, kv_heads, depth))
    yield Term(f"{name}.value", product(asked, d_model, d_head, kv_heads, depth))
    yield Term(f"{name}.scores", product(asking, (keys, "keys"), d_head, heads, depth))
    yield Term(f"{name}.mixture", product(asking, (keys, "values"), d_head, heads, depth))
    yield Term(f"{name}.output", product(asking, d_head, heads, d_model, depth))


def feed_forward(name: str, model: CountedModel, *, layers: int, tokens: int) -> Iterator[Term]:
    """One feed-forward network per layer."""
    for matrix in ("gate", "up", "down") if model.gated else ("up", "down"):
        yield Term(f"{name}.{matrix}", product((tokens, "tokens"), model.d_model, model.d_ff, (layers, "layers")))


def hidden_by_mask(model: CountedModel, work: Work) -> int:
    """FLOPs of scores and mixtures of the target with its future, which the causal mask throws away.

    They are in what `terms` counts, for they are computed: a token needs (T + 1) / 2 of T keys on average.
    """
    pairs = work.batch_size * work.target_length * (work.target_length - 1) // 2
    return 2 * 2 * pairs * model.head_width * model.n_heads * model.depths.decoder


def training_flops(model: CountedModel, work: Work, *, tokens: int, target_vocab: int) -> int:
    """Forward and backward of so many tokens, in sentences as long as work says; they are target tokens where there is
    a target, and each brings its share of the source. At most, where something is frozen."""
    sentence = terms(model, training(Work(1, work.source_length, work.target_length)), target_vocab=target_vocab)
    return 3 * sum(term.flops for term in sentence) * tokens // (work.target_length or work.source_length)


def rule_of_thumb(count: Count, work: Work, *, tokens: int) -> int:
    """6 N D: six FLOPs for each parameter and token, scores of attention left out.

    With two stacks N is split, for a token meets the matrices of its own side only; keys and values of the memory
    belong to the source. With one, N is every parameter, as in Brown et al. 2020, appendix D; Kaplan et al. 2020, whose
    rule it is, leave embeddings and positions out.
    """
    if not (count.model.depths.encoder and count.model.depths.decoder):
        return 6 * count.total * tokens
    matrices = [part for part in count.chosen("weights-only") if part.stack or part.component == "unembedding"]
    source = sum(part.parameters for part in matrices if meets_source(part))
    target = sum(part.parameters for part in matrices) - source
    return 6 * (source * work.source_length + target * work.target_length) * tokens // work.target_length


def meets_source(part: Part) -> bool:
    """Whether source tokens go through it: the encoder, and cross-attention's keys and values."""
    return part.stack == "encoder" or part.component in ("cross.key", "cross.value")
