"""A large checkpoint is written while training goes on: the same bits, and what goes wrong is not lost."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from faults import Killer
from test_run import assert_same_bits, at_update, events, interrupt, settings

from transformer_cli import files
from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import DivergedError, Interrupted, ResourceError
from transformer_cli.training import keeping
from transformer_cli.training.keeping import Keeper
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.run import train

pytestmark = pytest.mark.usefixtures("own_threads")
RUN = Path("run")


def config() -> RunConfig:
    return settings(max_steps=6, validate_every=2, ema=0.9, best_by="loss", keep_last=9)


@pytest.fixture
def straight() -> Path:
    """The same run, each checkpoint written at once."""
    train(config(), Path("straight"))
    return Path("straight")


@pytest.fixture
def in_background(straight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)


@contextmanager
def held_until(update: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Within, no checkpoint is written in the background before that update is made; gives the steps that were."""
    may_go, written, real = threading.Event(), [], store.save_checkpoint

    def save_checkpoint(*arguments: object, step: int, **named: object) -> Path:
        if threading.current_thread() is not threading.main_thread():
            assert may_go.wait(60)
            written.append(step)
        return real(*arguments, step=step, **named)

    with monkeypatch.context() as patch, at_update(update, may_go.set):
        patch.setattr(store, "save_checkpoint", save_checkpoint)
        yield written


