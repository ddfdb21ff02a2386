"""Whatever befalls one process, all end soon, with its message, and what was saved is whole."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from faults import note
from ranks import codes, start

from transformer_cli import environment, files
from transformer_cli.checkpoints import parts
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.parts import DisturbedError
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.cli import processes
from transformer_cli.config.run import RunConfig
from transformer_cli.data import batching, loader
from transformer_cli.errors import DataError, TxError
from transformer_cli.training import keeping, material, objective, run, validation, watching
from transformer_cli.training.parallel import joined
from transformer_cli.training.run import train

PLACES = {
    "plan": (batching, "plan_of_rest", 3),
    "first plan": (batching, "plan_of_rest", 1),
    "loader": (loader, "collate", 11),
    "first batch": (loader, "collate", 2),
    "forward": (objective, "loss_of", 7),
    "first forward": (objective, "loss_of", 3),
    "first trial": (objective, "loss_of", 2),  # one is a preparation
    "save": (keeping.Keeper, "save", 3),
    "first save": (keeping.Keeper, "save", 1),
    "validation": (validation.Validation, "loss", 3),
    "first validation": (validation.Validation, "loss", 1),
    "write": (parts, "_write_portion", 3),  # while training goes on
}
"""Whose function, and which call of it."""


def settings(**others: Any) -> RunConfig:
    text = [[f"der hund {word}", f"the dog {word}"] for word in ["schläft", "trinkt", "isst", "lacht", "weint"]] * 4
    training = {"budget_tokens": 32, "max_steps": 12, "validate_every": 2, "validation_bleu": False, "best_by": "loss"}
    model = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1}
    whole = {
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "tokenizer": {"vocab_size": 60},
        "data": {"train": {"pairs": text}, "valid": {"pairs": text[:5]}, "max_length": 32},
        "model": model,
        "training": training,
    }
    return RunConfig.model_validate(whole | others)


def fail() -> None:
    raise DataError("the disk is bent", hint="straighten it")


tells_who_rests = pytest.mark.skipif(not watching.TASKS.exists(), reason="only Linux tells who rests")

FAULTS: dict[str, Callable[[], object]] = {
    "raises": fail,
    "breaks": lambda: [][1],
    "hangs": lambda: time.sleep(1000),
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
EXPECTED = {
    "raises": (3, "the disk is bent"),
    "breaks": (1, "IndexError: list index out of range"),
    "hangs": (5, "is stuck"),
    "dies": (5, r"process {} of 2: (does not answer any more|is gone)"),
    "stops": (5, r"process {} of 2: (does not answer any more|is gone)"),
}
EVERY = [
    (fault, place, rank)
    for fault in FAULTS
    for place in PLACES
    for rank in (0, 1)
    if (fault, place) != ("hangs", "write")  # a slow disk is waited for
    and (fault == "hangs" or not place.startswith("first"))
]
SOME = [
    ("raises", "save", 1),
    ("hangs", "validation", 0),
    ("hangs", "first validation", 1),
    ("hangs", "first plan", 0),
    ("hangs", "first trial", 1),
    ("dies", "forward", 0),
    ("stops", "loader", 0),
    ("raises", "write", 1),
    ("dies", "write", 0),
]


@pytest.mark.parametrize(
    ("fault", "place", "rank"),
    [
        pytest.param(*one, marks=tells_who_rests if one[0] == "hangs" else ())
        for one in (EVERY if os.environ.get("TX_EVERY_FAULT") else SOME)
    ],
)
def test_what_befalls_one_process_ends_all_by_name(
    fault: str, place: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BEAT_S", 0.1)
    monkeypatch.setattr(watching, "STUCK_S", 5.0)
    monkeypatch.setattr(watching, "LONGER", 2.0)
    monkeypatch.setattr(watching, "GRACE_S", 2.0)
    owner, name, call = PLACES[place]
    real, calls = getattr(owner, name), 0

    def faulty(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if int(os.environ.get("RANK", rank)) == rank and calls == call:
            note(fault)
            FAULTS[fault]()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, faulty)
    config = settings()
    if place == "write":
        monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)
        config = settings(training=config.training.model_dump() | {"parallel": "fsdp", "max_steps": 30})
    children = start(2, lambda _: train(config, Path("run")), tmp_path)
    code, words = EXPECTED[fault]
    ended = codes(children, limit_s=30)
    assert ended[1 - rank] == code
    assert ended[rank] in (code, -signal.SIGKILL)  # by itself, or by whoever started it
    said = [(tmp_path / str(one)).read_text() for one in (0, 1)]
    assert re.search(words.format(rank), said[0] + said[1])
    checkpoints = [load_checkpoint(path, with_optimizer=True) for path in list_checkpoints("run")]
    assert checkpoints or place == "loader" or place.startswith("first")
    if (fault, place, rank) == ("raises", "write", 1):
        assert not list(Path("run").rglob(f"{files.ASIDE}*")), "what the other one began is cleared away"


@tells_who_rests
@pytest.mark.parametrize("where", ["build_model", "shard", "encode"])
@pytest.mark.parametrize("rank", [0, 1] if os.environ.get("TX_EVERY_FAULT") else [0])
def test_who_hangs_in_a_preparation_ends_all_by_name(
    where: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP's constructor waits for all, and so nobody was missed; the last that was heard of another was a file."""
    for limit, seconds in (("BEAT_S", 0.1), ("IDLE_S", 2.0), ("FIRST_S", 4.0), ("GRACE_S", 2.0)):
        monkeypatch.setattr(watching, limit, seconds)
    owner = material.Material if where == "encode" else run
    real = getattr(owner, where)

    def hanging(*arguments: object, **named: object) -> object:
        if os.environ["RANK"] == str(rank):
            note("hangs")
            time.sleep(1000)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, where, hanging)
    children = start(2, lambda _: train(settings(), Path("run")), tmp_path)
    assert 5 in codes(children, limit_s=30)
    said = [(tmp_path / str(one)).read_text() for one in (0, 1)]
    assert f"process {rank} of 2: is stuck" in said[0] + said[1]


