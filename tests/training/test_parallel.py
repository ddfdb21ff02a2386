"""Several processes under torchrun, or tx: a whole run ends as one."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.run as torchrun
from conftest import PAIRS
from ranks import codes, start
from test_run import assert_same_bits, at_update
from torch.distributed import TCPStore

from transformer_cli import environment
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.record import versions
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.cli import processes
from transformer_cli.cli.processes import check_room, run_all
from transformer_cli.cli.signals import end_by_signals
from transformer_cli.config.data import InlinePairs
from transformer_cli.config.source import load_config
from transformer_cli.config.training import Budget
from transformer_cli.errors import ModelError, ResourceError, TxError, UsageError
from transformer_cli.training import loop, objective, parallel, run, signals, update, watching
from transformer_cli.training.directory import parts_of
from transformer_cli.training.listening import Listener
from transformer_cli.training.parallel import joined
from transformer_cli.training.run import train
from transformer_cli.training.update import seed_dropout
from transformer_cli.training.validation import GivenUpError, Validation
from transformer_cli.training.watching import Watch

TORCHRUN = ["--nproc-per-node=2", "--master-port=0", "--standalone", "--no-python"]
TOLD = pytest.mark.skipif("--signals" not in torchrun.get_args_parser().format_help(), reason="torchrun cannot be told")


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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="shows what a process has open")
def test_nobody_connects_to_the_store_once_processes_watch_each_other(tmp_path: Path) -> None:
    """Whoever keeps the store looks up the name of each who does, and answers none of the others while it waits for a
    name server: those would be taken for gone."""

    def connections() -> set[str]:
        found = set()
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # which another thread has closed
                found.add(os.readlink(link))
        return {name for name in found if name.startswith("socket:")}

    def come(rank: int) -> None:
        begin, before = Watch.start, set[str]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Watch, "start", lambda watch: (before.update(connections()), begin(watch)))
            with joined("cpu") as world:
                world.writers("save 1").post(f"from {rank}")
                assert connections() <= before

    assert codes(start(2, come, tmp_path), limit_s=60) == [0, 0], (tmp_path / "1").read_text()


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


def test_who_waits_for_others_says_for_whom_and_hears_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing launched them all, the end of one is no end of the others."""
    monkeypatch.setattr(parallel, "WAITED_S", 0.2)
    told = tmp_path / "told"

    def tell(words: str) -> None:
        told.write_text(words)
        os.kill(os.getpid(), signal.SIGTERM)

    def come(rank: int) -> None:
        end_by_signals()
        if rank == 1:
            os._exit(2)
        with joined("cpu", tell):
            pass

    assert codes(start(2, come, tmp_path), limit_s=60, grace_s=60) == [1, 2]
    assert told.read_text() == "waiting for process 1 of 2 for 10 min at most"
    assert "Ended" in (tmp_path / "0").read_text()


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


