"""A noisy channel: of what a beam found, the translation that also lets its source be expected (Yee et al. 2019).

The score of a translation y of x is log p(y | x), divided by its length penalty, and a weight times log p(x | y), by a
model that translates back, divided by the pieces of x, end mark counted (Li et al. 2016, MMI-bidi, per piece).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.scoring import Likelihood, Pair, score_ids
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DivergedError


@dataclass(frozen=True)
class Channel:
    """A model that translates back, towards the language of the sources, and what it counts. name: in messages.
    precise: gives the same in fp32, where it may be in another precision."""

    translator: Translator
    weight: float
    name: str
    precise: Callable[[], Translator] | None = None

    @property
    def in_fp32(self) -> Channel:
        return self if self.precise is None else replace(self, translator=self.precise(), precise=None)

    def ranked(
        self,
        sources: Sequence[str],
        texts: Sequence[Sequence[str]],
        found: Sequence[Sequence[Hypothesis]],
        *,
        penalty: LengthPenalty,
        n_best: int,
    ) -> list[list[Hypothesis]]:
        """The n_best hypotheses of each source, best first. texts: of the hypotheses. Raises DivergedError."""
        means = iter(self._means(sources, texts))
        anew = [[replace(one, back=self.weight * next(means)) for one in several] for several in found]
        return [sorted(several, key=lambda one: one.rank(penalty))[:n_best] for several in anew]

    def _means(self, sources: Sequence[str], texts: Sequence[Sequence[str]]) -> list[float]:
        """The mean log-probability of a source piece, each text of each source given. Of what the model cannot read or
        write, it knows nothing: all its pieces are equally likely."""
        back = self.translator
        read = iter(back.encode_source([text for several in texts for text in several]))
        written = back.tokenizer.encode_target(sources)
        pairs = [Pair(next(read), ids) for ids, several in zip(written, texts, strict=True) for _ in several]
        scores = iter(score_ids(back, [pair for pair in pairs if self._knows(pair)]))
        nothing = -math.log(back.tokenizer.target_size)
        means = [_per_piece(next(scores)) if self._knows(pair) else nothing for pair in pairs]
        if not all(map(math.isfinite, means)):
            raise DivergedError(
                f"the scores of {self.name}, which ranks translations (decoding.rerank), are not finite numbers",
                hint="its weights have diverged, or overflow in this precision: try fp32, or another run",
            )
        return means

    def _knows(self, pair: Pair) -> bool:
        longest_source, longest_target = self.translator.max_source_length, self.translator.max_target_length
        fits = longest_source is None or len(pair.source) <= longest_source
        return fits and len(pair.source) > 0 and (longest_target is None or len(pair.target) < longest_target)


def _per_piece(score: Likelihood) -> float:
    return score.log_probability / len(score.log_probabilities)
