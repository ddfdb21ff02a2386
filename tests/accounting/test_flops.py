"""FLOPs by closed form, against PyTorch's counter on the built model, published numbers and the lectures' formula."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer_cli.accounting import flops
from transformer_cli.accounting.flops import Pass, Work
from transformer_cli.accounting.halves import build_counted
from transformer_cli.config.accounting import CountedModel
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.steps import LEAST_KEYS
from transformer_cli.training.loss import cross_entropy

# From the literature, or counted with torch.utils.flop_counter on other people's models.
GPT2 = CountedModel(
    architecture="decoder-only", d_model=768, n_heads=12, d_ff=3072, n_layers=12, activation="gelu", positions="learned"
)
LLAMA2_7B = CountedModel(
    architecture="decoder-only", d_model=4096, n_heads=32, d_ff=11008, n_layers=32, activation="swiglu"
)
BASE = CountedModel(d_model=512, n_heads=8, d_ff=2048, n_layers=6)
BIG = CountedModel(d_model=1024, n_heads=16, d_ff=4096, n_layers=6)
THREE_AND_TWO = {"encoder": 3, "decoder": 2}
MARIAN = CountedModel.model_validate({"d_model": 48, "n_heads": 4, "d_ff": 160, "n_layers": THREE_AND_TWO})
T5 = CountedModel.model_validate(
    {"d_model": 48, "n_heads": 5, "d_head": 16, "d_ff": 160, "activation": "geglu", "n_layers": THREE_AND_TWO}
)
LLAMA = CountedModel(
    architecture="decoder-only", d_model=64, n_heads=8, n_kv_heads=2, d_ff=176, activation="swiglu", n_layers=3
)


def forward(model: CountedModel, work: Work, target_vocab: int) -> int:
    return total(model, flops.training(work), target_vocab)


def total(model: CountedModel, a_pass: Pass, target_vocab: int) -> int:
    return sum(term.flops for term in flops.terms(model, a_pass, target_vocab=target_vocab))


@pytest.mark.parametrize(
    ("model", "work", "vocab", "expected"),
    [
        # karpathy/nanoGPT, transformer_sizing.ipynb: forward_total
        (GPT2, Work(1, 0, 1024), 50257, 291648307200),
        # MrYxJ/calculate-flops.pytorch prints 1700.06 G, elementwise operations included
        (LLAMA2_7B, Work(1, 0, 128), 32000, 1700001742848),
        # Counted on MarianMTModel, T5ForConditionalGeneration and LlamaForCausalLM of transformers 4.57.6
        (MARIAN, Work(2, 30, 25), 211, 18895680),
        (T5, Work(2, 30, 25), 211, 29384000),
        (LLAMA, Work(2, 0, 30), 211, 18854400),
        # Vaswani et al. 2017, table 3, with 37,000 pieces
        (BASE, Work(1, 25, 25), 37000, 3172249600),
        (BIG, Work(1, 25, 25), 37000, 10748518400),
    ],
    ids=["gpt2", "llama-2-7b", "marian", "t5", "llama", "base", "big"],
)
def test_forward_flops_are_the_known_ones(model, work, vocab, expected):
    assert forward(model, work, vocab) == expected


@pytest.mark.parametrize(
    ("batch", "length", "d_model", "n_heads", "expected"),
    [
        (1, 5, 512, 8, 10536960),
        (3, 7, 512, 8, 44341248),
        (2, 100, 64, 4, 11673600),
        (1, 2048, 12288, 96, 2680059592704),
    ],
)
def test_multi_head_attention_costs_what_the_lectures_say(batch, length, d_model, n_heads, expected):
    assert multi_head_attention(batch, length, d_model, n_heads) == expected


def test_multi_head_attention_costs_4_b_d_l_times_2_d_plus_l():
    draw = random.Random(1)
    for _ in range(500):
        batch, length, n_heads = (draw.randint(1, 300) for _ in range(3))
        d_model = n_heads * draw.randint(1, 256)
        expected = 4 * batch * d_model * length * (2 * d_model + length)
        assert multi_head_attention(batch, length, d_model, n_heads) == expected


def multi_head_attention(batch: int, length: int, d_model: int, n_heads: int) -> int:
    model = CountedModel(architecture="encoder-only", d_model=d_model, n_heads=n_heads, n_layers=1)
    found = flops.terms(model, flops.training(Work(batch, length, 0)), target_vocab=7)
    return sum(term.flops for term in found if term.part.startswith("encoder_self"))


def test_cross_attention_costs_what_the_counter_saw():
    """Two sentences, 9 queries of 13 keys, width 512: keys and values are made of source tokens, queries of targets."""
    found = flops.terms(
        CountedModel(d_model=512, n_heads=8, n_layers=1), flops.training(Work(2, 13, 9)), target_vocab=0
    )
    assert sum(term.flops for term in found if term.part.startswith("cross")) == 46616576


def test_products_say_their_factors():
    [query, *_] = flops.terms(BASE, flops.training(Work(2, 25, 25)), target_vocab=37000)
    assert (query.part, query.macs.text) == ("encoder_self.query", "50 tokens x 512 x 64 x 8 heads x 6 layers")
    assert query.flops == 2 * query.macs.value == 2 * 50 * 512 * 512 * 6


# Against the built model. The counter sees every product that PyTorch runs; of the fused kernels it knows but a few, so
# that attention is asked to be made of products.


def drawn(seed: int) -> tuple[CountedModel, Work, int]:
    """A small model over all options that change a product, and work for it; sizes are all different, so that none
    can stand in for another."""
    draw = random.Random(seed)
    n_kv_heads, group = draw.choice([1, 2, 3]), draw.choice([1, 2])
    d_head = draw.choice([None, 2, 6, 10])
    n_heads = n_kv_heads * group
    model = CountedModel.model_validate(
        {
            "architecture": draw.choice(["encoder-decoder", "encoder-decoder", "decoder-only", "encoder-only"]),
            "d_model": n_heads * 2 * draw.randint(1, 8),
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "d_head": d_head,
            "d_ff": draw.randint(1, 60),
            "norm": draw.choice(["layer-norm", "rms-norm"]),
            "norm_position": draw.choice(["pre", "post"]),
            "activation": draw.choice(["relu", "gelu", "silu", "swiglu", "geglu"]),
            "positions": draw.choice(["sinusoidal", "sinusoidal-table", "learned", "rotary", "none"]),
            "bias": draw.choice([True, False]),
            "tied": draw.choice(["all", "none"]),
            "dropout": draw.choice([0.0, 0.1]),
            "attention_dropout": draw.choice([0.0, 0.1]),
            "max_positions": 64,
        }
    )
    if model.architecture == "encoder-decoder":
        layers = {"encoder": draw.randint(1, 3), "decoder": draw.randint(1, 3)}
        model = CountedModel.model_validate({**model.model_dump(), "n_layers": layers})
    work = Work(draw.randint(1, 4), draw.randint(1, 20), draw.randint(1, 20), 1)
    return model, work, draw.randint(2, 99)


def counted(run: Callable[[], object]) -> int:
    onto = {torch.ops.aten.addmm_: lambda _, x, weight, **more: 2 * math.prod(x) * weight[1]}  # unknown to the counter
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=onto) as counter:
        run()
    return counter.get_total_flops()


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.ones(batch, length, dtype=torch.long)


def built(model: CountedModel, vocab: int) -> torch.nn.Module:
    return build_counted(model, source_vocab=vocab, target_vocab=vocab)


def run_forward(network: torch.nn.Module, model: CountedModel, work: Work) -> torch.Tensor:
    """What the whole network makes of all tokens at once: logits, or an encoder's output."""
    lengths = torch.full((work.batch_size,), work.source_length)
    sources, targets = ids(work.batch_size, work.source_length), ids(work.batch_size, work.target_length)
    if model.architecture == "encoder-only":
        return network(sources, lengths)
    if model.architecture == "decoder-only":
        return network.project(network(targets))
    return network.project(network(sources, lengths, targets))


