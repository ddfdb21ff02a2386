"""Train and evaluate sequence-to-sequence Transformers."""

from __future__ import annotations

TYPE_CHECKING = False  # typing is not imported for it: `tx` begins here, and heeds no signal before it has

if TYPE_CHECKING:
    from typing import Any

    from transformer_cli.errors import TxError
    from transformer_cli.python.commands import count, evaluate, train
    from transformer_cli.python.model import Model, load

__version__ = "0.1.0"
__all__ = ["Model", "TxError", "__version__", "count", "evaluate", "load", "train"]

PLACES = {
    **dict.fromkeys(("Model", "load"), "python.model"),
    **dict.fromkeys(("count", "evaluate", "train"), "python.commands"),
    "TxError": "errors",
}
"""Where what there is for Python lives; some of it needs torch, which `import transformer_cli` does not."""


def __getattr__(name: str) -> Any:
    if name in PLACES:
        from importlib import import_module

        from transformer_cli.environment import prepare

        prepare()
        return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion offers, also of what is imported only when it is asked for."""
    return __all__
