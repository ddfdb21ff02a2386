"""Lines in, lines out, whatever the batches between them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PAIRS

import transformer_cli as tx
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding.translator import NOTHING, Translator
from transformer_cli.errors import DataError, DivergedError, ModelError, UsageError
from transformer_cli.model.build import build_model
from transformer_cli.tokenizer import BOS, EOS, Tokenizer

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return tx.load(trained_run)


def untrained(tokenizer: Tokenizer, *, decoding: DecodingConfig | None = None, **options: object) -> Translator:
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1}
    torch.manual_seed(1)
    model = build_model(
        ModelConfig.model_validate(shape | options),
        source_vocab=tokenizer.source_size,
        target_vocab=tokenizer.target_size,
    )
    with torch.no_grad():  # louder than fresh weights are, so that its nonsense varies
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return Translator(model, tokenizer, decoding or DecodingConfig(), source_eos=True)


@pytest.mark.parametrize("beam_size", [1, 5])
def test_what_was_learned_by_heart_is_said(translator: Translator, beam_size: int) -> None:
    assert translator.translate(SOURCES, beam_size=beam_size) == TARGETS


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_order_partners_and_batch_size_do_not_matter(trained_run: Path, batch_size: int, beam_size: int) -> None:
    tokenizer = tx.load(trained_run).tokenizer
    lines = [*SOURCES, *(" ".join(random.Random(seed).sample(SOURCES, 2)) for seed in range(20)), "", "x"]
    alone = untrained(tokenizer, decoding=DecodingConfig(batch_size=1, beam_size=beam_size))
    together = untrained(tokenizer, decoding=DecodingConfig(batch_size=batch_size, beam_size=beam_size))
    alone.model.double()
    together.model.double()
    expected = alone.translate(lines)
    assert len(set(expected)) > len(lines) // 2
    order = list(range(len(lines)))
    random.Random(batch_size).shuffle(order)
    assert together.translate([lines[i] for i in order]) == [expected[i] for i in order]


def test_lines_without_text_are_empty_and_never_reach_the_model(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    start = translator.model.start
    monkeypatch.setattr(translator.model, "start", lambda ids, lengths: seen.append(ids.shape) or start(ids, lengths))
    lines = ["", "   ", "\t", SOURCES[0], "\u3000", "\u2028", ""]
    found = translator.translate_all(lines)
    assert [one.text for one in found] == ["", "", "", TARGETS[0], "", "", ""]
    assert found.count(NOTHING) == 6
    assert [shape[0] for shape in seen] == [1]
    assert translator.translate([]) == []


def test_a_translation_carries_its_ids_pieces_and_score(translator: Translator) -> None:
    [found] = translator.translate_all([SOURCES[0]], length_penalty=0.5)
    assert "".join(found.tokens).replace("▁", " ").strip() == found.text == TARGETS[0]
    assert translator.tokenizer.encode_target([TARGETS[0]]) == [list(found.ids)]
    assert found.score == pytest.approx(found.log_probability / (len(found.ids) + 1) ** 0.5)
    assert not found.truncated


def test_the_score_is_what_the_model_gives_the_sentence_at_once(translator: Translator) -> None:
    """Teacher forcing over what was found, end mark included, without any search."""
    for found, source in zip(translator.translate_all(SOURCES, n_best=3), SOURCES, strict=True):
        [ids] = translator.tokenizer.encode_source([source])
        for one in found.n_best:
            target = torch.tensor([[BOS, *one.ids, EOS]])
            with torch.inference_mode():
                source_BS = torch.tensor([[*ids, EOS]])
                hidden_BTD = translator.model(source_BS, torch.tensor([len(ids) + 1]), target[:, :-1])
                logp_BTV = translator.model.project(hidden_BTD).double().log_softmax(-1)
            total = logp_BTV.gather(2, target[:, 1:, None]).sum()
            assert one.log_probability == pytest.approx(float(total), abs=1e-4)


def test_n_best_begin_with_the_best_and_are_distinct(translator: Translator) -> None:
    for found in translator.translate_all(SOURCES, n_best=5):
        assert vars(found.n_best[0]).items() <= vars(found).items()
        assert len({one.ids for one in found.n_best}) == 5
        assert [one.score for one in found.n_best] == sorted((one.score for one in found.n_best), reverse=True)


@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 2), (5, 6), (5, 0)])
def test_more_translations_than_beams_are_refused(translator: Translator, beam_size: int, n_best: int) -> None:
    with pytest.raises(UsageError, match=f"{n_best} translations"):
        translator.translate_all(["hallo"], beam_size=beam_size, n_best=n_best)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_no_more_pieces_come_out_than_factor_times_source_plus_extra(trained_run: Path, beam_size: int) -> None:
    decoding = DecodingConfig(max_length_factor=0.25, max_length_extra=1, beam_size=beam_size)
    loaded = tx.load(trained_run)
    short = Translator(loaded.model, loaded.tokenizer, decoding, source_eos=True)
    n_cut = 0
    for found, source, target in zip(short.translate_all(SOURCES), SOURCES, TARGETS, strict=True):
        limit = len(loaded.tokenizer.encode_source([source])[0]) // 4 + 1
        assert len(found.ids) <= limit
        if beam_size == 1 and len(wanted := loaded.tokenizer.encode_target([target])[0]) > limit:
            assert found.truncated
            assert list(found.ids) == wanted[:limit]
            n_cut += 1
    assert beam_size > 1 or n_cut > len(SOURCES) // 2


def test_learned_positions_refuse_a_longer_line_by_its_number(trained_run: Path) -> None:
    tokenizer = tx.load(trained_run).tokenizer
    short = untrained(tokenizer, positions="learned", max_positions=12)
    lines = [SOURCES[0], "", " ".join(SOURCES)]
    with pytest.raises(DataError, match=r"line 3 has \d+ pieces, .* 12 positions"):
        short.translate(lines)
    translations = short.translate_all(lines[:2])
    assert len(translations[0].ids) < 12


@pytest.mark.parametrize("beam_size", [1, 3])
def test_numbers_that_are_none_name_the_line_and_are_no_translation(trained_run: Path, beam_size: int) -> None:
    broken = untrained(tx.load(trained_run).tokenizer, tied="none")
    with torch.no_grad():
        [ids] = broken.tokenizer.encode_source([SOURCES[3]])
        broken.model.source_embedding.table.weight[ids[-1]] = torch.nan
    lines = ["", "hund", SOURCES[3]]
    assert not {ids[-1]} & set(broken.tokenizer.encode_source(["hund"])[0])
    with pytest.raises(DivergedError, match="line 3"):
        broken.translate(lines, beam_size=beam_size)


def test_the_model_is_left_in_the_mode_it_was_in(trained_run: Path) -> None:
    translator = untrained(tx.load(trained_run).tokenizer, dropout=0.5)
    for training in (True, False):
        translator.model.train(training)
        assert translator.translate(SOURCES) == translator.translate(SOURCES)  # no dropout
        assert translator.model.training is training


def test_progress_counts_every_line_once(translator: Translator) -> None:
    done: list[int] = []
    translator.translate_all([*SOURCES, "", " "], progress=done.append)
    assert sum(done) == len(SOURCES) + 2


def test_what_is_typed_as_a_mark_is_plain_text(translator: Translator) -> None:
    assert all(EOS not in ids for ids in translator.tokenizer.encode_source(["</s> hund"]))
    assert isinstance(translator.translate(["</s>"])[0], str)


def test_load_says_what_to_type_where_there_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        tx.load()
    assert "tx train -c tiny.yaml" in (caught.value.hint or "")


def test_importing_the_package_leaves_torch_alone_and_load_is_there() -> None:
    code = "import sys, transformer_cli as tx; assert 'torch' not in sys.modules; assert callable(tx.load)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not hasattr(tx, "no_such_name")
