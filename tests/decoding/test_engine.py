"""A greedy search by CTranslate2, against tx's own: the same texts and scores, whatever is asked of both."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS

from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import OpenedRun, open_run
from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding import engine
from transformer_cli.decoding.engine import EngineTranslator
from transformer_cli.decoding.texts import TextTranslator
from transformer_cli.decoding.translation import SPLIT, Translation
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DivergedError, ModelError
from transformer_cli.export.ctranslate2 import CTranslate2
from transformer_cli.model.build import build_model
from transformer_cli.tokenizer import EOS, UNK

ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra `ctranslate2` is not installed")

SOURCES = [source for source, _ in PAIRS]
WORDS = " ".join(source for source, _ in PAIRS).split()
Both = Callable[..., tuple[TextTranslator, TextTranslator]]


@pytest.fixture(scope="module")
def run(trained_run: Path) -> OpenedRun:
    return open_run(find_checkpoint(str(trained_run)))


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """Translators of a run: tx's own and the engine's, of decoding settings."""

    def made(run: OpenedRun, *, workers: int = 1, **decoding: Any) -> tuple[TextTranslator, TextTranslator]:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        CTranslate2().write(run, place, quantization=None)
        config = run.config.decoding.model_copy(update={"beam_size": 1, **decoding})
        learned = {"source_eos": run.config.data.source_eos, "max_length": 20, "max_sentences": 1, "unsure_below": -0.3}

        def opened(at_once: int) -> Any:
            made.opened.append(at_once)
            return ctranslate2.Translator(str(place), compute_type="float32", inter_threads=at_once, intra_threads=1)

        made.opened = []
        sharing = {"workers": workers, "several": lambda: opened(workers)}
        model = run.config.model
        rooms = {side: model.room(side) for side in model.sides}
        return (
            Translator(run.model, run.tokenizer, config, **learned),
            EngineTranslator(opened(1), "there", run.tokenizer, config, rooms=rooms, **sharing, **learned),
        )

    return made


def wild(run: OpenedRun, **options: Any) -> OpenedRun:
    """With random weights, loud enough that all pieces come, forbidden ones too, and many texts never end."""
    model = ModelConfig.model_validate({"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 2, **options})
    torch.manual_seed(3)
    sizes = {"source_vocab": run.tokenizer.source_size, "target_vocab": run.tokenizer.target_size}
    network = build_model(model, **sizes).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2).add_(0.1 * torch.randn_like(parameter))
    return replace(run, config=run.config.model_copy(update={"model": model}), model=network)


def same(ours: list[Translation], theirs: list[Translation]) -> None:
    assert [one.text for one in theirs] == [one.text for one in ours]
    for here, there in zip(ours, theirs, strict=True):
        assert there.score == pytest.approx(here.score, abs=1e-4)
        assert (there.flags, there.truncated, there.ids) == (here.flags, here.truncated, here.ids)
        assert [replace(part, truncated=False) for part in there.parts] == [
            replace(part, truncated=False) for part in here.parts
        ]


def salad(n: int, *, most: int = 9) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, most))) for _ in range(n)]


@pytest.mark.parametrize("options", [{}, {"positions": "rotary", "norm_position": "post"}, {"tied": "none"}], ids=str)
def test_random_models_say_the_same_in_both_though_they_would_write_what_must_not_be(run, both, options):
    ours, theirs = both(wild(run, **options), batch_size=16)
    found = ours.translate_all(lines := salad(80))
    same(found, theirs.translate_all(lines))
    assert len({one.text for one in found}) > 40
    free = Translator(ours.model, run.tokenizer, ours.config, source_eos=True)
    free.symbols = replace(free.symbols, banned=())
    assert any(a.ids != b.ids for a, b in zip(found, free.translate_all(lines), strict=True))


@pytest.mark.parametrize(
    "decoding",
    [{}, {"banned": ["▁the"]}, {"max_length": 2}, {"length_penalty": 0.3, "length_penalty_family": "gnmt"}],
    ids=str,
)
def test_a_trained_model_says_the_same_under_every_setting(run, both, decoding):
    ours, theirs = both(run, **decoding)
    lines = [source for source, _ in PAIRS]
    lines += ["", "?", " ".join(lines), "ich mochte ein bier. der hund trinkt.", *salad(20)]
    found = ours.translate_all(lines)
    same(found, theirs.translate_all(lines))
    assert any(SPLIT in one.flags for one in found)
    assert {one.flags for one in theirs.translate_all(lines, by_sentences=False)} == {
        one.flags for one in ours.translate_all(lines, by_sentences=False)
    }


def test_no_source_is_cut(run: OpenedRun, both: Both) -> None:
    """CTranslate2's own limit is 1,024 pieces."""
    ours, theirs = both(wild(run), max_source_length=1500, max_length=5, loop_words=None)
    lines = [" ".join(["bier", *["ich"] * 1100, *tail]) for tail in (["hund"], ["katze", "trinkt"])]
    found = ours.translate_all(lines, by_sentences=False)
    assert found[0].text != found[1].text
    same(found, theirs.translate_all(lines, by_sentences=False))


