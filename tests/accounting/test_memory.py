"""Bytes by closed form, against what autograd keeps, what caches hold, what Adam remembers, and published numbers."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_cli.accounting import memory
from transformer_cli.accounting.flops import Work
from transformer_cli.accounting.halves import DecoderOnly, EncoderOnly, build_counted
from transformer_cli.accounting.memory import Storage
from transformer_cli.accounting.parameters import count
from transformer_cli.config.accounting import CountedModel
from transformer_cli.config.model import Depths
from transformer_cli.config.training import TrainingConfig
from transformer_cli.model import forms as laid_out
from transformer_cli.model import products
from transformer_cli.model.forms import Around, Form, Layer
from transformer_cli.model.layout import Rows
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.products import Product
from transformer_cli.model.steps import LEAST_KEYS
from transformer_cli.model.transformer import Model, Transformer
from transformer_cli.training import loss
from transformer_cli.training.moving_average import average_of
from transformer_cli.training.optimizers import build_optimizer, state_tensors
from transformer_cli.training.working import WorkingCopy

GPT2 = CountedModel(architecture="decoder-only", d_model=768, n_heads=12, d_ff=3072, n_layers=12)
GPT3 = CountedModel(architecture="decoder-only", d_model=12288, n_heads=96, d_ff=49152, n_layers=96)
LLAMA2_7B = CountedModel(architecture="decoder-only", d_model=4096, n_heads=32, d_ff=11008, n_layers=32)
LLAMA3_8B = CountedModel(architecture="decoder-only", d_model=4096, n_heads=32, n_kv_heads=8, d_ff=14336, n_layers=32)
BASE = CountedModel(d_model=512, n_heads=8, d_ff=2048, n_layers=6)
CPU, BF16, GPU = Storage(), Storage("bf16"), Storage("bf16", "cuda", fused=True)
CUDA_WRITTEN_OUT = Storage(device="mps")
"""Masks of one byte as on every GPU, attention written out."""


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("gelu", 1378304), ("relu", 1116160)],
)
def test_an_encoder_layer_keeps_the_known_bytes(activation, expected):
    """Counted with autograd's saved tensors."""
    model = CountedModel(d_model=128, n_heads=4, d_ff=512, activation=activation, attention_dropout=0.1)
    assert memory.encoder_layer(model, CUDA_WRITTEN_OUT, batch=2, source=64) == expected


@pytest.mark.parametrize(("source", "d_ff", "expected"), [(64, 512, 1887232), (96, 256, 2001920)])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_decoder_layer_keeps_the_known_bytes(source, d_ff, expected, norm_position):
    model = CountedModel(d_model=128, n_heads=4, d_ff=d_ff, attention_dropout=0.1, norm_position=norm_position)
    layer = memory.decoder_layer(model, CUDA_WRITTEN_OUT, batch=2, source=source, target=64)
    the_memory = 4 * 2 * source * 128  # once for all layers, which in the known numbers are one
    assert layer + the_memory == expected


def test_an_encoder_layer_keeps_what_korthikanti_and_others_say():
    """Section 4.1 of "Reducing activation recomputation in large transformer models": s b h (34 + 5 a s / h) bytes in
    half precision with masks of one byte; statistics, which they leave out, come on top."""
    draw = random.Random(1)
    for _ in range(200):
        a, b, s = (draw.randint(2, 64) for _ in range(3))
        h = a * draw.randint(1, 64)
        model = CountedModel(d_model=h, n_heads=a, d_ff=4 * h, activation="gelu", attention_dropout=0.1)
        kept = memory.encoder_layer(model, Storage("bf16", "mps"), batch=b, source=s)
        assert kept - 16 * b * s == s * b * h * 34 + 5 * a * s * s * b


# Against the built model: everything that autograd keeps, each storage once, parameters left out.


SIDES = ("encoder", "decoder")
STACKS = {"encoder-decoder": SIDES, "decoder-only": ("decoder",), "encoder-only": ("encoder",)}


