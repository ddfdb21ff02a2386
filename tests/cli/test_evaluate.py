"""`tx evaluate` from outside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.cli import console, failures
from transformer_cli.cli.app import main

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture
def run(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the trained run, in the current folder: `tiny`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_quiet", False)
    return Path(shutil.copytree(trained_run, tmp_path / "tiny"))


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["evaluate", *arguments]))


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_the_test_set_of_a_run_is_scored_and_kept_with_it(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert tx("-m", "tiny", "-b", "3") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "test (12 lines)"
    assert [line.split()[:2] for line in lines[1:]] == [["BLEU", "100.00"], ["chrF2", "100.00"], ["TER", "0.00"]]
    assert all("|version:" in line for line in lines[1:])
    after = json.loads((run / "run.json").read_text(encoding="utf-8"))
    kept = after.pop("scores")["test"]
    assert after == before
    assert (kept["beam_size"], kept["checkpoint"][:5], kept["lines"]) == (3, "step-", 12)
    assert [round(score["value"], 6) for score in kept["scores"]] == [100, 100, 0]
    assert kept["scores"][0]["signature"].startswith("nrefs:1|case:mixed")


def test_files_are_translated_and_scored_and_nothing_is_kept(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.de", SOURCES[:4])
    good, bad = write(tmp_path / "good.en", TARGETS[:4]), write(tmp_path / "bad.en", ["x y z", "", "u", "v"])
    record = (run / "run.json").read_bytes()
    assert tx("-m", "tiny", "--source", source, "--reference", bad, "--reference", good, "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["set"], result["lines"], result["truncated"], result["counts"]) == ("in.de", 4, 0, {})
    assert result["scores"][0]["value"] == pytest.approx(100)
    assert "nrefs:2" in result["scores"][0]["signature"]
    assert (run / "run.json").read_bytes() == record


def test_a_test_set_named_for_once_is_not_kept_as_the_run_s_own(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "other.de", SOURCES[:2])
    write(tmp_path / "other.en", TARGETS[:2])
    record = (run / "run.json").read_bytes()
    assert tx("-m", "tiny", "--set", f"data.test={tmp_path / 'other'}") == 0
    assert "test (2 lines)" in capfd.readouterr().out
    assert (run / "run.json").read_bytes() == record


def test_finished_translations_need_no_model_and_no_torch(tmp_path: Path) -> None:
    reference = write(tmp_path / "ref.en", TARGETS)
    systems = [write(tmp_path / "a.en", TARGETS), write(tmp_path / "b.en", [*TARGETS[:-1], "the cat"])]
    code = (
        "import sys; from transformer_cli.cli.app import main;"
        f"code = main(['evaluate', '--json', '--hypotheses', {systems[0]!r}, '--hypotheses', {systems[1]!r},"
        f" '--reference', {reference!r}]); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["scores"][0]["value"] == pytest.approx(100) != second["scores"][0]["value"]
    plain = [sys.executable, "-m", "sacrebleu", reference, "-i", systems[1], "-b", "-w", "10"]
    wanted = float(subprocess.run(plain, capture_output=True, check=True).stdout)
    assert second["scores"][0]["value"] == pytest.approx(wanted, abs=1e-9)


def test_metrics_and_their_options_come_from_the_settings(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    upper, lower = write(tmp_path / "u", [t.upper() for t in TARGETS]), write(tmp_path / "l", TARGETS)
    options = ("--set", "evaluation.lowercase=true", "--set", "evaluation.metrics=[chrf, bleu]")
    assert tx("--hypotheses", upper, "--reference", lower, *options) == 0
    assert [line.split()[:2] for line in capfd.readouterr().out.splitlines()[1:]] == [
        ["chrF2", "100.00"],
        ["BLEU", "100.00"],
    ]


@pytest.mark.parametrize("mode", ["--source", "--hypotheses"])
def test_unequal_files_are_refused_with_both_counts(
    run: Path, tmp_path: Path, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    left, right = write(tmp_path / "left", SOURCES[:3]), write(tmp_path / "right", TARGETS[:4])
    assert tx(mode, left, "--reference", right) == 3
    error = capfd.readouterr().err
    assert "left has 3 lines, right has 4" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--source", "a"], "need each other"),
        (["--reference", "a"], "need each other"),
        (["--hypotheses", "a"], "need a --reference"),
        (["--hypotheses", "a", "--reference", "b", "--source", "c"], "translations already"),
        (["--hypotheses", "a", "--reference", "b", "-m", "c"], "translations already"),
        (["--hypotheses", "a", "--reference", "b", "-b", "3"], "translations already"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    run: Path, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx(*arguments) == 2
    assert words in capfd.readouterr().err


def test_a_run_without_a_test_set_says_how_to_name_one(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-m", "tiny", "--set", "data.test=null") == 3
    assert "data.test" in capfd.readouterr().err


def test_without_any_run_the_error_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tx() == 4
    assert "tx train -c tiny.yaml" in capfd.readouterr().err
