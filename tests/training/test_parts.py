"""What several processes hold in parts, each writes: one whole file, with no number of it anywhere else meanwhile."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import codes, start
from safetensors import torch as safetensors
from test_run import at_update
from tiny_run import tiny

from transformer_cli import files
from transformer_cli.checkpoints import parts, store
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.checkpoints.tensors import Portion, portion
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ResourceError
from transformer_cli.training import keeping, parallel, watching
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.run import train

SHAPES = {"scale": (1,), "even": (6, 5), "rest": (7, 2, 3), "few": (2, 4), "none": (0, 3)}


class Counting(files.Disk):
    """How many bytes a process wrote."""

    n = 0

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data)
        self.n += written
        return written


@pytest.mark.parametrize("n", [2, 3])
def test_each_process_writes_its_rows_and_the_file_is_that_of_the_whole(n: int, tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    generator = torch.Generator().manual_seed(1)
    whole = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    moments = {name: tensor.bfloat16() for name, tensor in whole.items()}
    alone = {"step": torch.tensor(3), "mean": torch.arange(5.0)}

    def held_by(world: World, tensors: dict[str, torch.Tensor], **others: torch.Tensor) -> Portion:
        mesh = init_device_mesh("cpu", (world.size,))
        parts = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in tensors.items()}
        return portion({**parts, **others}, is_main=world.is_main)

    def part(rank: int) -> None:
        files.disk = counting = Counting()
        with joined("cpu") as world:
            store.save_checkpoint(
                "run",
                step=1,
                model=held_by(world, whole),
                optimizer=held_by(world, moments, **alone),
                state={},
                config=RunConfig(),
                tokenizer="f1",
                writers=world.writers("one"),
            )
            world.wait()
        (tmp_path / f"bytes-{rank}").write_text(str(counting.n))

    assert codes(start(n, part, tmp_path), limit_s=60) == [0] * n, (tmp_path / "0").read_text()
    [path] = list_checkpoints("run")
    assert (path / "model.safetensors").read_bytes() == safetensors.save(whole)
    assert (path / "optimizer.safetensors").read_bytes() == safetensors.save(moments | alone)
    load_checkpoint(path, with_optimizer=True)
    for rank in range(1, n):
        rows = {name: [len(one) for one in torch.chunk(tensor, n)] for name, tensor in whole.items() if len(tensor)}
        own = sum(whole[name][0].numel() * counts[rank] for name, counts in rows.items() if rank < len(counts))
        assert int((tmp_path / f"bytes-{rank}").read_text()) == own * (4 + 2)


def test_they_are_written_while_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By both, from copies: neither waits for the other's disk before it makes the next update."""
    options: dict[str, Any] = {"parallel": "fsdp", "max_steps": 6, "validate_every": 2, "validation_bleu": False}
    options |= {"best_by": "loss", "keep_last": 9, "ema": 0.9}
    (errors := tmp_path / "errors").mkdir()
    assert codes(start(2, lambda _: train(tiny(**options), Path("straight")), errors), limit_s=60) == [0, 0]
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)
    real, updated = store.save_checkpoint, threading.Event()

    def save_checkpoint(*arguments: object, step: int, **named: object) -> Path:
        if threading.current_thread() is not threading.main_thread():
            assert updated.wait(30)
            Path(f"beside-{os.environ['RANK']}-{step}").touch()
        return real(*arguments, step=step, **named)  # type: ignore[arg-type]

    def check(keeper: keeping.Keeper, before: Any = keeping.Keeper.check) -> None:
        updated.set()
        before(keeper)

    def save(*arguments: Any, before: Any = keeping.Keeper.save, **named: Any) -> None:
        updated.clear()
        before(*arguments, **named)

    monkeypatch.setattr(store, "save_checkpoint", save_checkpoint)
    monkeypatch.setattr(keeping.Keeper, "check", check)
    monkeypatch.setattr(keeping.Keeper, "save", save)
    assert codes(start(2, lambda _: train(tiny(**options), Path("run")), errors), limit_s=60) == [0, 0]
    assert sorted(path.name for path in Path().glob("beside-*")) == [f"beside-{r}-{s}" for r in (0, 1) for s in (2, 4)]
    for one, two in zip(list_checkpoints("straight"), list_checkpoints("run"), strict=True):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (one / name).read_bytes() == (two / name).read_bytes(), (one, name)
    assert not list(Path("run").rglob(f"{files.ASIDE}*"))


