"""The score of a given translation is what a search reports for the same pieces."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from conftest import PAIRS
from torch.nn import functional as F

import transformer_cli as tx
from transformer_cli.decoding import scoring
from transformer_cli.decoding.scoring import Pair, Score, perplexity, score_ids, score_texts
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError, DivergedError
from transformer_cli.tokenizer import BOS, EOS

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return tx.load(trained_run)


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "ensemble"])
def several(request: pytest.FixtureRequest, trained_run: Path) -> Translator:
    """One model; or two that differ, the second with its weights disturbed."""
    loaded = tx.load([trained_run] * request.param)
    torch.manual_seed(1)
    with torch.no_grad():
        for model in loaded.models[1:]:
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return loaded


@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 5, "n_best": 5}, {"sample": True, "n_best": 4}])
def test_scores_are_those_that_the_search_reports(several: Translator, options: dict[str, object]) -> None:
    found = several.translate_all(SOURCES, **options)  # type: ignore[arg-type]
    candidates = [
        (ids, one) for ids, line in zip(several.encode_source(SOURCES), found, strict=True) for one in line.n_best
    ]
    scores = score_ids(several, [Pair(ids, one.ids, ended=not one.truncated) for ids, one in candidates])
    for score, (_, one) in zip(scores, candidates, strict=True):
        assert score.log_probability == pytest.approx(one.log_probability, abs=1e-5)
        assert score.tokens == (one.tokens if one.truncated else (*one.tokens, "</s>"))


def test_scores_are_those_of_a_plain_pass_one_by_one(translator: Translator) -> None:
    """PyTorch's own cross-entropy over the model's logits, in fp64."""
    for source, target, score in zip(
        translator.encode_source(SOURCES),
        translator.tokenizer.encode_target(TARGETS),
        score_texts(translator, SOURCES, TARGETS),
        strict=True,
    ):
        ids = torch.tensor([[BOS, *target, EOS]])
        with torch.inference_mode():
            hidden = translator.model(torch.tensor([source]), torch.tensor([len(source)]), ids[:, :-1])
            losses = F.cross_entropy(translator.model.project(hidden).double()[0], ids[0, 1:], reduction="none")
        assert score is not None
        assert torch.tensor(score.log_probabilities).sub(-losses).abs().max() < 1e-5
        assert score.perplexity == pytest.approx(float(losses.mean().exp()), abs=1e-4)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_partners_and_chunks_do_not_matter(
    translator: Translator, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever N modulo the batch's size is, N scores come back in order."""
    expected = score_texts(translator, SOURCES, TARGETS)
    monkeypatch.setattr(scoring, "CACHED_LOGITS", 300)
    config = translator.config.model_copy(update={"batch_size": batch_size})
    other = Translator(translator.model, translator.tokenizer, config, source_eos=True)
    for one, two in zip(expected, score_texts(other, SOURCES, TARGETS), strict=True):
        assert one is not None
        assert two is not None
        assert one.tokens == two.tokens
        assert one.log_probabilities == pytest.approx(two.log_probabilities, abs=1e-5)


def test_lines_without_text(translator: Translator) -> None:
    both, no_target, no_source = score_texts(translator, ["", SOURCES[0], " "], [" ", "", "x"])
    assert both == Score((), ())
    assert no_target is not None
    assert no_target.tokens == ("</s>",)
    assert no_source is None
    assert score_texts(translator, [], []) == []


def test_unknown_pieces_are_counted(translator: Translator) -> None:
    [score] = score_texts(translator, SOURCES[:1], ["日 the 本"])
    assert score is not None
    assert score.n_unknown == 2
    assert math.isfinite(score.log_probability)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_line_that_is_too_long_is_named_not_cut(translator: Translator, side: str) -> None:
    sources, targets = list(SOURCES), list(TARGETS)
    {"source": sources, "target": targets}[side][3] = " ".join(SOURCES * 20)
    with pytest.raises(DataError, match=rf"line 4: the {side} has [\d,]+ pieces, .* 256 are the most"):
        score_texts(translator, sources, targets)


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_end_mark_counts_in_the_length(translator: Translator, side: str) -> None:
    lengths = [len(ids) + 1 for ids in translator.tokenizer.encode_source(["hund katze hund", "ein"])]
    config = translator.config.model_copy(update={"max_source_length": lengths[0] - 1})
    narrow = Translator(translator.model, translator.tokenizer, config, source_eos=True)
    texts = ["hund katze hund", "ein"] if side == "source" else ["ein", "hund katze hund"]
    with pytest.raises(DataError, match=f"line 1: the {side} has {lengths[0]} pieces"):
        score_texts(narrow, texts[:1], texts[1:])
    config = translator.config.model_copy(update={"max_source_length": lengths[0]})
    wide = Translator(translator.model, translator.tokenizer, config, source_eos=True)
    assert score_texts(wide, texts[:1], texts[1:]) != [None]


def test_numbers_that_are_none_name_their_line(trained_run: Path) -> None:
    broken = tx.load(trained_run)
    with torch.no_grad():
        broken.model.output.weight[EOS] = torch.nan
    with pytest.raises(DivergedError, match="line 2"):
        score_texts(broken, ["", SOURCES[0]], ["", TARGETS[0]])


def test_perplexity_is_a_number_whatever_comes() -> None:
    assert perplexity(0.0, 0) == 1
    assert perplexity(-math.log(8), 3) == pytest.approx(2)
    assert perplexity(-1e6, 1) == math.inf
