"""The score of a given translation is what a search reports for the same pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from conftest import PAIRS
from torch.nn import functional as F

import transformer_cli as tx
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding import scoring
from transformer_cli.decoding.scoring import Likelihood, Pair, perplexity, score_ids, score_texts
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError, DivergedError
from transformer_cli.model.build import build_model
from transformer_cli.tokenizer import BOS, EOS
from transformer_cli.training import loss

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


@pytest.mark.parametrize(
    "options", [{"beam_size": 1}, {"beam_size": 5, "n_best": 5}, {"search": "sampling", "n_best": 4}]
)
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
    monkeypatch.setattr(scoring, "LOGITS_AT_A_TIME", 300)
    config = translator.config.model_copy(update={"batch_size": batch_size})
    other = Translator(translator.model, translator.tokenizer, config, source_eos=True)
    for one, two in zip(expected, score_texts(other, SOURCES, TARGETS), strict=True):
        assert one is not None
        assert two is not None
        assert one.tokens == two.tokens
        assert one.log_probabilities == pytest.approx(two.log_probabilities, abs=1e-5)


def test_what_memory_is_too_little_for_is_scored_in_halves(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = score_texts(translator, SOURCES, TARGETS)
    real, sizes = scoring._log_probabilities, []

    def log_probabilities(translator: Translator, pairs: Sequence[Pair]) -> torch.Tensor:
        if len(pairs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(pairs))
        return real(translator, pairs)

    monkeypatch.setattr(scoring, "_log_probabilities", log_probabilities)
    for one, two in zip(expected, score_texts(translator, SOURCES, TARGETS), strict=True):
        assert one is not None
        assert two is not None
        assert one.tokens == two.tokens
        assert one.log_probabilities == pytest.approx(two.log_probabilities, abs=1e-5)
    assert sum(sizes) == len(SOURCES)


def test_scoring_holds_as_many_logits_at_a_time_as_training() -> None:
    assert scoring.LOGITS_AT_A_TIME == loss.PIECE_ELEMENTS


def test_lines_without_text(translator: Translator) -> None:
    both, no_target, no_source = score_texts(translator, ["", SOURCES[0], " "], [" ", "", "x"])
    assert both == Likelihood((), ())
    assert no_target is not None
    assert no_target.tokens == ("</s>",)
    assert no_source is None
    assert score_texts(translator, [], []) == []


def test_unknown_pieces_are_counted(translator: Translator) -> None:
    [score] = score_texts(translator, SOURCES[:1], ["日 the 本"])
    assert score is not None
    assert score.n_unknown == 2
    assert math.isfinite(score.log_probability)


def untrained(translator: Translator, *, max_source_length: int | None = None, **options: object) -> Translator:
    """Another model for the same text."""
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1}
    torch.manual_seed(1)
    model = build_model(
        ModelConfig.model_validate(shape | options),
        source_vocab=translator.tokenizer.source_size,
        target_vocab=translator.tokenizer.target_size,
    )
    config = DecodingConfig(max_source_length=max_source_length)
    return Translator(model, translator.tokenizer, config, source_eos=True, max_length=translator.max_length)


LONG = " ".join(SOURCES * 20)
NARROW_DECODER = {"positions": {"encoder": "sinusoidal", "decoder": "learned"}, "max_positions": 40}
NARROW_ENCODER = {"positions": {"encoder": "learned", "decoder": "sinusoidal"}, "max_positions": 40}


@pytest.mark.parametrize(
    ("side", "model", "limit", "hint"),
    [
        ("source", {}, 256, "or raise decoding.max_source_length"),
        ("source", NARROW_ENCODER, 40, "the model has no more positions"),
        ("target", NARROW_DECODER, 40, "the model has no more positions"),
        ("target", {}, 523, "or raise decoding.max_source_length"),
    ],
)
def test_a_line_that_is_too_long_is_named_not_cut(
    translator: Translator, side: str, model: dict[str, object], limit: int, hint: str
) -> None:
    sources, targets = list(SOURCES), list(TARGETS)
    """A target of 100,000 words took 85 s and 11 GiB, and ended with a hint that could not help."""
    {"source": sources, "target": targets}[side][3] = LONG
    with pytest.raises(
        DataError, match=rf"line 4: the {side} has [\d,]+ pieces, .* at most {limit} are possible"
    ) as caught:
        score_texts(untrained(translator, **model), sources, targets)
    assert hint in (caught.value.hint or "")


def test_room_for_sources_is_no_room_for_targets(translator: Translator) -> None:
    """With decoding.max_source_length above the decoder's positions, a long target was an IndexError."""
    narrow = untrained(translator, max_source_length=200, **NARROW_DECODER)
    with pytest.raises(DataError, match="line 1: the target has"):
        score_texts(narrow, SOURCES[:1], [" ".join(TARGETS[:10])])


def test_a_target_may_have_the_pieces_that_a_search_writes(translator: Translator) -> None:
    """With a small decoding.max_source_length, tx wrote translations whose score it then refused."""
    [source] = translator.encode_source(["x"])
    short = untrained(translator, max_source_length=len(source))
    [found] = short.translate_all(["x"], beam_size=1)
    assert len(found.ids) > len(source)
    assert score_texts(short, ["x"], [found.text]) != [None]


def test_what_is_never_read_may_be_long(translator: Translator) -> None:
    assert score_texts(untrained(translator, **NARROW_DECODER), [" "], [LONG]) == [None]


@pytest.mark.parametrize(
    ("side", "model"), [("source", {}), ("source", NARROW_ENCODER), ("target", NARROW_DECODER)], ids=str
)
def test_the_end_mark_counts_in_the_length(translator: Translator, side: str, model: dict[str, object]) -> None:
    long_text, short_text = "hund katze hund", "ein"
    length = len(translator.encode_source([long_text])[0])
    source, target = (long_text, short_text) if side == "source" else (short_text, long_text)

    def limited(limit: int) -> Translator:
        return untrained(translator, **(model | {"max_positions": limit}), max_source_length=None if model else limit)

    with pytest.raises(DataError, match=f"line 1: the {side} has {length} pieces"):
        score_texts(limited(length - 1), [source], [target])
    assert score_texts(limited(length), [source], [target]) != [None]


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
