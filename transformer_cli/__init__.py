"""Train and evaluate sequence-to-sequence Transformers."""

from __future__ import annotations

TYPE_CHECKING = False  # typing is not imported for it: `tx` begins here, and heeds no signal before it has

if TYPE_CHECKING:
    from typing import Any

    from transformer_cli.loading import load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":  # it needs torch, which `import transformer_cli` does not
        from transformer_cli.environment import prepare

        prepare()
        from transformer_cli.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
