"""Whether tensors are those of a model, told by their names, shapes and kinds of numbers; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformer_cli.errors import ModelError
from transformer_cli.files import shown, unreadable

Kind = tuple[str, tuple[int, ...]]
"""What a tensor's numbers are called, and its shape."""


def check_kinds(found: Mapping[str, Kind], expected: Mapping[str, Kind], *, origin: str) -> None:
    """Raise ModelError, naming what differs, unless both are the same."""
    wrong = [f"{name} is missing" for name in expected.keys() - found.keys()]
    wrong += [f"{name} is not part of the model" for name in found.keys() - expected.keys()]
    wrong += [
        f"{name} is {_described(*found[name])}, the configuration says {_described(*expected[name])}"
        for name in expected.keys() & found.keys()
        if found[name] != expected[name]
    ]
    if wrong:
        rest = [f"... and {len(wrong) - 5:,} more"] if len(wrong) > 5 else []
        lines = "\n".join(f"  {line}" for line in sorted(wrong)[:5] + rest)
        raise ModelError(
            f"{origin} does not hold the weights of the model that its run's configuration describes:\n{lines}",
            hint="restore the run's config.yaml, or choose another checkpoint",
        )


def kinds_of_file(path: Path) -> dict[str, Kind]:
    """Those of a safetensors file, from its header. Raises ModelError where it cannot be read, or is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        path.open("rb").close()  # safetensors says of each that it cannot open that it is not there
        with safe_open(path, "np") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: (tensor.get_dtype(), tuple(tensor.get_shape())) for name, tensor in tensors.items()}
    except OSError as error:
        raise unreadable(path, error, error=ModelError) from None
    except SafetensorError:
        raise ModelError(
            f"{shown(path)} is damaged: it is not what was saved",
            hint="restore it from a copy, or choose another checkpoint",
        ) from None


def _described(numbers: str, shape: tuple[int, ...]) -> str:
    return f"{' x '.join(f'{n:,}' for n in shape) or 'one number'} ({numbers})"
