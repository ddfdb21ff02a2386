"""Words that training never saw are said to be so."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from transformer_cli import load
from transformer_cli.cli.app import main
from transformer_cli.cli.unseen import UNSEEN, Unseen
from transformer_cli.decoding.translation import NOTHING


@pytest.mark.parametrize(
    ("source", "unseen"),
    [
        ("ich trinke ein bier", ""),
        ("Ich trinke ein BIER!", ""),
        ("guten tag", "training never saw guten, tag (2 of 2 words)"),
        ("ich habe 27 bier, 3 %", "training never saw habe (1 of 3 words)"),
        ("ich scho\u0308n", ""),
        ("", ""),
    ],
)
def test_words_are_compared_as_the_tokenizer_reads_them(capsys, source, unseen):
    words = Unseen({"ich", "trinke", "ein", "bier", "schön"})
    [marked] = words.mark([source], [NOTHING])
    assert marked.flags == ((UNSEEN,) if unseen else ())
    words.tell()
    assert unseen in capsys.readouterr().err


def test_many_words_are_counted_and_the_most_frequent_named(capsys):
    words = Unseen({"ich"})
    lines = [f"ich {chr(97 + index)}x" for index in range(12)] + ["lx ich"]
    words.mark(lines, [NOTHING] * 13)
    words.tell()
    assert (
        "never saw lx, ax, bx, cx, dx, ex, fx, gx, hx, ix and 2 more (13 of 26 words, lines 1, 2, 3, 4, 5 and 8 more): "
        in capsys.readouterr().err
    )
    words.tell()
    assert capsys.readouterr().err == ""


def test_a_word_without_end_is_named_by_its_beginning(capsys):
    words = Unseen({"ich"})
    words.mark(["ich " + "x" * 5000], [NOTHING])
    words.tell()
    assert len(capsys.readouterr().err) < 200


def test_what_comes_through_a_pipe_without_end_fills_no_memory(capsys, monkeypatch):
    monkeypatch.setattr(Unseen, "MOST_KEPT", 12)
    words = Unseen({"ich"})
    for index in range(12):
        words.mark([f"ich {chr(97 + index)}x"], [NOTHING])
    words.mark(["ich mx lx mx"], [NOTHING])
    assert len(words.counts) == 12
    words.tell()
    assert "never saw lx, ax, bx, cx, dx, ex, fx, gx, hx, ix and at least 2 more (15 of 28 words" in (
        capsys.readouterr().err
    )


@pytest.mark.usefixtures("here")
def test_a_translation_of_unknown_words_is_a_guess(capfd):
    """`guten tag` used to be "did did she green" without a word."""
    assert main(["translate", "guten tag", "ich mochte ein bier"]) == 0
    assert "warning: training never saw guten, tag (2 of 6 words, line 1): the translation is a guess there\n" in (
        capfd.readouterr().err
    )
    assert main(["translate", "--json", "-q", "guten tag", "ich mochte ein bier"]) == 0
    told = capfd.readouterr()
    assert told.err == ""
    assert [UNSEEN in json.loads(line)["flags"] for line in told.out.removesuffix("\n").split("\n")] == [True, False]


def test_a_conversation_says_so_after_each_sentence(here, capfd, monkeypatch):
    lines = iter(["guten tag", "ich mochte ein bier", ""])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(["translate"]) == 0
    told = capfd.readouterr()
    assert told.err.count("training never saw") == 1
    assert told.out.endswith("i want a beer\n")


def test_a_run_that_keeps_no_counts_says_nothing(here, tmp_path, capfd):
    run = shutil.copytree(here / "runs" / "tiny", tmp_path / "run")
    (run / "words.tsv.gz").unlink()
    assert main(["translate", "-m", str(run), "guten tag"]) == 0
    assert "never saw" not in capfd.readouterr().err


def test_counts_that_cannot_be_read_end_no_translation(here, tmp_path, capfd):
    """They serve a warning alone, and ended it with exit code 4."""
    run = shutil.copytree(here / "runs" / "tiny", tmp_path / "run")
    (run / "words.tsv.gz").write_bytes(b"x")
    assert main(["translate", "-m", str(run), "guten tag"]) == 0
    assert (
        f"warning: words that training never saw are not looked for: {run}/words.tsv.gz is damaged: it is not the "
        "compressed table of words that was written; delete it; where `tx train` made the run" in capfd.readouterr().err
    )
    with pytest.warns(UserWarning, match="words that training never saw are not looked for: .* is damaged"):
        assert load(run).translate("guten tag")


@pytest.mark.usefixtures("here")
def test_what_one_model_of_an_ensemble_knows_is_known(monkeypatch, capfd):
    from transformer_cli.evaluation import words

    counts = iter([words.WordCounts({"guten": 1}, {}), words.WordCounts({"tag": 1}, {})])
    monkeypatch.setattr(words, "load_word_counts", lambda path: next(counts))
    assert main(["translate", "-m", "runs/tiny", "-m", "runs/tiny", "guten tag"]) == 0
    assert "never saw" not in capfd.readouterr().err
