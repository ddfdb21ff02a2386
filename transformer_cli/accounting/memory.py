"""How many bytes training and translating take, by purpose, as tx goes about them.

Training keeps weights, gradients and the optimiser's memory in fp32, whatever the precision; activations are those
values that autograd keeps for the way back. Compiled code, which a CPU may have, needs less: in bf16 gradients and
moments of half the size, and no output of a norm that comes first. What an allocator adds, and what lives for a moment
only, is left out. Proved on CPUs, in both paths of attention; that GPUs keep masks of one byte and statistics in fp32
is what PyTorch's kernels say. Sentences lie in rows here, equally long; training packs them, in rows of a multiple of
16 tokens for attention: at such lengths it was measured to keep 1 to 2 % more, with rotary positions 8 %.

B batch, S source length, T target length, D d_model, H heads, K d_head, F d_ff; p bytes of a value, m of a mask's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from transformer_cli.accounting.flops import Pass, Work, meets_source, prefill, step
from transformer_cli.accounting.parameters import Count, Part, added, product
from transformer_cli.config.accounting import CountedModel, Projection
from transformer_cli.config.model import Stack
from transformer_cli.config.training import TrainingConfig

FP32, HALF, INT64 = 4, 2, 8
LOGITS_AT_A_TIME = 8 * 1024 * 1024
LOGITS_ON_A_GPU = 128 * 1024 * 1024
"""Of what the loss holds: training/loss.py does not make more logits at once."""
COMPARED = 8
"""Tables of logits in fp32 that R-Drop holds of a quarter as many rows: two predictions, two differences, and twice two
gradients."""
FEWEST_ROWS = 128
"""Of a table of rotary angles, see model/positions.py."""


@dataclass(frozen=True)
class Storage:
    """How numbers are kept where a model runs; see machine.py for how a run decides."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    fused: bool = False
    """Whether attention never holds its weights."""

    @property
    def value(self) -> int:
        """Bytes of an activation."""
        return FP32 if self.precision == "fp32" else HALF

    @property
    def cached(self) -> int:
        """Bytes of a number of the keys and values that translating keeps, and of its module's matrices; both are in
        fp32 on a CPU."""
        return FP32 if self.device == "cpu" else self.value

    @property
    def mask(self) -> int:
        """Bytes of an element of a dropout mask; on the CPU it is a factor, in the width of the values."""
        return self.value if self.device == "cpu" else 1

    @property
    def statistic(self) -> int:
        """Bytes of a mean or deviation that LayerNorm keeps."""
        return self.value if self.device == "cpu" else FP32


@dataclass(frozen=True)
class Item:
    """Bytes for one purpose, and what they come from."""

    name: str
    bytes: int
    how: str = ""


def training(
    count: Count, work: Work, storage: Storage, *, target_vocab: int, options: TrainingConfig | None = None
) -> list[Item]:
    """One update from one batch. An upper bound: gradients are made while activations are let go."""
    options = options or TrainingConfig()
    reading = replace(work, batch_size=work.batch_size * (1 if options.r_drop is None else 2))
    return [
        Item("weights", FP32 * count.total, f"{FP32} x {count.total:,}"),
        Item("gradients", FP32 * count.trainable, f"{FP32} x {count.trainable:,}"),
        *_optimizer(count, options),
        *(_casts(count, storage) if storage.value != FP32 else ()),
        *activations(count.model, reading, storage),
        *_loss(count.model, reading, storage, target_vocab, r_drop=options.r_drop is not None),
    ]


def _optimizer(count: Count, options: TrainingConfig) -> Iterator[Item]:
    """What is kept for each weight that learns, counts of updates left out; of a recipe from elsewhere, as of Adam. And
    an average of the weights, where there is one."""
    n, hidden = count.trainable, 0
    if options.optimizer == "muon":
        inside = (part for part in count.chosen("exact") if part.stack and part.is_matrix and part.trainable)
        hidden = sum(part.parameters for part in inside)
    momentum = f"momentum x {FP32} x {hidden:,} + " if hidden else ""
    yield Item("optimizer", FP32 * (2 * n - hidden), f"{momentum}2 moments x {FP32} x {n - hidden:,}")
    averaged = n if options.optimizer == "schedule-free" else count.total if options.ema is not None else 0
    if averaged:
        yield Item("average", FP32 * averaged, f"{FP32} x {averaged:,}")


def decoding(count: Count, work: Work, storage: Storage) -> list[Item]:
    """Weights, how they are laid out for translating, and the keys and values of a batch that is written."""
    held = [(storage.cached if _is_linear(part) else FP32, part) for part in count.chosen("exact")]
    weights = _held("weights", held)
    return [weights, *_prepared(count, storage), *caches(count.model, work, storage)]


