"""What an accelerator makes of a count: how fast at best, and how long training takes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

from transformer_cli.accounting import memory
from transformer_cli.accounting.flops import Term, Work, rule_of_thumb, training_flops
from transformer_cli.accounting.memory import Storage
from transformer_cli.accounting.parameters import Count
from transformer_cli.errors import UsageError

GIGA, TERA = 10**9, 10**12
UTILISATION = 0.35
"""Of the peak, where nothing better is known: what training that is done well reaches on a data centre's GPUs."""


@dataclass(frozen=True)
class Source:
    """Where a number is from, and when it was looked up or published."""

    what: str
    date: date


@dataclass(frozen=True)
class Hardware:
    """An accelerator. devices: what its driver calls it; peak_flops_per_s: by precision; sources: by the name of the
    number."""

    key: str
    name: str
    kind: Literal["cuda", "mps"]
    devices: tuple[str, ...]
    memory_bytes: int
    bandwidth_bytes_per_s: int
    peak_flops_per_s: dict[str, int]
    sources: dict[str, Source]

    def ridge(self, precision: str) -> float:
        """FLOPs per byte above which computing takes longer than moving."""
        return self.peak_flops_per_s[precision] / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Bound:
    """The least time for so many FLOPs over so many bytes: the larger of computing and of moving."""

    flops: int
    bytes: int
    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def by(self) -> Literal["compute", "memory"]:
        """What the time is spent on."""
        return "compute" if self.compute_s > self.memory_s else "memory"

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


def roofline(hardware: Hardware, precision: str, *, flops: int, bytes_moved: int) -> Bound:
    """Source: Williams et al. 2009, "Roofline"."""
    return Bound(
        flops,
        bytes_moved,
        compute_s=flops / hardware.peak_flops_per_s[precision],
        memory_s=bytes_moved / hardware.bandwidth_bytes_per_s,
    )


def bounds(
    hardware: Hardware, count: Count, work: Work, storage: Storage, *, passes: dict[str, list[Term]]
) -> dict[str, Bound]:
    """The least time of a prefill and of a step, or of a pass forward where nothing is written."""
    read = {"prefill": memory.read_by_prefill, "step": memory.read_by_step}
    if "step" not in passes:
        read, passes = {"forward": memory.read_by_prefill}, {"forward": passes["training"]}
    return {
        name: roofline(
            hardware,
            storage.precision,
            flops=sum(term.flops for term in passes[name]),
            bytes_moved=of_pass(count, work, storage),
        )
        for name, of_pass in read.items()
    }


@dataclass(frozen=True)
class Cost:
    """What training on so many tokens takes; they are those of the target, where there is one."""

    tokens: int
    flops: int
    rule_of_thumb_flops: int
    seconds: float


def training_speed(flops_per_s: float, count: Count, work: Work, *, target_vocab: int, readings: int = 1) -> float:
    """Tokens trained on per second, of the target where there is one. readings: of each sentence; R-Drop has two."""
    million = readings * training_flops(count.model, work, tokens=10**6, target_vocab=target_vocab)
    return flops_per_s * 10**6 / million


def training_cost(
    flops_per_s: float, count: Count, work: Work, *, tokens: int, target_vocab: int, readings: int = 1
) -> Cost:
    """What so many tokens, in sentences as long as work says, cost at this speed of computing."""
    total = readings * training_flops(count.model, work, tokens=tokens, target_vocab=target_vocab)
    return Cost(tokens, total, readings * rule_of_thumb(count, work, tokens=tokens), total / flops_per_s)


def find(name: str) -> Hardware:
    """The preset of this name, or whose name alone begins so. Raises UsageError where there is none."""
    known, wanted = presets(), name.lower()
    meant = [key for key in known if key == wanted] or [key for key in known if wanted and key.startswith(wanted)]
    if len(meant) == 1:
        return known[meant[0]]
    close = meant or difflib.get_close_matches(wanted, known, n=1)
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(f"no hardware preset: {name}", hint=f"{guess}presets: {', '.join(known)}")


def of_device(name: str) -> Hardware | None:
    """The preset of a device by the name that its driver gives it, `NVIDIA H100 80GB HBM3`."""
    return next((hardware for hardware in presets().values() if name in hardware.devices), None)


@cache
def presets() -> dict[str, Hardware]:
    """Everything in hardware.yaml."""
    text = resources.files(__package__).joinpath("hardware.yaml").read_text("utf-8")
    data = yaml.safe_load(text)
    sources = {key: Source(**fields) for key, fields in data["sources"].items()}
    return {key: _preset(key, fields, sources) for key, fields in data["presets"].items()}


def _preset(key: str, fields: dict[str, Any], sources: dict[str, Source]) -> Hardware:
    numbers = {name: pair for name, pair in fields.items() if isinstance(pair, list) and name != "devices"}
    peaks = {name.removesuffix("_tflops"): pair[0] for name, pair in numbers.items() if name.endswith("_tflops")}
    if "bf16" in peaks:
        peaks["fp16"] = peaks["bf16"]
    return Hardware(
        key=key,
        name=fields["name"],
        kind=fields["kind"],
        devices=tuple(fields.get("devices", ())),
        memory_bytes=fields["memory_gb"][0] * GIGA,
        bandwidth_bytes_per_s=fields["bandwidth_gb_per_s"][0] * GIGA,
        peak_flops_per_s={precision: round(value * TERA) for precision, value in peaks.items()},
        sources={name: sources[pair[1]] for name, pair in numbers.items()},
    )
