"""Packages that only some commands and formats need: installed as extras, imported when they are used."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import logging
import os
import re
import shlex
from importlib.metadata import PackageNotFoundError, distribution, version
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import url2pathname

from transformer_cli.errors import ResourceError

EXTRAS = {
    "ctranslate2": ("ctranslate2", "4.7"),
    "transformers": ("hugging-face", "5.6"),
    "onnx": ("onnx", "1.17"),
    "onnxruntime": ("onnx", "1.22"),
    "starlette": ("serve", "0.45"),
    "uvicorn": ("serve", "0.34"),
    "prometheus_client": ("serve", "0.21"),
    "tensorboard": ("tensorboard", "2.20"),
}
"""The extra of pyproject.toml that brings a package, and the oldest version that does."""

SILENCED_BY = {"onnxruntime": "ORT_DISABLE_TELEMETRY"}
"""What keeps a package from telling its maker, from its import on, that it is used."""


def needed(module: str) -> ModuleType:
    """The module; ResourceError, naming the extra, where it is not installed, or too old."""
    package = module.split(".")[0]
    if lack := lacking(package):
        command = f"pip install {_with_extra(EXTRAS[package][0])}"
        raise ResourceError(f"this needs the package {package}, {lack}", hint=f"install it with tx: {command}")
    if package in SILENCED_BY:
        os.environ.setdefault(SILENCED_BY[package], "1")  # never over what the user has set
    return importlib.import_module(module)


def drawing_library() -> ModuleType:
    """Matplotlib, with its list of fonts; what it has to say of where it keeps that matters to nobody. ResourceError
    where there is no folder for it."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        importlib.import_module("matplotlib.font_manager")
        return importlib.import_module("matplotlib")
    except OSError as failure:
        if failure.errno is not None:  # the system's, not its own
            raise
        raise ResourceError(
            "Matplotlib has no folder where it may keep its list of fonts",
            hint="MPLCONFIGDIR may name one, and so may TMPDIR",
        ) from failure
    finally:
        logger.setLevel(level)


def lacking(package: str) -> str | None:
    """What keeps an extra's package from being used, if anything: `which is not installed`."""
    if importlib.util.find_spec(package) is None:
        return "which is not installed"
    try:
        installed, oldest = _version(package), EXTRAS[package][1]
    except PackageNotFoundError:  # another distribution brings it, such as onnxruntime-gpu
        return None
    return f"version {oldest} or newer; {installed} is installed" if _numbers(installed) < _numbers(oldest) else None


def _with_extra(extra: str) -> str:
    """tx and this, for pip: from where it was installed (PEP 610). On an index its name may be nobody's, or somebody
    else's."""
    name, told = f"transformer-cli[{extra}]", {}
    with contextlib.suppress(PackageNotFoundError):
        told = json.loads(distribution("transformer-cli").read_text("direct_url.json") or "{}")
    url = told.get("url", "")
    if url.startswith("file:"):
        editable = "-e " * bool(told.get("dir_info", {}).get("editable"))
        return editable + shlex.quote(f"{url2pathname(urlsplit(url).path)}[{extra}]")
    if vcs := told.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    if folder := told.get("subdirectory"):
        url += f"#subdirectory={folder}"
    return shlex.quote(f"{name} @ {url}" if url else name)


_version = functools.cache(version)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)[:2]]
