"""What torchrun would never say is told, in place of a bug or a wait for processes that never come."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from transformer_cli import environment, machine, processor
from transformer_cli.config.run import RunConfig
from transformer_cli.environment import Place
from transformer_cli.errors import ResourceError, UsageError
from transformer_cli.training import parallel

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def says(monkeypatch):
    """The environment, of torchrun's names only these."""

    def says(**variables: str | None) -> None:
        for name in TORCHRUN:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            if value is not None:
                monkeypatch.setenv(name, value)

    return says


def test_torchrun_is_understood(says):
    says(**TORCHRUN)
    assert (environment.place(), environment.local_rank()) == (Place(1, 2), 1)


@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"LOCAL_RANK": "0"}])
def test_a_process_of_one_is_alone(says, variables):
    says(**variables)
    assert environment.place() == Place(0, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "y"}, "WORLD_SIZE is 'y': expected a whole number"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is '': expected"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1': expected"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0': expected"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE is '²': expected"),
        ({"WORLD_SIZE": "9" * 5000}, f"WORLD_SIZE is '{'9' * 40}': expected"),
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"RANK": "x"}, "RANK is 'x': expected"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK and MASTER_ADDR and MASTER_PORT missing"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but MASTER_ADDR and MASTER_PORT missing"),
        (TORCHRUN | {"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is '0', which is no port"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT is '99999', which is no port"),
        (TORCHRUN | {"MASTER_PORT": "x"}, "MASTER_PORT is 'x': expected"),
    ],
)
def test_what_torchrun_would_not_say_is_refused(says, variables, message):
    says(**variables)
    with pytest.raises(UsageError, match=re.escape(message)) as failure, parallel.joined("cpu"):
        pass
    assert "torchrun" in str(failure.value.hint)


def test_a_gpu_of_no_number_is_refused(says, monkeypatch):
    says(LOCAL_RANK="x")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="LOCAL_RANK is 'x'"):
        machine.decide(RunConfig(device="cuda", precision="fp32"))


@pytest.mark.parametrize("host", ["127.0.0.1", "x" * 70, "a..b"])
def test_processes_that_cannot_be_reached_are_no_bug(host, says, monkeypatch):
    with socket.socket() as taken:  # nobody answers there
        taken.bind(("127.0.0.1", 0))
        says(**TORCHRUN | {"MASTER_ADDR": host, "MASTER_PORT": str(taken.getsockname()[1])})
        monkeypatch.setattr(parallel, "JOINING", timedelta(seconds=0.1))
        words = re.escape(f"process 1 of 2 cannot reach the others: nobody answered at {host}:")
        with pytest.raises(ResourceError, match=words), parallel.joined("cpu"):
            pass


def test_there_are_no_more_threads_than_processors(monkeypatch):
    """1,024 of them on two processors were at work without end."""
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(machine, "processors", lambda: 2)
    for wanted, taken in ((1024, 2), (2, 2), (1, 1)):
        assert machine.settle(RunConfig(device="cpu", threads=wanted), None).threads == taken


@pytest.mark.parametrize("names", environment.DEFAULTS)
def test_what_the_user_has_set_for_torch_stays(names, monkeypatch):
    for name in names:
        monkeypatch.setattr(os, "environ", {name: "2000"})
        environment.prepare()
        others = {others[0]: value for others, value in environment.DEFAULTS.items() if others != names}
        assert os.environ == {name: "2000"} | others


@pytest.mark.parametrize("kept", [None, "kernel"])
def test_of_a_folder_for_what_is_compiled_nothing_is_left_that_holds_nothing(kept, tmp_path):
    """`tx export hugging-face` left `torchinductor_NAME` in TMPDIR: transformers imports what makes it."""
    made = "from torch._inductor.runtime.cache_dir_utils import cache_dir; place = cache_dir()"
    then = f"open(place + '/{kept}', 'w').close()" if kept else "pass"
    begin = "from transformer_cli.environment import prepare; prepare(); prepare()"
    program = f"{begin}; {made}; {then}; from transformer_cli.cli.app import leave; leave(0)"
    names = {name: text for name, text in os.environ.items() if name != environment.COMPILED}
    subprocess.run([sys.executable, "-c", program], env=names | {"TMPDIR": str(tmp_path)}, check=True)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert (left, any(tmp_path.iterdir())) == ([kept] if kept else [], bool(kept))


def test_who_was_started_by_torchrun_knows_it(monkeypatch):
    for variables, launcher in (({}, None), ({"TORCHELASTIC_RUN_ID": "x"}, os.getppid()), ({"TX_LAUNCHER": "7"}, 7)):
        monkeypatch.setattr(os, "environ", variables)
        environment.prepare()
        assert environment.launcher() == launcher


def test_however_threads_wait_training_ends_in_the_same_bits(tmp_path):
    """As tx lets them, and always spinning."""
    pairs = [["der hund schläft", "the dog sleeps"], ["die katze trinkt", "the cat drinks"]] * 40
    settings = [f"data.{split}={json.dumps({'pairs': pairs})}" for split in ("train", "valid", "test")]
    settings += ["tokenizer.vocab_size=60", "training.max_steps=3", "training.validation_bleu=false"]
    settings += ["training.best_by=loss", "precision=fp32", "model.n_layers=1"]
    bits = []
    for policy in ({}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        place = tmp_path / str(len(bits))
        place.mkdir()
        told = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        command = [sys.executable, "-m", "transformer_cli", "train", "-q", "-c", "tiny.yaml"]
        command += [f"--set={setting}" for setting in settings]
        subprocess.run(command, cwd=place, env=told | policy, check=True, stdout=subprocess.PIPE)
        [weights] = place.glob("runs/tiny/checkpoints/*/model.safetensors")
        bits.append(weights.read_bytes())
    assert bits[0] == bits[1]


GROWTH = """
import ctypes
import transformer_cli
transformer_cli.load
import torch

class Heap(ctypes.Structure):
    _fields_ = [(f"field_{n}", ctypes.c_size_t) for n in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
weight = torch.zeros(1024, 256, dtype=torch.bfloat16)

def used(shapes):
    for rows in shapes:
        torch.nn.functional.linear(torch.zeros(rows, 256, dtype=torch.bfloat16), weight)
    return libc.mallinfo2().field_7

first = used(range(300, 860, 1))
print((used(range(860, 1120, 1)) - first) >> 20)
"""
"""MiB that 260 more shapes take, after 560."""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc tells how much is in use")
@pytest.mark.skipif(processor.imitates("bf16", "cpu"), reason="in bf16 no code is made here for any shape")
def test_memory_does_not_grow_with_the_variety_of_shapes():
    """In bf16 each shape's code stayed, 60 MiB for a hundred shapes of one product."""
    kept = {name for names in environment.DEFAULTS for name in names}
    own = {name: value for name, value in os.environ.items() if name not in kept}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], env=own | {"OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.PIPE
    )
    assert int(done.stdout) < 50  # 156 where each keeps 1,024


@pytest.mark.parametrize(
    ("budget", "expected"), [(256, "512"), (1024, "512"), (4095, "512"), (4096, "128"), (10**6, "128")]
)
@pytest.mark.parametrize("name", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"])
def test_training_keeps_few_products_with_their_room_and_of_larger_batches_less_code(
    budget, expected, name, monkeypatch
):
    own = {"LRU_CACHE_CAPACITY": "32", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": expected}
    for one in own:
        monkeypatch.setenv(one, environment.KERNELS)
    monkeypatch.setenv(name, "700")  # the user says how many
    environment.keep_fewer_kernels(budget)
    assert {one: os.environ[one] for one in own} == own | {name: "700"}