class Beside(watching.Watch):
    """The first of two processes' watch, by a clock that moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int = 2) -> None:
        self.now_s = self.used_s = 0.0
        self.is_held = False
        clock = SimpleNamespace(
            monotonic=lambda: self.now_s, process_time=lambda: self.used_s, thread_time=float, sleep=time.sleep
        )
        monkeypatch.setattr(watching, "time", clock)
        monkeypatch.setattr(watching, "is_held", lambda: self.is_held)
        super().__init__(dist.HashStore(), rank=0, size=size)

    def told(self) -> tuple[tuple[int, int, int], float, float]:
        """How far it is by its own words, and the limits of that: in any case, and where the other one is ahead."""
        self._tell()
        _, meetings, steps, signs, *limits = self.store.get("state-0").decode().split()
        return (int(meetings), int(steps), int(signs)), float(limits[0]), float(limits[1])

    def passes(self, seconds: float, *, used: float = 0.0) -> float:
        """So much time, of which it computed a share; until when it may go on if the other one is ahead."""
        for _ in range(round(seconds / watching.BEAT_S)):
            self.now_s += watching.BEAT_S
            self.used_s += used * watching.BEAT_S
            self.told()
        return self.now_s + self.told()[2] - (self.now_s - self._since)


def test_what_ends_a_process_takes_half_a_minute_together() -> None:
    """In the tests here seconds are fewer; so that they are not more elsewhere."""
    silent_s = watching.LOST_BEATS * watching.BEAT_S
    heard_s = 2 * watching.BEAT_S
    assert max(silent_s, watching.STUCK_S) + heard_s + max(watching.GRACE_S, processes.GRACE_S) <= 30


def test_what_was_stopped_goes_on_for_as_long_as_it_takes_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun tells it to end, and waits for half a minute."""
    monkeypatch.setattr(watching, "BEAT_S", 0.1)
    monkeypatch.setattr(watching, "GRACE_S", 2.0)
    real, calls = loader.collate, 0

    def stopping(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if os.environ["RANK"] == "1" and calls == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments, **named)

    monkeypatch.setattr(loader, "collate", stopping)
    children = start(2, lambda _: train(settings(), Path("run")), tmp_path)
    begin = time.monotonic()
    assert codes(children, limit_s=60, grace_s=60) == [5, 5]
    assert time.monotonic() - begin < 60
    assert "process 1 of 2: does not answer any more" in (tmp_path / "0").read_text()
    assert "process 0" not in (tmp_path / "1").read_text()


