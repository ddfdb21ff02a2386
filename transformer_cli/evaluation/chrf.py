"""chrF (Popović 2015) and chrF++ (2017), as sacreBLEU's to the last digit, which keeps its counts to itself."""

from __future__ import annotations

import string
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PUNCTUATION = frozenset(string.punctuation)
Ngrams = list[Counter[Any]]


class Chrf:
    """An F score of character n-grams and, for chrF++, of word n-grams, made of three counts for each order: those of
    the hypothesis, where the reference has any; those of the reference; those of both.

    metric: sacreBLEU's, for its options and signature.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self.metric = metric

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        """Of several references, the one with the best score counts, the first of equals."""
        self.metric.corpus_score([""], [[""] for _ in references])  # its signature tells how many there were
        return [
            max((self._compare(self._ngrams(line), self._ngrams(reference)) for reference in ours), key=self.score)
            for line, *ours in zip(hypotheses, *references, strict=True)
        ]

    def score(self, sums: Sequence[float]) -> float:
        """Precision and recall are means over the orders that both sides have."""
        precision = recall = 0.0
        n_orders = 0
        for n_hypothesis, n_reference, n_both in zip(sums[::3], sums[1::3], sums[2::3], strict=True):
            if n_hypothesis > 0 and n_reference > 0:
                precision += n_both / n_hypothesis
                recall += n_both / n_reference
                n_orders += 1
        if not precision + recall:
            return 0.0
        precision /= n_orders
        recall /= n_orders
        weight = self.metric.beta**2
        return 100 * ((1 + weight) * precision * recall / (weight * precision + recall))

    def each_with_each(self, lines: Sequence[str]) -> NDArray[np.float64]:
        """The score of each line (rows) with each as its only reference (columns)."""
        counted = [self._ngrams(line) for line in lines]
        precision = recall = n_orders = np.zeros((len(lines), len(lines)))
        for of_order in zip(*counted, strict=True):
            totals = np.array([ngrams.total() for ngrams in of_order])
            there = (totals[:, None] > 0) & (totals > 0)
            least, n_both = np.maximum(totals, 1), _overlaps(of_order)
            precision = precision + there * (n_both / least[:, None])
            recall = recall + there * (n_both / least)
            n_orders = n_orders + there
        precision, recall = precision / np.maximum(n_orders, 1), recall / np.maximum(n_orders, 1)
        weight = self.metric.beta**2
        divisor = weight * precision + recall
        return 100 * ((1 + weight) * precision * recall / np.where(divisor > 0, divisor, 1))

    def signature(self, **test: int) -> str:
        return signature_of(self.metric, **test)

    def _ngrams(self, line: str) -> Ngrams:
        """Those of each order."""
        line = line.lower() if self.metric.lowercase else line
        letters, words = "".join(line.split()), tuple(_words(line))
        return [
            Counter(text[i : i + n] for i in range(len(text) - n + 1))
            for text, highest in ((letters, self.metric.char_order), (words, self.metric.word_order))
            for n in range(1, highest + 1)
        ]

    @staticmethod
    def _compare(hypothesis: Ngrams, reference: Ngrams) -> list[int]:
        counts = []
        for ours, theirs in zip(hypothesis, reference, strict=True):
            n_both = sum(min(count, theirs[ngram]) for ngram, count in ours.items() if ngram in theirs)
            counts += [ours.total() if theirs else 0, theirs.total(), n_both]
        return counts


def _overlaps(counted: Sequence[Counter[Any]]) -> NDArray[np.float64]:
    """How many n-grams each has in common with each: an n-gram's k-th time is a column of its own, with 1 for whom it
    has so often, so that what two have in common is a product of their rows."""
    has = defaultdict(list)
    for row, ngrams in enumerate(counted):
        for ngram, n in ngrams.items():
            for time in range(n):
                has[ngram, time].append(row)
    shared = [rows for rows in has.values() if len(rows) > 1]
    table = np.zeros((len(counted), len(shared)))
    for column, rows in enumerate(shared):
        table[rows, column] = 1
    found = table @ table.T
    np.fill_diagonal(found, [ngrams.total() for ngrams in counted])
    return found


def signature_of(metric: Any, **test: int) -> str:
    """sacreBLEU's, with what there is to say of a test."""
    signature = metric.get_signature()
    for key, value in test.items():
        signature.update(key, value)
    return str(signature.format())


def _words(line: str) -> Iterator[str]:
    """Words, with one mark of punctuation split off, of two the last."""
    for word in line.split():
        if len(word) > 1 and word[-1] in PUNCTUATION:
            yield from (word[:-1], word[-1])
        elif len(word) > 1 and word[0] in PUNCTUATION:
            yield from (word[0], word[1:])
        else:
            yield word
