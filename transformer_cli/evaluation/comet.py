"""COMET, as unbabel-comet gives it, by whichever Python has that package: a child process reads the texts."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.errors import ModelError, ResourceError
from transformer_cli.evaluation import comet_process
from transformer_cli.files import json_line, shown

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
INSTALL = (
    "into an environment of its own, of Python 3.11 or 3.12: pip install unbabel-comet 'setuptools<81'; name its "
    "Python in evaluation.comet"
)


class Comet:
    """Times 100, as it is mostly printed: the mean over sentences, and over references where there are several."""

    name = "COMET"

    def __init__(self, options: EvaluationConfig, source: Sequence[str] = ()) -> None:
        self.options, self.source = options, source
        self.settings = options.comet
        self.named: dict[str, str] = {}
        self.n_references = 1

    def of(self, source: Sequence[str]) -> Comet:
        return Comet(self.options, source)

    def check(self) -> None:
        """ResourceError where there is no such Python, or no COMET in it; ModelError where there is no such model."""
        model = self.settings.model
        assert model is not None, "the configuration was checked"
        if not self.settings.download and not Path(model).is_file():
            raise ModelError(
                f"evaluation.comet.model: {shown(model)} is no file",
                hint="name a checkpoint, .../model.ckpt; evaluation.comet.download=true fetches one by its name",
            )
        self._asked([])

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        """The score of each sentence, and that it is one."""
        self.n_references = len(references)
        samples = [
            {"src": source, "mt": hypothesis, "ref": reference[line]}
            for reference in references
            for line, (source, hypothesis) in enumerate(zip(self.source, hypotheses, strict=True))
        ]
        said = self._asked(samples)
        name = self.settings.model or ""
        place = Path(name)
        self.named = {
            "model": place.parent.parent.name or place.stem if place.is_file() else name,
            "sha256": said["sha256"][:16],
            "precision": "fp32",
            "version": said["version"],
        }
        n_lines = len(hypotheses)
        return [[100 * statistics.fmean(said["scores"][line::n_lines]), 1.0] for line in range(n_lines)]

    def score(self, sums: Sequence[float]) -> float:
        return sums[0] / sums[1]

    def signature(self, **test: int) -> str:
        parts = {"nrefs": self.n_references, **test, **self.named}
        return "|".join(f"{key}:{value}" for key, value in parts.items())

    def _asked(self, samples: Sequence[dict[str, str]]) -> dict[str, Any]:
        """What the process answers."""
        settings, python = self.settings, self.settings.python or sys.executable
        request = {
            "samples": samples,
            "model": settings.model,
            "download": settings.download,
        }
        try:
            done = subprocess.run(
                [python, "-I", str(comet_process.__file__)],
                input=json_line(request).encode(),
                capture_output=True,
                env=os.environ | ({} if settings.download else OFFLINE),
                check=False,
            )
        except OSError as failure:
            raise ResourceError(
                f"evaluation.comet.python: {shown(python)} cannot be started: {failure.strerror}", hint=INSTALL
            ) from failure
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
            if done.returncode < 0:
                words = f"it was ended by {signal.Signals(-done.returncode).name}"
            raise ResourceError(f"COMET failed, by {shown(python)}: {words}", hint=self._hint(words))
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _hint(self, words: str) -> str:
        if "not installed" in words or "No module named" in words:
            return INSTALL
        if signal.SIGKILL.name in words:
            return "the system does so where memory is too little: another comet.model takes less"
        if self.settings.download:
            return "fetching needs the network; what was fetched once is found again without it"
        return "what it may lack, such as its encoder's tokenizer, evaluation.comet.download=true fetches"