@pytest.mark.parametrize("seed", range(30))
def test_forward_and_backward_are_what_the_counter_sees(seed):
    model, work, vocab = drawn(seed)
    network = built(model, vocab).train()
    network.use_attention(fused=seed % 2 == 0)
    expected = forward(model, work, vocab)
    outputs = []
    assert counted(lambda: outputs.append(run_forward(network, model, work))) == expected
    assert counted(outputs[0].sum().backward) == 2 * expected


@pytest.mark.parametrize("seed", range(10))
def test_where_parts_are_frozen_backward_is_at_most_that(seed):
    model, work, vocab = drawn(seed)
    network = built(model, vocab).train()
    parameters = random.Random(seed).sample(list(network.parameters()), 3)
    for parameter in network.parameters():
        parameter.requires_grad_(any(parameter is one for one in parameters))
    outputs = run_forward(network, model, work)
    assert counted(outputs.sum().backward) <= 2 * forward(model, work, vocab)


@pytest.mark.usefixtures("countable")
def test_the_real_loss_costs_as_much_as_whole_logits():
    """It makes its gradients while it has the logits: one product forward, two backward, all in the forward pass."""
    vocab, n_tokens, d_model = 11, 6, 4
    hidden = torch.randn(n_tokens, d_model, requires_grad=True)
    weight = torch.randn(vocab, d_model, requires_grad=True)
    targets = torch.ones(n_tokens, dtype=torch.long)
    assert counted(lambda: cross_entropy(hidden, weight, targets)) == 3 * 2 * n_tokens * d_model * vocab


