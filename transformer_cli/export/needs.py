"""Packages that only some formats need: installed as extras, imported when they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from transformer_cli.errors import ResourceError

EXTRAS = {"ctranslate2": "ctranslate2", "transformers": "hugging-face", "onnx": "onnx", "onnxruntime": "onnx"}
"""The extra of pyproject.toml that brings a package."""


def needed(module: str) -> ModuleType:
    """The module; ResourceError, naming the extra, where it is not installed."""
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as failure:
        if failure.name != package:
            raise
        raise ResourceError(
            f"this needs the package {package}, which is not installed",
            hint=f"install it with tx: pip install 'transformer-cli[{EXTRAS[package]}]'",
        ) from None
