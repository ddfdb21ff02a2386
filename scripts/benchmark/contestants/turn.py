"""What a contestant is asked, and how its turn is timed: its program gets one argument, JSON, and prints a line of it.

Text is whole lines; tokens are the pieces of tx's tokenizer, end marks included, padding not. A contestant of another
environment has nothing of tx but this file and the folder that prepare.py wrote.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Translate = Callable[[list[str]], list[str]]
UNMEASURED = 4
"""Updates, or batches to translate, that meet new shapes, and open what is opened once, before time counts."""
LONGEST = 100
"""Pieces of a translation, at most, for those that have a limit of their own."""


class Turn(SimpleNamespace):
    """what: train, translate, or convert, once, for who translates from a file of its own. shape: small or base.
    precision, threads, seconds; beam, batch, lines; text and model, folders that prepare.py wrote; run, tx's own.
    engine, as_tx: which of a program's contestants it is."""

    @property
    def _place(self) -> Path:
        return Path(self.text if self.what == "train" else self.model)

    @property
    def sizes(self) -> SimpleNamespace:
        """The settings of the shape, or of the model."""
        found = json.loads((self._place / "shapes.json").read_text(encoding="utf-8"))
        return SimpleNamespace(**found[self.shape if self.what == "train" else "run"])

    @property
    def vocabulary(self) -> list[str]:
        """Pieces in the order of their ids: <pad>, <unk>, <s>, </s> and the others."""
        return (self._place / "vocabulary").read_text(encoding="utf-8").split("\n")[:-1]

    def pieces(self, part: str) -> list[list[list[str]]]:
        """Of train or valid, source and target, without marks."""
        paths = [Path(self.text) / f"{part}.{side}.pieces" for side in ("source", "target")]
        texts = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths]
        return [[line.split(" ") for line in lines] for lines in texts]


def asked() -> Turn:
    return Turn(**json.loads(sys.argv[1]))


class Watch:
    """Counts tokens from one update to the next, and ends the process when time is up."""

    def __init__(self, turn: Turn) -> None:
        self.seconds, self.n, self.tokens, self.start = turn.seconds, 0, 0, 0.0

    def update(self, n_tokens: int) -> None:
        """One begins, of so many real tokens, source and target."""
        now = time.perf_counter()
        if self.n == UNMEASURED:
            self.tokens, self.start = 0, now
        elif self.n > UNMEASURED and now - self.start >= self.seconds:
            facts = {"tokens": self.tokens, "seconds": now - self.start, "updates": self.n - UNMEASURED}
            print("\n" + json.dumps(facts), flush=True)
            os._exit(0)
        self.n += 1
        self.tokens += n_tokens


def translate(turn: Turn, by: Translate) -> None:
    """The test set: line by line, or all of it at once to `by`, which cuts it into batches."""
    lines = (Path(turn.text) / "test.source").read_text(encoding="utf-8").split("\n")[: turn.lines]
    if len(lines) > 1:
        by(lines[: UNMEASURED * turn.batch])
    start = time.perf_counter()
    translations = by(lines) if turn.batch > 1 else [by([line])[0] for line in lines]
    seconds = time.perf_counter() - start
    facts = {"lines": len(lines), "seconds": seconds, "translations": translations}
    print("\n" + json.dumps(facts), flush=True)


def in_batches(turn: Turn, by: Translate) -> Translate:
    """For who has no batches of lines of similar length: those, one after the other."""

    def all_of(lines: list[str]) -> list[str]:
        order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
        translations = [""] * len(lines)
        for first in range(0, len(order), turn.batch):
            rows = order[first : first + turn.batch]
            for i, text in zip(rows, by([lines[i] for i in rows]), strict=True):
                translations[i] = text
        return translations

    return all_of


class Pieces:
    """tx's tokenizer as SentencePiece alone has it, for those who bring none: pad, unk, bos, eos are 0, 1, 2, 3."""

    def __init__(self, turn: Turn) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor: Any = SentencePieceProcessor(model_file=str(Path(turn.model) / "spm.model"))

    def ids(self, lines: list[str]) -> list[list[int]]:
        return [list(ids) for ids in self._processor.encode(lines)]

    def names(self, lines: list[str]) -> list[list[str]]:
        return [list(names) for names in self._processor.encode(lines, out_type=str)]

    def text(self, pieces: list[Any]) -> str:
        """Of ids or of names."""
        return str(self._processor.decode(pieces)) if pieces else ""
