"""Two processes under torchrun: their update is that of one process with both batches; a whole run ends as one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from transformer_cli.checkpoints.store import list_checkpoints
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data.loader import collate
from transformer_cli.model.build import build_model
from transformer_cli.training.loop import Learner, train_step
from transformer_cli.training.optimizers import build_optimizer
from transformer_cli.training.parallel import join, leave

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]


def updates(place: Path) -> None:
    """Three of them, as one of as many processes as the environment says; what they come to is written there."""
    world = join()
    torch.manual_seed(0)
    shape = ModelConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, dropout=0.0)
    model = build_model(shape, source_vocab=30, target_vocab=30).double()
    options = TrainingConfig(warmup_steps=2, clip_norm=0.5)
    learner = Learner(model, build_optimizer(model, options), options, 1, world)
    assert world.share(f"from {world.rank}") == "from 0"
    assert world.share("") == ""
    assert world.agree(world.rank == 1) == (world.size == 2)
    for step in range(1, 4):
        chance = np.random.default_rng(step)
        pairs = [tuple(chance.integers(4, 30, size=chance.integers(1, 9)) for _ in range(2)) for _ in range(9)]
        unequal = [pairs[:2], pairs[2:]]
        mine = unequal if world.size == 1 else [unequal[world.rank]]
        train_step(learner, [collate([s for s, _ in some], [t for _, t in some]) for some in mine], step=step)
    save_file({name: p.detach() for name, p in model.named_parameters()}, place / f"{world.size}-{world.rank}")
    leave()


def fork(action: Callable[[], None], environment: dict[str, str]) -> int:
    """A copy of this process that does this and ends; its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # see faults.Killer
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ.update(environment)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_two_processes_with_unequal_batches_update_like_one_process_with_both(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    children = [fork(lambda: updates(tmp_path), both | {"RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    updates(tmp_path)
    alone = load_file(tmp_path / "1-0")
    for rank in (0, 1):
        together = load_file(tmp_path / f"2-{rank}")
        for name, tensor in alone.items():
            torch.testing.assert_close(together[name], tensor, rtol=1e-9, atol=1e-12)


def test_a_run_under_torchrun_writes_one_history_and_one_model(tmp_path: Path, trained_run: Path) -> None:
    (tmp_path / "x.yaml").write_text((trained_run / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    overrides = [
        f"--set=training.{key}={value}" for key, value in {"max_steps": 4, "validate_every": 2, "log_every": 1}.items()
    ]
    module = ["-m", "transformer_cli", "train", "-c", str(tmp_path / "x.yaml"), "--run-dir", str(tmp_path / "run")]
    run([*TORCHRUN, *module, *overrides])
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
