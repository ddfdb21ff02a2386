"""What `auto` means here: device, precision, attention path, threads - decided once, when a run begins."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError

from transformer_cli.config.run import RunConfig
from transformer_cli.environment import local_rank, local_size, place, processors, repeat_sums
from transformer_cli.errors import ModelError, ResourceError
from transformer_cli.heap import is_limited
from transformer_cli.model.compiled import NAMES, code
from transformer_cli.model.matmul import linear
from transformer_cli.processor import has_bf16_instructions, imitates
from transformer_cli.spinning import spin_while_idle
from transformer_cli.threads import could_start

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Choice = tuple[Precision, str]
"""A precision, and why."""
WORTH_IT = 1.3
"""bf16 products must be this many times as fast as fp32 ones before `auto` takes them on a CPU that is measured."""

BACKENDS: tuple[Any, ...] = (torch.backends.cuda, torch.backends.mkldnn)
"""Each may be told by itself how exact products in fp32 are."""
CONFIGURED = "as configured"
LACKS = "this processor has no products in {}, and imitates them a hundred times slower than fp32's"
"""Why a precision is, or should be, another one."""


@dataclass(frozen=True)
class Switches:
    """What is global to the process: choices of a run, and the dtype of tensors for which none is said."""

    threads: int
    matmul_precision: str | tuple[str, ...]
    """One word for all that computes, or what a program chose for each of BACKENDS."""
    deterministic: bool
    only_warns: bool = False
    dtype: torch.dtype = torch.float32

    @classmethod
    def now(cls) -> Switches:
        deterministic = torch.are_deterministic_algorithms_enabled()
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        dtype = torch.get_default_dtype()
        return cls(torch.get_num_threads(), _matmul_precision(), deterministic, only_warns, dtype)

    def tell(self, *, of_thread_only: bool = False) -> None:
        """Set what is another one now. of_thread_only: of what each thread has for itself."""
        now = Switches.now()
        if now.threads != self.threads:
            torch.set_num_threads(self.threads)
        if of_thread_only:
            return
        if now.dtype != self.dtype:
            torch.set_default_dtype(self.dtype)
        if now.matmul_precision != (wanted := self.matmul_precision):
            if isinstance(wanted, str):
                torch.set_float32_matmul_precision(wanted)
            else:
                for backend, own in zip(BACKENDS, wanted, strict=True):
                    backend.matmul.fp32_precision = own
        if (now.deterministic, now.only_warns) != (self.deterministic, self.only_warns):  # it imports a compiler
            torch.use_deterministic_algorithms(self.deterministic, warn_only=self.only_warns)


def _matmul_precision() -> str | tuple[str, ...]:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # PyTorch has no word for it
        return tuple(backend.matmul.fp32_precision for backend in BACKENDS)


FOUND = Switches.now()
"""Before anything was told by tx."""


@dataclass(frozen=True)
class Machine:
    """The choices of a run, and why the precision is what it is."""

    device: str
    precision: Precision
    attention: str
    threads: Annotated[int, Field(gt=0, le=10**12)]  # PositiveInt has a setting's default, by pydantic before 2.12
    reason: str
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    deterministic: bool = False
    compiled: bool = False
    """Whether a model that learns has C++ of ours, which a compiler made for this processor."""

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and products."""
        return DTYPES[self.precision]

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.split(":")[0]

    @property
    def fused_attention(self) -> bool:
        return self.attention == "fused"

    @property
    def in_words(self) -> str:
        compiled = ", compiled" if self.compiled else ""
        return f"{self.device}, {self.precision} ({self.reason}), threads: {self.threads}{compiled}"

    def use(self) -> Machine:
        """Apply what is global to the process."""
        if self.deterministic:
            repeat_sums()
        threads = _usable(self.threads)
        Switches(threads, self.matmul_precision, self.deterministic).tell()
        spin_while_idle(threads)
        return self

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, choices: Mapping[str, str | int]) -> Machine:
        """Choices that a run kept. Raises ModelError where they are not whole."""
        try:
            return _reader().validate_python(choices)
        except ValidationError as failure:
            names = ", ".join(sorted({str(one["loc"][0]) for one in failure.errors()}))
            raise ModelError(
                f"the choices that the run's run.json keeps (`machine`) are damaged: {names}",
                hint="restore run.json from a copy; without it the run goes on, but its choices are made anew",
            ) from None


