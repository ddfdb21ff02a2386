"""What `auto` means on this machine: device, precision, attention path, threads - decided once per run."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

import torch

from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError, ResourceError

WORTH_IT = 1.3
"""bf16 products must be this many times as fast as fp32 ones before `auto` takes them on a CPU."""


@dataclass(frozen=True)
class Machine:
    """The choices of a run, and why the precision is what it is."""

    device: str
    precision: str
    attention: str
    threads: int
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and products."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.split(":")[0]

    @property
    def fused_attention(self) -> bool:
        return self.attention == "fused"

    def use(self) -> Machine:
        """Apply what is global to the process."""
        torch.set_num_threads(self.threads)
        return self

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, choices: dict[str, str | int]) -> Machine:
        """Choices that a run kept. Raises ModelError where they aren't complete."""
        try:
            return cls(**choices)  # type: ignore[arg-type]
        except TypeError as error:
            raise ModelError(f"the run's kept choices are damaged: {error}") from None


def decide(config: RunConfig) -> Machine:
    """Turn every `auto` into a choice. Raises ResourceError for a device that isn't there."""
    device = _device(config.device)
    threads = config.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    precision, reason = _precision(config.precision, device)
    # Measured for short sentences on CPUs: written out is several times as fast there; on GPUs it is the reverse.
    attention = "fused" if device.startswith("cuda") else "written-out"
    return Machine(device=device, precision=precision, attention=attention, threads=threads, reason=reason)


def product_rate(dtype: torch.dtype, *, size: int = 1024, seconds: float = 0.05) -> float:
    """Products of square matrices on the CPU, in GFLOP/s: the best of a few runs, a multiply-add being two."""
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    a @ b
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def _device(wanted: str) -> str:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[wanted]:
        raise ResourceError(f"device {wanted} is not available here", hint="`device: auto` takes what there is")
    # Under torchrun each process has a GPU of its own.
    return f"cuda:{os.environ['LOCAL_RANK']}" if wanted == "cuda" and "LOCAL_RANK" in os.environ else wanted


def _precision(wanted: str, device: str) -> tuple[str, str]:
    if wanted != "auto":
        return wanted, "as configured"
    if device.startswith("cuda"):
        native = torch.cuda.get_device_capability()[0] >= 8
        return ("bf16", "bf16 tensor cores") if native else ("fp32", "no bf16 tensor cores")
    if device == "mps":
        return "fp32", "bf16 is not used on MPS"
    fp32, bf16 = product_rate(torch.float32), product_rate(torch.bfloat16)
    chosen = "bf16" if bf16 > WORTH_IT * fp32 else "fp32"
    return chosen, f"products measured at {bf16:.0f} GFLOP/s in bf16, {fp32:.0f} in fp32"
