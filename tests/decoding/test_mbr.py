"""Minimum Bayes risk, beside the double sum that defines it, and sacreBLEU's own scores."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PAIRS
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import transformer_cli as tx
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.decoding import DecodingConfig, Mbr
from transformer_cli.decoding.mbr import by_utility, utilities
from transformer_cli.errors import UsageError

CHARACTERS = BLEU(effective_order=True, tokenize="char")
SACREBLEU: dict[str, Callable[[str, list[str]], float]] = {
    "chrf": lambda text, others: CHRF().sentence_score(text, others).score,
    "chrf++": lambda text, others: CHRF(word_order=2).sentence_score(text, others).score,
    "bleu": lambda text, others: BLEU(effective_order=True).sentence_score(text, others).score,
    "bleu of characters": lambda text, others: CHARACTERS.sentence_score(text, others).score,
}
DRAWS = [
    ["the cat sat.", "the cat sat.", "a cat sat", "the dog ran!", "the cat sits.", ""],
    ["one two three four five six", "one two three four six", "seven", "seven", "(one) two"],
    ["aaaaaaaa", "aaaa", "aaa aaa", "baab", "aaaaaaaa"],
    ["", "", "x"],
    ["猫が座った。", "猫は座った。", "犬"],
]
UNSPACED = DRAWS[-1]
SOURCES = [source for source, _ in PAIRS]
FEW = "--set=decoding.mbr={samples: 8}"
texts = st.lists(st.text("ab .,", max_size=9), min_size=2, max_size=9)


@pytest.mark.parametrize("metric", ["chrf", "chrf++", "bleu"])
@pytest.mark.parametrize("draws", DRAWS)
def test_the_winner_is_that_of_the_plain_double_sum_over_sacrebleus_scores(metric: str, draws: list[str]) -> None:
    """Each draw against all others, duplicates one by one."""
    theirs = SACREBLEU["bleu of characters" if metric == "bleu" and draws is UNSPACED else metric]
    mean = [
        statistics.fmean(theirs(one, [draws[j]]) for j in range(len(draws)) if j != i) for i, one in enumerate(draws)
    ]
    found = by_utility(draws, metric)
    assert [utility for _, utility in found] == pytest.approx([mean[n] for n, _ in found], abs=1e-9)
    assert found[0][1] == pytest.approx(max(mean), abs=1e-9)
    assert sorted(draws[n] for n, _ in found) == sorted(set(draws))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12) | st.text("ab .!", max_size=12), max_size=5))
def test_every_score_is_sacrebleus(lines: list[str]) -> None:
    for metric in ("chrf", "chrf++"):
        wanted = [[SACREBLEU[metric](line, [other]) for other in lines] for line in lines]
        assert utilities(lines, metric).tolist() == [pytest.approx(row, abs=1e-9) for row in wanted]


@given(texts, st.randoms(use_true_random=False), st.sampled_from(["chrf", "bleu"]))
def test_the_order_of_the_draws_changes_neither_the_winner_nor_its_utility(
    draws: list[str], rng: random.Random, metric: str
) -> None:
    def ranked(draws: list[str]) -> list[tuple[str, float]]:
        return [(draws[n], utility) for n, utility in by_utility(draws, metric)]

    assert ranked(rng.sample(draws, len(draws))) == ranked(draws)


def test_of_equals_the_one_drawn_more_often_comes_first_then_the_first_by_its_letters() -> None:
    assert [n for n, _ in by_utility(["d", "c", "b"], "chrf")] == [2, 1, 0]
    # white space has no letters that agree with any
    assert [n for n, _ in by_utility(["\t", "b", " ", " "], "chrf")] == [2, 0, 1]


@pytest.fixture(scope="module")
def drawing(trained_run: Path) -> tx.Model:
    """Hot, so that draws differ."""
    return tx.load(trained_run, settings={"decoding.mbr": {"samples": 12}, "decoding.temperature": 1.6})


def test_what_is_chosen_is_among_what_sampling_draws_and_the_best_of_it(drawing: tx.Model) -> None:
    draws = drawing.translate_all(SOURCES, search="sampling", n_best=12)
    chosen = drawing.translate_all(SOURCES, n_best=12)
    assert sum(len({one.text for one in line.n_best}) > 2 for line in draws) > len(SOURCES) // 2
    for all_of_them, line in zip(draws, chosen, strict=True):
        drawn = [one.text for one in all_of_them.n_best]
        assert [(one.text, one.utility) for one in line.n_best] == [
            (drawn[n], pytest.approx(utility)) for n, utility in by_utility(drawn, "chrf")
        ]
        assert (line.text, line.utility) == (line.n_best[0].text, line.n_best[0].utility)


def test_neither_batches_nor_partners_change_what_is_chosen_and_another_seed_does(
    drawing: tx.Model, trained_run: Path
) -> None:
    expected = drawing.translate(SOURCES)
    assert drawing.translate(SOURCES) == expected
    alone = [drawing.translate_all([line], lines_before=n)[0].text for n, line in enumerate(SOURCES)]
    assert alone == expected
    hot = {"decoding.mbr": {"samples": 12}, "decoding.temperature": 1.6, "decoding.batch_size": 1}
    assert tx.load(trained_run, settings=hot).translate(SOURCES) == expected
    others = tx.load(trained_run, settings=hot | {"seed": 7}).translate_all(SOURCES)
    assert [one.utility for one in others] != [one.utility for one in drawing.translate_all(SOURCES)]


def test_a_line_in_parts_is_chosen_as_a_whole_and_prefixes_are_kept(drawing: tx.Model) -> None:
    [split] = drawing.translate_all([" ".join(SOURCES[:2]) + ". " + ". ".join(SOURCES[:6]) * 3])
    assert "split" in split.flags
    assert 0 < (split.utility or 0) <= 100
    [begun] = drawing.translate_all(SOURCES[:1], prefixes=["you"])
    assert begun.text.startswith("you")


def test_the_command_prints_the_utility_and_orders_by_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hot = ["translate", "-q", FEW, "--set=decoding.temperature=1.6", "--n-best", "3", *SOURCES]
    assert main([*hot, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert all(line["utility"] == line["n_best"][0]["utility"] for line in lines)
    assert max(len(line["n_best"]) for line in lines) == 3
    assert main(hot) == 0
    moses = [line.split(" ||| ") for line in capsys.readouterr().out.split("\n")[:-1]]
    utilities = [one["utility"] for line in lines for one in line["n_best"]]
    assert [float(line[-1]) for line in moses] == pytest.approx(utilities, abs=1e-6)
    for line in lines:
        assert [one["utility"] for one in line["n_best"]] == sorted(
            [u["utility"] for u in line["n_best"]], reverse=True
        )


def test_evaluate_scores_what_is_chosen_and_a_search_without_draws_says_no_utility(here, capsys, tmp_path) -> None:
    files = [tmp_path / "de", tmp_path / "en"]
    for file, lines in zip(files, (SOURCES, [target.upper() for _, target in PAIRS]), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    arguments = ["--source", str(files[0]), "--reference", str(files[1]), "--json", "-q", "--worst", "99"]
    assert main(["evaluate", *arguments, FEW, "--set=decoding.temperature=1.6"]) == 0
    worst = json.loads(capsys.readouterr().out)["worst"]
    chosen = tx.load("runs/tiny", settings={"decoding.mbr": {"samples": 8}, "decoding.temperature": 1.6})
    assert {one["source"]: one["translation"] for one in worst} == dict(
        zip(SOURCES, chosen.translate(SOURCES), strict=True)
    )
    assert main(["translate", "-q", "--json", SOURCES[0]]) == 0
    assert "utility" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FEW, "--beam-size", "5"], "sampling has no beam"),
        ([FEW, "--n-best", "9"], "9 translations per line were asked of 8 draws"),
        ([FEW, "--set=decoding.engine=ctranslate2"], "CTranslate2 cannot do this: mbr"),
        (["--set=decoding.mbr={samples: 1}"], "decoding.mbr.samples"),
        (["--set=decoding.mbr={metric: ter}"], "decoding.mbr.metric"),
    ],
)
def test_what_does_not_go_with_it_is_said(here, capsys, arguments: list[str], message: str) -> None:
    if "ctranslate2" in str(arguments):
        pytest.importorskip("ctranslate2")
    assert failures.exit_code(lambda: main(["translate", *arguments, SOURCES[0]])) == 2
    assert message in capsys.readouterr().err


def test_the_check_of_batches_says_how_to_check_the_draws(here, capsys) -> None:
    assert failures.exit_code(lambda: main(["evaluate", "--check-batching", FEW])) == 2
    assert "decoding.search=sampling checks the draws" in capsys.readouterr().err


def test_sample_draws_and_training_validates_greedily_whatever_is_configured(drawing: tx.Model) -> None:
    assert [one.utility for one in drawing.translate_all(SOURCES[:2], search="sampling")] == [None, None]
    assert [one.utility for one in drawing.translate_all(SOURCES[:2], search="beam", beam_size=1)] == [None, None]
    with pytest.raises(UsageError, match="sampling has no beam"):
        drawing.translate(SOURCES, beam_size=2)


def test_draws_take_no_more_rows_than_a_beam(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tx.load(trained_run, settings={"decoding.mbr": {"samples": 20}, "decoding.batch_size": 16})
    sizes = []
    search = tx.Model.search
    monkeypatch.setattr(
        tx.Model, "search", lambda self, inputs, *rest: sizes.append(len(inputs)) or search(self, inputs, *rest)
    )
    model.translate(SOURCES)
    assert max(sizes) == 16 * DecodingConfig().beam_size // 20
    assert Mbr().samples == 50
