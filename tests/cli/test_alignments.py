"""`tx translate --alignments` and `tx score --gold`: which word translates which, and how often that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.cli import failures
from transformer_cli.cli.app import main

SOURCES, TARGETS = (["", *side] for side in zip(*PAIRS, strict=True))


@pytest.fixture
def texts(trained_run, tmp_path):
    """A folder with both sides of the pairs, an empty line first."""
    (tmp_path / "runs").symlink_to(trained_run.parent)
    for name, lines in (("a.de", SOURCES), ("a.en", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def tx(*arguments):
    return failures.exit_code(lambda: main(list(arguments)))


def test_links_stand_behind_each_translation_and_in_json(texts, capfd):
    assert tx("translate", "-i", "a.de", "--alignments") == 0
    shown = capfd.readouterr()
    assert "the translation is empty: 1 of 13 lines" in shown.err
    texts, links = zip(*(line.split(" ||| ") for line in shown.out.removesuffix("\n").split("\n")), strict=True)
    assert list(texts) == TARGETS
    assert tx("translate", "-i", "a.de", "--alignments", "--json") == 0
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [" ".join(f"{s}-{t}" for s, t in one["alignment"]) for one in objects] == list(links)
    for source, target, line in zip(SOURCES, TARGETS, links, strict=True):
        pairs = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert {t for _, t in pairs} == set(range(len(target.split())))
        assert {s for s, _ in pairs} <= set(range(len(source.split())))


def test_that_text_without_spaces_is_one_word_is_told_once(texts, capfd):
    """Its links were 0-0 1-0 2-0, and nobody said why."""
    said = "the source is written without spaces: what stands between two is one word for --alignments"
    Path("zh").write_text("我们喝啤酒。\n" * 40, encoding="utf-8")
    assert tx("translate", "-i", "zh", "--alignments") == 0
    assert capfd.readouterr().err.count(said) == 1
    for others in (("-i", "zh"), ("-i", "a.de", "--alignments")):
        assert tx("translate", *others) == 0
        assert "without spaces" not in capfd.readouterr().err


def test_without_the_flag_nothing_is_aligned(texts, capfd):
    assert tx("translate", "--json", SOURCES[1]) == 0
    assert "alignment" not in json.loads(capfd.readouterr().out)
    assert tx("translate", "--alignments", "--n-best", "2", SOURCES[1]) == 2
    assert "only in --json" in capfd.readouterr().err


def test_what_the_model_itself_says_has_no_errors_and_the_other_reading_is_another(texts, capfd):
    assert tx("translate", "-i", "a.de", "--alignments") == 0
    lines = [line.partition(" ||| ")[2] for line in capfd.readouterr().out.removesuffix("\n").split("\n")]
    Path("gold").write_text("".join(f"{line}\n" for line in lines))
    gold = ["score", "--source", "a.de", "--target", "a.en", "--gold", "gold", "--json"]
    rates = []
    for reading in ("raw", "shifted"):
        assert tx(*gold, f"--set=decoding.alignment_reading={reading}") == 0
        rates.append(json.loads(capfd.readouterr().out.split("\n")[-2])["sums"]["alignment_error_rate"])
    assert rates[0] == 0 < rates[1]


def test_a_byte_order_mark_in_gold_is_removed_and_counted_with_those_of_the_text(texts, capfd):
    """It used to be refused as a broken link."""
    Path("a.en").write_bytes(b"\xef\xbb\xbf" + Path("a.en").read_bytes())
    Path("gold.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf\r\n" + b"0-0\n" * 12))
    assert tx("score", "--source", "a.de", "--target", "a.en", "--gold", "gold.gz", "--json") == 0
    shown = capfd.readouterr()
    counts = json.loads(shown.out.split("\n")[-2])["counts"]
    assert counts == {"byte order mark removed": 2, "carriage return stripped": 1}
    assert "2 x byte order mark removed" in shown.err


def test_gold_of_another_length_a_broken_link_and_a_layer_that_is_not_there_are_refused(texts, capfd):
    score = ["score", "--source", "a.de", "--target", "a.en", "--gold", "gold"]
    Path("gold").write_text("0-0\n")
    assert tx(*score) == 3
    assert "gold has 1 line, the text has 13" in capfd.readouterr().err
    Path("gold").write_text("\n" + "0-0\n" * 11 + "0:0\n")
    assert tx(*score) == 3
    assert "gold, line 13: expected links such as 0-1" in capfd.readouterr().err
    assert tx("translate", "--alignments", "--set=decoding.alignment_layer=2", SOURCES[1]) == 2
    assert "alignments cannot be read from decoder layer 2 of 1" in capfd.readouterr().err