def test_numbers_that_are_none_are_told_with_their_line(run, both):
    broken = wild(run)
    with torch.no_grad():
        broken.model.decoder.layers[0].feed_forward.down.weight[0, 0] = 1e38
    _, theirs = both(broken)
    with pytest.raises(DivergedError, match="line 12: the model's scores are not finite"):
        theirs.translate_all(["", "der hund trinkt"], lines_before=10)


def test_batches_that_threads_share_say_the_same(run: OpenedRun, both: Any) -> None:
    lines = [" ".join(random.Random(n).choices(WORDS, k=1 + n % 7)) for n in range(30)]
    ours, theirs = both(run, workers=3, batch_size=4)
    for n, opened in ((4, [1]), (20, [1]), (30, [1, 3]), (30, [1, 3])):  # shared where each of three has two batches
        same(ours.translate_all(lines[:n]), theirs.translate_all(lines[:n]))
        assert both.opened == opened
    fresh = both(run, workers=3, batch_size=4)[1]
    for _ in range(2):
        copy.copy(fresh).translate_all(lines)  # as `towards` makes one for each call
    assert both.opened == [1, 3]
    broken = wild(run)
    with torch.no_grad():
        broken.model.decoder.layers[0].feed_forward.down.weight[0, 0] = 1e38
    ours, theirs = both(broken, workers=2, batch_size=2)
    with pytest.raises(DivergedError) as first:
        ours.translate_all(lines)
    slowly, find = iter([0.3]), theirs.search
    theirs.search = lambda *work: (time.sleep(next(slowly, 0)), find(*work))[1]  # whoever fails first
    with pytest.raises(DivergedError, match="not finite") as found:
        theirs.translate_all(lines)
    assert found.value.message == first.value.message


def test_files_that_went_since_the_engine_was_opened_cost_time_alone(run: OpenedRun, both: Both) -> None:
    def gone() -> Any:
        raise ModelError("CTranslate2 does not open it: Unable to open file 'model.bin'")

    ours, theirs = both(run, workers=2, batch_size=2)
    theirs._several = gone
    same(ours.translate_all(SOURCES), theirs.translate_all(SOURCES))


def test_in_a_beam_the_limit_of_each_sentence_is_its_own_whoever_is_beside_it(run, both):
    _, theirs = both(wild(run), beam_size=3)
    lines = salad(40)
    together = theirs.translate_all(lines, n_best=3)
    same([theirs.translate_all([line], n_best=3)[0] for line in lines], together)
    assert len({len(one.ids) for one in together if one.truncated}) > 5


@pytest.mark.parametrize(("beam_size", "end"), [(1, 20.0), (3, -30.0)])  # greedily, a few end by themselves
@pytest.mark.parametrize("bans", [False, True], ids=["unknown", "banned"])
def test_what_must_not_be_written_needs_no_more_positions_than_there_are(run, both, beam_size, end, bans):
    """Uncut, what was found in its place was scored, by one position more than the model's table has."""
    short = wild(run, positions="learned", max_positions=8, output_bias=True)
    likeliest = 10 if bans else UNK
    with torch.no_grad():
        short.model.output_bias[[likeliest, 40, EOS]] += torch.tensor([60.0, 30.0, end])
    banned = [run.tokenizer.target.piece(likeliest)] if bans else []
    ours, theirs = both(short, beam_size=beam_size, banned=banned, max_length_factor=1.0, max_length_extra=2)
    lines = ["bier", *salad(20, most=2)]
    found = ours.translate_all(lines)
    assert {len(one.ids) for one in found if one.truncated} == {3, 4, 5, 6, 7}
    same(found, theirs.translate_all(lines))


@pytest.mark.parametrize("options", [{"max_length": 4}, {"max_length": 6, "length_penalty": 2.0}, {"bans": True}])
def test_what_the_limit_cuts_is_not_the_same_several_times(run, both, options):
    """Hypotheses that differ behind the limit alone came as often as the beam was wide."""
    if options.pop("bans", False):
        options = {"max_length": 5, "banned": run.tokenizer.target.names[10:14]}
    ours, theirs = both(wild(run), beam_size=4, **options)
    lines = salad(40)
    n_cut = n_first = 0
    for here, there in zip(ours.translate_all(lines, n_best=3), theirs.translate_all(lines, n_best=3), strict=True):
        every = there.n_best
        assert len({one.ids for one in every}) == len(every)
        assert [one.score for one in every] == sorted((one.score for one in every), reverse=True) or not there.truncated
        n_cut, n_first = n_cut + there.truncated, n_first + (here.ids == there.ids)
    assert n_cut > 10
    assert n_first > 36


def test_a_search_by_beams_gives_up_hardly_sooner_than_that_of_tx(run, both, monkeypatch):
    """Where tx finds something better, the engine looked not long enough; by its default, several times as often."""
    lines = salad(150)
    ours, theirs = both(run, beam_size=4, length_penalty=1.0)
    found = [one.score for one in ours.translate_all(lines)]

    def n_worse():
        return sum(there.score < here - 1e-4 for here, there in zip(found, theirs.translate_all(lines), strict=True))

    n_by_tx = n_worse()
    monkeypatch.setattr(engine, "PATIENCE", 1.0)
    assert n_worse() > 4 * n_by_tx
