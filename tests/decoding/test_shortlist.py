"""A search over a shortlist is the search over all in which what is not listed has no probability."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PAIRS
from faults import Saboteur
from torch import Tensor

import transformer_cli as tx
from transformer_cli import files
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.data.lexicon import LEXICON
from transformer_cli.decoding.invariance import check_batching
from transformer_cli.decoding.shortlist import Shortlist
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import ResourceError
from transformer_cli.model.build import build_model
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.steps import Steps
from transformer_cli.tokenizer import EOS, PAD, Tokenizer

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]
N = 6


class Masked(Prepared):
    """All logits, of which those are -inf that the sentence's shortlist has not."""

    table_VN: Tensor
    marks: tuple[int, ...] = ()

    def start(self, source_BS: Tensor, source_lengths_B: Tensor, only_U: Tensor | None = None) -> Steps:
        state = super().start(source_BS, source_lengths_B)
        state.hidden_BV = torch.ones(len(source_BS), len(self.table_VN), dtype=torch.bool)
        for row, source in zip(state.hidden_BV, source_BS.tolist(), strict=True):
            listed = self.table_VN[[PAD, *source]].flatten().tolist()
            row[[*self.marks, *listed, *range(EOS + 1)]] = False
        keep = state.keep
        state.keep = lambda rows: (keep(rows), setattr(state, "hidden_BV", state.hidden_BV[rows]))
        return state

    def step(self, tokens_R: Tensor, state: Steps) -> Tensor:
        hidden_RV = state.hidden_BV[state.taken_BW.nonzero()[:, 0]]
        return super().step(tokens_R, state).masked_fill(hidden_RV, -torch.inf)


@pytest.fixture(scope="module")
def tokenizer(trained_run: Path) -> Tokenizer:
    return Tokenizer.load(trained_run / "tokenizer")


@pytest.fixture(scope="module")
def table(tokenizer: Tokenizer) -> np.ndarray:
    """Of every source piece and of the most frequent a few pieces, drawn."""
    return np.random.default_rng(1).integers(4, tokenizer.target_size, (tokenizer.source_size, 100), dtype=np.int32)


def translator(
    tokenizer: Tokenizer,
    table: np.ndarray | None,
    *,
    n_models: int = 1,
    dtype: torch.dtype = torch.float64,
    source_eos: bool = True,
    first: int | None = None,
    **options,
) -> Translator:
    """Of random models, loud enough for their nonsense to vary."""
    models = []
    for seed in range(n_models):
        torch.manual_seed(seed)
        shape = ModelConfig.model_validate({"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2})
        sizes = {"source_vocab": tokenizer.source_size, "target_vocab": tokenizer.target_size}
        model = build_model(shape, **sizes)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2.5)
        models.append(model.to(dtype))
    shortlist = None if table is None else lambda: Shortlist(table, n=N, n_targets=tokenizer.target_size)
    one = Translator(models, tokenizer, DecodingConfig(**options), source_eos=source_eos, shortlist=shortlist)
    one.symbols = replace(one.symbols, first=first)
    return one


def said(translator: Translator, lines: Sequence[str] = SOURCES, **options) -> list[tuple[str, float]]:
    found = translator.translate_all(lines, **options)
    return [(one.text, one.score) for translation in found for one in translation.n_best]


@pytest.mark.parametrize("n_models", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4},
        {"beam_size": 4, "min_length": 5, "no_repeat_ngram": 2},
        {"beam_size": 3, "banned": ["▁the"]},
        {"beam_size": 3, "source_eos": False},
        {"beam_size": 3, "first": 40},
    ],
)
def test_it_is_the_whole_search_without_the_rest(
    options: dict, n_models: int, tokenizer: Tokenizer, table: np.ndarray
) -> None:
    n_best = min(2, options["beam_size"])
    listed = translator(tokenizer, table, n_models=n_models, **options)
    whole = translator(tokenizer, None, n_models=n_models, **options)
    whole._prepared = [Masked(model) for model in whole.models]
    for prepared in whole._prepared:
        prepared.marks = (options["first"],) if "first" in options else ()
        prepared.table_VN = torch.from_numpy(table[:, :N].astype(np.int64))
    found, expected = said(listed, n_best=n_best), said(whole, n_best=n_best)
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-9)
    free = translator(tokenizer, None, n_models=n_models, **options)
    assert [text for text, _ in said(free, n_best=n_best)] != [text for text, _ in found]


def test_what_a_translation_begins_with_need_not_be_listed(tokenizer: Tokenizer) -> None:
    """And it lists nothing for other sentences."""
    nothing = np.full((tokenizer.source_size, 100), EOS, dtype=np.int32)
    found = translator(tokenizer, nothing).translate(SOURCES[:2], beam_size=3)
    assert found == ["", ""]
    begun = translator(tokenizer, nothing).translate_all(SOURCES[:2], prefixes=["", TARGETS[1]])
    assert begun[0].text == ""
    assert begun[1].text.startswith(TARGETS[1])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_batches_do_not_matter(beam_size: int, tokenizer: Tokenizer, table: np.ndarray) -> None:
    lines = [*SOURCES, *(f"{one} {two}" for one, two in zip(SOURCES, reversed(SOURCES), strict=True))]
    report = check_batching(translator(tokenizer, table, dtype=torch.float32, beam_size=beam_size), lines)
    assert report.differences == ()