class Told:
    """The second of two processes, and what it reads of the first one."""

    rank, size = 1, 2

    def __init__(self, **posts: str) -> None:
        self.posts = posts
        self.pauses = 0

    def post(self, what: str, text: str = "") -> None:
        self.posts[what] = text

    def posted(self, what: str) -> str:
        return self.posts[what]

    def pause(self) -> None:
        self.pauses += 1
        time.sleep(0.01)


def save_as(told: Told) -> Path:
    nothing = portion({}, is_main=False)
    others = {"state": {}, "config": RunConfig(), "tokenizer": "f1"}
    return store.save_checkpoint("run", step=7, model=nothing, optimizer=nothing, writers=told, **others)  # type: ignore[arg-type]


def test_a_disk_that_another_machine_does_not_see_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SEEN_S", 0.1)
    told = Told(place=".tmp-step-00000007-01234567")
    with pytest.raises(
        ResourceError, match="process 1 does not see what the first one made in run/checkpoints"
    ) as failure:
        save_as(told)
    assert "on a disk that all machines see" in str(failure.value.hint)
    assert told.pauses > 1


def test_where_the_first_one_keeps_what_is_there_nothing_is_written() -> None:
    told = Told(place="")
    assert save_as(told) == Path("run/checkpoints/step-00000007")
    assert not Path("run").exists()


def test_what_one_process_writes_is_read_back_by_it(tmp_path: Path) -> None:
    place = tmp_path / "file"
    tensors = {"w": torch.arange(6.0)}
    one = portion(tensors)
    place.write_bytes(one.header)
    written = parts._write_portion(place, one)
    parts._check(place, written, known_as=place)
    assert written.sha256 == files.sha256(place)
    assert json.loads(place.read_bytes()[8 : len(one.header)])["w"]["shape"] == [6]
    place.write_bytes(b" " + place.read_bytes()[1:])
    with pytest.raises(ResourceError, match="does not read back as it was written"):
        parts._check(place, written, known_as=place)


def in_two(monkeypatch: pytest.MonkeyPatch, place: Path, **changed: Callable[..., object]) -> tuple[list[int], str]:
    """Two processes save two rows each, the functions of the store as given; their exit codes, and what they said."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    rows: Any = changed.pop("rows", lambda rank: torch.ones(2))

    def part(rank: int) -> None:
        for name, function in changed.items():
            monkeypatch.setattr(parts, name, function)
        with joined("cpu") as world:
            mesh = init_device_mesh("cpu", (2,))
            held = portion({"w": DTensor.from_local(rows(rank), mesh, [Shard(0)])}, is_main=rank == 0)
            nothing = portion({}, is_main=rank == 0)
            others: dict[str, Any] = {"state": {}, "config": RunConfig(), "tokenizer": "f1"}
            store.save_checkpoint("run", step=1, model=held, optimizer=nothing, writers=world.writers("one"), **others)
            world.wait()

    ended = codes(start(2, part, place), limit_s=60)
    return ended, "".join((place / str(rank)).read_text() for rank in (0, 1))


def test_where_the_first_one_fails_it_says_why_though_another_sees_only_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parts._write_portion

    def late(*arguments: Any) -> Any:
        if os.environ["RANK"] == "1":
            while list(Path("run/checkpoints").iterdir()):  # until it was cleared away
                time.sleep(0.01)
        return real(*arguments)

    ended, said = in_two(
        monkeypatch, tmp_path, _write_portion=late, rows=lambda rank: torch.full((2,), [float("nan"), 1.0][rank])
    )
    assert ended == [6, 6], said
    assert "w holds 2 NaN" in said
    assert "does not see" not in said


def test_what_the_first_one_is_clearing_away_when_another_looks_is_not_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is gone, its directory is not yet; the other one has been refused before the first one's words are out."""
    real, begun, refused = parts._write_portion, Path("begun"), Path("refused")

    def wait_for(path: Path) -> None:
        while not path.exists():
            time.sleep(0.01)

    class Slow(files.Disk):
        def remove_directory(self, path: Path) -> None:
            wait_for(refused)
            time.sleep(1)  # who does not wait has said so
            super().remove_directory(path)

    def late(path: Path, one: Portion) -> Any:
        if os.environ["RANK"] == "0":
            files.disk = Slow()
            wait_for(begun)
            raise ResourceError("the disk is full")
        begun.touch()
        while path.exists():
            time.sleep(0.01)
        try:
            return real(path, one)
        finally:
            refused.touch()

    ended, said = in_two(monkeypatch, tmp_path, _write_portion=late)
    assert ended == [5, 5], said
    assert said.splitlines()[0] == "the disk is full"
    assert "No such file" not in said


