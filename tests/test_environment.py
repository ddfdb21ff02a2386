"""What torchrun would never say is told, in place of a bug or a wait for processes that never come."""

from __future__ import annotations

import re

import pytest
import torch

from transformer_cli import environment, machine
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
    with pytest.raises(UsageError, match=re.escape(message)) as failure:
        parallel.join()
    assert "torchrun" in str(failure.value.hint)


def test_a_gpu_of_no_number_is_refused(says, monkeypatch):
    says(LOCAL_RANK="x")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="LOCAL_RANK is 'x'"):
        machine.decide(RunConfig(device="cuda", precision="fp32"))


def test_processes_that_cannot_be_reached_are_no_bug(says, monkeypatch):
    says(**TORCHRUN)

    def unreachable(backend: str) -> None:
        raise torch.distributed.DistNetworkError("the client socket has timed out")

    monkeypatch.setattr(torch.distributed, "init_process_group", unreachable)
    with pytest.raises(ResourceError, match="process 1 of 2 cannot reach the others: the client socket"):
        parallel.join()


def test_there_are_no_more_threads_than_processors(monkeypatch):
    """1,024 of them on two processors were at work without end."""
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(machine, "_processors", lambda: 2)
    for wanted, taken in ((1024, 2), (2, 2), (1, 1)):
        assert machine.settle(RunConfig(device="cpu", threads=wanted), None).threads == taken