def _held(name: str, parts: Iterable[tuple[int, Part]]) -> Item:
    """Parts, each with the bytes of a number."""
    numbers: Counter[int] = Counter()
    for width, part in parts:
        numbers[width] += part.parameters
    items = sorted(numbers.items())
    return Item(name, sum(width * n for width, n in items), " + ".join(f"{width} x {n:,}" for width, n in items))


def _prepared(count: Count, storage: Storage) -> Iterator[Item]:
    """What model/forms.py copies of an encoder-decoder's weights: matrices transposed or packed, the output's too,
    and what is cast on the way. On a CPU there is one more form, in fp32, for steps of few rows; in fp32 only where the
    other one is laid out by oneDNN, so that elsewhere this is too much, as it is where that for few is compiled, and
    rounded as the other is, or all there is."""
    if not (count.model.depths.encoder and count.model.depths.decoder):
        return
    laid_out = [_of_steps(part, count.model) for part in count.parts if _is_cast(part) or part.block == "unembedding"]
    parts = [(_width(part, storage), part) for part in laid_out]
    own = storage.device != "cpu"  # vectors of linear layers are those that the module has cast for good
    cast = [pair for pair in parts if pair[0] != FP32 and not (own and _is_linear(pair[1]))]
    yield _held("prepared_weights", [pair for pair in parts if pair[1].is_matrix or pair in cast])
    if storage.device == "cpu":
        yield _held("prepared_for_few", [(FP32, part) for _, part in parts if part.is_matrix])


def _of_steps(part: Part, model: CountedModel) -> Part:
    """Of the biases of cross-attention, those of queries and outputs: keys and values are made of the source once."""
    if part.component != "attention_bias" or part.block != "cross":
        return part
    widths: dict[Projection, int] = {"query": model.n_heads * model.head_width, "output": model.d_model}
    return replace(part, each=added([width for name, width in widths.items() if name in model.projections]))


def caches(model: CountedModel, work: Work, storage: Storage) -> list[Item]:
    """Keys and values of what was written, for each beam, and of the source, once for all beams of a sentence.

    Counted is what is needed; tx's tables have room for 16 tokens at least and grow by doubling, so up to twice as much
    is reserved for what was written.
    """
    layers, beams = model.depths.decoder, work.batch_size * work.beam_size
    each = (2, storage.cached, layers, model.kv_heads, model.head_width)
    written = product(*each, (beams, f"{work.path}s"), (work.target_length, "tokens"))
    read = product(*each, (work.batch_size, "sentences"), (work.source_length, "tokens"))
    items = [Item("self_cache", written.value, written.text), Item("cross_cache", read.value, read.text)]
    return [item for item in items if item.bytes]


def read_by_prefill(count: Count, work: Work, storage: Storage) -> int:
    """Bytes of weights that reading takes: the source's side of an encoder-decoder, everything of one stack."""
    return read(count, prefill(count.model, work), storage)


def read_by_step(count: Count, work: Work, storage: Storage) -> int:
    """Bytes that one more token per beam takes: weights, and all keys and values."""
    return read(count, step(work), storage) + sum(cache.bytes for cache in caches(count.model, work, storage))


def read(count: Count, a_pass: Pass, storage: Storage) -> int:
    """Bytes of weights that a pass takes, as translating keeps them: what its tokens go through, and of the tables,
    which stay in fp32, the rows that they look up. Extras and positions are left out."""
    widths = ((FP32 if part.block == "embedding" else _width(part, storage), part) for part in count.parts)
    return sum(width * _numbers_read(part, a_pass, count.model.d_model) for width, part in widths)


def _width(part: Part, storage: Storage) -> int:
    """Bytes of a number as translating takes it: on a CPU bf16 is for some products alone, see model/forms.py."""
    if storage.device != "cpu" or storage.precision == "fp32":
        return storage.value
    is_rounded = part.block in ("encoder_ffn", "decoder_self", "cross", "decoder_ffn", "unembedding")
    is_of_source = part.component in ("cross.key", "cross.value")
    return HALF if storage.precision == "bf16" and is_rounded and not is_of_source else FP32


def _numbers_read(part: Part, a_pass: Pass, d_model: int) -> int:
    sources, targets = a_pass.encoded, a_pass.decoded
    rows = {"embedding.source": sources, "embedding.target": targets, "embedding.tokens": sources + targets}
    if part.component in rows:
        return 0 if part.shares else min(rows[part.component] * d_model, part.parameters)
    if part.component == "norm.final":
        return part.each.value * ((sources > 0) + (targets > 0))
    if part.block == "unembedding":
        return part.parameters if a_pass.projected else 0
    through = sources if meets_source(part) else targets
    return part.parameters if part.stack and through else 0


