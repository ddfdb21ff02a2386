"""Several models as one, against the mean of their probabilities written out."""

from __future__ import annotations

import pytest
from reference import Reference, mean_of
from tables import SYMBOLS, TableModel, random_logits, sources

from transformer_cli.decoding.ensemble import Ensemble
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import Sampling, SearchOptions
from transformer_cli.decoding.search import search
from transformer_cli.decoding.stepper import Stepper

SEARCHES = {
    "greedy": SearchOptions(beam_size=1),
    "beam": SearchOptions(beam_size=4, n_best=3, penalty=LengthPenalty(0.6)),
    "sampling": SearchOptions(search="sampling", n_best=3, sampling=Sampling(seed=1)),
}
N = 20


def results(stepper: Stepper, options: SearchOptions) -> list[list[Hypothesis]]:
    return search(stepper, *sources(list(range(N))), limits=[9] * N, symbols=SYMBOLS, options=options, lines=range(N))


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("n_models", [1, 2, 3])
def test_an_ensemble_searches_the_mean_of_the_probabilities(name: str, n_models: int) -> None:
    options = SEARCHES[name]
    tables = [random_logits(seed, vocab=8) for seed in range(n_models)]
    found = results(Ensemble([TableModel(table) for table in tables]), options)
    for sentence, hypotheses in enumerate(found):
        reference = Reference(
            mean_of(tables),
            sentence,
            limit=9,
            vocab=8,
            beam_size=options.beam_size,
            n_best=options.n_best,
            alpha=0.6,
            seed=1,
            line=sentence,
        )
        wanted = reference.samples() if options.search == "sampling" else reference.beam()
        assert [(h.ids, h.truncated) for h in hypotheses] == [(h.ids, h.truncated) for h in wanted]
        assert [h.log_probability for h in hypotheses] == pytest.approx([h.total for h in wanted], abs=1e-12)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_model_with_itself_is_the_model(name: str) -> None:
    model = TableModel(random_logits(5, vocab=8))
    for one, two in zip(results(model, SEARCHES[name]), results(Ensemble([model] * 2), SEARCHES[name]), strict=True):
        assert [h.ids for h in one] == [h.ids for h in two]
        assert [h.log_probability for h in one] == pytest.approx([h.log_probability for h in two], abs=1e-12)
