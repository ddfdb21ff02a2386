"""Presets of hardware, the roofline, and what training costs, against published numbers."""

from __future__ import annotations

from datetime import date

import pytest

from transformer_cli.accounting import flops, hardware, memory
from transformer_cli.accounting.flops import Work
from transformer_cli.accounting.memory import Storage
from transformer_cli.accounting.parameters import Count, count
from transformer_cli.config.accounting import CountedModel
from transformer_cli.errors import UsageError

GPT3 = CountedModel(
    architecture="decoder-only",
    d_model=12288,
    n_heads=96,
    d_ff=49152,
    n_layers=96,
    positions="learned",
    max_positions=2048,
)
LLAMA2_7B = CountedModel(
    architecture="decoder-only",
    d_model=4096,
    n_heads=32,
    d_ff=11008,
    n_layers=32,
    norm="rms-norm",
    activation="swiglu",
    positions="rotary",
    bias=False,
    tied="none",
)
PAPER = {"norm_position": "post", "n_layers": 6, "bias": {"attention": False, "feed_forward": True}}
BASE = CountedModel.model_validate({"d_model": 512, "n_heads": 8, "d_ff": 2048, **PAPER})
BIG = CountedModel.model_validate({"d_model": 1024, "n_heads": 16, "d_ff": 4096, **PAPER})


def counted(model: CountedModel, vocab: int) -> Count:
    return count(model, source_vocab=vocab, target_vocab=vocab)


@pytest.mark.parametrize(
    ("model", "vocab", "tokens", "expected"),
    [
        # Brown et al. 2020, appendix D: 3.14e23 FLOPs, 3,640 petaflop/s-days
        (GPT3, 50257, 300 * 10**9, 314287666790400000000000),
        # Touvron et al. 2023, table 2: 2T tokens
        (LLAMA2_7B, 32000, 2 * 10**12, 80860987392000000000000),
    ],
)
def test_the_rule_of_six_gives_the_published_cost_of_language_models(model, vocab, tokens, expected):
    assert flops.rule_of_thumb(counted(model, vocab), Work(1, 0, 1024), tokens=tokens) == expected


@pytest.mark.parametrize(
    ("model", "steps", "expected", "published", "utilisation"),
    [
        # Vaswani et al. 2017, table 2: training time x 8 P100s x 9.5 TFLOP/s; batches of 25,000 tokens a side
        (BASE, 100_000, 9.45e17, 3.3e18, 0.288),
        (BIG, 300_000, 9.63e18, 2.3e19, 0.419),
    ],
)
def test_the_rule_of_six_splits_an_encoder_decoder(model, steps, expected, published, utilisation):
    cost = flops.rule_of_thumb(counted(model, 37000), Work(1, 25, 25), tokens=25_000 * steps)
    assert cost == pytest.approx(expected, rel=5e-4)
    assert cost / published == pytest.approx(utilisation, abs=0.003)


@pytest.mark.parametrize("work", [Work(1, 7, 20), Work(1, 30, 4)])
def test_the_rule_of_six_is_the_exact_count_without_scores_for_any_two_lengths(work):
    found = flops.terms(BASE, flops.training(work), target_vocab=37000)
    without_scores = sum(t.flops for t in found if not t.part.endswith(("scores", "mixture")))
    assert flops.rule_of_thumb(counted(BASE, 37000), work, tokens=work.target_length) == 3 * without_scores


def test_llama_2_at_full_utilisation_takes_the_known_hours():
    a100 = hardware.find("a100-sxm-80gb")
    cost = flops.rule_of_thumb(counted(LLAMA2_7B, 32000), Work(1, 0, 4096), tokens=2 * 10**12)
    hours = cost / a100.peak_flops_per_s["bf16"] / 3600
    assert round(hours) == 71992
    assert hours / 184320 == pytest.approx(0.391, abs=0.0005)


def test_training_flops_are_three_forward_passes_of_all_sentences():
    work = Work(7, 25, 20)
    forward = sum(t.flops for t in flops.terms(BASE, flops.training(work), target_vocab=37000))
    assert flops.training_flops(BASE, work, tokens=7 * 20, target_vocab=37000) == 3 * forward


def test_training_flops_agree_with_the_rule_of_six_up_to_scores_biases_and_positions():
    work, tokens = Work(1, 0, 64), 64 * 10**6
    exact = flops.training_flops(GPT3, work, tokens=tokens, target_vocab=50257)
    assert exact == pytest.approx(flops.rule_of_thumb(counted(GPT3, 50257), work, tokens=tokens), rel=2e-3)


def test_all_of_llama_2_is_read_in_four_milliseconds_on_an_h100():
    """13.48 GB at 3.35 TB/s: 4.02 ms, 249 times a second."""
    whole = 2 * counted(LLAMA2_7B, 32000).total
    computed = sum(t.flops for t in flops.terms(LLAMA2_7B, flops.step(Work(1, 0, 0)), target_vocab=32000))
    bound = hardware.roofline(hardware.find("h100-sxm"), "bf16", flops=computed, bytes_moved=whole)
    assert whole == 13476831232
    assert bound.by == "memory"
    assert round(1000 * bound.seconds, 2) == 4.02
    assert round(1 / bound.seconds) == 249


