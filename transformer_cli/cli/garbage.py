"""Nobody looks for Python's garbage while a library is loaded, nor ever in what it is made of, which stays."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from transformer_cli.cli.pulse import LIBRARIES


def spare_libraries() -> None:
    """From now on. While PyTorch makes its 250,000 objects all that there are would be looked through again and again,
    a tenth of the time that it takes to load, and later for 0.15 s each time."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds them where the others do."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if found is not None and found.loader is not None:
            found.loader.exec_module = partial(_load, found.loader.exec_module)  # type: ignore[method-assign]
        return found


def _load(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    looks = gc.isenabled()
    gc.disable()
    try:
        execute(module)
    finally:
        gc.freeze()
        if looks:
            gc.enable()