def drawn(seed: int) -> tuple[CountedModel, Work, int]:
    """A small model over all options that change what is kept, and work for it. Heads and tokens are never alone, for
    PyTorch does without some copies then."""
    draw = random.Random(seed)
    architecture = draw.choice(["encoder-decoder", "encoder-decoder", "decoder-only", "encoder-only"])
    n_kv_heads = draw.choice([2, 3])
    n_heads = n_kv_heads * draw.choice([1, 2])
    model = CountedModel.model_validate(
        {
            "d_model": n_heads * 2 * draw.randint(1, 5),
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "d_head": draw.choice([None, 2, 6]),
            "d_ff": draw.randint(2, 40),
            "architecture": architecture,
            "n_layers": {side: draw.randint(1, 3) if side in STACKS[architecture] else 0 for side in SIDES},
            "norm": draw.choice(["layer-norm", "rms-norm"]),
            "norm_position": draw.choice(["pre", "post"]),
            "qk_norm": draw.choice([True, False]),
            "final_norm": draw.choice([True, False, None]),
            "activation": draw.choice(["relu", "gelu", "silu", "swiglu", "geglu"]),
            "positions": draw.choice(["sinusoidal", "sinusoidal-table", "learned", "rotary", "none"]),
            "max_positions": 32,
            "bias": draw.choice([True, False]),
            "output_bias": draw.choice([True, False]),
            "tied": draw.choice(
                ["all", "embeddings", "decoder", "none"] if len(STACKS[architecture]) > 1 else ["all", "none"]
            ),
            "embedding_scale": draw.choice([True, False]),
            **{name: draw.choice([0.0, 0.3]) for name in ("dropout", "attention_dropout", "activation_dropout")},
        }
    )
    return model, Work(draw.randint(1, 3), draw.randint(2, 12), draw.randint(2, 12)), draw.randint(5, 30)


def kept_by(run: Callable[[], torch.Tensor], network: torch.nn.Module) -> int:
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    assert result.requires_grad
    return sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in own)


class LargestAtOnce(TorchDispatchMode):
    """How many bytes fp32 tensors of these shapes took, at most, at a time."""

    def __init__(self, *shapes: tuple[int, int]) -> None:
        super().__init__()
        self.shapes, self.alive, self.bytes = shapes, dict[int, int](), 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float32 and made.shape in self.shapes:
            storage = made.untyped_storage()
            self.alive[storage.data_ptr()] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, storage.data_ptr(), None)
            self.bytes = max(self.bytes, sum(self.alive.values()))
        return made


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("storage", [CPU, BF16, Storage(fused=True)], ids=["fp32", "bf16", "fused"])
def test_a_training_pass_keeps_the_bytes_that_autograd_saves(seed, storage):
    torch.manual_seed(0)
    model, work, vocab = drawn(seed)
    if storage.fused:  # on the CPU PyTorch's kernel does without dropout
        model = model.model_copy(update={"attention_dropout": 0.0})
    network = build_counted(model, source_vocab=vocab, target_vocab=vocab).train()
    network.use_attention(fused=storage.fused)
    copies = 0
    if storage.precision == "bf16":
        working = WorkingCopy(network.compute_in(torch.bfloat16, training=True)).model
        copies = n_bytes(p for p in working.parameters() if p.dtype == torch.bfloat16)
        network = working
    found = of_purpose(model, work, storage, vocab=vocab)
    states = ("weights", "gradients", "optimizer", "logits")
    kept = sum(n for name, n in found.items() if name not in states)
    assert kept == copies + kept_by(lambda: loss_of(network, work), network)


def loss_of(network: Model, work: Work) -> torch.Tensor:
    sources = torch.full((work.batch_size, work.source_length), 4)
    targets = torch.full((work.batch_size, work.target_length), 4)
    lengths = torch.full((work.batch_size,), work.source_length)
    if isinstance(network, EncoderOnly):
        return network(sources, lengths).sum()
    hidden = network(targets) if isinstance(network, DecoderOnly) else network(sources, lengths, targets)
    return loss.cross_entropy(hidden, network.output.weight, targets, bias_V=network.output_bias)


