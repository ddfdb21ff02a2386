"""What a run chose for itself is what translates it, however busy the machine is."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transformer_cli as tx
from transformer_cli import machine
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.errors import ConfigError, ModelError, ResourceError
from transformer_cli.machine import Machine, begin_or_resume, decide, settle
from transformer_cli.model import matmul
from transformer_cli.processor import imitates

KEPT = Machine(device="cpu", precision="bf16", attention="written-out", threads=1, reason="measured").as_dict()


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> float:
        raise AssertionError("a measurement, which depends on how busy the machine is")

    monkeypatch.setattr(machine, "product_rate", refuse)
    monkeypatch.setattr(machine, "imitates", lambda precision, device: False)  # whatever processor this is


@pytest.fixture(params=["as oneDNN tells", "without oneDNN"])
def old_processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with AVX2 alone; or any that PyTorch has been built for without oneDNN, whose operations are not there then:
    on a Mac."""
    monkeypatch.setattr(machine, "imitates", imitates)
    told = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: False, _is_mkldnn_fp16_supported=lambda: False)
    has_onednn = request.param == "as oneDNN tells"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_onednn)
    monkeypatch.setattr(torch.ops, "mkldnn", told if has_onednn else SimpleNamespace())
    monkeypatch.setattr(matmul, "by_onednn", lambda dtype: False)  # asked once, by another test perhaps


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def keep(run: Path, **choices: Any) -> None:
    """Let the run have chosen so."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    record["machine"] |= choices
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")


def settled(**settings: Any) -> Machine:
    return settle(RunConfig(**{"device": "cpu", **settings}), KEPT)


def test_auto_is_what_the_run_kept() -> None:
    assert settled().precision == "bf16"
    assert settled(precision="fp32").precision == "fp32"


def test_a_run_of_another_kind_of_device_computes_in_fp32_on_a_cpu() -> None:
    elsewhere = KEPT | {"device": "cuda:3"}
    assert settle(RunConfig(device="cpu"), elsewhere).precision == "fp32"
    assert settle(RunConfig(device="cpu"), None).precision == "fp32"


@pytest.mark.usefixtures("old_processor")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_processor_that_would_imitate_a_precision_computes_in_fp32(precision: str) -> None:
    """A run of a server, opened on a laptop: each product took a hundred times as long."""
    kept = KEPT | {"precision": precision}
    assert settle(RunConfig(device="cpu"), kept).precision == "fp32"
    assert settle(RunConfig(device="cpu", precision=precision), kept).precision == precision
    here, change = begin_or_resume(RunConfig(device="cpu"), kept)
    assert (here.precision, here.threads) == ("fp32", KEPT["threads"])
    assert str(change).startswith(f"the run began in {precision} and continues in fp32: this processor has no")
    assert begin_or_resume(RunConfig(device="cpu", precision=precision), kept)[0] == Machine.from_dict(kept)


@pytest.mark.usefixtures("old_processor")
def test_what_a_processor_would_imitate_is_not_measured() -> None:
    """At half a GFLOP/s it took a training ten seconds to begin."""
    chosen = decide(RunConfig(device="cpu"))
    assert (chosen.precision, chosen.reason[:33]) == ("fp32", "this processor has no products in")
    assert decide(RunConfig(device="cpu", precision="fp32")).reason == "as configured"
    assert "though this processor has no products in bf16" in decide(RunConfig(device="cpu", precision="bf16")).reason


@pytest.mark.usefixtures("old_processor")
@pytest.mark.parametrize("configured", ["auto", "bf16"])
def test_it_is_said_where_this_processor_lacks_the_precision(
    configured: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keep(run, device="cpu", precision="bf16")
    translate = ["translate", "-m", str(run), f"--set=precision={configured}", "--set=device=cpu", "ja"]
    assert failures.exit_code(lambda: main(translate)) == 0
    now = "fp32: " if configured == "auto" else "bf16: as configured, though "
    assert f"trained on cpu in bf16, now on cpu in {now}this processor has no products" in capfd.readouterr().err


@pytest.mark.usefixtures("old_processor")
def test_a_training_that_goes_on_in_another_precision_says_so(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keep(run, device="cpu", precision="bf16")
    config = load_config(run / "config.yaml", ["precision=auto", "training.max_steps=151"])
    (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    train = ["train", "-c", str(run / "config.yaml"), "--run-dir", str(run)]
    assert failures.exit_code(lambda: main(train)) == 0
    said = capfd.readouterr().err
    assert "warning: the run began in bf16 and continues in fp32: this processor has no products in bf16" in said
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["machine"]["precision"] == "fp32"


def test_a_training_that_goes_on_keeps_its_choices() -> None:
    """But for the device, and what is asked of it: nothing is measured again."""
    config = RunConfig(device="cpu", deterministic=True)
    assert begin_or_resume(config, KEPT) == (Machine.from_dict(KEPT | {"deterministic": True}), None)


@pytest.mark.parametrize(
    ("threads", "others", "is_shared_anew", "now"),
    [(1, 1, False, 1), (1000, 1, False, 3), (4, 1, False, 4), (4, 2, False, 3), (2, 2, False, 2), (1, 1, True, 3)],
)
def test_a_training_that_goes_on_has_no_more_threads_than_processors(
    threads: int, others: int, is_shared_anew: bool, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a server that went on on a laptop had a third of its speed, or none."""
    monkeypatch.setattr(machine, "processors", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(others))
    kept = KEPT | {"threads": threads}
    here, change = begin_or_resume(RunConfig(device="cpu"), kept, is_shared_anew=is_shared_anew)
    assert here == Machine.from_dict(kept | {"threads": now})
    words = f"each process had {threads:,} of the processors so far and has {now} now"
    assert change == (None if now == threads else words)