@pytest.mark.parametrize("tied", ["all", "none"])
def test_of_a_table_that_is_no_output_only_the_rows_that_are_looked_up_are_read(tied):
    """They used to count whole, so that a bound on the speed could be beaten."""
    model = LLAMA2_7B.model_copy(update={"tied": tied})
    norms = (2 * 32 + 1) * 4096
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    read = memory.read_by_step(counted(model, 32000), Work(1, 0, 0), Storage("bf16", "cuda"))
    # The row of a table is in fp32; what is multiplied with is a copy, tied or not.
    assert read == 2 * (matrices + norms + 32000 * 4096) + 4 * 4096


def test_reading_a_source_takes_the_encoder_and_the_rows_of_its_tokens_and_computing_is_what_takes_long():
    work, bf16, device = Work(1, 256, 256), Storage("bf16", "cuda"), hardware.find("a100-sxm-80gb")
    read = memory.read_by_prefill(counted(BASE, 37000), work, bf16)
    encoder = 6 * (2 * (4 * 512**2 + 2 * 512 * 2048 + 2048 + 512) + 2 * 4 * 512)
    assert read == encoder + 2 * 6 * 2 * 512**2 + 4 * 256 * 512
    computed = sum(t.flops for t in flops.terms(BASE, flops.prefill(BASE, work), target_vocab=37000))
    assert hardware.roofline(device, "bf16", flops=computed, bytes_moved=read).by == "compute"


@pytest.mark.parametrize("tied", ["all", "embeddings", "decoder", "none"])
def test_a_pass_with_every_piece_reads_the_tables_and_all_that_is_laid_out_for_translating(tied):
    model = BASE.model_copy(update={"tied": tied})
    work, bf16, found = Work(50, 1, 1), Storage("bf16", "cuda"), counted(model, 50)
    prepared = {item.name: item.bytes for item in memory.decoding(found, work, bf16)}["prepared_weights"]
    biases = sum(part.parameters for part in found.parts if part.component == "ffn_bias")  # shared with the module
    tables = 4 * 512 * 50 * (1 if tied in ("all", "embeddings") else 2)
    read = memory.read(found, flops.Pass(1, 1, encoded=50, decoded=50, projected=50), bf16)
    assert read == prepared + 2 * biases + tables


@pytest.mark.parametrize(
    ("name", "precision", "flops_per_byte"),
    [
        ("h100-sxm", "bf16", 295),
        ("b200-sxm", "bf16", 281),
        ("h200-sxm", "bf16", 206),
        ("rtx-4090", "bf16", 164),
        ("a100-sxm-80gb", "bf16", 153),
    ],
)
def test_the_roof_has_its_ridge_where_it_is_known_to_be(name, precision, flops_per_byte):
    device = hardware.find(name)
    assert round(device.ridge(precision)) == flops_per_byte
    below, above = (
        hardware.roofline(device, precision, flops=intensity * 10**9, bytes_moved=10**9)
        for intensity in (flops_per_byte - 1, flops_per_byte + 1)
    )
    assert (below.by, above.by) == ("memory", "compute")
    assert below.seconds == below.memory_s > below.compute_s
    assert above.seconds == above.compute_s > above.memory_s


def test_a_step_reads_the_cache_and_the_token_of_every_beam_and_no_weight_of_the_encoder():
    base = counted(BASE, 37000)
    one, two = (memory.read_by_step(base, Work(1, 10, 20, beam_size=n), Storage()) for n in (1, 2))
    assert two - one == 4 * 2 * 6 * 512 * 20 + 4 * 512
    deeper = BASE.model_copy(update={"n_layers": BASE.depths.model_copy(update={"encoder": 60})})
    assert memory.read_by_step(counted(deeper, 37000), Work(1, 10, 20), Storage()) == one


def test_every_number_of_every_preset_has_a_source_and_a_date():
    assert len(hardware.presets()) > 10
    for device in hardware.presets().values():
        assert set(device.sources) >= {"memory_gb", "bandwidth_gb_per_s", "fp32_tflops"}
        for source in device.sources.values():
            assert source.what
            assert date(2016, 1, 1) < source.date


def test_the_peak_of_a_p100_is_that_of_its_clock():
    """It used to be the 9.5 TFLOP/s that Vaswani et al. estimate to be sustained."""
    assert hardware.find("p100").peak_flops_per_s == {"fp32": round(3584 * 2 * 1.48, -2) * 10**9}


def test_a_preset_is_found_by_its_name_or_by_a_beginning_that_no_other_has():
    assert hardware.find("L40S").key == hardware.find("l40").key == "l40s"


@pytest.mark.parametrize(
    ("name", "guess"), [("h100-smx", "h100-sxm"), ("h100", "h100-sxm or h100-pcie"), ("rtx4090", "rtx")]
)
def test_another_name_is_refused_with_the_nearest_and_all(name, guess):
    with pytest.raises(UsageError, match=name) as refused:
        hardware.find(name)
    assert f"did you mean {guess}" in refused.value.hint
    assert "mi300x" in refused.value.hint


@pytest.mark.parametrize("name", ["", "cpu", "zzz"])
def test_a_name_like_no_other_is_refused_with_all(name):
    with pytest.raises(UsageError) as refused:
        hardware.find(name)
    assert refused.value.hint.startswith("presets: b200-sxm")
