"""Every distributed call; the identity on one process.

Started by torchrun, each process has a rank and computes its own batches; gradients and counts are summed over all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from transformer_cli import environment
from transformer_cli.errors import ResourceError


@dataclass(frozen=True)
class World:
    """Who this process is among all of them."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value, summed over the processes, in fp64."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=_control())
        return [float(value) for value in tensor]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up every process's gradients, in one message per dtype."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def agree(self, flag: bool) -> bool:
        """True on all as soon as it is true on one."""
        return self.sum(float(flag))[0] > 0

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier(group=_control())

    def share(self, text: str) -> str:
        """The main process's text, on all."""
        if self.size == 1:
            return text
        data = text.encode("utf-8")
        length = torch.tensor([len(data)])
        dist.broadcast(length, src=0, group=_control())
        if not int(length):  # there is no buffer of nothing
            return ""
        received = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_main:
            received = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(received, src=0, group=_control())
        return received.numpy().tobytes().decode("utf-8")


def join() -> World:
    """The world that torchrun describes; alone without it. ResourceError where the others cannot be reached."""
    here = environment.place()
    if here.size == 1:
        return World()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(environment.local_rank() or 0)
        try:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        except (dist.DistError, RuntimeError, OSError) as failure:
            raise ResourceError(
                f"process {here.rank} of {here.size} cannot reach the others: {str(failure)[:200]}",
                hint=environment.HINT,
            ) from failure
    return World(rank=dist.get_rank(), size=here.size)


def leave() -> None:
    """End the process group, if there is one."""
    _CONTROL.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


_CONTROL: list[dist.ProcessGroup] = []


def _control() -> dist.ProcessGroup:
    """A group for numbers on the CPU, so that counting never waits for a GPU."""
    if not _CONTROL:
        _CONTROL.append(dist.new_group(backend="gloo"))
    return _CONTROL[0]