@pytest.mark.parametrize(("told", "precision"), [(True, "bf16"), (False, "fp32")])
def test_what_the_processor_tells_decides_however_busy_it_is(
    told: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others one measurement of six said fp32, and the same command trained another model."""
    monkeypatch.setattr(machine, "has_bf16_instructions", lambda: told)
    assert decide(RunConfig(device="cpu")).precision == precision


@pytest.mark.parametrize(("faster", "precision"), [(1.2, "fp32"), (1.4, "bf16")])
def test_where_nobody_tells_it_is_measured(faster: float, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_bf16_instructions", lambda: None)
    monkeypatch.setattr(machine, "product_rate", {torch.float32: 100.0, torch.bfloat16: 100.0 * faster}.__getitem__)
    assert decide(RunConfig(device="cpu")).precision == precision


def test_a_training_that_goes_on_elsewhere_chooses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_bf16_instructions", lambda: False)
    here, change = begin_or_resume(RunConfig(device="cpu"), KEPT | {"device": "cuda:1"})
    assert (here.device, here.precision) == ("cpu", "fp32")
    assert change == "the run began on cuda:1 and continues on cpu"


@pytest.mark.parametrize(
    "damage", [{"precision": "fp8"}, {"matmul_precision": "low"}, {"threads": "many"}, {"threads": 0}, {"device": None}]
)
def test_damaged_choices_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"run.json keeps .*: {next(iter(damage))}"):
        settle(RunConfig(device="cpu"), KEPT | damage)
    with pytest.raises(ModelError, match="attention, precision, reason, threads"):
        settle(RunConfig(device="cpu"), {"device": "cpu"})


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_is_loaded_in_the_precision_that_it_kept(precision: str, run: Path) -> None:
    """It was measured anew each time it was opened, and a busy machine has other results."""
    config = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(config.replace("precision: fp32", "precision: auto"), encoding="utf-8")
    keep(run, precision=precision)
    model = tx.load(run)
    assert model.model.dtype == machine.DTYPES[precision]
    assert model.translate("ich mochte ein bier") == "i want a beer"


def test_it_is_said_where_the_precision_is_not_the_one_of_training(run: Path, capfd: pytest.CaptureFixture) -> None:
    keep(run, device="cuda:0", precision="bf16")
    translate = ["translate", "-m", str(run), "--set=precision=auto", "--set=device=cpu", "ja"]
    assert failures.exit_code(lambda: main(translate)) == 0
    assert "trained on cuda:0 in bf16, now on cpu in fp32" in capfd.readouterr().err
    keep(run, device="cpu", precision="fp32")
    assert failures.exit_code(lambda: main(translate)) == 0
    assert "trained on" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, '`precision` is the text "fp8"; expected one of auto, fp32, bf16, fp16'),
        ({"device": "cuda:1"}, '`device` is the text "cuda:1"; expected one of auto, cpu, cuda, mps'),
        ({"device": 3}, "`device` is 3; expected one of auto"),
        ({"precision": torch.float16}, '`precision` is the text "torch.float16"'),
    ],
)
def test_what_load_is_given_is_checked_like_a_configuration(
    options: dict[str, Any], message: str, trained_run: Path
) -> None:
    """What was no precision computed in fp32 without a word; cuda:1 was a KeyError."""
    with pytest.raises(ConfigError) as caught:
        tx.load(trained_run, **options)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("capability", "precision"), [((9, 0), "bf16"), ((8, 6), "bf16"), ((7, 5), "fp16"), ((6, 1), "fp32")]
)
def test_a_gpu_trains_in_what_its_tensor_cores_have(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = machine.decide(RunConfig())
    assert (found.device, found.precision) == ("cuda", precision)


@pytest.mark.parametrize(
    ("capability", "precision", "is_told"), [((8, 0), "bf16", False), ((7, 5), "fp16", True), ((6, 1), "fp32", True)]
)
def test_a_run_in_bf16_goes_on_in_what_an_older_gpu_has(
    capability: tuple[int, int], precision: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed in bf16, which such a GPU imitates, and said that it had tensor cores for that."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    kept = machine.decide(RunConfig()).as_dict()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    here, said = machine.begin_or_resume(RunConfig(), kept)
    assert here.precision == machine.settle(RunConfig(), kept).precision == precision
    assert (f"the run began in bf16 and continues in {precision}: " in (said or "")) == is_told


def test_several_processes_train_on_the_cpu_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sums what they compute on its GPU: to try it was a bug of tx's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [machine.device_of(RunConfig(device=device)) for device in ("auto", "mps", "cpu")] == ["mps", "mps", "cpu"]
    for name, value in {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert machine.device_of(RunConfig()) == "cpu"
    with pytest.raises(ResourceError, match="device mps is for one process: PyTorch sums nothing"):
        machine.device_of(RunConfig(device="mps"))


@pytest.fixture
def as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.use_deterministic_algorithms(before[1])
    torch.set_num_threads(before[2])


def test_torch_is_told_how_exact_products_are_and_whether_sums_are_repeated(
    as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for deterministic, precision in ((True, "high"), (False, "highest")):
        settled(deterministic=deterministic, matmul_precision=precision).use()
        assert torch.are_deterministic_algorithms_enabled() is deterministic
        assert torch.get_float32_matmul_precision() == precision
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # which cuBLAS reads once


def test_where_threads_lack_it_is_said_before_libgomp_ends_the_process(
    as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(machine, "_has_team", False)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    Machine("cpu", "fp32", "written-out", 1, "").use()
    with pytest.raises(ResourceError, match="2 threads cannot be started here"):
        Machine("cpu", "fp32", "written-out", 2, "").use()


def test_nothing_that_a_run_computes_is_refused_as_not_deterministic(run: Path, as_before: None) -> None:
    """PyTorch raises an error where there is no such algorithm."""
    asked = tx.load(run, settings={"deterministic": True})
    seen = set[bool]()
    for options in ({"beam_size": 3}, {"search": "sampling"}):
        options |= {"progress": lambda n: seen.add(torch.are_deterministic_algorithms_enabled())}
        assert asked.translate("ich mochte ein bier", **options)
    assert seen == {True}