@functools.cache
def _reader() -> TypeAdapter[Machine]:
    return TypeAdapter(Machine)


def decide(config: RunConfig) -> Machine:
    """Turn every `auto` into a choice, for a run that begins. Raises ResourceError for a device that isn't there."""
    device, threads = device_of(config), _threads(config)
    torch.set_num_threads(_usable(threads))
    precision, reason = _precision(config.precision, device) or _of_processor()
    return _compiled(_machine(config, device, precision, threads, reason))


def settle(config: RunConfig, kept: Mapping[str, str | int] | None) -> Machine:
    """The choices for a run that is trained: `precision: auto` is what it kept, if this is the same kind of device, and
    neither a processor nor a GPU that lacks such products.

    Nothing is measured, for a measurement depends on how busy the machine is, and translations on the precision. Raises
    ResourceError for a device that isn't there, ModelError for kept choices that are damaged.
    """
    device = device_of(config)
    own = None if kept is None else Machine.from_dict(kept)
    if config.precision == "auto" and own is not None and own.kind == device.split(":")[0]:
        precision, reason = _kept_precision(own, device)
    else:
        unmeasured: Choice = ("fp32", "what is trained elsewhere is not measured here")
        precision, reason = _precision(config.precision, device) or unmeasured
    return _machine(config, device, precision, _threads(config), reason)


def begin_or_resume(
    config: RunConfig, kept: Mapping[str, str | int] | None, *, is_shared_anew: bool = False
) -> tuple[Machine, str | None]:
    """The choices for a run that is to be trained: new ones, or those that it kept, as far as this device has them. And
    what is another one now, in words. is_shared_anew: among another number of processes. Raises as `settle` does."""
    if kept is None:
        return decide(config), None
    device, own = device_of(config), Machine.from_dict(kept)
    if own.kind != device.split(":")[0]:
        return decide(config), f"the run began on {own.device} and continues on {device}"
    precision, reason = _kept_precision(own, device) if config.precision == "auto" else (own.precision, own.reason)
    fits = own.threads * local_size() <= processors() and not is_shared_anew
    threads = own.threads if fits else _threads(config)
    here = replace(
        own,
        device=device,
        deterministic=config.deterministic,
        precision=precision,
        reason=reason,
        threads=threads,
    )
    changes = []
    if own.compiled and not (here := _compiled(here)).compiled:
        changes.append("the run began with compiled code and continues without, for there is none here")
    if precision != own.precision:
        changes.append(f"the run began in {own.precision} and continues in {precision}: {reason}")
    if threads != own.threads:
        changes.append(f"each process had {own.threads:,} of the processors so far and has {threads:,} now")
    return here, "; ".join(changes) or None


def _kept_precision(own: Machine, device: str) -> Choice:
    """That of a run whose `auto` it was, on another device of that kind."""
    if imitates(own.precision, own.kind):
        return "fp32", LACKS.format(own.precision)
    if own.precision == "bf16" and (anew := _precision("auto", device)) is not None:  # an older GPU
        return anew
    return own.precision, own.reason


def _machine(config: RunConfig, device: str, precision: Precision, threads: int, reason: str) -> Machine:
    # Measured for short sentences on CPUs: written out is several times as fast there; on GPUs it is the reverse.
    attention = "fused" if device.startswith("cuda") else "written-out"
    return Machine(
        device=device,
        precision=precision,
        attention=attention,
        threads=threads,
        reason=reason,
        matmul_precision=config.matmul_precision,
        deterministic=config.deterministic,
    )


