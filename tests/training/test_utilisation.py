"""MFU: FLOPs of sentences, counted one by one, over what the machine could do."""

from __future__ import annotations

import json

import numpy as np
import pytest

from transformer_cli.accounting.flops import Work, terms, training
from transformer_cli.accounting.hardware import of_device
from transformer_cli.config.accounting import CountedModel
from transformer_cli.machine import Machine
from transformer_cli.training import utilisation
from transformer_cli.training.utilisation import Utilisation, peak_flops, training_flops

OPTIONS = [
    {},
    {"n_kv_heads": 1, "activation": "swiglu", "n_layers": {"encoder": 3, "decoder": 1}},
    {"d_head": 5, "positions": "none", "tied": "none"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_text_is_the_sum_of_its_sentences(options, monkeypatch):
    monkeypatch.setattr(utilisation, "PART", 7)  # some are in the last part, fewer than in the others
    model = CountedModel.model_validate({"d_model": 16, "n_heads": 4, "d_ff": 24, "n_layers": 2, **options})
    lengths = np.random.default_rng(1).integers(1, 40, (30, 2))
    one_by_one = sum(
        3 * sum(term.flops for term in terms(model, training(Work(1, int(s), int(t))), target_vocab=50))
        for s, t in lengths
    )
    assert training_flops(model, lengths, target_vocab=50) == one_by_one


def test_a_text_of_the_longest_sentences_that_two_bytes_can_tell_is_not_counted_short():
    model = CountedModel.model_validate({"d_model": 16, "n_heads": 4, "d_ff": 24, "n_layers": 2})
    lengths = np.full((70_000, 2), 32_767)
    found = [training_flops(model, lengths.astype(dtype), target_vocab=50) for dtype in (np.int16, np.int64)]
    assert found[0] == found[1] > 70_000 * 32_767**2


def test_the_share_is_of_what_all_processes_could_do(monkeypatch):
    monkeypatch.setattr("transformer_cli.training.utilisation.product_rate", lambda dtype: 200.0)
    machine = Machine(device="cpu", precision="fp32", attention="written-out", threads=1, reason="")
    peak = peak_flops(machine, n_processes=2)
    assert peak == 400e9
    assert Utilisation(flops_per_token=1e6, peak=peak).share(300_000, 1.5) == pytest.approx(0.5)
    assert Utilisation(flops_per_token=1e6, peak=peak).share(900_000, 1.5) is None  # more than there is


def test_what_a_processor_imitates_is_not_measured(monkeypatch):
    monkeypatch.setattr("transformer_cli.training.utilisation.product_rate", lambda dtype: pytest.fail("for seconds"))
    monkeypatch.setattr("transformer_cli.training.utilisation.imitates", lambda precision, device: precision == "bf16")
    machine = Machine(device="cpu", precision="bf16", attention="written-out", threads=1, reason="")
    assert peak_flops(machine, n_processes=2) is None


@pytest.mark.parametrize(("name", "tflops"), [("NVIDIA H200", 989), ("Tesla T4", None), ("of next year", None)])
def test_a_gpu_is_known_by_its_drivers_name(name, tflops, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    machine = Machine(device="cuda:0", precision="bf16", attention="fused", threads=1, reason="")
    assert peak_flops(machine, n_processes=1) == (None if tflops is None else tflops * 1e12)
    assert (of_device(name) is None) == (name == "of next year")


def test_where_the_peak_is_not_known_nothing_is_said():
    assert Utilisation(flops_per_token=1e6, peak=None).share(300_000, 1.5) is None


def test_a_run_keeps_it_with_every_event(trained_run):
    events = [json.loads(line) for line in (trained_run / "metrics.jsonl").read_text("utf-8").splitlines()]
    shares = [event["mfu"] for event in events if event["event"] == "update"]
    assert shares
    assert any(share is not None for share in shares)
    assert all(share is None or 0 < share <= 1 for share in shares)
