"""A noisy channel, beside its definition: the scores of `tx score`, one pair at a time, added up and sorted."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS

import transformer_cli as tx
from transformer_cli.checkpoints import store
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding.rerank import Channel
from transformer_cli.decoding.scoring import score_texts
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DivergedError, ModelError, UsageError
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import Tokenizer

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def tokenizer(trained_run: Path) -> Tokenizer:
    return Tokenizer.load(trained_run / "tokenizer")


def model(tokenizer: Tokenizer, seed: int) -> Transformer:
    torch.manual_seed(seed)
    config = ModelConfig(d_model=16, n_heads=2, d_ff=32, n_layers=1, dropout=0.0)
    made = build_model(config, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3)  # so that translations differ in what is thought of them
    return made


def translator(tokenizer: Tokenizer, *seeds: int, channel: Channel | None = None, **options: Any) -> Translator:
    found = [model(tokenizer, seed) for seed in seeds]
    channels = None if channel is None else lambda to: channel
    learned = {
        "source_eos": True,
        "max_length": 40,
        **{key: options.pop(key) for key in ("max_length",) if key in options},
    }
    return Translator(found, tokenizer, DecodingConfig(**options), channel=channels, **learned)


def by_definition(
    one: Translator, back: Translator, source: str, *, weight: float, beam_size: int, alpha: float
) -> list[tuple[str, float]]:
    """All that the beam finds of a line, with log p(y | x) / |y|^alpha + weight * log p(x | y) / |x|, best first."""
    found = one.translate_all([source], n_best=beam_size, beam_size=beam_size, length_penalty=alpha)[0].n_best
    ranked = []
    for hypothesis in found:
        length = len(hypothesis.ids) + (not hypothesis.truncated)
        said = score_texts(back, [hypothesis.text], [source])[0] if hypothesis.text else None
        n = len(back.tokenizer.encode_target([source])[0]) + 1
        mean = -math.log(back.tokenizer.target_size) if said is None else sum(said.log_probabilities) / n
        score = hypothesis.log_probability / length**alpha + weight * mean
        ranked.append((hypothesis.truncated, -score, hypothesis.text))
    return [(text, -negative) for _, negative, text in sorted(ranked)]


@pytest.mark.parametrize(
    ("beam_size", "weight", "alpha", "seeds"), [(4, 0.25, 1.0, [1]), (9, 1.5, 0.6, [2, 3]), (2, 30, 0, [4])]
)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_what_the_beam_found_is_ranked_by_both_models(
    tokenizer: Tokenizer, beam_size: int, weight: float, alpha: float, seeds: Sequence[int], batch_size: int
) -> None:
    back = translator(tokenizer, 9)
    plain = translator(tokenizer, *seeds)
    ranked = translator(tokenizer, *seeds, channel=Channel(back, weight, "back"), batch_size=batch_size)
    options: dict[str, Any] = {"beam_size": beam_size, "length_penalty": alpha}
    found = ranked.translate_all(SOURCES, n_best=2, **options)
    changed = 0
    for source, line in zip(SOURCES, found, strict=True):
        wanted = by_definition(plain, back, source, weight=weight, beam_size=beam_size, alpha=alpha)
        assert [one.score for one in line.n_best] == pytest.approx([score for _, score in wanted[:2]], abs=1e-9)
        assert [one.text for one in line.n_best] == [text for text, _ in wanted[:2]]
        changed += line.text != plain.translate([source], **options)[0]
    assert changed  # else the other model said nothing


def test_processes_that_share_batches_find_the_same(tokenizer: Tokenizer) -> None:
    channel = Channel(translator(tokenizer, 9), 0.5, "back")
    alone, shared = (translator(tokenizer, 1, channel=channel, batch_size=3) for _ in range(2))
    shared.workers = 2
    lines = SOURCES * 2
    assert [vars(one) for one in shared.translate_all(lines)] == [vars(one) for one in alone.translate_all(lines)]


def test_a_line_in_parts_is_ranked_part_by_part(tokenizer: Tokenizer) -> None:
    back = translator(tokenizer, 9)
    whole = translator(tokenizer, 1, channel=Channel(back, 0.5, "back"))
    line = f"{SOURCES[0]}. {SOURCES[1]}. {SOURCES[2]}."
    parts = translator(tokenizer, 1, channel=Channel(back, 0.5, "back"), max_source_sentences=1)
    [found] = parts.translate_all([line])
    alone = whole.translate_all([part.source for part in found.parts])
    assert len(found.parts) == 3
    assert [part.ids for part in found.parts] == [one.ids for one in alone]
    n = sum(len(one.ids) + (not one.truncated) for one in alone)
    added = [one.score - one.log_probability / (len(one.ids) + (not one.truncated)) for one in alone]
    assert found.score == pytest.approx(found.log_probability / n + sum(added) / 3, abs=1e-9)


def test_what_cannot_be_read_back_says_nothing(tokenizer: Tokenizer) -> None:
    """Too long for the other model, or without text: all pieces are equally likely then."""
    back = translator(tokenizer, 9, max_length=3)
    plain = translator(tokenizer, 1)
    ranked = translator(tokenizer, 1, channel=Channel(back, 0.5, "back"))
    source = SOURCES[0]
    before = plain.translate_all([source], n_best=5, beam_size=5)[0].n_best
    after = ranked.translate_all([source], n_best=5, beam_size=5)[0].n_best
    assert all(len(back.encode_source([one.text])[0]) > 3 for one in before)
    assert [one.text for one in after] == [one.text for one in before]
    nothing = 0.5 * math.log(tokenizer.target_size)
    assert [one.score + nothing for one in after] == pytest.approx([one.score for one in before], abs=1e-12)
    assert Channel(back, 1.0, "back")._means(["x"], [[""]]) == [-math.log(tokenizer.target_size)]


def test_weights_that_diverged_are_told(tokenizer: Tokenizer) -> None:
    back = translator(tokenizer, 9)
    with torch.no_grad():
        next(back.model.parameters()).fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"the scores of runs/back, which ranks .* are not finite"):
        translator(tokenizer, 1, channel=Channel(back, 0.5, "runs/back")).translate(SOURCES[:1])


@pytest.mark.parametrize("options", [{"search": "sampling"}, {"mbr": {"samples": 3}}])
def test_what_is_drawn_opens_no_other_model(tokenizer: Tokenizer, options: dict[str, Any]) -> None:
    drawing = translator(tokenizer, 1, **options)
    drawing.channel = lambda to: pytest.fail("it was opened")
    assert len(drawing.translate(SOURCES[:2])) == 2


# --- runs ----------------------------------------------------------------------------------------------------------


def asked(run: Path, **more: Any) -> str:
    return f"--set=decoding.rerank={json.dumps({'run': str(run), **more})}"


def call(*arguments: str) -> int:
    """The program in this process: its exit code."""
    return failures.exit_code(lambda: main([*arguments]))


def test_a_model_of_both_directions_is_its_own(two_ways: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, back = tx.load(two_ways), tx.load(two_ways)
    lines = SOURCES[:4]
    arguments = ["--json", "-m", str(two_ways), "--to", "en", asked(two_ways, weight=0.7), *lines]
    assert call("translate", *arguments) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line, found in zip(lines, said, strict=True):
        wanted = by_definition(one.towards("en"), back.towards("de"), line, weight=0.7, beam_size=5, alpha=1.0)
        assert (found["translation"], found["score"]) == (wanted[0][0], pytest.approx(wanted[0][1], abs=1e-5))


def test_an_evaluation_says_so(two_ways: Path, tmp_path: Path) -> None:
    run, page = shutil.copytree(two_ways, tmp_path / "run"), tmp_path / "page.html"
    assert call("evaluate", "-m", str(run), asked(two_ways), "--to", "en", "-o", str(page)) == 0
    assert f"beam 5, length penalty 1, ranked by {two_ways} with a weight of 0.25" in page.read_text(encoding="utf-8")
    kept = json.loads((run / "run.json").read_text(encoding="utf-8"))["scores"]
    assert f'"run": "{two_ways}"' in json.dumps(kept)


def test_scoring_and_attention_need_no_other_model(two_ways: Path, tmp_path: Path) -> None:
    for side, lines in (("de", SOURCES), ("en", TARGETS)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ["--source", str(tmp_path / "de"), "--target", str(tmp_path / "en")]
    assert call("score", "-m", str(two_ways), "--to", "en", asked(tmp_path / "none"), *files) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sample"], 2, "sampling has no beam"),
        (["-b", "1"], 2, "a beam of 1 finds only one"),
        (["--set=decoding.beam_size=1"], 2, "a beam of 1 finds only one"),
        (["--set=decoding.mbr={samples: 3}"], 2, "with decoding.mbr there is none"),
        (["--set=decoding.search=sampling"], 2, "sampling has none"),
        (["--set=decoding.engine=ctranslate2"], 2, "CTranslate2 cannot do this: rerank"),
        (["--set=decoding.rerank.weight=0"], 2, "decoding.rerank.weight"),
    ],
)
def test_what_does_not_go_together(
    two_ways: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    wanted = ["translate", "-m", str(two_ways), "--to", "en", asked(two_ways), *arguments, SOURCES[0]]
    assert call(*wanted) == code
    assert words in capsys.readouterr().err


def test_another_model_than_one_that_translates_back_is_refused(
    trained_run: Path, two_ways: Path, tmp_path: Path
) -> None:
    """Its scores would be numbers, too."""
    with pytest.raises(UsageError, match=r"is to rank translations from de to en .* and learned de to en") as failure:
        tx.load(trained_run, settings={"decoding.rerank": {"run": str(trained_run)}})
    assert "a run that learned en to de" in str(failure.value.hint)
    with pytest.raises(ModelError, match=r"none, which is to rank translations \(decoding.rerank\), does not exist"):
        tx.load(trained_run, settings={"decoding.rerank": {"run": str(tmp_path / "none")}})
    assert tx.load(trained_run, settings={"decoding.rerank": {"run": str(two_ways)}}).translate(SOURCES[:1])


def test_it_is_opened_once_for_all_languages(two_ways: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    really = store.open_run
    monkeypatch.setattr(store, "open_run", lambda checkpoint: opened.append(checkpoint) or really(checkpoint))
    both = tx.load(two_ways, settings={"decoding.rerank": {"run": str(two_ways)}})
    for to, line in (("en", SOURCES[0]), ("de", TARGETS[0]), ("en", SOURCES[1])):
        assert both.translate(line, to=to)
    assert len(opened) == 1


def test_validating_is_greedy_as_ever(two_ways: Path, tmp_path: Path) -> None:
    """A configuration that names what ranks trains without it."""
    config = str(two_ways / "config.yaml")
    short = ["--set=training.max_steps=2", "--set=training.validate_every=2", "--set=training.warmup_steps=1"]
    command = ["train", "-c", config, asked(tmp_path / "none"), *short, "--run-dir", str(tmp_path / "run")]
    assert call(*command) == 0


def test_batches_are_checked_without_it(two_ways: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("evaluate", "--check-batching", "-m", str(two_ways), asked(two_ways), "--to", "en") == 2
    assert "decoding.rerank" in capsys.readouterr().err
