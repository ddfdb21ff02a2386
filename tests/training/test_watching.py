"""Whatever befalls one process, all end soon, with its message, and what was saved is whole."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import codes, start

from transformer_cli import environment, files
from transformer_cli.checkpoints import parts
from transformer_cli.checkpoints.store import list_checkpoints, load_checkpoint
from transformer_cli.config.run import RunConfig
from transformer_cli.data import loader
from transformer_cli.errors import DataError, TxError
from transformer_cli.training import keeping, objective, validation, watching
from transformer_cli.training.parallel import joined
from transformer_cli.training.run import train

PLACES = {
    "loader": (loader, "collate"),
    "forward": (objective, "loss_of"),
    "save": (keeping.Keeper, "save"),
    "validation": (validation.Validation, "loss"),
    "write": (parts, "_write_portion"),  # while training goes on
}


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
]
SOME = [
    ("raises", "save", 1),
    ("hangs", "validation", 0),
    ("dies", "forward", 0),
    ("stops", "loader", 0),
    ("raises", "write", 1),
    ("dies", "write", 0),
]


@pytest.mark.parametrize(("fault", "place", "rank"), EVERY if os.environ.get("TX_EVERY_FAULT") else SOME)
def test_what_befalls_one_process_ends_all_by_name(
    fault: str, place: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BEAT_S", 0.1)
    monkeypatch.setattr(watching, "STUCK_S", 5.0)
    monkeypatch.setattr(watching, "LONGER", 2.0)
    monkeypatch.setattr(watching, "GRACE_S", 2.0)
    owner, name = PLACES[place]
    real, calls = getattr(owner, name), 0

    def faulty(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if int(os.environ.get("RANK", rank)) == rank and calls == {"loader": 10, "forward": 6}.get(place, 3):
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
    assert place == "loader" or checkpoints
    if (fault, place, rank) == ("raises", "write", 1):
        assert not list(Path("run").rglob(f"{files.ASIDE}*")), "what the other one began is cleared away"


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
    store.set("state-0", "1 0 0 inf")
    watch = watching.Watch(store, rank=1, size=2)
    watch.start()
    error = DataError("the disk is bent")
    try:
        assert watch.blame(error) is error
    finally:
        watch.end()


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
    store.set(f"state-{1 - rank}", "1 0 0 inf")
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
