"""COMET by the Python that has it, 3.8 or newer: a request of JSON through stdin, the answer on stdout.

Nothing of tx is imported. A request without samples asks whether the package is there. On failure the last line of
stderr says why.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import Any


def main() -> None:
    request = json.load(sys.stdin.buffer)  # in UTF-8, whatever the locale says
    if importlib.util.find_spec("comet") is None:
        sys.exit("the package unbabel-comet is not installed")
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    said: dict[str, Any] = {"version": importlib.metadata.version("unbabel-comet")}
    if request["samples"]:
        said.update(scored(**request))
    json.dump(said, answer, allow_nan=False)
    answer.close()


def scored(samples: list[dict[str, str]], model: str, download: bool) -> dict[str, Any]:
    """The score of each sample, and the checkpoint that gave it."""
    comet, cuda = importlib.import_module("comet"), importlib.import_module("torch").cuda
    path = model if os.path.isfile(model) or not download else comet.download_model(model)
    loaded = comet.load_from_checkpoint(path, local_files_only=not download)
    found = loaded.predict(samples, gpus=int(cuda.is_available()), progress_bar=False)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"scores": list(found["scores"]), "sha256": digest.hexdigest()}


if __name__ == "__main__":
    main()
