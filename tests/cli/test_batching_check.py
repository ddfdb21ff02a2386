from __future__ import annotations

import json
from pathlib import Path

import pytest

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.decoding import invariance
from transformer_cli.decoding.invariance import BatchingReport, Deviation


@pytest.fixture
def run(trained_run: Path) -> str:
    return str(trained_run)


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["evaluate", "--check-batching", *arguments]))


def test_the_test_set_of_a_run_is_checked_and_nothing_is_kept(run: str, capfd: pytest.CaptureFixture[str]) -> None:
    record = Path(run, "run.json").read_bytes()
    assert tx("-m", run, "-b", "2") == 0
    assert capfd.readouterr().out.splitlines() == [
        "test: 12 lines, one by one and in batches of 7, batches of 64, batches of 64, shuffled",
        "  0 differences, 0 ties",
    ]
    assert Path(run, "run.json").read_bytes() == record


def test_a_file_needs_no_reference(run: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.de").write_text("der hund trinkt\n\nich mochte ein bier\n", encoding="utf-8")
    assert tx("-m", run, "--source", str(tmp_path / "in.de"), "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["set"], found["n_lines"], found["differences"], found["ties"]) == ("in.de", 3, [], [])


def test_it_is_samples_that_are_checked_where_samples_are_drawn(run: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-m", run, "--set", "decoding.search=sampling") == 0
    assert capfd.readouterr().out.splitlines() == [
        "test: 12 samples, one by one and in batches of 7, batches of 64",
        "  0 differences, 0 ties",
    ]


@pytest.mark.parametrize(("precision", "code"), [("", 1), ("precision=fp32", 1), ("precision=bf16", 0)])
def test_a_broken_promise_is_shown_and_in_fp32_an_error(
    run: str, precision: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    difference = Deviation(3, "batches of 7", ("a beer", "the beer"), (-0.5, -0.75))
    tie = Deviation(4, "batches of 7", ("so", "thus"), (-0.5, -0.5))
    edge = Deviation(5, "batches of 7", ("in", "out"), (0.5, 0.25), at_edge=True)
    report = BatchingReport(12, ("batches of 7",), (difference,), (tie, edge))
    monkeypatch.setattr(invariance, "check_batching", lambda *_, **__: report)
    assert tx("-m", run, *(["--set", precision] if precision else [])) == code
    shown = capfd.readouterr()
    assert shown.out.splitlines()[1:] == [
        "  1 difference, 2 ties",
        "  difference in line 3, batches of 7",
        "    -0.500000  a beer",
        "    -0.750000  the beer",
        "  tie in line 4, batches of 7",
        "    -0.500000  so",
        "    -0.500000  thus",
        "  tie in line 5, batches of 7, where what may be drawn ends",
        "    0.500000  in",
        "    0.250000  out",
    ]
    assert "1 translation depends on what else is in the batch" in shown.err
