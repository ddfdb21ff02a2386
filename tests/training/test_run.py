"""Whole runs: stopped anywhere they end in the same bits; what must not differ is refused; what was said is kept."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bits import assert_same_bits, at_update, events, final_state, interrupt

from transformer_cli import files, heap
from transformer_cli.checkpoints import record
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.standing import standing_of
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.cli.train import _would
from transformer_cli.config.data import InlinePairs
from transformer_cli.config.model import SidePositions
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config
from transformer_cli.data import corpus
from transformer_cli.data.loader import Batch
from transformer_cli.errors import DataError, DivergedError, Interrupted, UsageError
from transformer_cli.machine import Machine, decide
from transformer_cli.model.positions import sinusoids
from transformer_cli.model.transformer import Transformer
from transformer_cli.training import clock, objective, optimizers, rehearsal, reporting, run, signals, validation
from transformer_cli.training.clock import Clock
from transformer_cli.training.forecast import forecast
from transformer_cli.training.listening import Advance, Status, unseen
from transformer_cli.training.material import Material
from transformer_cli.training.outcome import Outcome
from transformer_cli.training.run import Listener, train
from transformer_cli.training.signals import StopRequest
from transformer_cli.training.update import Learner

pytestmark = pytest.mark.usefixtures("own_threads")

WORDS = {
    "der": "the",
    "hund": "dog",
    "katze": "cat",
    "schläft": "sleeps",
    "trinkt": "drinks",
    "große": "big",
    "gern": "gladly",
}


def settings(**training: Any) -> RunConfig:
    """Everything random is on: dropout, subword sampling, shuffled batches; several epochs of a few batches."""
    german = list(WORDS)
    pairs = [[" ".join(german[(i * k) % 7] for k in range(1, 2 + i % 5)) for i in range(40)]]
    text = [[line, " ".join(WORDS[word] for word in line.split())] for line in pairs[0]]
    options = {"budget_tokens": 128, "max_steps": 12, "validate_every": 5, "log_every": 2, "warmup_steps": 4}
    return RunConfig.model_validate(
        {
            "name": "x",
            "device": "cpu",
            "precision": "fp32",
            "threads": 1,
            "tokenizer": {"vocab_size": 60, "sampling": 0.3},
            "data": {"train": {"pairs": text}, "valid": {"pairs": text[:6]}, "max_length": 64},
            "model": {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1, "dropout": 0.2},
            "training": {**options, **training},
        }
    )


def test_what_memory_is_too_little_for_is_validated_in_halves_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(settings(max_steps=5), Path("whole"))
    real = validation.loss_of

    def loss_of(model: Transformer, batch: Batch, **named: Any) -> torch.Tensor:
        if len(batch.source_lengths_B) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, batch, **named)

    monkeypatch.setattr(validation, "loss_of", loss_of)
    train(settings(max_steps=5), Path("parts"))
    whole, parts = ([one for one in events(Path(name)) if one["event"] == "validation"] for name in ("whole", "parts"))
    assert len(whole) == len(parts) == 1
    assert parts[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-6)
    assert parts[0]["bleu"] == whole[0]["bleu"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 6},
        {"max_steps": 6, "warmup_steps": 9},
        {"max_epochs": 1, "warmup_steps": 99},
        {"max_steps": None, "budget": {"epochs": 1.5}, "warmup_steps": 99},
        {"max_steps": None, "budget": {"tokens": 500}, "warmup_steps": 99},
        {"max_steps": None, "budget": {"epochs": 1.5}, "warmup_steps": 1},
    ],
    ids=["past the warm-up", "within it", "within it by epochs", "by parts of them", "by tokens", "past it by epochs"],
)
@pytest.mark.parametrize(
    "schedule", [{"schedule": "linear", "learning_rate": 0.00321}, {"schedule": "noam", "learning_rate": None}]
)
def test_the_start_tells_the_highest_rate_of_the_run_and_when_it_comes(
    schedule: dict[str, Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`noam` used to scale the paper's rate by another schedule's learning_rate: 5e-6, and not a word; and where epochs
    or a budget ended within the warm-up, the dry run told a rate that never came."""
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    config, said = settings(log_every=1, **schedule, **options), list[str]()
    foreseen = forecast(config, Path("x"))
    train(config, Path("x"), listener=Listener(say=said.append))
    rates = {one["step"]: one["learning_rate"] for one in events(Path("x")) if one["event"] == "update"}
    step = max(rates, key=lambda step: rates[step])
    expected = f"learning rate: {schedule['schedule']}, {rates[step]:.3g} at its peak, at step {step}"
    assert [line for line in said if line.startswith("learning rate")] == [expected]
    for found in (foreseen, forecast(config, Path("x"))):
        assert (found.peak_step, found.peak_rate) == (step, pytest.approx(rates[step], rel=1e-9))


