"""The sections that `tx count-params` adds: as tables, as JSON, and refused where they make no sense."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from transformer_cli.cli import app
from transformer_cli.cli.cost_tables import duration
from transformer_cli.errors import UsageError

LLAMA2_7B = (
    "accounting: {architecture: decoder-only, vocab: 32000}\n"
    "model: {d_model: 4096, n_heads: 32, d_ff: 11008, n_layers: 32, norm: rms-norm, "
    "activation: swiglu, positions: rotary, bias: false, tied: none}\n"
)
EVERYTHING = ("--shapes", "--flops", "--memory", "--hardware", "h100-sxm")


def counted(capsys, *arguments):
    assert app.main(["count-params", *arguments, "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_two_readings_of_a_sentence_take_twice_the_time(capsys):
    arguments = ("small-data.yaml", "--flops", "--hardware", "h100-sxm", "--memory")
    once, twice = (counted(capsys, *arguments, "--set", f"training.r_drop={weight}") for weight in ("null", 5))
    assert twice["flops"]["training"]["flops"] == 2 * once["flops"]["training"]["flops"]
    hidden = [found["flops"]["training"]["hidden_by_mask_flops"] for found in (once, twice)]
    assert hidden[1] == 2 * hidden[0] > 0
    one, two = (found["hardware"]["training"] for found in (once, twice))
    assert (two["flops"], two["tokens"]) == (2 * one["flops"], one["tokens"])
    assert two["seconds"] == pytest.approx(2 * one["seconds"])
    assert two["tokens_per_s"] == pytest.approx(one["tokens_per_s"] / 2)
    assert twice["flops"]["step"] == once["flops"]["step"]


def test_that_columns_of_training_are_of_two_readings_is_said(capsys):
    """The title said 1 sentence, and the notes counted one where the table had both."""
    arguments = ("tiny.yaml", "--flops", "--source-length=10", "--target-length=10", "-b1", "--set")
    assert [
        counted(capsys, *arguments, f"training.r_drop={weight}")["flops"]["training"]["readings"]
        for weight in ("null", 5)
    ] == [1, 2]
    found = []
    for weight in ("null", 5):
        assert app.main(["count-params", *arguments, f"training.r_drop={weight}"]) == 0
        found.append(" ".join(capsys.readouterr().out.split()))
    once, twice = found
    said = "R-Drop reads each sentence twice: Forward and Backward are of both readings."
    assert (said in once, said in twice) == (False, True)
    for number in (r"throws ([\d,]+) of the forward", r"Self-attention of one decoder layer.* = ([\d,]+)\."):
        one, two = (int(re.search(number, text)[1].replace(",", "")) for text in found)
        assert two == 2 * one


def test_flops_are_exact_integers_per_part_with_the_products_that_give_them(capsys):
    found = counted(capsys, "transformer-base.yaml", "--flops", "--source-length=25", "--target-length=25", "-b1")[
        "flops"
    ]
    training = found["training"]
    assert training["forward_flops"] == 3172249600
    assert training["flops"] == 3 * training["forward_flops"] == 6 * training["macs"]
    for name in ("training", "prefill", "step"):
        assert sum(part["macs"] for part in found[name]["parts"]) == found[name]["macs"]
    assert found["step"]["parts"][0] == {
        "part": "decoder_self.query",
        "product": "1 token x 512 x 64 x 8 heads x 6 layers",
        "macs": 1572864,
        "flops": 3145728,
    }


def test_the_table_of_flops_adds_up_and_backward_is_twice_forward(capsys):
    assert app.main(["count-params", "gpt3.yaml", "--convention=exact", "--flops"]) == 0
    table = capsys.readouterr().out.replace(",", "").split("TFLOP for")[1]
    found = re.findall(r"^ *(\w+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", table, re.MULTILINE)
    *parts, (name, *total) = [(name, *map(float, numbers)) for name, *numbers in found]
    assert (name, len(parts)) == ("total", 9)
    assert [sum(part[column] for part in parts) for column in (1, 2, 3, 4)] == pytest.approx(total, abs=0.05)
    assert [part[2] for part in parts] == pytest.approx([2 * part[1] for part in parts], abs=0.02)


def test_the_tutorials_attention_is_the_lectures_number_without_being_asked(capsys):
    assert app.main(["count-params", "tutorial.yaml", "--flops"]) == 0
    assert "= 10,536,960" in " ".join(capsys.readouterr().out.split())


def test_gpt2_reads_as_many_tokens_as_it_has_positions(capsys):
    """karpathy/nanoGPT counts 291,648,307,200 for them."""
    found = counted(capsys, "gpt2.yaml", "--flops")
    assert found["work"] == {"batch_size": 1, "source_length": 0, "target_length": 1024, "beam_size": 1, "drawn": False}
    assert found["flops"]["training"]["forward_flops"] == 291648307200


def test_memory_adds_up_and_beams_share_the_source(capsys):
    found = counted(
        capsys, "transformer-base.yaml", "--memory", "--source-length=100", "--target-length=100", "--beam-size=4"
    )["memory"]
    assert found["decoding"]["self_cache_bytes"] == 9830400
    assert found["decoding"]["cross_cache_bytes"] == 2457600
    assert found["training"]["weights_bytes"] == 4 * 63045632
    assert found["training"]["optimizer_bytes"] == 8 * 63045632
    for items in (found["training"], found["decoding"]):
        total = items.pop("total_bytes")
        assert total == sum(items.values())


def test_draws_are_counted_where_translations_are_drawn(capsys):
    """Of fifty draws the cache was that of a beam of five."""
    of = lambda *arguments: counted(capsys, "tiny", "--memory", "--flops", "--hardware=t4", *arguments)  # noqa: E731
    mbr, sampling = ("--set=decoding.mbr={samples: 50}", "--set=decoding.search=sampling")
    for found, given in ((of(mbr), of("-b50")), (of(sampling), of("-b1"))):
        assert found["work"] == given["work"] | {"drawn": True}
        assert found["memory"]["decoding"] == given["memory"]["decoding"]
        assert found["flops"]["step"]["flops"] == given["flops"]["step"]["flops"]
        assert found["hardware"]["step"] == given["hardware"]["step"]
    drawn = shown(capsys, "tiny", "--memory", "--flops", mbr)
    assert "50 draws x 256 tokens" in drawn
    assert "256 target tokens, 50 draws, fp32" in drawn
    assert "token 256 of every draw" in drawn
    assert "beam" not in drawn


def test_what_is_said_to_fit_is_a_batch_as_training_makes_it(capsys):
    """One sentence was said to fit, with whatever batches a run was configured."""
    of = lambda *arguments: counted(capsys, "base.yaml", "--memory", "--hardware=t4", *arguments)  # noqa: E731
    budget = "--set=training.budget_tokens="
    lengths = ("--source-length=100", "--target-length=120")
    for found, given in (
        (of(f"{budget}120000", *lengths), of("--batch-size=1000", *lengths)),
        (of(f"{budget}119999", *lengths), of("--batch-size=999", *lengths)),
    ):
        assert found["memory"]["training"] == given["memory"]["training"]
        assert found["memory"]["training_batch_size"] == given["work"]["batch_size"]
        assert found["hardware"]["needed"]["training_bytes"] == found["memory"]["training"]["total_bytes"]
    one, many = of("--batch-size=1"), of()
    assert many["memory"]["training"]["weights_bytes"] == one["memory"]["training"]["weights_bytes"]
    assert many["memory"]["decoding"] == one["memory"]["decoding"]
    large = ("base.yaml", "--hardware=t4", f"{budget}1000000")
    assert re.search(r"training, [0-9,]+ sentences [0-9.]+ GiB does not fit into 16 GB", shown(capsys, *large))
    assert re.search(r"training, 1 sentence [0-9.]+ MiB fits into 16 GB", shown(capsys, *large, "--batch-size=1"))
    assert "training, 1 sentence " in shown(capsys, "gpt2.yaml", "--hardware=t4")  # which tx does not train


def test_llama_2_on_an_h100(capsys, tmp_path):
    path = tmp_path / "llama2.yaml"
    path.write_text(LLAMA2_7B)
    found = counted(capsys, str(path), "--hardware=h100-sxm", "--target-length=1", "--tokens=2e12", "--utilisation=0.5")
    found = found["hardware"]
    assert found["precision"] == "bf16"
    assert found["step"]["seconds"] == pytest.approx(2 * (6738415616 - 32000 * 4096) / 3.35e12, rel=1e-3)
    assert found["step"]["bound_by"] == "memory"
    training = found["training"]
    assert training["rule_of_thumb_flops"] == 80860987392000000000000
    assert training["seconds"] == pytest.approx(training["flops"] / (0.5 * 989e12))
    assert training["seconds"] == pytest.approx(2e12 / training["tokens_per_s"])
    assert found["sources"]["bf16_tflops"]["date"] == "2026-08-22"


def test_what_tx_trains_is_trained_as_long_as_it_is_configured(capsys):
    found = counted(capsys, "base.yaml", "--hardware=a100-sxm-80gb", "--set=training.max_steps=10")["hardware"]
    assert found["training"]["tokens"] == 10 * 2048
    assert found["training"]["utilisation"] == 0.35


def test_passes_over_a_text_of_unknown_size_are_no_number_of_tokens(capsys):
    """tutorial.yaml, a hundred passes over five tokens, was said to train on 409,600,000."""
    found = counted(capsys, "tutorial.yaml", "--hardware=a100-sxm-80gb")["hardware"]
    assert set(found["training"]) == {"utilisation", "utilisation_is_assumed", "tokens_per_s"}
    assert "--tokens N adds the time" in shown(capsys, "tutorial.yaml", "--hardware=a100-sxm-80gb")
    given = shown(capsys, "tutorial.yaml", "--hardware=a100-sxm-80gb", "--tokens=500")
    assert "target tokens 500 as given" in given
    assert "--tokens N" not in given


def test_what_may_end_training_earlier_is_named(capsys):
    base = ("base.yaml", "--hardware=a100-sxm-80gb")
    both = "--set=training={stop_loss: 1.38, patience: 10}"
    assert f"{558 * 2048:,} full batches, as configured" in shown(capsys, *base)
    uneven = ("--source-length=256", "--target-length=64")  # a budget is of the longer side
    assert f"{558 * 8 * 64:,} full batches, as configured" in shown(capsys, *base, *uneven)
    assert "At most: training.stop_loss may end it" in shown(capsys, *base, both)
    assert "At most: training.patience may end it" in shown(capsys, *base, both)
    assert "At most:" not in shown(capsys, *base)
    assert "At most:" not in shown(capsys, *base, both, "--tokens=500")


def test_of_what_is_frozen_it_is_said_that_nothing_is_taken_off(capsys):
    """Hours were told as if all of it learned, without a word; MFU is not told at all then."""
    tables = ("tiny", "--flops", "--memory", "--hardware=t4", "--set")
    frozen, free = (shown(capsys, *tables, f"training.freeze={parts}") for parts in ("[encoder]", "[]"))
    for words in (
        "Backward is at most that",
        "Activations are at most that many",
        "Speed is at least, and time at most",
    ):
        assert words in frozen
    assert "training.freeze" not in free


def test_that_compiled_code_keeps_less_is_said_of_bf16_on_a_cpu(capsys):
    said = "Adam's moments and most gradients take half"
    in_bf16 = ("--memory", "--set=precision=bf16")
    assert said in shown(capsys, "tiny", *in_bf16, "--set=device=cpu")
    assert said not in shown(capsys, "tiny", "--memory")
    assert said not in shown(capsys, "tiny", *in_bf16, "--hardware=l40s")
    assert said not in shown(capsys, "gpt2", *in_bf16)  # which tx does not train


def test_hardware_decides_how_numbers_are_kept_unless_the_configuration_does(capsys):
    of = lambda *arguments: counted(capsys, "base.yaml", "--memory", *arguments)["memory"]  # noqa: E731
    assert of()["precision"] == "fp32"
    assert of("--hardware=l40s")["precision"] == "bf16"
    assert of("--hardware=v100")["precision"] == "fp16"
    assert of("--hardware=p100")["precision"] == "fp32"
    assert of("--hardware=l40s", "--set=precision=fp32")["precision"] == "fp32"
    assert (of()["device"], of("--hardware=l40s")["device"]) == ("cpu", "cuda")


@pytest.mark.parametrize("preset", ["gpt3.yaml", "bert-base.yaml", "tutorial.yaml", "time-series.yaml", "whisper-base"])
@pytest.mark.parametrize("form", ["--json", "--markdown", "--quiet"])
def test_every_kind_of_model_has_every_section_in_every_form(capsys, preset, form):
    assert app.main(["count-params", preset, *EVERYTHING, form]) == 0
    out = capsys.readouterr().out
    if form == "--json":
        assert set(json.loads(out)) >= {"work", "shapes", "flops", "memory", "hardware"}
    else:
        assert all(word in out for word in ("way through", "FLOP for", "training", "H100"))


def test_the_tables_fit_into_80_columns(capsys):
    for preset in ("base.yaml", "transformer-base.yaml", "gpt3.yaml", "llama-3-8b.yaml"):
        assert app.main(["count-params", preset, "--convention=exact", *EVERYTHING]) == 0
        lines = capsys.readouterr().out.split("\n")
        assert [line for line in lines if len(line) > 80] == []


def shown(capsys, *arguments):
    assert app.main(["count-params", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_tables_name_what_they_count(capsys):
    """A step has its own unit, for next to training it came to 0.00; tokens are of a side."""
    two = shown(capsys, "base.yaml", "--flops", "--hardware=p100")
    one = shown(capsys, "gpt3.yaml", "--flops", "--hardware=h100-sxm", "--tokens=300e9")
    assert "Step, kFLOP" in two
    assert "Step, MFLOP" in one
    assert "Self-attention of one decoder layer" in two
    assert re.search(r"target tokens 1,142,784 .* 6 \(N_enc S \+ N_dec T\): [0-9]", two)
    assert " tokens 300,000,000,000 as given" in one
    assert "target token" not in one
    assert " 6 N D: 3.143e+23" in one
    assert "5 beams" in two
    assert "1 beam" not in one
    assert "encoder layer" in shown(capsys, "bert-base", "--flops")


def test_a_bound_on_what_does_not_fit_says_so(capsys):
    assert "but decoding does not fit into 80 GB" in shown(capsys, "gpt3.yaml", "--hardware=h100-sxm")
    assert "but decoding" not in shown(capsys, "gpt2.yaml", "--hardware=h100-sxm")


def test_a_small_utilisation_is_shown(capsys):
    """0.001 used to be 0%."""
    of = lambda share: shown(capsys, "gpt2", "--hardware=h100-sxm", f"--utilisation={share}")  # noqa: E731
    assert "utilisation 0.1% of 989 TFLOP/s" in of("0.001")
    assert "utilisation 100% of 989 TFLOP/s" in of("1")


def test_only_what_has_logits_is_told_about_them(capsys):
    assert "Logits are made" in shown(capsys, "gpt2.yaml", "--memory")
    assert "Logits are made" not in shown(capsys, "bert-base.yaml", "--memory")


DROPOUTS = {
    # On sublayers, on attention weights, after the activation: those of the published configurations.
    "gpt2": (0.1, 0.1, 0),
    "bert-base": (0.1, 0.1, 0),
    "t5-small": (0.1, 0.1, 0.1),
    "bart-base": (0.1, 0.1, 0.1),
    "opus-mt": (0.1, 0, 0),
    "llama-3-8b": (0, 0, 0),
    "whisper-base": (0, 0, 0),
    "time-series": (0.1, 0.1, 0.1),
}


@pytest.mark.parametrize("preset", DROPOUTS)
def test_a_known_model_keeps_the_masks_of_its_own_dropouts(capsys, preset):
    """Llama's memory had masks in it, though it has no dropout; of BERT's attention they were missing."""
    model = counted(capsys, preset)["config"]["model"]
    assert (model["dropout"], model["attention_dropout"], model["activation_dropout"]) == DROPOUTS[preset]


def test_bf16_is_recommended_only_where_nothing_is_known_to_lack_it(capsys):
    """The T4's memory came with advice that the same command then refused."""
    assert "--set precision=bf16" in shown(capsys, "gpt2.yaml", "--memory")
    assert "--set precision=bf16" not in shown(capsys, "gpt2.yaml", "--memory", "--hardware=t4")
    assert "--set precision=bf16" not in shown(capsys, "gpt2.yaml", "--memory", "--set=precision=fp32")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["gpt3.yaml", "--hardware=h100-smx"], "no hardware preset: h100-smx", "did you mean h100-sxm?"),
        (["gpt3.yaml", "--hardware="], "no hardware preset", "presets: b200-sxm"),
        (["gpt3.yaml", "--flops", "--source-length=5"], "--source-length: gpt3 is decoder-only", "the other side"),
        (
            ["bert-base.yaml", "--flops", "--target-length=5"],
            "--target-length: bert-base is encoder-only",
            "other side",
        ),
        (["bert-base.yaml", "--memory", "--beam-size=5"], "--beam-size: bert-base is encoder-only", None),
        (["tiny", "--flops", "-b5", "--set=decoding.search=sampling"], "sampling has no beam", "leave it out"),
        (["gpt3.yaml", "--flops", "--target-length=2049"], "knows 2,048 positions", "max_positions"),
        (["gpt3.yaml", "--batch-size=5"], "--batch-size says how much", "or --hardware NAME"),
        (["gpt3.yaml", "--flops", "--tokens=5"], "--tokens is about training on hardware", "--hardware"),
        (["gpt3.yaml", "--utilisation=0.5"], "--utilisation is about training on hardware", "--hardware"),
        (["gpt3.yaml", "--hardware=v100", "--set=precision=bf16"], "is not known to compute in bf16", "precision=fp32"),
        (["gpt3.yaml", "--flops", "--compare=gpt2.yaml"], "those of one model", "--compare"),
        (["--list", "--flops"], "those of one model", "--list"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message, hint):
    with pytest.raises(UsageError) as refused:
        app.main(["count-params", *arguments])
    assert message in refused.value.message
    assert hint is None or hint in refused.value.hint
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "argument",
    [
        "--batch-size=0",
        "--source-length=-1",
        "--target-length=1.5",
        "--beam-size=true",
        "--batch-size=99999999999999999999",
        "--utilisation=0",
        "--utilisation=1.1",
        "--utilisation=nan",
        "--tokens=0",
        "--tokens=-5",
        "--tokens=1.5",
        "--tokens=many",
        "--tokens=nan",
        "--tokens=inf",
        "--tokens=1e999999999",
        "--tokens=1e-5",
        "--tokens=٣",
    ],
)
def test_numbers_that_are_none_end_in_a_message_and_exit_code_2(argument):
    with pytest.raises(Exception) as refused:  # noqa: PT011 - the class is the command line library's own
        app.main(["count-params", "base.yaml", "--hardware=l40s", argument])
    assert refused.value.exit_code == 2
    assert argument.split("=")[0] in refused.value.format_message()


def test_nothing_of_it_imports_torch():
    code = (
        "import sys\n"
        "from transformer_cli.cli.app import main\n"
        f"main(['count-params', 'gpt3.yaml', '--quiet', *{EVERYTHING!r}])\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert shown.stdout.endswith("False False\n")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (4.0229e-3, "4.02 ms"),
        (2e-6, "2 µs"),
        (2e-7, "0.2 µs"),
        (0.9994e-3, "999 µs"),
        (0.9999, "1 s"),
        (1.5, "1.5 s"),
        (59.9996, "1 minute"),
        (3595.1, "59.9 minutes"),
        (86350, "1 day"),
        (119, "1.98 minutes"),
        (7200, "2 hours"),
        (86400 * 5, "5 days"),
        (86400 * 365.25, "1 year"),
        (86400 * 365.25 * 999.9, "1,000 years"),
        (86400 * 365.25 * 1523, "1,523 years"),
    ],
)
def test_durations_are_said_in_the_unit_that_suits_them(seconds, words):
    assert duration(seconds) == words
