"""Several processes under torchrun, or tx: a whole run ends as one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run as torchrun
from ranks import codes, start
from torch.distributed import TCPStore

from transformer_cli import environment
from transformer_cli.checkpoints.store import list_checkpoints, load_checkpoint
from transformer_cli.cli.processes import check_room, run_all
from transformer_cli.config.source import load_config
from transformer_cli.config.training import Budget
from transformer_cli.data import loader
from transformer_cli.errors import UsageError
from transformer_cli.training import parallel, watching
from transformer_cli.training.parallel import joined
from transformer_cli.training.run import train

TORCHRUN = ["--nproc-per-node=2", "--master-port=0", "--standalone", "--no-python"]


def talk() -> None:
    """What is said between as many processes as the environment says."""
    with joined("cpu") as world:
        assert world.share(f"from {world.rank}") == "from 0"
        assert world.share("") == ""
        assert world.gather(f"from {world.rank}" * world.rank) == [f"from {n}" * n for n in range(world.size)]
        assert world.sum(world.rank, 0.5) == [sum(range(world.size)), 0.5 * world.size]


@pytest.mark.parametrize("n", [1, 3])
def test_all_hear_what_one_says_and_what_all_say(n: int, tmp_path: Path) -> None:
    assert codes(start(n, lambda _: talk(), tmp_path), limit_s=60) == [0] * n


def test_nothing_is_read_that_an_earlier_world_posted(tmp_path: Path) -> None:
    """torchrun's store outlives a world, and a save has the same name in the next one."""
    store = TCPStore("127.0.0.1", 0, is_master=True)

    def twice(rank: int) -> None:
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", MASTER_PORT=str(store.port))
        for _ in range(2):
            with joined("cpu") as world:
                board = world.writers("save 1")
                assert not board.store.check(["written"])
                world.wait()
                board.post("written")
                assert board.store.check(["written"])

    assert codes(start(2, twice, tmp_path), limit_s=60) == [0, 0]


def test_who_another_command_started_is_not_taken_for_one_of_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two commands that were given the same port one meets at the other's store, and may come first."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    monkeypatch.setattr(parallel, "JOINING", timedelta(seconds=4))

    def come(number: int) -> None:
        rank, launch = min(number, 1), "theirs" if number == 2 else "ours"
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", MASTER_PORT=str(store.port))
        os.environ.update(TORCHELASTIC_RUN_ID=launch, WORLD_SIZE="2", RANK=str(rank))
        time.sleep((0.5, 1.0, 0.0)[number])
        with joined("cpu") as world:
            assert world.gather(str(number)) == ["0", "1"]

    assert codes(start(3, come, tmp_path), limit_s=60) == [0, 0, 5]


@pytest.mark.parametrize(("who", "joins"), [(0, False), (1, False), (0, True), (1, True)])
def test_processes_meet_again_after_one_ended_anywhere(who: int, joins: bool, tmp_path: Path) -> None:
    """torchrun starts all anew, at the same store, whatever each had said there."""
    store = TCPStore("127.0.0.1", 0, is_master=True)

    def meet(rank: int, *, ends: bool) -> None:
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", MASTER_PORT=str(store.port))
        if ends and rank == who and not joins:
            os._exit(9)
        with joined("cpu") as world:
            if ends and rank == who:
                os._exit(9)
            assert world.gather(str(rank)) == ["0", "1"]

    for _ in range(2):
        assert codes(start(2, lambda rank: meet(rank, ends=True), tmp_path), limit_s=30, grace_s=0.5)[who] == 9
        assert codes(start(2, lambda rank: meet(rank, ends=False), tmp_path), limit_s=30) == [0, 0]


