"""Environments of those who cannot live in tx's: one folder for each, made when it is first wanted, and kept."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIST = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions(path=[P])}))"


class MissingError(Exception):
    """An environment cannot be made, and this is why."""


@dataclass(frozen=True)
class Peer:
    """What is installed: packages with all they need, and packages alone, for their pins are too old."""

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


PEERS = {
    "JoeyNMT": Peer(("joeynmt==2.3.0", "importlib_metadata")),  # which it imports and does not ask for
    # It wants torch<2.3, and runs with later ones.
    "OpenNMT-py": Peer(
        (
            *("configargparse", "pyonmttok", "rapidfuzz", "pyahocorasick"),
            *("fasttext-wheel", "spacy", "six", "flask", "waitress"),
        ),
        alone=("OpenNMT-py==3.5.1",),
    ),
    "Eole": Peer(("eole==0.6.4", "aiohttp")),  # the latter it imports and does not ask for
}


def python_of(name: str, cache: Path, tell: Callable[[str], None]) -> Path:
    """Its Python. MissingError where it cannot be installed.

    PyTorch is that of tx's environment, which stands behind its own: everybody multiplies by the same one.
    """
    peer, place = PEERS[name], cache / name.lower()
    python, done = place / "bin" / "python", place / "installed.json"
    asked = {"packages": [*peer.packages, *peer.alone], "python": sys.version}
    if done.exists() and json.loads(done.read_text(encoding="utf-8")) == asked:
        return python
    tell(f"installing {name} into {place}")
    _call(name, [sys.executable, "-m", "venv", "--clear", str(place)])
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "behind.pth").write_text(f"{_home_of_torch()}\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for options, wanted in ((["--no-deps"], peer.alone), ([], peer.packages)):
        if wanted:
            _call(name, [*install, *options, *wanted])
    done.write_text(json.dumps(asked), encoding="utf-8")
    return python


def versions(python: Path | None = None) -> dict[str, str]:
    """Every package of an environment, without those behind it; of this one where none is named."""
    if python is None:
        found = {one.name: one.version for one in importlib.metadata.distributions()}
    else:
        [packages] = python.parents[1].glob("lib/python*/site-packages")
        listed = subprocess.run(
            [str(python), "-c", LIST.replace("P]", f"{str(packages)!r}]")], stdout=subprocess.PIPE, check=True
        )
        found = json.loads(listed.stdout)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _home_of_torch() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def _call(name: str, command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = [line for line in done.stderr.split("\n") if line.strip()] or ["no reason given"]
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
        raise MissingError(f"{name} cannot be installed: {errors[0]}")