@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "adamw", "ema": 0.9}, {"optimizer": "muon", "ema": 0.9}, {"optimizer": "schedule-free"}],
)
def test_an_update_leaves_the_bytes_of_its_optimizer_and_average(options, tied):
    shape = {"tied": tied, "activation": "swiglu", "positions": "sinusoidal-table", "max_positions": 9}
    model = CountedModel(d_model=16, n_heads=2, n_kv_heads=1, d_ff=8, n_layers=1, qk_norm=True, **shape)
    network, training = build_counted(model, source_vocab=20, target_vocab=20), TrainingConfig(**options)
    items = of_purpose(model, Work(2, 3, 4), CPU, vocab=20, options=training)
    optimizer = build_optimizer(network, training)
    average = average_of(network, optimizer, training.ema)
    loss_of(network, Work(2, 3, 4)).backward()
    optimizer.step()
    state = state_tensors(optimizer, network)
    assert items["weights"] == n_bytes(network.parameters())
    assert items["gradients"] == n_bytes(p.grad for p in network.parameters() if p.grad is not None)
    assert items["optimizer"] == n_bytes(tensor for name, tensor in state.items() if tensor.dim())
    assert items.get("average", 0) == n_bytes(average.tensors().values())
    assert items["gradients"] < items["weights"]


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
@pytest.mark.parametrize("storage", [CPU, BF16], ids=["fp32", "bf16"])
def test_two_readings_keep_twice_the_activations_and_what_they_are_compared_by(storage, tied):
    model = CountedModel(d_model=16, n_heads=2, d_ff=8, n_layers=1, tied=tied, output_bias=True)
    network = build_counted(model, source_vocab=20, target_vocab=20)
    plain, twice = (of_purpose(model, Work(n, 3, 4), storage, vocab=20) for n in (3, 6))
    found = of_purpose(model, Work(3, 3, 4), storage, vocab=20, options=TrainingConfig(r_drop=5))
    assert plain["encoder_layers"] < twice["encoder_layers"]
    assert found == twice | {"disagreement": found["disagreement"]}

    hidden = torch.zeros(
        24, 16, dtype=torch.float32 if storage.precision == "fp32" else torch.bfloat16
    ).requires_grad_()
    weight, bias, is_table = network.output.weight, network.output_bias, tied != "none"
    both = hidden[:12], hidden[12:]
    with LargestAtOnce((24, 20), (12, 20)) as tables:
        kept = kept_by(lambda: loss.disagreement(*both, weight, bias_V=bias, is_table=is_table), network)
    assert found["disagreement"] == kept + tables.bytes


def n_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def of_purpose(
    model: CountedModel, work: Work, storage: Storage, *, vocab: int, options: TrainingConfig | None = None
) -> dict[str, int]:
    counted = count(model, source_vocab=vocab, target_vocab=vocab)
    items = memory.training(counted, work, storage, target_vocab=vocab, options=options)
    return {item.name: item.bytes for item in items}


def test_attention_that_never_holds_its_weights_keeps_what_autograd_saves():
    """Queries, keys, values, output, and the logarithm of each row's sum: PyTorch's kernel without a mask."""
    model = CountedModel(d_model=24, n_heads=3, d_ff=8, n_layers=1, dropout=0.0, positions="none", n_kv_heads=3)
    attention = build_counted(model, source_vocab=9, target_vocab=9).encoder.layers[0].self_attention
    attention.attend.fused = True
    x = torch.randn(2, 7, 24, requires_grad=True)
    fused = Storage(fused=True)
    kept = kept_by(lambda: attention(x, None, Rows(7)), attention)
    assert memory.attention(model, fused, batch=2, queries=7, keys=7) == kept