def test_what_one_writes_over_another_ones_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system may that keeps pages, of machines that write into the same page."""
    real = parts._write_portion

    def clumsy(path: Path, one: Portion) -> Any:
        written = real(path, one)
        if os.environ["RANK"] == "0" and one.parts:
            with path.open("r+b") as file:
                file.seek(-8, os.SEEK_END)
                time.sleep(1)  # the other one has written
                file.write(bytes(8))
        return written

    ended, said = in_two(monkeypatch, tmp_path, _write_portion=clumsy)
    assert ended == [5, 5], said
    assert "model.safetensors does not read back as it was written" in said
    assert not list_checkpoints("run")


def test_who_has_less_to_write_is_not_called_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process writes what is no part, and looks all over again, for as long as it takes."""
    for name, seconds in (("BEAT_S", 0.1), ("STUCK_S", 1.0), ("LONGER", 1.0)):
        monkeypatch.setattr(watching, name, seconds)
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(keeping, "SIGN_S", 0.02)  # far more signs than an update gives
    real = store.point

    def slow(run_dir: Path, pointer: str, step: int) -> None:
        time.sleep(2 if pointer == "last" else 0)
        real(run_dir, pointer, step)

    monkeypatch.setattr(store, "point", slow)
    config = tiny(parallel="fsdp", max_steps=6, validate_every=2, validation_bleu=False, best_by="loss")
    ended = codes(start(2, lambda _: train(config, Path("run")), tmp_path), limit_s=60)
    assert ended == [0, 0], (tmp_path / "0").read_text()


def test_who_waits_for_a_part_that_failed_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody says why: the process that failed may be where it cannot."""
    monkeypatch.setattr(parallel, "GRACE_S", 0.2)

    def one_of_two(rank: int) -> None:
        with joined("cpu") as world:
            board = world.writers("one")
            if rank:
                board.post(parts.FAILED)
            else:
                with pytest.raises(parts.DisturbedError, match="another process could not write its part"):
                    board.posted("written by 1")

    assert codes(start(2, one_of_two, tmp_path), limit_s=60) == [0, 0], (tmp_path / "0").read_text()


def test_what_all_have_written_is_kept_though_training_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process has still to look all over it, to name and to rename it."""
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)
    real = store.write_file

    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(1)
        return real(*arguments, **named)

    def fail() -> None:
        raise ResourceError("something else")

    def part(rank: int) -> None:
        store.write_file = slow  # type: ignore[assignment]
        with at_update(3, fail):
            train(
                tiny(parallel="fsdp", max_steps=6, validate_every=2, validation_bleu=False, best_by="loss"), Path("run")
            )

    assert codes(start(2, part, tmp_path), limit_s=60) == [5, 5]
    assert [load_checkpoint(path, with_optimizer=True).step for path in list_checkpoints("run")] == [2]
