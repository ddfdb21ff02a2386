"""What `tx count-params` adds on request: which sections, for how much work, kept how."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transformer_cli.errors import UsageError
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.accounting.flops import Work
    from transformer_cli.accounting.hardware import Hardware
    from transformer_cli.accounting.memory import Storage
    from transformer_cli.accounting.parameters import Count
    from transformer_cli.cli.cost_tables import Section
    from transformer_cli.cli.subject import Subject
    from transformer_cli.config.model import Stack

MOST = 10**9


def _whole_number(text: str) -> int:
    """`300_000_000_000`, `300e9`."""
    try:
        value = Decimal(text)
        whole = int(value) if text.isascii() and value.is_finite() and 0 <= value.adjusted() <= 18 else 0
    except InvalidOperation:
        whole = 0
    if whole < 1 or whole != value:
        raise typer.BadParameter(f"{text!r} is not a whole number from 1 on, such as 300e9")
    return whole


def _accelerators(incomplete: str) -> list[str]:
    from transformer_cli.accounting.hardware import presets

    return [name for name in presets() if name.startswith(incomplete)]


COSTS = "What it does and costs"
Shapes = Annotated[bool, typer.Option("--shapes", rich_help_panel=COSTS, help="One token's journey, stage by stage.")]
Flops = Annotated[
    bool,
    typer.Option("--flops", rich_help_panel=COSTS, help="FLOPs of training, of a prefill and of a decoding step."),
]
Memory = Annotated[bool, typer.Option("--memory", rich_help_panel=COSTS, help="Bytes of training and of translating.")]
On = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="NAME",
        autocompletion=_accelerators,
        rich_help_panel=COSTS,
        help="Best speed and training time on it, such as h100-sxm.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        max=MOST,
        metavar="N",
        rich_help_panel=COSTS,
        show_default="1; to train, a full batch",
        help="Sentences at once.",
    ),
]
SourceLength = Annotated[
    int | None,
    typer.Option(
        "--source-length",
        min=1,
        max=MOST,
        metavar="N",
        rich_help_panel=COSTS,
        help="Source tokens; when not given, the size of its position table, or data.max_length.",
    ),
]
TargetLength = Annotated[
    int | None,
    typer.Option(
        "--target-length", min=1, max=MOST, metavar="N", rich_help_panel=COSTS, help="The same for the target."
    ),
]
BeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size", "-b", min=1, max=MOST, metavar="N", rich_help_panel=COSTS, help="Hypotheses per sentence."
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        parser=_whole_number,
        metavar="N",
        rich_help_panel=COSTS,
        help="Target tokens to train on, such as 300e9.",
    ),
]
Utilisation = Annotated[
    float | None,
    typer.Option(
        "--utilisation",
        min=0.001,
        max=1,
        metavar="SHARE",
        rich_help_panel=COSTS,
        show_default="0.35",
        help="Share of the peak that training reaches.",
    ),
]


@dataclass(frozen=True)
class Request:
    """Which sections are wanted, and for how much work; None where nothing was said."""

    shapes: bool = False
    flops: bool = False
    memory: bool = False
    hardware: str | None = None
    batch_size: int | None = None
    source_length: int | None = None
    target_length: int | None = None
    beam_size: int | None = None
    tokens: int | None = None
    utilisation: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no section is wanted."""
        return not (self.shapes or self.flops or self.memory or self.hardware is not None)

    def check(self) -> None:
        """Raises UsageError where an option is of no use to what is wanted."""
        given = [name for name, value in asdict(self).items() if value is not None and value is not False]
        costs = [name for name in given if name in ("tokens", "utilisation")]
        if costs and self.hardware is None:
            raise UsageError(f"--{costs[0]} is about training on hardware", hint="for example: --hardware h100-sxm")
        if given and self.is_empty:
            name = given[0].replace("_", "-")
            hint = "add --flops, --memory, --shapes or --hardware NAME"
            raise UsageError(f"--{name} says how much, but not of what", hint=hint)


def sections(subject: Subject, count: Count, request: Request) -> list[Section]:
    """What is wanted. Raises UsageError for what the model or the hardware cannot do."""
    if request.is_empty:
        return []
    from transformer_cli.accounting.hardware import find
    from transformer_cli.cli.cost_tables import Costs, Section

    device = None if request.hardware is None else find(request.hardware)
    kept = _storage(subject, device)
    costs = Costs(subject, count, _work(subject, request), kept, device, in_full_batches=request.batch_size is None)
    found = [costs.shapes()] if request.shapes else []
    found += [costs.flops()] if request.flops else []
    found += [costs.memory()] if request.memory else []
    found += [costs.hardware(tokens=request.tokens, utilisation=request.utilisation)] if device else []
    return [Section("work", (), asdict(costs.work)), *found]


def _work(subject: Subject, request: Request) -> Work:
    """What was asked for; a side's length is that of its table of positions, else data.max_length."""
    from transformer_cli.accounting.flops import Work

    config, model = subject.config, subject.config.counted
    asked: dict[Stack, tuple[str, int | None]] = {
        "encoder": ("--source-length", request.source_length),
        "decoder": ("--target-length", request.target_length),
    }
    lengths = dict.fromkeys(asked, 0)
    for side, (option, length) in asked.items():
        room = model.room(side)
        if side in model.sides:
            lengths[side] = length or room or config.data.max_length
        elif length is not None:
            raise UsageError(
                f"{option}: {subject.name} is {model.architecture}", hint="give the length of the other side"
            )
        if length is not None and room is not None and length > room:
            raise UsageError(
                f"{option} {length:,}: the {side} of {subject.name} knows {counted(room, 'positions')}",
                hint="a larger model.max_positions has more",
            )
    if request.beam_size is not None and "decoder" not in model.sides:
        raise UsageError(f"--beam-size: {subject.name} is {model.architecture}, it writes nothing")
    drawn = config.decoding.draws and len(model.sides) == 2
    if request.beam_size is not None and drawn:
        setting = "search" if config.decoding.mbr is None else "mbr"
        raise UsageError(
            f"--beam-size: {subject.name} draws its translations (decoding.{setting}), and sampling has no beam",
            hint="leave it out",
        )
    n_paths = request.beam_size or (config.decoding.n_paths if len(model.sides) == 2 else 1)
    return Work(request.batch_size or 1, lengths["encoder"], lengths["decoder"], n_paths, drawn=drawn)


def _storage(subject: Subject, device: Hardware | None) -> Storage:
    """How numbers are kept: as configured; `auto` as the hardware is best at, or fp32 on a CPU without one."""
    from transformer_cli.accounting.memory import Storage

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    if device is not None:
        precision = next(kind for kind in ("bf16", "fp16", "fp32") if kind in device.peak_flops_per_s)
    if subject.config.precision != "auto":
        precision = subject.config.precision
    if device and precision not in device.peak_flops_per_s:
        raise UsageError(f"{device.key} is not known to compute in {precision}", hint="--set precision=fp32")
    configured = subject.config.device
    kind: Literal["cpu", "cuda", "mps"] = "cpu" if configured == "auto" else configured
    kind = device.kind if device else kind
    return Storage(precision, kind, fused=kind == "cuda")
