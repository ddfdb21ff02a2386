from __future__ import annotations

import gzip
import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from conftest import PAIRS
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.cli.app import main
from transformer_cli.errors import ModelError
from transformer_cli.evaluation.words import WORD_COUNTS, count_words, load_word_counts, save_word_counts
from transformer_cli.training.replacing import discard
from transformer_cli.writing import words


@given(st.lists(st.text()), st.lists(st.text()))
def test_what_a_run_keeps_is_what_was_counted(
    tmp_path_factory: pytest.TempPathFactory, source: list[str], target: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    counts = count_words(source, target)
    assert counts.source == {word: sum(words(line).count(word) for line in source) for word in counts.source}
    assert set(counts.target) == {word for line in target for word in words(line)}
    save_word_counts(folder, counts)
    assert load_word_counts(folder) == counts


def test_equal_counts_are_kept_in_equal_bytes_the_most_frequent_first(tmp_path: Path) -> None:
    for folder, lines in ((tmp_path / "a", ["b a", "a"]), (tmp_path / "b", ["a", "a b"])):
        folder.mkdir()
        save_word_counts(folder, count_words(lines, ["b c", "c c"]))
    kept = (tmp_path / "a" / WORD_COUNTS).read_bytes()
    assert kept == (tmp_path / "b" / WORD_COUNTS).read_bytes()
    assert gzip.decompress(kept).decode() == "c\t0\t3\na\t2\t0\nb\t1\t1\n"


def test_a_run_without_counts_has_none(tmp_path: Path) -> None:
    assert load_word_counts(tmp_path) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"a\t1\t1\n", gzip.compress(b"a\t1\n"), gzip.compress(b"a\t1\tx\n"), gzip.compress(b"\xff")],
    ids=["nothing", "not packed", "a column less", "no number", "not UTF-8"],
)
def test_damaged_counts_are_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / WORD_COUNTS).write_bytes(data)
    with pytest.raises(ModelError, match=WORD_COUNTS):
        load_word_counts(tmp_path)


def test_words_that_an_older_version_kept_as_they_stood_in_the_text_are_found(tmp_path: Path) -> None:
    table = "o\u0323re\u0301\t3\t0\n\u1ecdr\xe9\t2\t1\nก\t1\t0\nำ\t1\t0\n½\t0\t4\n\u09dc\t5\t0\n"
    (tmp_path / WORD_COUNTS).write_bytes(gzip.compress(table.encode()))
    counts = load_word_counts(tmp_path)
    assert counts is not None
    assert [counts.source.get(word) for word in words("o\u0323r\xe9 กำ \u09a1\u09bc")] == [5, 1, 1, 5]
    assert counts.target == {"\u1ecdr\xe9": 1, "1": 4, "2": 4}


@given(st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_what_was_counted_is_found_in_every_encoding(text: str, form: str) -> None:
    counted = count_words([text], [unicodedata.normalize(form, text)])
    assert set(counted.source) == set(words(text))
    assert set(words(unicodedata.normalize(form, text))) == set(counted.target)


def test_a_run_that_starts_anew_does_not_keep_the_counts_of_another_text(tmp_path: Path) -> None:
    save_word_counts(tmp_path, count_words(["a"], ["b"]))
    discard(tmp_path)
    assert load_word_counts(tmp_path) is None


def test_training_keeps_the_counts_of_its_text(trained_run: Path) -> None:
    counts = load_word_counts(trained_run)
    assert counts is not None
    assert (counts.source["hund"], counts.target["the"], counts.target.get("hund")) == (4, 7, None)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_nobody_has_learned_the_words_of_what_is_left_out_as_too_long(kind: str, tmp_path: Path) -> None:
    """They counted as seen, so that translations of them were not flagged."""
    pairs = [*PAIRS, ("alle " * 60 + "zebras", "all zebras"), ("alle zebus", "all " * 60 + "zebus")]
    (tmp_path / "run.yaml").write_text(
        json.dumps(
            {
                "data": {"train": {"pairs": pairs}, "valid": {"pairs": PAIRS[:2]}, "max_length": 40},
                "tokenizer": {"kind": kind, "vocab_size": 90},
                "model": {"d_model": 8, "n_heads": 1, "d_ff": 8, "n_layers": 1},
                "training": {"max_steps": 1},
            }
        )
    )
    command = ["train", "-c", str(tmp_path / "run.yaml"), "--run-dir", str(tmp_path / "run")]
    assert main(command) == 0
    kept = load_word_counts(tmp_path / "run")
    assert kept == count_words(*zip(*PAIRS, strict=True))
    (tmp_path / "run" / WORD_COUNTS).unlink()
    assert main(command) == 0
    assert load_word_counts(tmp_path / "run") == kept


def test_a_finished_run_without_counts_gets_them_from_the_same_command(trained_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "tiny"))
    kept = (run / WORD_COUNTS).read_bytes()
    (run / WORD_COUNTS).unlink()
    assert main(["train", "-c", str(run / "config.yaml"), "--run-dir", str(run)]) == 0
    assert (run / WORD_COUNTS).read_bytes() == kept