@pytest.mark.parametrize(
    ("n_vocab", "n_tokens", "d_model"),
    [(1000, 50, 1), (loss.PIECE_ELEMENTS // 100, 250, 1), (loss.PIECE_ELEMENTS * 2, 3, 1), (4000, 50, 40)],
)
@pytest.mark.parametrize("scale", [0.0, 1e3], ids=["usual", "huge"])
def test_the_loss_holds_as_many_logits_at_a_time_as_is_said(n_vocab, n_tokens, d_model, scale, monkeypatch):
    """Also where they are computed again, for what their exponentials came to."""
    made: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def product(*given):
        nonlocal most
        result = linear(*given)
        if result.shape[-1] == n_vocab:
            made.append(weakref.ref(result))
        most = max(most, sum(one.numel() for ref in made if (one := ref()) is not None))
        return result

    linear = loss.linear
    monkeypatch.setattr(loss, "linear", product)
    hidden, weight = torch.full((n_tokens, d_model), scale), torch.ones(n_vocab, d_model)
    loss.cross_entropy(hidden, weight, torch.ones(n_tokens, dtype=torch.long))
    model = CountedModel(d_model=d_model, n_heads=1, d_ff=1, n_layers=1)
    assert of_purpose(model, Work(1, 1, n_tokens), CPU, vocab=n_vocab)["logits"] == 4 * most
    assert len(made) > 1 or scale == 0 or n_tokens < n_vocab


def test_on_a_gpu_the_loss_holds_more_logits_at_a_time():
    model = CountedModel(d_model=8, n_heads=1, d_ff=1, n_layers=1)
    most = loss.PIECE_ELEMENTS_ON_A_GPU
    assert most > loss.PIECE_ELEMENTS
    for n_vocab, n_tokens in ((most // 100, 90), (most // 100, 250)):
        logits = of_purpose(model, Work(1, 1, n_tokens), GPU, vocab=n_vocab)["logits"]
        assert logits == 2 * n_vocab * min(n_tokens, most // n_vocab)


# Decoding.


@pytest.mark.parametrize(
    ("model", "storage", "tokens", "expected"),
    [
        # 2 x layers x heads of keys and values x width x bytes, per token
        (LLAMA2_7B, GPU, 1, 524288),
        (LLAMA2_7B, GPU, 4096, 2147483648),
        (LLAMA3_8B, GPU, 8192, 1073741824),
        (GPT3, GPU, 2048, 9663676416),
        (GPT2, CPU, 1024, 75497472),
    ],
)
def test_the_caches_of_known_models_have_the_known_sizes(model, storage, tokens, expected):
    [cache] = memory.caches(model, Work(1, 0, tokens), storage)
    assert (cache.name, cache.bytes) == ("self_cache", expected)


def test_beams_share_the_cache_of_the_source():
    """Transformer base in fp32, four beams, a hundred tokens a side."""
    found = {item.name: item.bytes for item in memory.caches(BASE, Work(1, 100, 100, beam_size=4), CPU)}
    assert found == {"self_cache": 9830400, "cross_cache": 2457600}


def translating(seed: int, storage: Storage) -> tuple[CountedModel, Work, int, Transformer]:
    """What `drawn` draws, made to be translated with."""
    model, work, vocab = drawn(seed)
    model = model.model_copy(update={"architecture": "encoder-decoder", "n_layers": Depths(encoder=2, decoder=3)})
    network = build_counted(model, source_vocab=vocab, target_vocab=vocab).eval()
    assert isinstance(network, Transformer)
    if storage.precision == "bf16":
        network.compute_in(torch.bfloat16, training=False)
    return model, work, vocab, network


@pytest.mark.parametrize("storage", [CPU, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("seed", range(10))
def test_caches_are_as_large_as_the_real_ones(seed, storage):
    model, work, _, network = translating(seed, storage)
    work = replace(work, source_length=work.source_length + LEAST_KEYS)  # of fewer there is room for these
    prepared, shape = Prepared(network), (work.batch_size, work.source_length)
    state = prepared.start(torch.full(shape, 4), torch.full(shape[:1], work.source_length))
    for _ in range(work.target_length):
        prepared.step(torch.full((work.batch_size,), 4), state)
    found = {item.name: item.bytes for item in memory.caches(model, work, storage)}
    assert found["self_cache"] == n_bytes([state.past_PLBGNK[..., : state.end, :]])
    assert found["cross_cache"] == n_bytes((state.memory_keys_LBGKS, state.memory_values_LBGSK))


@pytest.mark.parametrize("storage", [CPU, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_laid_out_for_translating_takes_the_bytes_of_its_tensors(seed, storage, monkeypatch):
    """Each storage once that the module does not hold."""
    monkeypatch.setattr(products, "Packed", products.Transposed)  # the bytes of oneDNN's layout cannot be asked for
    monkeypatch.setattr(laid_out, "can_pack", lambda weight: True)  # nor of a machine that has none
    model, work, vocab, network = translating(seed, storage)
    prepared = Prepared(network)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    forms = {"prepared_weights": prepared.for_many, "prepared_for_few": prepared.for_few}
    copied = {
        name: n_bytes(t for pointer, t in tensors_of(form).items() if pointer not in own)
        for name, form in forms.items()
    }
    counted = memory.decoding(count(model, source_vocab=vocab, target_vocab=vocab), work, storage)
    found = {item.name: item.bytes for item in counted if item.name in forms}
    assert found == copied


def tensors_of(thing: object) -> dict[int, torch.Tensor]:
    """All that can be reached from a form, by their storage."""
    found, seen, waiting = {}, set(), [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            found[one.untyped_storage().data_ptr()] = one
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        elif id(one) not in seen and isinstance(one, Form | Around | Layer | Product | list | FunctionType):
            seen.add(id(one))
            cells = (cell.cell_contents for cell in getattr(one, "__closure__", None) or ())
            waiting += one if isinstance(one, list) else [*vars(one).values(), *cells]
    return found


@pytest.mark.parametrize("tied", ["all", "embeddings", "decoder", "none"])
def test_translating_in_bf16_holds_the_weights_that_the_module_holds(tied):
    model = CountedModel(d_model=16, n_heads=2, d_ff=8, n_layers=2, tied=tied)
    network = build_counted(model, source_vocab=20, target_vocab=20).eval().compute_in(torch.bfloat16, training=False)
    [weights, *_] = memory.decoding(count(model, source_vocab=20, target_vocab=20), Work(1, 1, 1), Storage("bf16"))
    assert weights.bytes == n_bytes(network.parameters())
