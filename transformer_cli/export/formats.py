"""What a model can be exported to, and what a format has to offer; no torch, no engine.

T steps, V target vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from transformer_cli.config.model import POSITIONS
from transformer_cli.config.recipes import Recipes
from transformer_cli.files import create_file

if TYPE_CHECKING:
    import numpy as np

    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.config.model import ModelConfig

FORMATS = Recipes(
    "exports",
    {
        "ctranslate2": "export.ctranslate2:CTranslate2",
        "hugging-face": "export.hugging_face:HuggingFace",
        "onnx": "export.onnx:Onnx",
    },
)
CTRANSLATE2_ROWS = 4096
"""Positions that a model in its format can tell apart: rows of the table for those that have none in tx."""


@dataclass(frozen=True)
class Walk:
    """A greedy translation: ids without marks, whether it ended by itself, and the logits (T, V) of each step, the one
    that wrote the end mark included."""

    ids: tuple[int, ...]
    ended: bool
    logits_TV: np.ndarray

    @property
    def written(self) -> int:
        """Steps."""
        return len(self.ids) + self.ended


@dataclass(frozen=True)
class Found:
    """What a beam search found: ids without marks, whether it ended by itself, and its log-probability, not divided by
    any length."""

    ids: tuple[int, ...]
    ended: bool
    log_probability: float


class Engine(Protocol):
    """Another program, with a model that was exported to it."""

    name: str
    """With its version."""
    bans: bool
    """Whether it leaves out what tx never writes, and still gives the rest the probabilities that tx gives it."""

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids as the model reads them, by the tokenizer that was written."""

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of ids without marks, by the tokenizer that was written."""

    def greedy(self, sources: Sequence[Sequence[int]], *, limit: int) -> list[Walk]:
        """sources: ids as the model reads them, end mark included if it has one. limit: most steps."""

    def beam(
        self, sources: Sequence[Sequence[int]], *, limit: int, beam_size: int, length_penalty: float
    ) -> list[Found]:
        """The best of each; hypotheses are ranked by log-probability / length^length_penalty."""


class Format(Protocol):
    """A recipe; made without arguments, ResourceError where what it needs is not installed."""

    quantizations: Sequence[str]
    """The names of what its weights can be rounded to."""

    def refusals(self, run: OpenedRun) -> list[str]:
        """Every reason why this model cannot be held, each with what could be; none where it can."""

    def write(self, run: OpenedRun, place: Path, *, quantization: str | None) -> None:
        """Fill an empty directory."""

    def open(self, run: OpenedRun, place: Path) -> Engine:
        """The engine with what lies there."""

    def typed(self, tag: str, run: OpenedRun) -> str:
        """How a source there begins that has this tag."""

    def usage(self, run: OpenedRun) -> str:
        """Python that translates one sentence with it, from inside its directory."""


def unknown_there(model: ModelConfig, engine: str) -> list[str]:
    """A refusal for each kind of positions that another package brought, and for heads that are normalised."""
    foreign = {model.positions_of(side) for side in model.sides} - POSITIONS.own.keys()
    unknown = [f"model.positions: {name}, of another package; {engine} knows its own alone" for name in sorted(foreign)]
    return unknown + [f"model.qk_norm: true; what is written for {engine} has no norms of heads"] * model.qk_norm


def write_vocabularies(run: OpenedRun, place: Path) -> None:
    """The models of the run's tokenizer, under the names that they have there."""
    for name, vocabulary in run.tokenizer.models().items():
        with create_file(place / name) as file:
            file.write(vocabulary.model)
