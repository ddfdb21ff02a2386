"""`tx score` from outside."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli import loading
from transformer_cli.cli import failures
from transformer_cli.cli.app import main

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


def tx(*arguments: str) -> int:
    """The program in this process: its exit code."""
    return failures.exit_code(lambda: main([*arguments]))


def files(folder: Path, source: list[str], target: list[str]) -> tuple[str, ...]:
    """The options that name two files with these lines."""
    for name, lines in (("source", source), ("target", target)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ("--source", str(folder / "source"), "--target", str(folder / "target"))


def test_the_score_of_a_translation_is_what_translating_said(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx("translate", "--json", *SOURCES) == 0
    said = [json.loads(line) for line in capfd.readouterr().out.split("\n")[:-1]]
    arguments = files(tmp_path, SOURCES, [one["translation"] for one in said])
    assert tx("score", *arguments) == 0
    captured = capfd.readouterr()
    rows = [[float(field) for field in line.split("\t")] for line in captured.out.split("\n")[:-1]]
    for row, one in zip(rows, said, strict=True):
        assert row == pytest.approx([one["log_probability"], len(one["tokens"]) + 1, math.exp(-one["score"])], abs=1e-5)
    pieces, total = sum(row[1] for row in rows), sum(row[0] for row in rows)
    assert f"12 lines, {pieces:.0f} pieces: log-probability {total:.4f}" in captured.err
    assert f"perplexity {math.exp(-total / pieces):.4f} per piece" in captured.err


def test_json_has_a_number_per_piece_and_the_sums_last(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = files(tmp_path, [SOURCES[0], "", "", SOURCES[1] + "\r"], [TARGETS[0], "", "x", "日"])
    assert tx("score", "--json", *arguments, "-o", str(tmp_path / "out")) == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    lines = (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1]
    first, empty, unscored, unknown, last = map(json.loads, lines)
    assert first["log_probability"] == pytest.approx(sum(first["log_probabilities"]))
    assert len(first["log_probabilities"]) == len(first["tokens"])
    assert first["tokens"][-1] == "</s>"
    assert (empty["log_probability"], empty["tokens"]) == (0, [])
    assert unscored == {"source": "", "target": "x", "log_probability": None}
    assert unknown["unknown"] == 1
    total = first["log_probability"] + unknown["log_probability"]
    assert last["sums"]["log_probability"] == pytest.approx(total)
    assert {name: last["sums"][name] for name in ("lines", "unscored", "unknown")} == {
        "lines": 4,
        "unscored": 1,
        "unknown": 1,
    }
    assert last["counts"] == {"carriage return stripped": 1}
    for words in ("1 x carriage return stripped", "1 of 4 lines has a target but no source", "8 pieces is unknown"):
        assert words in captured.err


@pytest.mark.parametrize(("asked", "computed"), [([], "fp32"), (["--set", "precision=bf16"], "bf16")])
@pytest.mark.parametrize("of_the_run", ["auto", "bf16"])
def test_scores_are_computed_in_fp32_unless_another_precision_is_asked_for(
    trained_run: Path, tmp_path: Path, of_the_run: str, asked: list[str], computed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    config = (run / "config.yaml").read_text(encoding="utf-8")
    changed = re.sub("^precision: .*$", f"precision: {of_the_run}", config, flags=re.MULTILINE)
    (run / "config.yaml").write_text(changed, encoding="utf-8")
    seen = []
    translator_of = loading.translator_of
    monkeypatch.setattr(
        loading, "translator_of", lambda runs, config: seen.append(config.precision) or translator_of(runs, config)
    )
    assert tx("score", "-m", str(run), *files(tmp_path, ["a"], ["b"]), *asked) == 0
    assert seen == [computed]


def test_a_line_without_score_is_an_empty_line(here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("score", *files(tmp_path, ["", ""], ["x", ""])) == 0
    assert capfd.readouterr().out == "\n0.000000\t0\t1\n"


def test_the_score_of_nothing_is_that_of_translating_it(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx("translate", "--json", "") == 0
    said = json.loads(capfd.readouterr().out)
    assert tx("score", "--json", *files(tmp_path, [""], [said["translation"]])) == 0
    scored = json.loads(capfd.readouterr().out.split("\n")[0])
    assert (scored["log_probability"], scored["tokens"]) == (said["log_probability"], said["tokens"])


@pytest.mark.parametrize(
    ("source", "target", "code", "words"),
    [
        (["a"], ["b", "c"], 3, "parallel files must match line by line"),
        (["a", "hund " * 300], ["b", "c"], 3, "line 2: the source has"),
        (["a\ud800"], ["b"], 3, "not UTF-8"),
    ],
)
def test_mistakes_end_with_their_code_and_their_place(
    here: Path, tmp_path: Path, source: list[str], target: list[str], code: int, words: str, capfd
) -> None:
    arguments = files(tmp_path, ["a"], target)
    data = "".join(f"{line}\n" for line in source).encode("utf-8", "surrogatepass")
    (tmp_path / "source").write_bytes(data)
    assert tx("score", *arguments, "-o", str(tmp_path / "out")) == code
    captured = capfd.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_a_result_does_not_replace_what_it_is_made_from(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = files(tmp_path, SOURCES, TARGETS)
    assert tx("score", *arguments, "-o", str(tmp_path / "target")) == 2
    assert "is read and would be replaced" in capfd.readouterr().err
    assert (tmp_path / "target").read_text(encoding="utf-8").split("\n")[:-1] == TARGETS


def test_both_files_are_needed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("score", "--source", "x") == 2
    assert "--target" in capfd.readouterr().err
    assert tx("score", "--source", "nowhere", "--target", "nowhere") == 3
    assert "nowhere does not exist" in capfd.readouterr().err