def test_a_run_under_torchrun_writes_one_history_and_one_model(
    tmp_path: Path, trained_run: Path, warm: list[str]
) -> None:
    (tmp_path / "x.yaml").write_text((trained_run / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    overrides = [
        f"--set=training.{key}={value}" for key, value in {"max_steps": 4, "validate_every": 2, "log_every": 1}.items()
    ]
    command = [*warm, "train", "-c", str(tmp_path / "x.yaml"), "--run-dir", str(tmp_path / "run"), *overrides]
    assert codes(start(1, lambda _: torchrun.main([*TORCHRUN, *command]), tmp_path), limit_s=120) == [0]
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    events = [(event["event"], event["step"]) for event in map(json.loads, lines)]
    assert events == [
        ("update", 1),
        ("update", 2),
        ("validation", 2),
        ("update", 3),
        ("update", 4),
        ("validation", 4),
    ]
    assert list_checkpoints(tmp_path / "run")[-1].name == "step-00000004"


def test_a_signal_to_the_one_who_started_them_ends_both_at_the_same_step(
    warm: list[str], tmp_path: Path, trained_run: Path
) -> None:
    shutil.copy(trained_run / "config.yaml", "x.yaml")
    endless = ["--set=training.max_steps=100000", "--set=training.log_every=1"]
    command = [*warm, "train", "-c", "x.yaml", "--run-dir", "run", *endless]
    (launcher,) = start(1, lambda _: os._exit(run_all(2, command)), tmp_path)
    end = time.monotonic() + 60
    while not Path("run/metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(launcher, signal.SIGTERM)
    assert codes([launcher], limit_s=60) == [143]
    said = (tmp_path / "0").read_text()
    steps = re.findall(r"stopped by SIGTERM after step ([\d,]+) of 100,000; everything is saved", said)
    assert len(steps) == 1, said
    assert list_checkpoints("run")[-1].name == f"step-{int(steps[0].replace(',', '')):08d}"


def test_processes_are_of_one_mind_about_when_their_minutes_are_over(tmp_path: Path, trained_run: Path) -> None:
    config = load_config(trained_run / "config.yaml")
    budget = {"budget": Budget(minutes=0.04), "max_steps": None, "schedule": "linear", "warmup_steps": "10%"}
    options = {"budget_tokens": 16, "validation_bleu": False, "best_by": "loss", "log_every": 1, **budget}
    timed = config.model_copy(update={"training": config.training.model_copy(update=options)})

    def part(rank: int) -> None:
        time.sleep(0.3 * rank)  # their clocks begin at other times
        assert train(timed, Path("run")).reason == "budget spent (minutes: 0.04)"

    assert codes(start(2, part, tmp_path), limit_s=60) == [0, 0]
    state = load_checkpoint(list_checkpoints("run")[-1], with_optimizer=False).state
    assert 2 < state["passed_s"] < 4


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_another_number_of_processes_goes_on_with_every_sentence_once(
    parallel: str, tmp_path: Path, trained_run: Path
) -> None:
    """Two, then one, then four, each stopped within an epoch; none of them sees what another one saw of it."""
    config = load_config(trained_run / "config.yaml")
    options = {"budget_tokens": 16, "validate_every": 100, "validation_bleu": False, "best_by": "loss"}
    options |= {"parallel": parallel}
    data = config.data.model_copy(update={"max_length": 16})
    real = loader.batches

    def seen(corpus: loader.Encoded, plan: Sequence[Any], *, start: int = 0, **others: Any) -> Iterator[loader.Batch]:
        for indices, batch in zip(plan[start:], real(corpus, plan, start=start, **others), strict=True):
            with open(f"seen-{os.environ.get('RANK', '0')}", "a") as file:
                file.write("".join(f"{index} " for index in indices))
            yield batch

    def part(max_steps: int, **end: Any) -> Callable[[int], object]:
        changed = config.training.model_copy(update={**options, "max_steps": max_steps, **end})
        return lambda _: train(config.model_copy(update={"training": changed, "data": data}), Path("run"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "batches", seen)
        patch.setattr(watching, "BEAT_S", 0.1)
        for n, max_steps in ((2, 1), (1, 2)):
            assert codes(start(n, part(max_steps), tmp_path), limit_s=60) == [0] * n
        state = load_checkpoint(list_checkpoints("run")[-1], with_optimizer=False).state
        assert (state["epoch"], state["shares"], state["batch"]) == (0, [[2, 1]], 1)
        assert codes(start(4, part(99, max_epochs=1), tmp_path), limit_s=60) == [0] * 4
    used = [int(index) for rank in range(4) for index in Path(f"seen-{rank}").read_text().split()]
    assert sorted(set(used)) == list(range(12))
    state = load_checkpoint(list_checkpoints("run")[-1], with_optimizer=False).state
    assert (state["epoch"], state["shares"], state["processes"]) == (1, [], 4)


@pytest.mark.parametrize(("n", "there", "is_refused"), [(99, 2, True), (3, 2, True), (2, 1, False), (8, 8, False)])
def test_more_processes_than_the_machine_is_for_are_refused(
    n: int, there: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """99 on two processors took all memory of the machine, and with it the work of others."""
    monkeypatch.setattr(environment, "processors", lambda: there)
    with pytest.raises(UsageError, match=f"--processes {n}, but") if is_refused else nullcontext():
        check_room(n)
