"""Words that training never saw: a translation of them is a guess, and reads like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from transformer_cli.cli import console
from transformer_cli.cli.lines import Where
from transformer_cli.config.names import shorten
from transformer_cli.errors import ModelError
from transformer_cli.writing import words

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.decoding.translation import Translation

UNSEEN = "unseen"
"""The flag of a translation whose source has such words."""
MOST_NAMED = 10
LONGEST_WORD = 60
"""Characters; of a longer one, which may be a line without spaces, the middle is left out."""
Kept = TypeVar("Kept")


class Unseen:
    """Words of the sources that are in no training text, counted until they are told.

    known: the words that training saw; None where nobody knows, and then no word is unseen.
    """

    MOST_KEPT = 100_000
    """Words, each with its count: what comes through a pipe may never end."""

    def __init__(self, known: Collection[str] | None) -> None:
        self.known = known
        self._forget()

    @classmethod
    def by(cls, runs: Iterable[KnownRun], warn: Callable[[str], None] = console.warn) -> Unseen:
        """By the counts that runs keep of their training text; what one model of an ensemble knows is known. warn: told
        of counts that cannot be read."""
        from transformer_cli.evaluation.words import load_word_counts

        without = "words that training never saw are not looked for"
        counts = [kept(load_word_counts, run.path, without, warn) for run in runs]
        if any(one is None for one in counts):
            return cls(None)
        return cls({word for one in counts if one is not None for word in one.source})

    def mark(self, sources: Sequence[str], found: Sequence[Translation]) -> list[Translation]:
        """The translations, flagged where the source has a word that is unseen; counts them."""
        if self.known is None:
            return list(found)
        marked = []
        for source, translation in zip(sources, found, strict=True):
            said = [word for word in words(source) if any(map(str.isalpha, word))]  # a number or a rule is no word
            unseen = [word for word in said if word not in self.known]
            self.n_lines += 1
            self.n_words += len(said)
            self.n_unseen += len(unseen)
            room = len(self.counts) < self.MOST_KEPT
            self.counts.update(word for word in unseen if room or word in self.counts)
            if unseen:
                self.where.add(self.n_lines)
            marked.append(replace(translation, flags=(*translation.flags, UNSEEN)) if unseen else translation)
        return marked

    def tell(self) -> None:
        """What was counted since the last time, on stderr."""
        if self.counts:
            named = [shorten(word, LONGEST_WORD) for word, _ in self.counts.most_common(MOST_NAMED)]
            rest, least = len(self.counts) - len(named), "at least " * (self.n_unseen > self.counts.total())
            more = f" and {least}{rest:,} more" if rest else ""
            share = f"{self.n_unseen:,} of {self.n_words:,} words"
            where = f", {self.where}" if self.n_lines > 1 else ""
            console.warn(
                f"training never saw {', '.join(named)}{more} ({share}{where}): the translation is a guess there"
            )
        self._forget()

    def _forget(self) -> None:
        self.n_lines = self.n_words = self.n_unseen = 0
        self.counts: Counter[str] = Counter()
        self.where = Where()


def kept(
    load: Callable[[Path], Kept | None], run_dir: Path, without: str, warn: Callable[[str], None] = console.warn
) -> Kept | None:
    """What a run keeps of its text, for remarks alone: where it is damaged or may not be read there is none, and that
    is told. without: what is not done then."""
    try:
        return load(run_dir)
    except ModelError as failure:
        warn(f"{without}: {failure.message}; {failure.hint}")
        return None