@pytest.mark.usefixtures("in_background")
def test_training_goes_on_meanwhile_and_what_is_written_is_what_was(
    straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_until(4, monkeypatch) as written:
        train(config(), RUN)
    assert written == [2, 4]  # and 6 at once, which ends the run
    assert_same_bits(straight, RUN)
    for one, two in zip(list_checkpoints(straight), list_checkpoints(RUN), strict=True):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (one / name).read_bytes() == (two / name).read_bytes(), (one, name)
    assert [(RUN / name).read_text() for name in ("best", "last")] == [
        (straight / name).read_text() for name in ("best", "last")
    ]


@pytest.mark.usefixtures("in_background")
def test_a_stop_waits_for_what_is_being_written(straight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_until(3, monkeypatch) as written, at_update(3, interrupt), pytest.raises(Interrupted):
        train(config(), RUN)
    assert written == [2]
    assert [load_checkpoint(path, with_optimizer=True).step for path in list_checkpoints(RUN)] == [2, 3]
    train(config(), RUN)
    assert_same_bits(straight, RUN)


@pytest.mark.usefixtures("in_background")
def test_whatever_else_ends_training_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("something else")

    with held_until(3, monkeypatch), at_update(3, fail), pytest.raises(RuntimeError, match="something else"):
        train(config(), RUN)
    assert [load_checkpoint(path, with_optimizer=True).step for path in list_checkpoints(RUN)] == [2]
    assert not list(RUN.rglob(f"{files.ASIDE}*"))


@pytest.mark.usefixtures("in_background")
@pytest.mark.parametrize("end", [RuntimeError("something else"), Interrupted("at once", signal_number=signal.SIGINT)])
def test_what_was_wrong_with_it_is_said_whatever_ends_training(
    end: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ResourceError("the disk is full")

    warned: list[str] = []
    monkeypatch.setattr(store, "save_checkpoint", refuse)
    with pytest.raises(type(end)), keeper(warned) as one:
        save_and_fail(one, end, waits=True)
    assert warned == ["a checkpoint is missing: the disk is full"]


@pytest.mark.usefixtures("in_background")
def test_a_second_signal_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[float] = []

    class Slow(files.Disk):
        def write(self, descriptor: int, data: memoryview) -> int:
            time.sleep(0.05)
            writes.append(0.05)
            return super().write(descriptor, data[:100])

    warned: list[str] = []
    tensors = {"model": {"w": torch.zeros(10_000)}, "optimizer": {}}
    with keeper([]) as one:
        one.save(Progress(step=1), **tensors, tokenizer="f1")
    monkeypatch.setattr(files, "disk", Slow())
    begin = time.monotonic()
    with pytest.raises(Interrupted), keeper(warned) as one:
        save_and_fail(one, Interrupted("stopped at once", signal_number=signal.SIGINT), **tensors)
    assert len(writes) < 40_000 / 100  # by far
    assert time.monotonic() - begin < 10
    assert warned == []
    assert [load_checkpoint(path, with_optimizer=True).step for path in list_checkpoints(RUN)] == [1]
    assert not list(RUN.rglob(f"{files.ASIDE}*"))


def test_what_an_end_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)
    may_go, real, now = threading.Event(), store.save_checkpoint, [100.0]
    monkeypatch.setattr(store, "save_checkpoint", lambda *a, **named: (may_go.wait(60), real(*a, **named))[1])
    with keeper([]) as one:
        assert one.to_end_s() == 0
        monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
        save(one, 1)
        now[0] = 103.0
        assert one.to_end_s() == 3  # and that is the least
        one.took_s = 10.0
        assert one.to_end_s() == 7 + 10
        now[0] = 115.0
        assert one.to_end_s() == 15
        may_go.set()
        one.finish()
        one.took_s = 10.0
        assert one.to_end_s() == 10


@pytest.mark.usefixtures("in_background")
def test_a_disk_that_refuses_meanwhile_ends_the_run_soon(straight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.save_checkpoint

    def save_checkpoint(*arguments: object, step: int, **named: object) -> Path:
        if step == 2:
            raise ResourceError("the disk is full")
        return real(*arguments, step=step, **named)

    def wait_for_it() -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("saving"):
                thread.join(0.5)  # idle by then

    monkeypatch.setattr(store, "save_checkpoint", save_checkpoint)
    with at_update(3, wait_for_it), pytest.raises(ResourceError, match="disk is full"):
        train(config(), RUN)
    monkeypatch.setattr(store, "save_checkpoint", real)
    assert {one["step"] for one in events(RUN)} <= {1, 2, 3}
    assert not list_checkpoints(RUN)
    train(config(), RUN)
    assert_same_bits(straight, RUN)


@pytest.mark.usefixtures("in_background")
def test_a_kill_at_any_operation_loses_no_earlier_one(straight: Path) -> None:
    with at_update(3, interrupt), pytest.raises(Interrupted):
        train(config(), Path("began"))
    died = 0
    for nth in range(3, 60, 9):
        shutil.rmtree(RUN, ignore_errors=True)
        shutil.copytree("began", RUN)
        died += Killer(nth).run(lambda: train(config(), RUN))
        assert max(load_checkpoint(path, with_optimizer=True).step for path in list_checkpoints(RUN)) >= 3
        train(config(), RUN)
        assert_same_bits(straight, RUN)
    assert died >= 3


def keeper(warn: list[str]) -> Keeper:
    return Keeper(RUN, config(), World(), warn=warn.append)


def save_and_fail(
    one: Keeper, failure: BaseException, *, waits: bool = False, **tensors: dict[str, torch.Tensor]
) -> None:
    tensors = tensors or {"model": {"w": torch.zeros(4)}, "optimizer": {}}
    one.save(Progress(step=2), **tensors, tokenizer="f1", goes_on=True)
    if waits:
        wait([one._saving])  # type: ignore[list-item]
    raise failure


def save(keeper: Keeper, step: int, *, value: float = 1.0) -> None:
    tensors = {"model": {"w": torch.full((4,), value)}, "optimizer": {"m": torch.zeros(4)}}
    keeper.save(Progress(step=step), **tensors, tokenizer="f1", goes_on=True)


@pytest.mark.usefixtures("in_background")
def test_weights_that_are_no_numbers_are_not_saved_and_said_with_the_next() -> None:
    with keeper([]) as one:
        save(one, 1, value=torch.nan)
        with pytest.raises(DivergedError, match="w holds"):
            save(one, 2)
    with pytest.raises(DivergedError, match="w holds"), keeper([]) as one:
        save(one, 3, value=torch.nan)
    assert not list_checkpoints(RUN)


def test_what_to_do_about_such_weights_depends_on_whether_there_is_a_checkpoint() -> None:
    """Where there was none, it was to begin a new run with one of them."""
    hints = []
    with keeper([]) as one:
        for step, value in enumerate((torch.nan, 1.0, torch.nan), start=1):
            try:
                save(one, step, value=value)
            except DivergedError as failure:
                hints.append(failure.hint)
    new, again = "--overwrite, or training.init_from=run", "and start again"
    assert [(new in str(hint), again in str(hint)) for hint in hints] == [(False, True), (True, False)]


@pytest.mark.usefixtures("in_background")
def test_what_is_changed_after_it_was_given_is_not_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, real = threading.Event(), Keeper._write
    monkeypatch.setattr(Keeper, "_write", lambda *a, **named: (may_go.wait(60), real(*a, **named))[1])
    weight, progress = torch.ones(4), Progress(step=1, scores={"1": 0.5})
    with keeper([]) as one:
        one.save(progress, model={"w": weight}, optimizer={}, tokenizer="f1", goes_on=True)
        one.check()
        assert one.took_s == 0
        weight.zero_()
        progress.scores["2"] = 0.7
        may_go.set()
        one.finish()
        assert one.took_s > 0
    [path] = list_checkpoints(RUN)
    found = load_checkpoint(path, with_optimizer=False)
    assert found.model["w"].tolist() == [1.0] * 4
    assert found.state["scores"] == {"1": 0.5}


@pytest.mark.usefixtures("in_background")
def test_what_has_to_be_said_of_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run_dir: Path) -> None:
        raise ResourceError("cannot write runs/latest")

    monkeypatch.setattr(store, "mark_latest", refuse)
    warned: list[str] = []
    with keeper(warned) as one:
        save(one, 1)
        assert warned == []
    assert warned == ["cannot write runs/latest; this run has to be named: -m run"]


def test_what_is_small_is_there_at_once() -> None:
    with keeper([]) as one:
        save(one, 1)
        assert len(list_checkpoints(RUN)) == 1


def test_a_disk_that_gives_back_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(files.Disk):
        def write(self, descriptor: int, data: memoryview) -> int:
            return super().write(descriptor, bytes(len(data)))

    with keeper([]) as one:
        monkeypatch.setattr(files, "disk", Forgetful())
        with pytest.raises(ResourceError, match=r"run/checkpoints/step-00000001/model\.safetensors does not read"):
            save(one, 1)
    assert not list_checkpoints(RUN)
