"""What several processes hold in parts, each writes: one whole file, with no number of it anywhere else meanwhile."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import codes, start
from safetensors import torch as safetensors
from tiny_run import tiny

from transformer_cli import files
from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.store import list_checkpoints, load_checkpoint
from transformer_cli.checkpoints.tensors import Portion, portion
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ResourceError
from transformer_cli.training import keeping
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

    def post(self, what: str, text: str = "") -> None:
        self.posts[what] = text

    def posted(self, what: str) -> str:
        return self.posts[what]


def save_as(told: Told) -> Path:
    nothing = portion({}, is_main=False)
    others = {"state": {}, "config": RunConfig(), "tokenizer": "f1"}
    return store.save_checkpoint("run", step=7, model=nothing, optimizer=nothing, writers=told, **others)  # type: ignore[arg-type]


def test_a_disk_that_another_machine_does_not_see_is_said() -> None:
    with pytest.raises(
        ResourceError, match="process 1 does not see what the first one made in run/checkpoints"
    ) as failure:
        save_as(Told(place=".tmp-step-00000007-01234567"))
    assert "on a disk that all machines see" in str(failure.value.hint)


def test_where_the_first_one_keeps_what_is_there_nothing_is_written() -> None:
    told = Told(place="")
    assert save_as(told) == Path("run/checkpoints/step-00000007")
    assert told.posts["written by 1"] == ""
    assert not Path("run").exists()


def test_what_one_process_writes_is_read_back_by_it(tmp_path: Path) -> None:
    place = tmp_path / "file"
    tensors = {"w": torch.arange(6.0)}
    one = portion(tensors)
    place.write_bytes(one.header)
    digest = store._write_portion(place, one, known_as=place)
    assert digest == files.sha256(place)
    assert json.loads(place.read_bytes()[8 : len(one.header)])["w"]["shape"] == [6]
    place.write_bytes(b" " * len(one.header))
    with pytest.raises(ResourceError, match="does not read back as it was written"):
        store._write_portion(place, one, known_as=place)