@pytest.mark.parametrize(("sampling", "weight", "seed"), [(0.3, 1.0, 2), (0.0, 0.4, 3)])
def test_an_end_by_epochs_that_differ_is_told_roughly_and_never_passed(
    sampling: float, weight: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn anew is other batches, more or fewer: 3,924 were told, and 3,938 were made."""
    monkeypatch.setattr(reporting, "FIRST_S", 0.0)
    tree = settings(max_epochs=6, max_steps=None, budget_tokens=48, validation_bleu=False, best_by="loss").model_dump()
    tree["tokenizer"]["sampling"] = sampling
    tree["data"]["train"] = [{"text": tree["data"]["train"], "weight": weight}]
    said, shown = list[str](), list[Status]()
    config = RunConfig.model_validate(tree | {"seed": seed})
    outcome = train(config, Path("x"), listener=Listener(say=said.append, show=shown.append))
    ends = [one.last_step or 0 for one in shown]
    assert ends[0] < ends[-1] == outcome.steps
    assert [line.partition(": ")[2] for line in said if "training ends" in line] == [
        f"training ends at about step {ends[0]} (max_epochs 6)"
    ]
    assert [one.step for one, end in zip(shown, ends, strict=True) if one.step > end] == []


def test_what_is_learned_from_more_often_is_multiplied_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """MFU took each pair once: 0.6 of what it was, where one of two directions had a weight of 10."""
    tree, lengths, usual = settings(max_steps=1).model_dump(), list[np.ndarray](), run.utilisation_of
    tree["tokenizer"]["sampling"] = 0.0
    once = {"text": tree["data"]["train"]}
    longer = {"text": {"pairs": [[f"{source} {source}", target] for source, target in once["text"]["pairs"]]}}

    def watched(*given: Any, **options: Any) -> Any:
        lengths.append(given[3])
        return usual(*given, **options)

    monkeypatch.setattr(run, "utilisation_of", watched)
    for number, texts in enumerate([[once | {"weight": 3}, longer], [once, once, once, longer]]):
        train(RunConfig.model_validate(tree | {"data": tree["data"] | {"train": texts}}), Path(str(number)))
    weighted, written_out = (np.sort(found, axis=0) for found in lengths)
    assert np.array_equal(weighted, written_out)


def lose_power() -> None:
    raise MemoryError("the power went out")


@pytest.mark.parametrize("options", [{}, {"accumulation": 3}, {"ema": 0.6, "best_by": "loss", "r_drop": 3.0}], ids=str)
def test_stopped_at_every_update_it_ends_in_the_bits_of_an_uninterrupted_run(options: dict[str, Any]) -> None:
    config = settings(**options)
    train(config, Path("straight"))
    assert final_state(Path("straight"))[2]["epoch"] >= 1  # epoch edges are among the updates
    stop_at_every_update(config, Path("stopped"))
    assert_same_bits(Path("straight"), Path("stopped"))


def stop_at_every_update(config: RunConfig, run_dir: Path) -> None:
    for step in range(1, 12):
        with at_update(1, interrupt), pytest.raises(Interrupted) as caught:
            train(config, run_dir)
        assert caught.value.exit_code == 130
        assert f"after step {step}" in caught.value.message
    train(config, run_dir)


def test_updates_that_are_read_while_the_next_is_learned_end_in_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU makes them, whole and stopped; validated and saved with the next one's gradients at hand."""
    monkeypatch.setattr(optimizers, "_suits", lambda groups: False)  # a GPU has PyTorch's own
    config = settings(ema=0.6, clip_norm=None, checkpoint_every=2)
    train(config, Path("straight"))
    monkeypatch.setattr(Learner, "is_late", True)
    train(config, Path("late"))
    stop_at_every_update(config, Path("stopped"))
    for run_dir in (Path("late"), Path("stopped")):
        assert_same_bits(Path("straight"), run_dir)


def rates_of(run_dir: Path) -> list[float]:
    return [one["learning_rate"] for one in events(run_dir) if one["event"] == "update"]


@pytest.mark.parametrize("budget", [{"tokens": 700}, {"epochs": 1.6}], ids=str)
def test_a_budget_is_spent_to_the_last_and_in_the_same_bits_however_often_it_was_stopped(
    budget: dict[str, float],
) -> None:
    config = settings(budget=budget, max_steps=None, schedule="linear", log_every=1, best_by="loss")
    outcome = train(config, Path("straight"))
    (name, amount), state = next(iter(budget.items())), final_state(Path("straight"))[2]
    assert outcome.reason == state["finished"] == f"budget spent ({name}: {amount:g})"
    rates = rates_of(Path("straight"))
    assert rates[3] == max(rates) == 1e-3  # at the end of the warm-up
    assert 0 == rates[-1] < rates[-2] < 0.5e-3
    assert rates[4] > 1e-3 * (1 - 1.5 / (len(rates) - 4))  # falling from there, not from the beginning
    assert sorted(rates[3:], reverse=True) == rates[3:]
    for _ in range(1, outcome.steps):
        with at_update(1, interrupt), pytest.raises(Interrupted, match=r"after step \d+(;|, whose)"):
            train(config, Path("stopped"))
    assert train(config, Path("stopped")).steps == outcome.steps
    assert_same_bits(Path("straight"), Path("stopped"))
    assert train(config, Path("stopped")).was_finished
    more = settings(**config.training.model_dump() | {"budget": {name: 2 * amount}})
    assert train(more, Path("stopped")).steps > outcome.steps


class Ticking:
    """A clock that is a quarter of a second later whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def test_minutes_of_a_budget_are_counted_through_all_parts_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(budget={"minutes": 0.5}, max_steps=None, schedule="linear", log_every=1, warmup_steps="10%")
    monkeypatch.setattr(run, "Clock", lambda **passed: Clock(Ticking(), **passed))
    train(config, Path("straight"))
    for step in (3, 2, 1):
        with at_update(step, interrupt), pytest.raises(Interrupted):
            train(config, Path("stopped"))
    train(config, Path("stopped"))
    for run_dir in (Path("straight"), Path("stopped")):
        last = load_checkpoint(list_checkpoints(run_dir)[-1], with_optimizer=False).state
        assert last["finished"] == "budget spent (minutes: 0.5)"
        assert last["passed_s"] == pytest.approx(30, abs=2)
        rates = rates_of(run_dir)
        assert rates[-1] == 0
        assert max(rates) > 0.9e-3
        assert 0.05 < rates.index(max(rates)) / len(rates) < 0.2
    assert final_state(Path("stopped"))[2]["step"] <= final_state(Path("straight"))[2]["step"]


@pytest.mark.parametrize("step", [1, 3, 11])
def test_stopped_once_it_ends_in_the_bits_of_an_uninterrupted_run(step: int) -> None:
    """It lacks nothing then: of one that was stopped before anything was logged, its metrics were said to be lost."""
    train(settings(), Path("straight"))
    with at_update(step, interrupt), pytest.raises(Interrupted):
        train(settings(), Path("stopped"))
    train(settings(), Path("stopped"), listener=Listener(warn=pytest.fail))
    assert_same_bits(Path("straight"), Path("stopped"))


@pytest.mark.parametrize("step", [3, 10])
def test_killed_without_warning_it_goes_back_to_its_last_checkpoint_and_ends_in_the_same_bits(step: int) -> None:
    config = settings(checkpoint_every=2)
    train(config, Path("straight"))
    with at_update(step, lose_power), pytest.raises(MemoryError):
        train(config, Path("killed"))
    assert len(final_state(Path("killed"))[0])
    train(config, Path("killed"))
    assert_same_bits(Path("straight"), Path("killed"))


def test_a_process_killed_at_an_update_is_continued_by_the_same_command(warm: list[str], tmp_path: Path) -> None:
    config = settings(checkpoint_every=3, max_steps=40, validate_every=20)
    (tmp_path / "x.yaml").write_text(dump_config(config), encoding="utf-8")
    command = [*warm, "train", "-c", "x.yaml", "--run-dir"]
    subprocess.run([*command, "straight"], check=True, capture_output=True)
    process = subprocess.Popen([*command, "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list_checkpoints("killed")) == 0:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert int(list_checkpoints("killed")[-1].name[5:]) < 40
    subprocess.run([*command, "killed"], check=True, capture_output=True)
    assert_same_bits(Path("straight"), Path("killed"))


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_program_with_its_exit_code_and_everything_saved(
    warm: list[str], number: int, exit_code: int, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text(dump_config(settings(max_steps=100_000, log_every=1)), encoding="utf-8")
    command = [*warm, "train", "-c", "x.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step"):
                break
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == exit_code
    assert "everything is saved" in said
    assert "Traceback" not in said
    step = json.loads((tmp_path / "runs/x/metrics.jsonl").read_text(encoding="utf-8").split("\n")[-2])["step"]
    assert list_checkpoints("runs/x")[-1].name == f"step-{step:08d}"


def test_a_run_that_goes_on_with_other_versions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's among them, which draws the order of an epoch."""
    warned: list[str] = []
    goes_on = Listener(warn=warned.append)
    train(settings(max_steps=1), Path("run"))
    train(settings(max_steps=2), Path("run"), listener=goes_on)
    there = json.loads(Path("run/run.json").read_text(encoding="utf-8"))["versions"]
    assert not [line for line in warned if "then," in line]
    for module in (record, run):
        monkeypatch.setattr(module, "versions", lambda: there | {"numpy": "9.9"})
    for max_steps in (3, 4):
        train(settings(max_steps=max_steps), Path("run"), listener=goes_on)
    drawn = "bits will differ, and what is left of an epoch may be drawn otherwise"
    assert [line for line in warned if "then," in line] == [f"numpy {there['numpy']} then, 9.9 now: {drawn}"]


def test_the_warning_of_a_queue_and_the_end_of_the_time_stop_it_saved() -> None:
    with at_update(2, lambda: os.kill(os.getpid(), signal.SIGUSR1)), pytest.raises(Interrupted) as caught:
        train(settings(), Path("run"))
    assert caught.value.exit_code == 128 + signal.SIGUSR1
    assert caught.value.message.startswith("stopped by SIGUSR1 after step 2 of 12; everything is saved")
    with at_update(1, lambda: os.kill(os.getpid(), signal.SIGUSR1)), pytest.raises(Interrupted) as caught:
        train(settings(max_hours=1.0), Path("other"))
    assert caught.value.message.startswith("stopped by SIGUSR1 after step 1 of 12")
    with pytest.raises(Interrupted, match=r"max_hours, 0 s, is nearly over: stopped after step 3 of 12") as over:
        train(settings(max_hours=1e-6), Path("run"))
    assert over.value.exit_code == 128 + signal.SIGUSR1
    train(settings(max_hours=1.0), Path("run"))
    train(settings(), Path("straight"))
    assert_same_bits(Path("straight"), Path("run"))


def test_the_first_validation_is_not_begun_where_there_is_no_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that goes on with a run made none yet, and was killed in it by whoever gave it so many hours. What it
    takes is guessed, and keeps a tenth of the time free at most."""
    monkeypatch.setattr(clock, "VALIDATION_SHARE", 1e9)
    train(settings(max_hours=0.1, validate_every=10), Path("guessed"))
    monkeypatch.setattr(clock, "GUESSED_SHARE", 1.0)
    with pytest.raises(Interrupted, match="max_hours, 6 min, is nearly over: stopped after step 5 of 12"):
        train(settings(max_hours=0.1, validate_every=10), Path("run"))
    assert "validation" not in Path("run/metrics.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options", [{"max_epochs": 1}, {"ema": 0.6}, {"best_by": "loss", "validation_bleu": False}], ids=str
)
def test_asked_to_stop_at_any_batch_of_a_validation_it_is_saved_and_ends_in_the_same_bits(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on to the end of the validation, for which no queue waits."""
    config, run_dir = settings(**options, max_steps=7, budget_tokens=64), Path("stopped")
    train(config, Path("straight"))
    with monkeypatch.context() as patch:
        patch.setattr(validation.Validation, "_heed", heed := Heeding())
        while stopped := interruption(config, run_dir, heed):
            step, standing = final_state(run_dir)[2]["step"], standing_of(run_dir)
            where = rf"after step {step} of \d, whose validation comes first when it goes on; everything is saved in"
            assert re.match(rf"stopped by SIGTERM {where} stopped", stopped.message)
            assert step not in [one["step"] for one in events(run_dir) if one["event"] == "validation"]
            assert record.read_record(run_dir)["finished"] is None
            assert standing is not None
            assert not standing.is_finished
            assert (
                _would(forecast(config, run_dir)) == f"would continue after step {step}, whose validation comes first"
            )
    assert heed.at >= 4
    assert_same_bits(Path("straight"), run_dir)
    assert train(config, run_dir).was_finished
    assert Path("straight/best").read_text() == Path("stopped/best").read_text()


def test_a_second_signal_is_heeded_while_a_validation_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was lost in an iterator that nobody closed, and Python's words of that were printed."""
    really, heed = validation.batches, Heeding()

    def interrupted_at_its_end(*arguments: Any) -> Iterator[Any]:
        try:
            yield from really(*arguments)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    heed.at = 1
    monkeypatch.setattr(validation.Validation, "_heed", heed)
    monkeypatch.setattr(validation, "batches", interrupted_at_its_end)
    with pytest.raises(Interrupted, match="stopped at once; whatever was saved is whole"):
        train(settings(max_steps=1), Path("run"))


def test_a_validation_that_all_of_the_time_is_not_enough_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts it in a queue again and again would come no further."""
    heed = Heeding()
    heed.at = 1
    monkeypatch.setattr(validation.Validation, "_heed", heed)
    with pytest.raises(Interrupted, match="after step 5 of 12, whose validation comes first when it goes on"):
        train(settings(), Path("run"))
    with pytest.raises(Interrupted, match="over: stopped after step 5 of 12, for whose validation all of that was not"):
        train(settings(max_hours=1e-6), Path("run"))
    heed.heeded, heed.at = 0, 1
    with pytest.raises(Interrupted, match="SIGTERM after step 5 of 12, whose validation comes first"):
        train(settings(max_hours=1.0), Path("run"))


def interruption(config: RunConfig, run_dir: Path, heed: Heeding) -> Interrupted | None:
    """Of a training that is signalled one look later than the one before it; None where it ends before that."""
    heed.at, heed.heeded = heed.at + 1, 0
    try:
        train(config, run_dir)
    except Interrupted as stopped:
        return stopped
    return None


class Heeding:
    """In place of a validation's look at whether to stop: at a certain one this process is signalled."""

    def __init__(self) -> None:
        self.really, self.at, self.heeded = validation.Validation._heed, 0, 0

    def __get__(self, one: validation.Validation, owner: type) -> Callable[[], None]:
        def heed() -> None:
            self.heeded += 1
            if self.heeded == self.at:
                os.kill(os.getpid(), signal.SIGTERM)
            self.really(one)

        return heed


@pytest.mark.parametrize(("second", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(second: int, exit_code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not the same one again within a second: what signals a whole job does so by way of the launcher, too."""
    now = 100.0
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now))
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_number is not None
        now += 0.9
        os.kill(os.getpid(), signal.SIGTERM)
        if second == signal.SIGTERM:
            now += 0.2
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), second)
    assert caught.value.exit_code == exit_code
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    train(settings(), Path("one"))
    train(settings(), Path("two"))
    assert_same_bits(Path("one"), Path("two"))
    train(settings().model_copy(update={"seed": 2}), Path("three"))
    one, three = final_state(Path("one"))[0], final_state(Path("three"))[0]
    assert not any(torch.equal(one[name], three[name]) for name in one if one[name].dim() > 1)


def test_validating_more_often_does_not_touch_training() -> None:
    train(settings(validate_every=12), Path("seldom"))
    train(settings(validate_every=1), Path("often"))
    seldom, often = final_state(Path("seldom"))[0], final_state(Path("often"))[0]
    assert all(torch.equal(seldom[name], often[name]) for name in seldom)


def test_what_is_validated_in_fp32_is_the_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of all weights was made each time, also where none of them is cast."""
    copied, real = list[object](), copy.deepcopy
    monkeypatch.setattr(copy, "deepcopy", lambda one, *memo: copied.append(one) or real(one, *memo))
    train(settings(), Path("x"))
    assert not [one for one in copied if isinstance(one, Transformer)]
    assert all("bleu" in event for event in events(Path("x")) if event["event"] == "validation")


def test_validation_is_greedy_where_translations_are_to_be_samples() -> None:
    """It drew samples once, so that the best checkpoint was a matter of luck."""
    greedy, sampling = settings(), settings()
    wild = sampling.decoding.model_copy(update={"search": "sampling", "temperature": 100.0})
    train(greedy, Path("greedy"))
    train(sampling.model_copy(update={"decoding": wild}), Path("sampling"))
    assert events(Path("greedy")) == events(Path("sampling"))


def test_a_finished_run_says_so_and_changes_nothing() -> None:
    train(settings(), Path("x"))
    before = {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file() and path.name != "run.json"}
    outcome = train(settings(), Path("x"))
    assert outcome.was_finished
    assert outcome.reason == "max_steps 12 reached"
    assert {path: path.read_bytes() for path in before} == before


def test_a_longer_run_goes_on_where_the_shorter_one_ended() -> None:
    train(settings(max_steps=24), Path("straight"))
    train(settings(max_steps=12), Path("longer"))
    outcome = train(settings(max_steps=24), Path("longer"))
    assert (outcome.steps, outcome.was_finished) == (24, False)
    assert all(torch.equal(final_state(Path("straight"))[0][k], v) for k, v in final_state(Path("longer"))[0].items())


@pytest.mark.parametrize(
    ("lower", "named"),
    [
        ({"max_steps": 4}, "training.max_steps 4"),
        ({"max_steps": 7}, "training.max_steps 7"),
        ({"max_epochs": 1}, "training.max_epochs 1"),
        ({"max_steps": None, "budget": {"tokens": 200}}, "training.budget.tokens 200"),
        ({"max_steps": None, "budget": {"epochs": 1}}, "training.budget.epochs 1"),
    ],
)
def test_a_stopped_run_that_is_beyond_a_new_limit_is_refused(lower: dict[str, Any], named: str) -> None:
    """It made one more update, or went on to the end of its epoch."""
    with at_update(7, interrupt), pytest.raises(Interrupted):
        train(settings(), Path("x"))
    assert final_state(Path("x"))[2]["epoch"] == 1  # and within it
    before = {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=rf"^x was stopped after step 7, where {re.escape(named)} is spent$"):
        train(settings(**lower), Path("x"))
    with pytest.raises(UsageError, match=re.escape(named)):
        forecast(settings(**lower), Path("x"))
    after = {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()}
    assert [path for path in before if after.get(path) != before[path]] == []
    assert train(settings(), Path("x")).steps == 12


def test_a_part_of_an_epoch_as_a_limit_refuses_nobody() -> None:
    """How much of an epoch is used depends on how many processes use it: the same command was refused on another
    number, and a run that had finished was by a lower limit."""
    with at_update(7, interrupt), pytest.raises(Interrupted):
        train(settings(), Path("stopped"))
    train(settings(max_steps=7), Path("finished"))
    for run_dir in (Path("stopped"), Path("finished")):
        assert final_state(run_dir)[2]["epoch"] == 1
        outcome = train(settings(max_steps=None, budget={"epochs": 1.1}), run_dir)
        assert (outcome.steps, outcome.reason) == (8, "budget spent (epochs: 1.1)")


def test_a_run_that_spent_its_budget_is_finished_by_a_lower_one() -> None:
    """How much of an epoch it had used it does not know: it made one more update."""
    train(settings(max_steps=None, budget={"epochs": 1.5}), Path("x"))
    lower = settings(max_steps=None, budget={"epochs": 1.2})
    before = list_checkpoints("x")
    assert forecast(lower, Path("x")).finished == "budget spent (epochs: 1.5)"
    assert train(lower, Path("x")).was_finished
    assert list_checkpoints("x") == before


def test_another_configuration_is_refused_by_the_names_of_its_differences() -> None:
    train(settings(), Path("x"))
    other = settings(learning_rate=0.5, log_every=7).model_copy(update={"seed": 9})
    with pytest.raises(UsageError) as caught:
        train(other, Path("x"))
    assert "training.learning_rate: 0.001 in the run, 0.5 now" in caught.value.message
    assert "seed: 1 in the run, 9 now" in caught.value.message
    assert "log_every" not in caught.value.message
    outcome = train(other, Path("x"), overwrite=True)
    assert not outcome.was_finished


def test_a_ban_that_nothing_can_be_meant_by_is_refused_before_the_first_update() -> None:
    """The first validation refused it, with all updates before it lost, and a run that could not go on."""
    config = settings()
    wrong, right = (
        config.model_copy(update={"decoding": config.decoding.model_copy(update={"banned": [piece]})})
        for piece in ("nosuchpiece", "e")
    )
    forecast(wrong, Path("x"))  # no tokenizer yet
    for _ in range(2):
        with pytest.raises(UsageError, match="no piece 'nosuchpiece'"):
            train(wrong, Path("x"))
        assert not Path("x/metrics.jsonl").exists()
        with pytest.raises(UsageError, match="no piece 'nosuchpiece'"):
            forecast(wrong, Path("x"))
    assert not train(right, Path("x")).was_finished


def test_what_is_frozen_has_no_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is then left out of the products was counted, too."""
    monkeypatch.setattr("transformer_cli.training.utilisation.product_rate", lambda dtype: 1e9)
    for name, freeze in (("x", []), ("y", ["encoder"])):
        train(settings(log_every=1, freeze=freeze), Path(name))
        told = map(json.loads, Path(name, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        assert all((one["mfu"] is None) is bool(freeze) for one in told if one["event"] == "update")


def test_changed_training_text_is_refused() -> None:
    train(settings(), Path("x"))
    changed = settings().model_dump()
    changed["data"]["train"]["pairs"][0][0] += " hund"
    with pytest.raises(DataError, match=r"data\.train is no longer the text"):
        train(RunConfig.model_validate(changed), Path("x"))


def test_memory_is_kept_before_the_text_is_read_and_what_updates_take_lies_in_large_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long text would else take each page anew with each block."""
    done: list[str] = []
    real = run.used_texts
    monkeypatch.setattr(heap, "keep", lambda: done.append("kept"))
    monkeypatch.setattr(heap, "enlarge_pages", lambda: done.append("enlarged"))
    monkeypatch.setattr(run, "used_texts", lambda *all_, **named: (done.append("read"), real(*all_, **named))[1])
    train(settings(max_steps=2), Path("x"))
    assert done[:2] == ["kept", "read"]
    assert done.count("enlarged") == 2


def test_a_record_says_what_each_of_several_texts_contributes() -> None:
    config = settings(max_steps=1)
    pairs = config.data.model_dump()["train"]["pairs"]
    texts = [{"text": {"pairs": pairs[:30]}, "name": "a"}, {"text": {"pairs": pairs[30:]}, "name": "b", "weight": 3}]
    changed = config.model_dump(mode="json")
    changed["data"] |= {"train": texts, "max_length": 64}
    train(RunConfig.model_validate(changed), Path("x"))
    found = json.loads(Path("x/run.json").read_text(encoding="utf-8"))["mixture"]
    assert [(one["name"], one["weight"], one["seen"]) for one in found] == [("a", 1.0, 30), ("b", 3.0, 30)]
    assert [one["pairs"] for one in found] == [30, 10]


def held_out(share: str, *, max_length: int = 64) -> RunConfig:
    """A share of the text validates; of each pair the text has a copy."""
    config = settings()
    pairs = config.data.model_dump()["train"]["pairs"]
    data = {"train": InlinePairs(pairs=pairs * 2), "valid": share, "max_length": max_length}
    return config.model_copy(update={"data": config.data.model_copy(update=data)})


def test_a_share_of_the_text_is_held_out_and_stays_so_after_a_stop() -> None:
    said: list[str] = []
    train(held_out("20%"), Path("straight"), listener=Listener(say=said.append))
    with at_update(3, interrupt), pytest.raises(Interrupted):
        train(held_out("20%"), Path("stopped"))
    train(held_out("20.0%"), Path("stopped"))
    assert_same_bits(Path("straight"), Path("stopped"))
    texts = json.loads(Path("stopped/run.json").read_text(encoding="utf-8"))["data"]
    pairs = {name: text["pairs"] for name, text in texts.items()}
    assert 0 < pairs["valid"] < pairs["train"] == 80 - pairs["valid"]
    assert f"held out of the training text to validate with: {pairs['valid']} pairs (20%)" in said
    with pytest.raises(UsageError, match=r"data\.valid: 20\.0% in the run, 30% now"):
        train(held_out("30%"), Path("stopped"))


def test_what_is_held_out_is_no_longer_than_what_is_learned_from() -> None:
    """A line of a crawl may have thousands of pieces; of a validation text of its own every pair counts."""
    said: list[str] = []
    listener = Listener(say=said.append, warn=said.append)
    train(held_out("50%", max_length=6), Path("x"), listener=listener)
    [kept] = [int(line.split()[-3]) for line in said if line.startswith("held out of")]
    [long] = [int(line.split()[2]) for line in said if line.startswith("held out: ")]
    assert kept + long == json.loads(Path("x/run.json").read_text(encoding="utf-8"))["data"]["valid"]["pairs"]
    assert kept > 0 < long
    validations = [event for event in events(Path("x")) if event["event"] == "validation"]
    assert all(len(event["samples"]) == min(kept, 2) for event in validations)


@pytest.mark.parametrize(("kind", "side"), [("learned", "source"), ("sinusoidal-table", "target")])
def test_a_validation_pair_beyond_the_last_position_is_named(kind: str, side: str) -> None:
    config = settings()
    positions = {"encoder": kind, "decoder": kind} if side == "source" else {"encoder": "none", "decoder": kind}
    model = config.model.model_copy(update={"positions": SidePositions(**positions), "max_positions": 64})
    long = ["der hund " * 40, "the dog " * 40]
    data = config.data.model_copy(update={"valid": InlinePairs(pairs=[["der", "the"], long])})
    with pytest.raises(DataError, match=rf"the {side} of validation pair 2 has \d+ pieces, but the .* 64 positions"):
        train(config.model_copy(update={"model": model, "data": data}), Path("run"))


def test_a_table_of_sinusoids_is_trained_around_and_goes_on_after_a_stop() -> None:
    config = settings()
    model = config.model.model_copy(update={"positions": "sinusoidal-table", "max_positions": 64, "n_kv_heads": 1})
    config = config.model_copy(update={"model": model})
    train(config, Path("straight"))
    with at_update(5, interrupt), pytest.raises(Interrupted):
        train(config, Path("stopped"))
    train(config, Path("stopped"))
    assert_same_bits(Path("straight"), Path("stopped"))
    weights, moments, _ = final_state(Path("straight"))
    table = "decoder.positions.table.weight"
    torch.testing.assert_close(weights[table], sinusoids(64, 16).float(), rtol=0, atol=0)
    assert not any(name.startswith(table) for name in moments)


def test_overwriting_deletes_the_run_and_nothing_else() -> None:
    train(settings(), Path("x"))
    Path("x/notes.txt").write_text("mine", encoding="utf-8")
    outcome = train(settings(max_steps=6), Path("x"), overwrite=True)
    assert outcome.steps == 6
    assert Path("x/notes.txt").read_text(encoding="utf-8") == "mine"
    assert max(event["step"] for event in events(Path("x"))) == 6


def test_patience_ends_training_after_validations_without_a_new_best() -> None:
    config = settings(validate_every=1, patience=3, max_steps=400, best_by="loss", learning_rate=10.0, clip_norm=None)
    outcome = train(config, Path("x"))
    assert outcome.reason.startswith("patience")
    losses = {event["step"]: event["loss"] for event in events(Path("x")) if event["event"] == "validation"}
    best = min(losses, key=lambda step: losses[step])
    assert outcome.best.name == f"step-{best:08d}"
    assert max(losses) == best + 3


def test_the_best_and_the_newest_checkpoints_are_kept_and_no_others() -> None:
    outcome = train(settings(validate_every=1, keep_best=2, keep_last=3, best_by="loss"), Path("x"))
    losses = {event["step"]: event["loss"] for event in events(Path("x")) if event["event"] == "validation"}
    best_two = sorted(losses, key=lambda step: losses[step])[:2]
    kept = {int(path.name[5:]) for path in list_checkpoints("x")}
    assert kept == {10, 11, 12, *best_two}
    assert outcome.score == min(losses.values())


def test_each_checkpoint_is_pointed_at_once_and_again_where_that_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """`last` used to be written, and waited for, twice for each of them."""
    written: list[str] = []

    class Disk(files.Disk):
        def rename(self, old: Path, new: Path) -> None:
            written.append(new.name)
            super().rename(old, new)

    monkeypatch.setattr(files, "disk", Disk())
    train(settings(), Path("x"))
    names = ("step-00000005", "step-00000010", "step-00000012")
    assert [name for name in written if name == "last" or name in names] == [one for n in names for one in (n, "last")]
    Path("x", "last").unlink()
    train(settings(), Path("x"))
    assert Path("x", "last").read_text(encoding="utf-8") == "step-00000012\n"


def test_a_run_is_recorded() -> None:
    said: list[str] = []
    train(settings(), Path("runs/x"), listener=Listener(say=said.append, warn=said.append))
    record = json.loads(Path("runs/x/run.json").read_text(encoding="utf-8"))
    assert record["machine"]["precision"] == "fp32"
    assert record["machine"]["threads"] == 1
    assert record["data"]["train"]["pairs"] == 40
    assert record["finished"] == "max_steps 12 reached"
    assert record["versions"]["torch"] == version("torch")
    assert Path("runs/latest").read_text(encoding="utf-8") == "x\n"
    assert any(line.startswith("step ") and "tokens/s" in line and line.endswith(" left") for line in said)
    steps = [event["step"] for event in events(Path("runs/x")) if event["event"] == "update"]
    assert steps == [2, 4, 6, 8, 10, 12]


def test_scores_that_come_while_a_run_is_trained_are_kept() -> None:
    """The end of training, and what is noted before it, wrote what was known at the beginning over them."""
    path, seen = Path("runs/x/run.json"), list[str]()

    def evaluate(line: str) -> None:
        if not path.exists():
            return
        record = json.loads(path.read_text(encoding="utf-8"))
        assert [*record.get("scores", {})] == seen, line
        seen.append(f"{len(seen)} {line}")
        path.write_text(json.dumps(record | {"scores": {said: {"scores": []} for said in seen}}), "utf-8")

    @contextmanager
    def evaluate_at(words: str, total: int | None = None) -> Iterator[Advance]:
        evaluate(f"at {words}")
        with unseen(words, total) as advance:
            yield advance

    def parts(**training: int) -> RunConfig:
        """Of two texts, which are noted in a write of their own."""
        pairs = settings().data.train.model_dump()  # type: ignore[union-attr]
        texts = [{"name": name, "weight": 1, "text": pairs} for name in ("one", "other")]
        changed = settings(**training).model_dump()
        return RunConfig.model_validate(changed | {"data": changed["data"] | {"train": texts}})

    listener = Listener(say=evaluate, warn=evaluate, stage=evaluate_at)
    train(parts(max_steps=6), Path("runs/x"), listener=listener)
    train(parts(max_steps=12), Path("runs/x"), listener=listener)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert ([*record["scores"]], record["steps"]) == (seen, 12)
    assert sum("at " in line for line in seen) > 3
    train(parts(), Path("runs/x"), overwrite=True)
    assert "scores" not in json.loads(path.read_text(encoding="utf-8"))


def test_a_run_that_was_moved_goes_on() -> None:
    train(settings(max_steps=6), Path("runs/x"))
    shutil.move("runs/x", "elsewhere")
    outcome: Outcome = train(settings(max_steps=8), Path("elsewhere"))
    assert outcome.steps == 8


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each batch that is learned from, the pieces, and those of its longest sentence."""
    seen: list[tuple[int, int]] = []
    real = objective.loss_of

    def loss_of(model: Any, batch: Any, **named: Any) -> torch.Tensor:
        if model.training:
            lengths = torch.cat([batch.source_lengths_B, batch.target_lengths_B])
            seen.append((int(lengths.sum()), int(lengths.max())))
        return real(model, batch, **named)

    monkeypatch.setattr(objective, "loss_of", loss_of)
    return seen


@pytest.fixture(params=["cpu", "mps"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The CPU, or what it passes for, by name."""
    monkeypatch.setattr(Machine, "kind", property(lambda machine: request.param))
    return str(request.param)


def test_the_largest_batches_are_tried_first(kind: str, learned: list[tuple[int, int]]) -> None:
    """Of a CPU one: there each takes as long as an update."""
    config = settings(max_epochs=1)
    train(config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"sampling": 0.0})}), Path("x"))
    n_steps = final_state(Path("x"))[2]["step"]
    tried, epoch = learned[:-n_steps], learned[-n_steps:]
    most, longest = max(pieces for pieces, _ in epoch), max(longest for _, longest in epoch)
    assert tried[0][0] == most
    assert kind == "cpu" or tried[1][1] == longest
    assert len(tried) == (1 if kind == "cpu" else 2)