@tells_who_rests
@pytest.mark.parametrize("told", ["another began", "another machine", "nothing", "it"])
def test_only_the_process_that_was_stopped_goes_on(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Beside(monkeypatch)
    sleeps = subprocess.Popen(["sleep", "60"])
    try:
        sleeps.send_signal(signal.SIGSTOP)
        while watching._stat(Path(f"/proc/{sleeps.pid}"))[0] != "T":
            pass
        machine, number, began = watching._identity(sleeps.pid).split()
        others = {"another began": f"{machine} {number} 7", "another machine": f"x {number} {began}", "nothing": ""}
        watch._processes = ["", others.get(told, f"{machine} {number} {began}")]
        watch._wake(1)
        time.sleep(0.1)
        assert (watching._stat(Path(f"/proc/{sleeps.pid}"))[0] == "T") == (told != "it")
    finally:
        sleeps.kill()
        sleeps.wait()


@pytest.mark.parametrize("does", ["computes", "rests"])
def test_a_preparation_lasts_as_long_as_it_works(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Beside(monkeypatch)
    may_last = watch.passes(3600, used=1.0 if does == "computes" else 0.003)
    assert may_last == (3600 + watching.IDLE_S if does == "computes" else watching.IDLE_S)
    assert watch.told()[1] == math.inf


def test_who_answers_many_rests_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process where all meet: 64 of them take more of a processor than two."""
    assert Beside(monkeypatch, 64).passes(3600, used=0.02) == watching.IDLE_S
    assert Beside(monkeypatch, 2).passes(3600, used=0.02) > 3600


@pytest.mark.parametrize("does", ["computes", "rests"])
def test_a_preparation_that_waits_for_a_disk_is_waited_for_longer(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for ever: what it does once that is written, nobody hears."""
    watch = Beside(monkeypatch)
    watch.touch(is_for_disk=True)
    may_last = watch.passes(7200, used=1.0 if does == "computes" else 0.003)
    assert may_last == (7200 + watching.FIRST_S if does == "computes" else watching.FIRST_S)


@pytest.mark.parametrize("does", ["computes", "is held", "writes", "rests"])
def test_the_first_piece_of_a_kind_lasts_as_long_as_it_works(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Beside(monkeypatch)
    watch.touch("validation", is_for_disk=does == "writes")
    watch.is_held = does == "is held"
    may_last = watch.passes(600, used=1.0 if does == "computes" else 0.003)
    assert (may_last > 600) == (does != "rests")
    assert may_last == watch.passes(10) or does == "is held", "and no longer, once it rests"
    assert watch.told()[1] == watching.FIRST_S


def test_who_rested_for_long_and_went_on_may_do_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what it waited for others, or a disk: that says nothing of its own work."""
    watch = Beside(monkeypatch)
    for is_for_disk in (False, True):
        watch.touch("update", is_for_disk=is_for_disk)
        if not is_for_disk:
            watch.meet()
        watch.passes(100)
    watch.touch("update")
    assert watch.told()[2] == watching.STUCK_S
    watch.passes(15)
    watch.touch("validation")
    assert watch.told()[2] == 30


@pytest.mark.parametrize("other", ["ahead", "beside it"])
def test_who_rests_is_stuck_where_the_other_one_is_ahead(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody is, both may wait for a slow network, in the first piece for long."""
    watch = Beside(monkeypatch)
    watch.touch("update")
    watch.touch(is_for_disk=True)  # as only the first one does, which is no further by that
    watch.touch(is_for_disk=True)
    watch.touch()
    for beat in range(100):
        watch.passes(watching.BEAT_S)
        watch.store.set("state-1", f"{beat} 0 {3 if other == 'ahead' else 2} 0 1800.0 20.0")
        watch._look()
        if watch._first is not None:
            break
    assert (watch._first is not None) == (other == "ahead")
    assert watch._first is None or (watch._first.rank, "is stuck" in watch._first.message) == (0, True)


@pytest.mark.parametrize("kinds", [("preparation", "update"), ("update", "validation"), ("update", None)])
def test_no_place_is_told_with_the_limit_of_a_later_one(
    kinds: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the thread that tells looks in: the others would take the time at that place for time at this one."""
    told: list[tuple[tuple[int, int, int], float, float]] = []

    class Seen(Beside):
        is_seen = False

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if self.is_seen and name != "is_seen":
                self.is_seen = False
                told.append(self.told())
                self.is_seen = True

    watch = Seen(monkeypatch)
    watch.touch(kinds[0])
    watch.passes(500, used=1.0)
    place, *limits = watch.told()
    watch.is_seen = True
    watch.touch(kinds[1])
    assert len(told) > 3
    for seen, *others in told:
        assert seen > place or others == limits


@pytest.mark.parametrize("breaks_at", ["set", "add", "nothing"])
def test_a_failure_stays_the_first_though_the_process_with_the_store_goes_before_all_heard(
    breaks_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 hears of it, ends, and takes the store along, wherever process 1 is between telling and hearing."""

    class Store(dist.HashStore):
        def __getattribute__(self, name: str) -> object:
            if name == breaks_at and self.compare_set("failure", "", ""):
                raise RuntimeError("Connection reset by peer")
            return super().__getattribute__(name)

    monkeypatch.setattr(watching, "BEAT_S", 0.01)
    monkeypatch.setattr(watching, "LOST_BEATS", 10)
    store = Store()
    store.set("state-0", "1 0 0 0 inf inf")
    watch = watching.Watch(store, rank=1, size=2)
    watch.start()
    error = DataError("the disk is bent")
    try:
        assert watch.blame(error) is error
    finally:
        watch.end()


def test_who_was_disturbed_by_a_failure_lets_that_be_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BEAT_S", 0.01)
    monkeypatch.setattr(watching, "LOST_BEATS", 3000)
    store = dist.HashStore()
    store.set("state-0", "1 0 0 0 inf inf")
    watch = watching.Watch(store, rank=1, size=2)
    watch.start()
    words = watching.Failure(0, "the disk is bent", exit_code=3)
    says = threading.Timer(0.3, watch._raise, [words])
    says.start()
    try:
        found = watch.blame(DisturbedError())
    finally:
        watch.end()
        says.join()
    assert isinstance(found, TxError)
    assert (found.message, found.exit_code) == ("process 0 of 2: the disk is bent", 3)


@pytest.mark.parametrize(("own", "said"), [("the text is gone", "the text is gone"), ("other", "process 1 of 2: the ")])
def test_what_refuses_every_process_names_none(own: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BEAT_S", 0.01)
    watch = watching.Watch(dist.HashStore(), rank=0, size=2)
    watch.store.set("state-1", "1 0 0 0 inf inf")
    watch._raise(watching.Failure(1, "the text is gone", exit_code=3))
    watch.store.add(watching.HEARD, 1)
    watch.start()
    try:
        found = watch.blame(DataError(own))
    finally:
        watch.end()
    assert str(found).startswith(said)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_connection_that_breaks_when_torchrun_is_gone_is_no_bug(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process finds that nobody is where all meet, and ends; the other one's connection breaks by that."""

    class Store(dist.HashStore):
        is_there = True

        def __getattribute__(self, name: str) -> object:
            if name == "set" and not Store.is_there:
                raise RuntimeError("Connection reset by peer")
            return super().__getattribute__(name)

    monkeypatch.setattr(watching, "BEAT_S", 0.01)
    monkeypatch.setattr(watching, "GRACE_S", 5.0)
    store = Store()
    store.set(f"state-{1 - rank}", "1 0 0 0 inf inf")
    watch = watching.Watch(store, rank=rank, size=2)
    watch.start()
    Store.is_there = False
    try:
        found = watch.blame(RuntimeError("[pair.cc:553] gloo: Connection closed by peer"))
    finally:
        watch.end()
    assert isinstance(found, TxError)
    assert found.exit_code == 5
    assert ("is gone, or torchrun is" in found.message) == (rank == 1)  # one of them says it


def test_a_torchrun_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert watching.lives(1)


def test_what_has_ended_is_gone_before_anybody_asks_how() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        assert watching.lives(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays in the system's list
        assert not watching.lives(process.pid)
    assert not watching.lives(process.pid)


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waits_for_others_ends_with_what_started_it(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun gone while its processes still load PyTorch: the others, or where all meet, will never be there."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(watching, "BEAT_S", 0.1)
    monkeypatch.setenv(environment.LAUNCHER, str(gone.pid))

    def alone(_: int) -> None:
        os.environ.update({"WORLD_SIZE": "2", "RANK": str(rank)})
        with joined("cpu"):
            pass

    assert codes(start(1, alone, tmp_path), limit_s=20) == [5]
    assert "what started it, tx or torchrun, is gone" in (tmp_path / "0").read_text()


def test_another_configuration_on_a_process_is_refused_by_name(tmp_path: Path) -> None:
    children = start(2, lambda rank: train(settings(seed=2) if rank else settings(), Path("run")), tmp_path)
    assert codes(children, limit_s=20) == [2, 2]
    assert "process 1 of 2 is not like process 0:\n  settings.seed: 2 there, " in (tmp_path / "0").read_text()
    assert not Path("run/run.json").exists()


def test_another_weight_of_a_text_on_a_process_is_refused(tmp_path: Path) -> None:
    """Where the texts lie may differ, but not how often an epoch sees each: the processes would plan other batches."""
    data = settings().data.model_dump()

    def mixed(weight: float) -> RunConfig:
        return settings(data={**data, "train": [{"text": data["train"]}, {"text": data["valid"], "weight": weight}]})

    children = start(2, lambda rank: train(mixed(3.0 if rank else 2.0), Path("run")), tmp_path)
    assert codes(children, limit_s=20) == [2, 2]
    said = (tmp_path / "0").read_text()
    assert "text.train.weights: [[20, 1.0], [5, 3.0]] there, [[20, 1.0], [5, 2.0]] here" in said
    assert "sha256" not in said


def test_another_text_on_a_process_is_refused_by_name(tmp_path: Path) -> None:
    for rank, word in enumerate(["sleeps", "slept"]):
        (tmp_path / f"{rank}.de").write_text("der hund schläft\n" * 4, encoding="utf-8")
        (tmp_path / f"{rank}.en").write_text(f"the dog {word}\n" * 4, encoding="utf-8")
    texts = [{"train": f"{tmp_path}/{rank}", "valid": f"{tmp_path}/0", "max_length": 32} for rank in (0, 1)]
    children = start(2, lambda rank: train(settings(data=texts[rank]), Path("run")), tmp_path)
    assert codes(children, limit_s=20) == [2, 2]
    said = (tmp_path / "0").read_text()
    assert "text.train.sha256: " in said
    assert "text.valid" not in said