def activations(model: CountedModel, work: Work, storage: Storage) -> list[Item]:
    """What autograd keeps between forward and backward, the loss left out."""
    B, S, T = work.batch_size, work.source_length, work.target_length
    encoder, decoder = model.depths.encoder, model.depths.decoder
    items = []
    if encoder:
        layer = encoder_layer(model, storage, batch=B, source=S)
        entrance = _entrance(model, storage, "encoder", batch=B, length=S)
        items.append(Item("encoder_embedding", entrance, product((B * S, "tokens")).text))
        items.append(Item("encoder_layers", encoder * layer, product((encoder, "layers"), layer).text))
    if decoder:
        memory = S if encoder else 0
        layer = decoder_layer(model, storage, batch=B, source=memory, target=T)
        entrance = _entrance(model, storage, "decoder", batch=B, length=T)
        items.append(Item("decoder_embedding", entrance, product((B * T, "tokens")).text))
        items.append(Item("decoder_layers", decoder * layer, product((decoder, "layers"), layer).text))
        if encoder:
            items.append(Item("memory", storage.value * B * S * model.d_model, f"{B * S:,} x {model.d_model:,}"))
    if model.ends_in_norm:
        tokens = B * S * (encoder > 0) + B * T * (decoder > 0)
        items.append(Item("final_norms", _norm(model, storage, tokens), product((tokens, "tokens")).text))
    return items


def encoder_layer(model: CountedModel, storage: Storage, *, batch: int, source: int) -> int:
    """Self-attention and feed-forward: with biases or without, pre-norm and post-norm alike.

    With ReLU, LayerNorm, dropout around sublayers and on attention weights, and H K = D, this is
    B S D (p (8 + F / D) + 2 m) + B H S^2 (2 p + m) + 4 p' B S, where p' is the width of a statistic.
    Source: Korthikanti et al. 2022, section 4.1, generalised.
    """
    return (
        _self_attention(model, storage, "encoder", batch=batch, length=source)
        + _feed_forward(model, storage, batch * source)
        + 2 * _norm(model, storage, batch * source)
    )


def decoder_layer(model: CountedModel, storage: Storage, *, batch: int, source: int, target: int) -> int:
    """The same with cross-attention, unless the source has no token; the memory itself is counted once, elsewhere."""
    crosses = source > 0
    cross = attention(model, storage, batch=batch, queries=target, keys=source) if crosses else 0
    cross += _head_norms(model, storage, queries=batch * target, keys=batch * source, crosses=True) if crosses else 0
    return (
        _self_attention(model, storage, "decoder", batch=batch, length=target)
        + cross
        + _feed_forward(model, storage, batch * target)
        + (2 + crosses) * _norm(model, storage, batch * target)
    )


def _self_attention(model: CountedModel, storage: Storage, side: Stack, *, batch: int, length: int) -> int:
    """Queries, keys and values come out of one product, which the fused path keeps whole where it takes any of them as
    they are: not where queries and keys are rotated, and keys and values copied for the heads that share them. What is
    rotated is kept besides, and then the result in two layouts.
    """
    wide, narrow = model.n_heads * model.head_width, model.kv_heads * model.head_width
    rotary, copied = model.positions_of(side) == "rotary", _is_copied(model)
    twice = (rotary * wide + (not rotary) * 2 * narrow) if copied else rotary * (2 * wide + narrow)
    kept = attention(model, storage, batch=batch, queries=length, keys=length)
    kept += _head_norms(model, storage, queries=batch * length, keys=batch * length, rotated=rotary)
    return kept + storage.value * batch * length * twice * storage.fused


def _head_norms(
    model: CountedModel, storage: Storage, *, queries: int, keys: int, rotated: bool = False, crosses: bool = False
) -> int:
    """What the norms of queries and keys add: what enters and its statistics, as `_norm` says; and what else is kept
    whole for their sake, or no longer twice."""
    if not model.qk_norm:
        return 0
    p, on_cpu = storage.value, storage.device == "cpu"
    wide, narrow = queries * model.n_heads * model.head_width, keys * model.kv_heads * model.head_width
    vectors = queries * model.n_heads + keys * model.kv_heads
    entered = (2 * FP32 if on_cpu else p) * (wide + narrow) + FP32 * vectors
    if not storage.fused:
        return entered + p * narrow * (storage.precision == "fp32" or not on_cpu)
    if _is_copied(model):
        return entered + on_cpu * p * (narrow + crosses * wide)
    return entered + on_cpu * p * (-wide - narrow if rotated else wide)