def test_in_halves_a_sentence_alone_and_many_are_translated(tokenizer: Tokenizer, table: np.ndarray) -> None:
    """By products of both kinds: few rows are computed in fp32."""
    one = translator(tokenizer, table, dtype=torch.float32, beam_size=4)
    one.model.compute_in(torch.bfloat16, training=False)
    allowed = {*table[:, :N].flatten().tolist(), EOS}
    for lines in (SOURCES[:1], SOURCES * 3):
        found = {id for translation in one.translate_all(lines) for id in translation.ids}
        assert found
        assert found <= allowed


@pytest.mark.parametrize("options", [{"search": "sampling"}, {"mbr": {"samples": 3}}])
def test_draws_are_from_all_pieces_and_ask_for_no_list(options: dict, tokenizer: Tokenizer, table: np.ndarray) -> None:
    drawing = translator(tokenizer, table, **options)
    drawing.shortlist = lambda: pytest.fail("it was asked for")
    assert said(drawing) == said(translator(tokenizer, None, **options))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes")
def test_processes_share_what_is_made_once(tokenizer: Tokenizer, table: np.ndarray) -> None:
    alone, shared = (translator(tokenizer, table, batch_size=2, beam_size=2) for _ in range(2))
    made, real = [], shared.shortlist
    shared.shortlist, shared.workers = lambda: (made.append(os.getpid()), real())[1], 2
    assert said(shared) == said(alone)
    assert set(made) == {os.getpid()}  # what workers note is noted in theirs


def test_a_run_learns_it_once_and_translates(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run, tmp_path / "run", symlinks=True)

    def translated(*arguments: str) -> int:
        wanted = ["translate", "-m", str(tmp_path / "run"), "--set", "decoding.shortlist=20", *arguments, SOURCES[0]]
        return failures.exit_code(lambda: main(wanted))

    assert translated() == 0
    assert capfd.readouterr().out == f"{TARGETS[0]}\n"
    written = (tmp_path / "run" / LEXICON).read_bytes()
    shutil.rmtree(tmp_path / "run" / "data")
    assert translated("--json") == 0
    assert (tmp_path / "run" / LEXICON).read_bytes() == written
    listed = tx.load(tmp_path / "run", settings={"decoding.shortlist": 20})
    assert listed.translate(SOURCES) == TARGETS
    capfd.readouterr()
    (tmp_path / "run" / LEXICON).write_bytes(written[:-1])
    assert translated() == 4
    assert "delete it: it is learned again" in capfd.readouterr().err
    (tmp_path / "run" / LEXICON).unlink()
    assert translated() == 2
    assert f"{tmp_path}/run has none" in capfd.readouterr().err
    for side, text in zip(("de", "en"), PAIRS[0], strict=True):
        (tmp_path / f"one.{side}").write_text(f"{text}\n", encoding="utf-8")
    score = ["score", "-m", str(tmp_path / "run"), "--set", "decoding.shortlist=20"]
    score += ["--source", str(tmp_path / "one.de"), "--target", str(tmp_path / "one.en")]
    assert failures.exit_code(lambda: main(score)) == 0  # which searches for nothing


def test_an_average_has_its_parents(trained_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run, symlinks=True)
    config = (run / "config.yaml").read_text(encoding="utf-8")
    assert config.count("  shortlist: null\n") == 1
    (run / "config.yaml").write_text(config.replace("  shortlist: null\n", "  shortlist: 20\n"), encoding="utf-8")
    assert failures.exit_code(lambda: main(["average", str(run), "--last", "2"])) == 0
    capfd.readouterr()
    assert failures.exit_code(lambda: main(["translate", "-m", f"{run}-average", SOURCES[0]])) == 0
    assert capfd.readouterr().out == f"{TARGETS[0]}\n"
    assert (tmp_path / "run-average" / LEXICON).read_bytes() == (run / LEXICON).read_bytes()
    shutil.rmtree(run / "data")
    (run / LEXICON).unlink()
    assert failures.exit_code(lambda: main(["average", str(run), "--last", "2", "-o", str(tmp_path / "other")])) == 0
    assert "decoding.shortlist is learned from the encoded training text" in capfd.readouterr().err
    assert failures.exit_code(lambda: main(["translate", "-m", str(tmp_path / "other"), SOURCES[0]])) == 2


def test_a_disk_without_room_for_it_is_named(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained_run, tmp_path / "run", symlinks=True)
    monkeypatch.setattr(files, "disk", Saboteur(2, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), short=True))
    with pytest.raises(ResourceError, match=f"cannot write .*{LEXICON}"):
        tx.load(tmp_path / "run", settings={"decoding.shortlist": 20})
    assert not (tmp_path / "run" / LEXICON).exists()