@pytest.mark.parametrize("told", ["the launcher", "the whole job", pytest.param("torchrun", marks=TOLD)])
def test_a_signal_to_the_one_who_started_them_ends_both_at_the_same_step(
    told: str, warm: list[str], tmp_path: Path, trained_run: Path
) -> None:
    """Also where a scheduler tells all of them, and the launcher tells the others again. torchrun dies of SIGUSR1,
    unless it is asked to handle it."""
    shutil.copy(trained_run / "config.yaml", "x.yaml")
    endless = ["--set=training.max_steps=100000", "--set=training.log_every=1"]
    command = [*warm, "train", "-c", "x.yaml", "--run-dir", "run", *endless]
    number, code = (signal.SIGUSR1, 1) if told == "torchrun" else (signal.SIGTERM, 143)

    def launch(_: int) -> None:
        if told == "torchrun":
            torchrun.main([*TORCHRUN, "--signals-to-handle=SIGTERM,SIGUSR1", *command])
        os._exit(run_all(2, command))

    (launcher,) = start(1, launch, tmp_path)
    end = time.monotonic() + 60
    while not Path("run/metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.05)
    if told == "the whole job":
        for child in children_of(launcher):
            os.kill(child, number)
        time.sleep(0.005)
    os.kill(launcher, number)
    assert codes([launcher], limit_s=60) == [code]
    said = (tmp_path / "0").read_text()
    steps = re.findall(rf"stopped by {number.name} after step ([\d,]+) of 100,000; everything is saved", said)
    assert len(steps) == 1, said
    assert list_checkpoints("run")[-1].name == f"step-{int(steps[0].replace(',', '')):08d}"


@pytest.mark.parametrize("has_shell", [True, False])
def test_ctrl_z_pauses_all_until_the_one_who_started_them_goes_on(has_shell: bool, tmp_path: Path) -> None:
    """Where no shell could let them go on, as in a container, nothing stops."""
    command = ["sh", "-c", 'echo > "$0/there-$RANK"; until [ -e "$0/end" ]; do sleep 0.05; done', str(tmp_path)]

    def launch(_: int) -> None:
        if has_shell:
            os.setpgid(0, 0)  # a job of the session that this process is in
        else:
            os.setsid()
        os._exit(run_all(2, command))

    (launcher,) = start(1, launch, tmp_path)
    until(lambda: all((tmp_path / f"there-{rank}").exists() for rank in range(2)))
    all_of_them = [launcher, *children_of(launcher)]
    os.kill(launcher, signal.SIGTSTP)
    if has_shell:
        until(lambda: all(state_of(process) == "T" for process in all_of_them))
        os.kill(launcher, signal.SIGCONT)
    until(lambda: all(state_of(process) in "SRD" for process in all_of_them))
    (tmp_path / "end").touch()
    assert codes([launcher], limit_s=10) == [0]


def until(is_so: Callable[[], bool], *, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_so()


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_the_user_set_for_threads_and_names_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["sh", "-c", 'echo "$OMP_NUM_THREADS $RES_OPTIONS" > "$0/$RANK"', str(tmp_path)]
    said = []
    for own in ({}, {"OMP_NUM_THREADS": "3", "RES_OPTIONS": "attempts:5"}):
        for name in ("OMP_NUM_THREADS", "RES_OPTIONS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signal, "signal", lambda *_: None)
            patch.setattr(environment, "processors", lambda: 8)
            assert run_all(2, command) == 0
        said.append([(tmp_path / rank).read_text().strip() for rank in "01"])
    assert said == [["4 timeout:1 attempts:2"] * 2, ["3 attempts:5"] * 2]


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [("exec sleep 9", "kill -9 $$", "process 1 of 2 was ended by SIGKILL"), ("exit 5", "kill -9 $$", "")],
)
def test_who_is_killed_before_the_others_know_of_it_is_named(
    first: str, second: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was said: the one who waited for it was ended before it would have been."""
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    command = ["sh", "-c", f"if [ $RANK = 0 ]; then {first}; else {second}; fi"]
    with pytest.raises(ResourceError, match=says) if says else nullcontext():
        assert run_all(2, command) == 5


def children_of(process: int) -> list[int]:
    parents = {
        path.parent.name: path.read_text().rpartition(")")[2].split()[1] for path in Path("/proc").glob("[0-9]*/stat")
    }
    return [int(child) for child, parent in parents.items() if parent == str(process)]


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


def test_the_end_of_the_time_on_one_process_stops_both_at_the_same_step_saved(
    tmp_path: Path, trained_run: Path
) -> None:
    """Their clocks began at other times, and one may be told another time in between."""
    config = load_config(trained_run / "config.yaml")
    options = {"max_steps": 12, "max_hours": 1.0, "validation_bleu": False, "best_by": "loss"}
    changed = config.model_copy(update={"training": config.training.model_copy(update=options)})

    def two_hours_later() -> None:
        signals.time = SimpleNamespace(monotonic=lambda: time.monotonic() + 7200)  # type: ignore[assignment]

    def part(rank: int) -> None:
        with at_update(3, two_hours_later if rank else lambda: None), learned_pairs(f"learned-{rank}"):
            train(changed, Path("run"))

    assert codes(start(2, part, tmp_path), limit_s=60) == [128 + signal.SIGUSR1] * 2
    words = "training.max_hours, 60 min, is nearly over: stopped after step 4 of 12; everything is saved"
    assert words in (tmp_path / "0").read_text()
    assert [len(Path(f"learned-{rank}").read_text().split("\n")[:-1]) for rank in range(2)] == [4, 4]
    assert list_checkpoints("run")[-1].name == "step-00000004"


@pytest.mark.parametrize(("look", "parallel"), [(1, "fsdp"), (2, "ddp")])
def test_asked_to_stop_in_a_validation_both_stop_there_and_end_in_the_same_bits(
    look: int, parallel: str, tmp_path: Path, trained_run: Path
) -> None:
    """One alone is asked: at a look that it takes for the loss, or for translations; the other hears of it after its
    own part."""
    config = load_config(trained_run / "config.yaml")
    options = {"max_steps": 4, "validate_every": 2, "parallel": parallel}
    changed = config.model_copy(update={"training": config.training.model_copy(update=options)})
    looks = itertools.count(1)

    def heed(self: Validation) -> None:
        if next(looks) == look:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.asked():
            raise GivenUpError

    def part(rank: int, *, name: str, stops: bool) -> None:
        if stops and rank:
            Validation._heed = heed  # type: ignore[method-assign]
        train(changed, Path(name))

    assert codes(start(2, partial(part, name="straight", stops=False), tmp_path), limit_s=60) == [0, 0]
    assert codes(start(2, partial(part, name="run", stops=True), tmp_path), limit_s=60) == [143, 143]
    words = "stopped by SIGTERM after step 2 of 4, whose validation comes first when it goes on; everything is saved"
    assert words in (tmp_path / "0").read_text()
    assert codes(start(2, partial(part, name="run", stops=False), tmp_path), limit_s=60) == [0, 0]
    assert_same_bits(Path("straight"), Path("run"))


def test_what_is_owed_at_the_end_another_number_of_processes_does(tmp_path: Path, trained_run: Path) -> None:
    """Their epoch has fewer batches than were used by one, and they were told that this cannot be."""
    config = load_config(trained_run / "config.yaml")
    options = {"max_steps": 5, "validate_every": 9, "budget_tokens": 16}
    changes = {
        "data": config.data.model_copy(update={"max_length": 16}),
        "training": config.training.model_copy(update=options),
    }
    changed = config.model_copy(update=changes)

    def asked_now(self: Validation) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise GivenUpError

    def part(rank: int, *, name: str, stops: bool = False) -> None:
        if stops:
            Validation._heed = asked_now  # type: ignore[method-assign]
        train(changed, Path(name))

    assert codes(start(1, partial(part, name="straight"), tmp_path), limit_s=60) == [0]
    assert codes(start(1, partial(part, name="run", stops=True), tmp_path), limit_s=60) == [143]
    assert codes(start(2, partial(part, name="run"), tmp_path), limit_s=60) == [0, 0]
    assert_same_bits(Path("straight"), Path("run"))


def test_memory_that_is_not_enough_for_another_process_is_told_once(tmp_path: Path, trained_run: Path) -> None:
    """By the first one, for all others are silent; whoever has too little goes on in parts."""
    config = load_config(trained_run / "config.yaml")
    options = {"max_steps": 4, "validate_every": 4, "validation_bleu": False, "best_by": "loss"}
    options |= {"accumulation": 2, "budget_tokens": 32}
    changed = config.model_copy(update={"training": config.training.model_copy(update=options)})

    def part(rank: int) -> None:
        real = objective.loss_of

        def loss_of(*arguments: Any, **named: Any) -> Any:
            if rank == 1 and first and len(arguments[1].indices) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(*arguments, **named)

        def seeded(seed: int, step: int, batch: int, rank: int) -> None:
            seed_dropout(seed, step, batch, rank)
            first[:] = [0] * (batch == 0)  # before the last one, which is learned from together with others

        first: list[int] = []
        update.seed_dropout, objective.loss_of = seeded, loss_of
        warned: list[str] = []
        train(changed, Path("run"), listener=Listener(warn=warned.append))
        Path(f"warned-{rank}").write_text("\n".join(warned))

    assert codes(start(2, part, tmp_path), limit_s=60) == [0, 0]
    assert Path("warned-0").read_text().count("in 1 process beside the first, memory is not enough for a whole") == 1
    assert "memory" not in Path("warned-1").read_text()


def test_memory_that_is_not_enough_for_all_together_is_so_for_parts_by_the_same_command(
    tmp_path: Path, trained_run: Path
) -> None:
    """Of the second process, in the fourth update; the run goes on from its last checkpoint."""
    config = load_config(trained_run / "config.yaml")
    options = {"max_steps": 6, "validate_every": 2, "parallel": "fsdp", "validation_bleu": False, "best_by": "loss"}
    changed = config.model_copy(update={"training": config.training.model_copy(update=options)})

    def part(rank: int) -> None:
        real = objective.loss_of

        def loss_of(*arguments: Any, **named: Any) -> Any:
            if rank == 1 and torch.initial_seed() in fourth and len(arguments[1].indices) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(*arguments, **named)

        def seeded(seed: int, step: int, batch: int, rank: int) -> None:
            seed_dropout(seed, step, batch, rank)
            if step == 4:
                fourth.add(torch.initial_seed())

        fourth, said = set[int](), list[str]()
        update.seed_dropout, objective.loss_of = seeded, loss_of
        try:
            train(changed, Path("run"), listener=Listener(say=said.append))
        except TxError as error:
            Path(f"hint-{rank}").write_text(str(error.hint))
            raise
        Path(f"said-{rank}").write_text("\n".join(said))

    tries = 0
    while (ended := codes(start(2, part, tmp_path), limit_s=60)) == [5, 5]:
        tries += 1
        assert Path("hint-0").read_text() == f"the same command goes on with each batch in {2**tries} parts"
        assert list_checkpoints("run")[-1].name == "step-00000002"
    assert ended == [0, 0]
    assert tries > 1
    words = f"each batch is learned from in {2**tries} parts: memory was not enough before (run/memory.json)"
    assert words in Path("said-0").read_text()
    assert list_checkpoints("run")[-1].name == "step-00000006"
    Path("run/memory.json").write_text('{"parts": "many"}')
    assert codes(start(2, part, tmp_path), limit_s=60) == [4, 4]
    assert "run/memory.json does not say in how many parts" in (tmp_path / "0").read_text()


@pytest.mark.parametrize("damaged", ['"many"', "true", "0", "2.5", "1000000000", "null"])
def test_parts_that_are_no_number_of_parts_are_refused(damaged: str) -> None:
    Path("memory.json").write_text(f'{{"parts": {damaged}}}')
    with pytest.raises(ModelError, match="does not say in how many parts") as caught:
        parts_of(Path(), most=4096)
    assert "delete it" in (caught.value.hint or "")
    Path("memory.json").write_text('{"parts": 4096}')
    assert parts_of(Path(), most=4096) == 4096


@pytest.mark.parametrize("what", ["torch", "numpy", "device"])
def test_other_versions_on_a_process_are_refused_by_name(what: str, tmp_path: Path, trained_run: Path) -> None:
    """And another kind of device, as where one of several drivers is broken: all would wait for ever."""
    config = load_config(trained_run / "config.yaml")

    def part(rank: int) -> None:
        if rank and what == "device":
            run.device_of = lambda config: "mps"
        elif rank:
            run.versions = lambda: versions() | {what: "0.4.1"}
        train(config, Path("run"))

    assert codes(start(2, part, tmp_path), limit_s=60) == [2, 2]
    found = "device: mps there, cpu here" if what == "device" else f"{what}: 0.4.1 there, {versions()[what]} here"
    words = f"process 1 of 2 is not like process 0:\n  {'' if what == 'device' else 'versions.'}{found}\n"
    assert words in (tmp_path / "0").read_text()
    assert not Path("run/run.json").exists()


@contextmanager
def learned_pairs(file: str) -> Iterator[None]:
    """Within, a line is added to this file for each update: which pairs this process learned from in it."""

    def begin(*arguments: Any, **named: Any) -> update.Gradients:
        gradients = update.begin(*arguments, **named)
        with open(file, "a") as lines:
            lines.write(" ".join(str(index) for part in gradients.parts for index in part.indices) + "\n")
        return gradients

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "begin", begin)
        yield


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"accumulation": 1}, (2, 1, 4)),
        ({"accumulation": 3, "dropout": 0.2, "sampling": 0.1}, (2, 1, 3)),
        ({"accumulation": 3, "dropout": 0.2, "sampling": 0.1}, (1, 3, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_another_number_of_processes_goes_on_with_every_sentence_once(
    parallel: str, options: dict[str, Any], numbers: Sequence[int], tmp_path: Path, trained_run: Path
) -> None:
    """All but the last are stopped within an epoch, after one update each; none of them sees what another one saw."""
    config, accumulation = load_config(trained_run / "config.yaml"), options["accumulation"]
    pairs = [[f"{source} {word}", target] for source, target in PAIRS for word in "abcde"]
    training = {"budget_tokens": 32, "validate_every": 100, "validation_bleu": False, "best_by": "loss"}
    training |= {"parallel": parallel, "accumulation": accumulation}
    changes = {
        "data": config.data.model_copy(update={"train": InlinePairs(pairs=pairs), "max_length": 32}),
        "model": config.model.model_copy(update={"dropout": options.get("dropout", 0.0)}),
        "tokenizer": config.tokenizer.model_copy(update={"sampling": options.get("sampling", 0.0)}),
    }

    def part(turn: int, **ends: Any) -> Callable[[int], None]:
        changed = config.model_copy(update={**changes, "training": config.training.model_copy(update=training | ends)})

        def action(rank: int) -> None:
            with learned_pairs(f"learned-{turn}-{rank}"):
                train(changed, Path("run"))

        return action

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "BEAT_S", 0.1)
        for turn, n in enumerate(numbers[:-1]):
            assert codes(start(n, part(turn, max_steps=turn + 1), tmp_path), limit_s=60) == [0] * n
        state = load_checkpoint(list_checkpoints("run")[-1], with_optimizer=False).state
        assert (state["epoch"], state["shares"], state["batch"]) == (0, [[numbers[0], accumulation]], accumulation)
        last = part(len(numbers) - 1, max_steps=99, max_epochs=1)
        assert codes(start(numbers[-1], last, tmp_path), limit_s=60) == [0] * numbers[-1]
    state = load_checkpoint(list_checkpoints("run")[-1], with_optimizer=False).state
    assert (state["epoch"], state["shares"], state["processes"]) == (1, [], numbers[-1])
    used = [Path(f"learned-{turn}-{rank}").read_text().split() for turn, n in enumerate(numbers) for rank in range(n)]
    assert all(used)
    assert sorted(int(index) for part in used for index in part) == list(range(len(pairs)))


@pytest.mark.parametrize(("n", "there", "is_refused"), [(99, 2, True), (3, 2, True), (2, 1, False), (8, 8, False)])
def test_more_processes_than_the_machine_is_for_are_refused(
    n: int, there: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """99 on two processors took all memory of the machine, and with it the work of others."""
    monkeypatch.setattr(environment, "processors", lambda: there)
    with pytest.raises(UsageError, match=f"--processes {n}, but") if is_refused else nullcontext():
        check_room(n)