def attention(model: CountedModel, storage: Storage, *, batch: int, queries: int, keys: int) -> int:
    """What enters, queries, keys, values, weights, what enters the output projection, and the mask of the residual."""
    p, m = storage.value, storage.mask
    wide, narrow = model.n_heads * model.head_width, model.kv_heads * model.head_width
    held = wide if storage.fused and _is_copied(model) else narrow
    vectors = p * batch * (queries * (model.d_model + 2 * wide) + keys * 2 * held)
    if storage.fused:
        weights = FP32 * batch * model.n_heads * queries  # the logarithm of each row's sum
    else:
        # On CPUs they are computed in fp32, and what dropout leaves of them once more on the way back.
        each, dropped = (FP32, m) if storage.device == "cpu" else (p, p + m)
        per_weight = each + dropped * bool(model.attention_dropout)
        weights = per_weight * batch * model.n_heads * queries * keys
    return vectors + weights + _mask(model, storage, batch * queries)


def _is_copied(model: CountedModel) -> bool:
    """Whether PyTorch's kernel gets copies of keys and values, one for each head that shares them. A single one is seen
    by all without."""
    return 1 < model.kv_heads < model.n_heads


def _feed_forward(model: CountedModel, storage: Storage, tokens: int) -> int:
    """What enters, what the activation needs, what enters the second product, and the mask of the residual."""
    p, m = storage.value, storage.mask
    kept = {"relu": 1, "gelu": 2, "silu": 2, "swiglu": 4, "geglu": 4}[model.activation] * p
    if model.activation_dropout:
        # ReLU needs what comes out of it, which without dropout is what enters the second product.
        kept += m + (p if model.activation == "relu" else 0)
    return p * tokens * model.d_model + kept * tokens * model.d_ff + _mask(model, storage, tokens)


def _norm(model: CountedModel, storage: Storage, tokens: int) -> int:
    """What enters and its statistics; PyTorch's RMSNorm on the CPU works in fp32 and keeps what it scales, too."""
    if model.norm == "layer-norm":
        return tokens * (storage.value * model.d_model + 2 * storage.statistic)
    if storage.device == "cpu":
        return tokens * (2 * FP32 * model.d_model + FP32)
    return tokens * (storage.value * model.d_model + FP32)


def _entrance(model: CountedModel, storage: Storage, side: Stack, *, batch: int, length: int) -> int:
    """The ids, for the gradient of their rows; the mask of the dropout; the sines and cosines of rotary positions."""
    rotary = model.positions_of(side) == "rotary"
    table = storage.value * model.head_width * max(FEWEST_ROWS, model.first_position + length) if rotary else 0
    return INT64 * batch * length + _mask(model, storage, batch * length) + table


def _mask(model: CountedModel, storage: Storage, tokens: int) -> int:
    return storage.mask * tokens * model.d_model if model.dropout else 0


def _loss(model: CountedModel, work: Work, storage: Storage, vocab: int, *, r_drop: bool) -> Iterator[Item]:
    """The gradients that the loss makes while it has the logits, and as many logits as there are at a time; and those
    of R-Drop, which needs none of its own where the loss is compiled."""
    tokens = work.batch_size * work.target_length
    if not (model.depths.decoder and vocab):
        return
    at_a_time = LOGITS_AT_A_TIME if storage.device == "cpu" else LOGITS_ON_A_GPU
    rows = min(tokens, max(model.d_model, at_a_time // vocab))
    whole = (2 * FP32 + storage.value) * tokens * vocab
    hidden = FP32 if storage.precision == "fp16" else storage.value
    yield Item("logits", storage.value * rows * vocab, f"{rows:,} x {vocab:,} (whole: {whole:,})")
    gradients = FP32 * vocab * (model.d_model + model.output_bias)
    yield Item("loss", hidden * tokens * model.d_model + gradients, "its gradients")
    if r_drop:
        rows = min(tokens // 2, max(1, LOGITS_AT_A_TIME // 4 // vocab))
        kept = hidden * tokens * model.d_model + gradients
        yield Item(
            "disagreement", kept + COMPARED * FP32 * rows * vocab, f"{COMPARED} x {rows:,} x {vocab:,}, gradients"
        )


def _casts(count: Count, storage: Storage) -> tuple[Item]:
    """Copies of the weights in the layers, in the precision of the products, see training/working.py."""
    cast = sum(part.parameters for part in count.chosen("exact") if _is_cast(part))
    return (Item(f"{storage.precision}_weights", HALF * cast, f"{HALF} x {cast:,}"),)


def _is_cast(part: Part) -> bool:
    return part.stack is not None or part.component == "norm.final"


def _is_linear(part: Part) -> bool:
    """Whether it is in a linear layer, which the module of a translator casts for good, except on a CPU."""
    is_output = part.component == "unembedding" and not part.shares
    return part.block != "norm" and (part.stack is not None or is_output)