def test_of_a_few_long_sentences_attention_may_take_more_than_of_many_pieces() -> None:
    """By the factors of a CPU, where it is written out."""
    config = settings()
    material = Material.__new__(Material)  # of which only the configuration is asked
    material.config = config
    machine = decide(config)
    many, few = np.full((300, 2), 10), np.full((2, 2), 1000)
    assert material._bytes(few, machine) > material._bytes(many, machine)
    assert material._bytes(few[:1] // 10, machine) < material._bytes(many, machine)
    assert material._bytes(few[:0], machine) == 0  # what a process has of an epoch that is too small for all
    unlike = np.array([(50, 50), *[(10, 10)] * 99])  # nothing is computed of padding
    assert material._bytes(unlike, machine) < material._bytes(np.full((150, 2), 10), machine)


def test_to_try_them_moves_no_bit_and_parts_do_not_end_a_run(
    kind: str, learned: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(settings(), Path("tried"))
    n_tried = len(learned) - 12
    with monkeypatch.context() as patch:
        patch.setattr(run, "try_out", lambda learner, batches: None)
        train(settings(), Path("not-tried"))
    assert n_tried > 0
    assert len(learned) == 12 + n_tried + 12
    assert_same_bits(Path("tried"), Path("not-tried"))
    real, warnings = objective.loss_of, []

    def short(model: Any, batch: Any, **named: Any) -> torch.Tensor:
        if model.training and len(batch.indices) > 5:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 95993856 bytes")
        return real(model, batch, **named)

    monkeypatch.setattr(objective, "loss_of", short)
    outcome = train(settings(), Path("short"), listener=Listener(warn=warnings.append))
    assert outcome.steps == 12
    said = [number for number, line in enumerate(warnings) if "not enough memory for a whole batch" in line]
    assert said
    assert f"in {2 ** len(said)} parts from now on" in warnings[said[-1]]


def bad_losses(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let the losses of these batches, counted from 1 after the one that is tried first, be none."""
    counter, real = itertools.count(), objective.loss_of

    def loss_of(*arguments: Any, **named: Any) -> torch.Tensor:
        loss = real(*arguments, **named)
        return loss * float("nan") if next(counter) in numbers else loss

    monkeypatch.setattr(objective, "loss_of", loss_of)


def test_an_update_of_numbers_that_are_not_finite_is_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bad_losses(monkeypatch, 3, 4, 7)
    warnings: list[str] = []
    train(settings(max_skipped=2), Path("run"), listener=Listener(warn=warnings.append))
    said = [line for line in warnings if "not finite" in line]
    assert len(said) == 3
    assert re.fullmatch(r"update 4: loss nan, .* not made \(2 in a row; pairs \d.*\)", said[1])
    assert [event["step"] for event in events(Path("run")) if event["event"] == "skipped"] == [3, 4, 7]
    assert final_state(Path("run"))[2]["skipped"] == 0
    assert all(tensor.isfinite().all() for tensor in final_state(Path("run"))[0].values())


def test_of_many_lines_of_such_an_update_the_first_are_named_and_all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "LONGEST_LIST", 12)
    bad_losses(monkeypatch, 3)
    warnings: list[str] = []
    train(settings(budget_tokens=200), Path("run"), listener=Listener(warn=warnings.append))
    [said] = [line for line in warnings if "not finite" in line]
    [kept] = [event["lines"] for event in events(Path("run")) if event["event"] == "skipped"]
    assert len(kept) > 12
    [first] = re.findall(r"in a row; (pairs .*\d), \.\.\.: metrics.jsonl has all\)", said)
    assert kept.startswith(f"{first}, ")
    assert len(first) <= 12


def test_more_of_them_in_a_row_than_allowed_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    bad_losses(monkeypatch, 6, 7, 8)
    with pytest.raises(DivergedError, match=r"update 8: .* \(3 in a row; pairs ") as caught:
        train(settings(max_skipped=2), Path("run"))
    assert caught.value.exit_code == 6
    assert list_checkpoints("run")[-1].name == "step-00000005"
    assert str(caught.value.hint).startswith("in a new run (--overwrite, or training.init_from=run), lower training.")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"^validation at step 1: line \d: the model's scores are not finite numbers$"),
        ({"validation_bleu": False, "best_by": "loss"}, r" holds .* values: not saved$"),
        ({"validate_every": 9, "max_skipped": 0}, r"^update 2: .* not made \(1 in a row; "),
    ],
    ids=["in BLEU", "in a checkpoint", "in an update"],
)
def test_without_a_checkpoint_a_run_whose_numbers_are_not_finite_starts_again_with_others(
    options: dict[str, Any], words: str
) -> None:
    """To begin another with an earlier checkpoint, or to translate by it, was what to do."""
    wild = {"learning_rate": 1e38, "warmup_steps": 0, "validate_every": 1}
    with pytest.raises(DivergedError, match=words) as caught:
        train(settings(**wild | options), Path("run"))
    lower = "lower training.learning_rate, raise training.warmup_steps or choose `precision: fp32`, and start again"
    assert caught.value.hint == lower
    assert train(settings(**options), Path("run")).steps == 12


@pytest.mark.parametrize("valid", ["25%", "b"])
def test_the_lines_of_an_update_that_was_not_made_are_those_of_their_files(
    valid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though lines before them were left out, and others are held out of the text."""
    lines = [f"{one} {other}" for one in WORDS for other in WORDS]
    for name, some in {"a": ["", *lines[:20], " "], "b": lines[20:30], "c": [lines[30], "", *lines[31:]]}.items():
        Path(f"{name}.de").write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
        Path(f"{name}.en").write_text("".join(f"{line.upper()}\n" for line in some), encoding="utf-8")
    config, warnings = settings(max_skipped=99, max_epochs=1, max_steps=None), list[str]()
    texts = {"train": [{"text": name} for name in ("a", "b", "c")], "valid": valid, "max_length": 64}
    config = RunConfig.model_validate(config.model_dump() | {"data": {**texts, "source": "de", "target": "en"}})
    loss_of = objective.loss_of

    def bad(model: Any, batch: Any, **named: Any) -> torch.Tensor:
        return loss_of(model, batch, **named) * (math.nan if model.training else 1)

    monkeypatch.setattr(objective, "loss_of", bad)
    train(config, Path("run"), listener=Listener(warn=warnings.append))
    named = [
        (name, int(number))
        for line in warnings
        if "update" in line  # and not in what is suspicious of the text
        for name, numbers in re.findall(r"(\w+\.de), lines? ([\d, ]+)", line)
        for number in numbers.split(", ")
    ]
    of_these = [Path(name).read_text(encoding="utf-8").split("\n")[number - 1] for name, number in named]
    used = corpus.load_training(config.data).source
    assert sorted(of_these) == sorted(used)
    assert len({name for name, _ in named}) == 3


def test_a_new_run_tells_what_is_suspicious_in_its_text_and_one_that_goes_on_does_not() -> None:
    """What `--dry-run` finds was said by nobody where the README's three lines were followed."""
    said: list[str] = []
    for steps in (3, 6):
        train(settings(max_steps=steps, warmup_steps=2), Path("runs/x"), listener=Listener(warn=said.append))
    [found] = [line for line in said if "suspicious" in line]
    assert "\n  valid, pairs that train has, too: 6 (lines 1, 2, 3, 4, 5, ...)" in found


@pytest.mark.parametrize(
    ("tokenize", "target", "n_said"),
    [("13a", "แมวดื่มน้ำ", 1), ("auto", "แมวดื่มน้ำ", 0), ("char", "แมวดื่มน้ำ", 0), ("13a", "the cat drinks", 0)],
)
def test_a_bleu_that_takes_sentences_for_words_is_told_when_a_run_begins(
    tokenize: str, target: str, n_said: int
) -> None:
    """Nobody did before `tx evaluate`, when the best checkpoint was chosen by it."""
    pairs = [[line, target] for line in ("der Hund", "die Katze", "der Hund trinkt")]
    given = settings(max_steps=1, warmup_steps=1).model_dump(exclude_unset=True)
    given |= {
        "data": {"train": {"pairs": pairs * 9}, "valid": {"pairs": pairs}, "max_length": 64},
        "evaluation": {"tokenize": tokenize},
    }
    said: list[str] = []
    for steps in (1, 2):
        given["training"]["max_steps"] = steps
        train(RunConfig.model_validate(given), Path("runs/x"), listener=Listener(warn=said.append))
    assert len([line for line in said if "what is between spaces is a word for BLEU" in line]) == n_said


@pytest.mark.parametrize(
    ("budget", "warmup", "is_said"),
    [
        ({"epochs": 1}, 50, True),
        ({"epochs": 1}, 2, False),
        ({"tokens": 300}, 50, True),
        ({"tokens": 300}, "20%", False),
        ({"minutes": 0.02}, 5000, True),
        ({"minutes": 0.02}, 1, False),
    ],
    ids=str,
)
def test_a_budget_that_ends_within_the_warm_up_is_told_so_once(
    budget: dict[str, float], warmup: int | str, is_said: bool
) -> None:
    warnings: list[str] = []
    config = settings(budget=budget, max_steps=None, warmup_steps=warmup, validate_every=1000, validation_bleu=False)
    config = config.model_copy(update={"training": config.training.model_copy(update={"best_by": "loss"})})
    train(config, Path("run"), listener=Listener(warn=warnings.append))
    assert len([line for line in warnings if "still rises when training ends" in line]) == is_said