@pytest.mark.parametrize("seed", range(10))
def test_reading_the_source_and_one_step_are_what_the_counter_sees(seed):
    model, work, vocab = drawn(seed)
    model = model.model_copy(update={"architecture": "encoder-decoder"})
    # Of fewer keys than these the search's products have some that are hidden.
    work = replace(work, source_length=work.source_length + LEAST_KEYS, target_length=work.target_length + LEAST_KEYS)
    prepared = Prepared(built(model, vocab).double().eval())  # oneDNN's products, in fp32, the counter does not know
    prepared.for_many.folds = False  # which takes longer to read and less to write
    lengths = torch.full((work.batch_size,), work.source_length)
    states = []
    reading = counted(lambda: states.append(prepared.start(ids(work.batch_size, work.source_length), lengths)))
    assert reading == total(model, flops.prefill(model, work), vocab)
    for _ in range(work.target_length - 1):
        prepared.step(ids(work.batch_size, 1).flatten(), states[0])
    step = counted(lambda: prepared.step(ids(work.batch_size, 1).flatten(), states[0]))
    assert step == total(model, flops.step(work), vocab)


def test_reading_a_prompt_ends_in_the_logits_of_its_last_token_alone():
    work = Work(3, 0, 9)
    network = built(LLAMA, 50).eval()
    expected = total(LLAMA, flops.prefill(LLAMA, work), 50)
    assert counted(lambda: network.project(network(ids(3, 9))[:, -1])) == expected


def test_beams_add_tokens_to_a_step_and_nothing_to_the_source():
    one, five = Work(3, 20, 10, beam_size=1), Work(3, 20, 10, beam_size=5)
    assert total(BASE, flops.step(five), 100) == 5 * total(BASE, flops.step(one), 100)
    assert flops.prefill(BASE, five) == flops.prefill(BASE, one)


def test_all_steps_without_what_the_mask_hides_are_the_forward_pass():
    """Writing token by token does the work of reading all at once, but for the source and the hidden future."""
    whole = forward(BASE, Work(2, 9, 7), 100)
    steps = sum(total(BASE, flops.step(Work(2, 9, length)), 100) for length in range(1, 8))
    reading = total(BASE, flops.prefill(BASE, Work(2, 9, 7)), 100)
    assert reading + steps == whole - flops.hidden_by_mask(BASE, Work(2, 9, 7))


def test_a_source_token_never_meets_the_decoder_nor_a_target_token_the_encoder():
    per_source = forward(BASE, Work(1, 2, 0), 100) - forward(BASE, Work(1, 1, 0), 100)
    found = {term.part.split(".")[0] for term in flops.terms(BASE, flops.training(Work(1, 2, 0)), target_vocab=100)}
    assert per_source > 0
    assert found == {"encoder_self", "encoder_ffn", "cross"}
    without_source = flops.terms(BASE, flops.training(Work(1, 0, 2)), target_vocab=100)
    assert not [term for term in without_source if term.part.startswith("encoder") or term.part == "cross.key"]