def _compiled(machine: Machine) -> Machine:
    """With compiled code, where that can be had for this device and precision."""
    return replace(machine, compiled=_could_have_code(machine) and code().loaded is not None)


def compiler_trouble(here: Machine, kept: Mapping[str, str | int] | None) -> str | None:
    """Why a run is without compiled code where the compiler failed. None where it was not asked: a run keeps that it
    began without, on such a device."""
    began_without = kept is not None and Machine.from_dict(kept).kind == here.kind and not kept.get("compiled")
    return code().trouble if _could_have_code(here) and not began_without else None


def _could_have_code(machine: Machine) -> bool:
    return machine.kind == "cpu" and machine.dtype in NAMES


def _threads(config: RunConfig) -> int:
    """More threads than processors wait for each other: 1,024 of them on two, without end."""
    return min(config.threads or torch.get_num_threads(), processors())


def _usable(threads: int) -> int:
    """So many, but in a process that was forked from one with several: they are not here, and whoever waits for them
    waits for ever. Raises ResourceError where they cannot be started."""
    global _has_team
    if _left_behind:
        return 1
    if threads > 1 and not _has_team and not (is_limited() or could_start(threads - 1)):
        raise ResourceError(
            f"{threads:,} threads cannot be started here",
            hint="`ulimit -u`, or the container (pids.max), limits how many; of a new run, `threads` may be fewer",
        )
    _has_team = _has_team or threads > 1
    return threads


def _forked() -> None:
    global _left_behind
    _left_behind = _left_behind or _has_team


_has_team = _left_behind = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def product_rate(dtype: torch.dtype, *, size: int = 1024, seconds: float = 0.05) -> float:
    """Products of square matrices on the CPU, as training asks for them, in GFLOP/s: the best of a few runs, a
    multiply-add being two."""
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    linear(a, b)
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        linear(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def device_of(config: RunConfig) -> str:
    """The device of this process. Raises ResourceError for one that isn't there."""
    wanted = config.device
    has_mps = torch.backends.mps.is_available()
    is_shared = has_mps and place().size > 1
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": has_mps and not is_shared}
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if wanted == "mps" and is_shared:
        raise ResourceError(
            "device mps is for one process: PyTorch sums nothing over several of what they compute there",
            hint="train in one; `device: auto` takes the CPU for several",
        )
    if not there[wanted]:
        raise ResourceError(f"device {wanted} is not available here", hint="`device: auto` takes what there is")
    # Under torchrun each process has a GPU of its own.
    rank = local_rank()
    return f"cuda:{rank}" if wanted == "cuda" and rank is not None else wanted


def _precision(wanted: Literal[Precision, "auto"], device: str) -> Choice | None:
    """The precision and why; None where the processor decides."""
    if wanted != "auto":
        return wanted, f"{CONFIGURED}, though {LACKS.format(wanted)}" if imitates(wanted, device) else CONFIGURED
    if device.startswith("cuda"):
        generation, _ = torch.cuda.get_device_capability()
        if generation >= 8:
            return "bf16", "bf16 tensor cores"
        return ("fp16", "fp16 tensor cores") if generation == 7 else ("fp32", "no tensor cores")
    if device == "mps":
        return "fp32", "nothing else is used on MPS"
    return None


def _of_processor() -> Choice:
    """What it has instructions for; only where nobody tells that, what is measured to be faster."""
    if imitates("bf16", "cpu"):  # one product of those below would take seconds
        return "fp32", LACKS.format("bf16")
    told = has_bf16_instructions()
    if told is not None:
        return ("bf16", "the processor's own products") if told else ("fp32", "bf16 would have to be imitated here")
    fp32, bf16 = product_rate(torch.float32), product_rate(torch.bfloat16)
    chosen: Precision = "bf16" if bf16 > WORTH_IT * fp32 else "fp32"
    return chosen, f"products measured at {bf16:.0f} GFLOP/s in bf16, {fp32:.0f} in fp32"
