"""Minimum Bayes risk: of many draws, the one that says most of what the others say (Eikema & Aziz 2020 and 2022)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transformer_cli.evaluation.chrf import Chrf
from transformer_cli.evaluation.metrics import tokenizer_for
from transformer_cli.temporary import name_one


def by_utility(texts: Sequence[str], metric: str) -> list[tuple[int, float]]:
    """Where each different text first is among the draws, and its expected utility, best first.

    texts: two at least. That is the mean of its scores (see `utilities`) with each of the other draws for a reference,
    those of the same text included. Of equals the text that was drawn more often comes first, then the one that is
    first by its letters.
    """
    counts = Counter(texts)
    different = list(counts)
    scores = utilities(different, metric)
    expected = [
        # fsum: the same whatever the order of the draws
        (math.fsum([*(row * list(counts.values())).tolist(), -row[n]]) / (len(texts) - 1), text)
        for n, (text, row) in enumerate(zip(different, scores, strict=True))
    ]
    expected.sort(key=lambda one: (-one[0], -counts[one[1]], one[1]))
    return [(texts.index(text), utility) for utility, text in expected]


def utilities(texts: Sequence[str], metric: str) -> NDArray[np.float64]:
    """Sentence by sentence, the score of each text (rows) with each as its reference (columns), 0 to 100: sacreBLEU's
    chrF, chrF++, or BLEU smoothed as it is for sentences."""
    with name_one():
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

    if metric == "bleu":
        bleu = BLEU(effective_order=True, tokenize=tokenizer_for([texts]))
        return np.array([[bleu.sentence_score(text, [other]).score for other in texts] for text in texts])
    return Chrf(metric, CHRF(word_order=2 if metric == "chrf++" else 0)).each_with_each(texts)
