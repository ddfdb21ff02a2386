"""`tx evaluate` from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIRS
from sacrebleu.metrics.chrf import CHRF

from transformer_cli.cli import console, evaluate, failures
from transformer_cli.cli.app import main
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.data.corpus import load_validation
from transformer_cli.sealing import sealed, unsealed

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, in the current folder: `tiny`."""
    return Path(shutil.copytree(trained_run, tmp_path / "tiny"))


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["evaluate", *arguments]))


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_whose_scores_are_kept_and_whose_they_replace_is_said(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The score of a worse checkpoint took the place of the best one's, and nothing told."""
    first, *_, last = sorted((run / "checkpoints").iterdir())
    for checkpoint, replaced in ((last, ""), (last, ""), (first, f", in place of those of {last.name}")):
        assert tx("-m", str(checkpoint)) == 0
        path = checkpoint.parents[1] / "run.json"
        assert f"kept in {path}: test by {checkpoint.name}{replaced}\n" in capfd.readouterr().err


def test_scores_of_another_text_are_not_kept_and_that_is_said(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody said so, and `tx reproduce` then that the run was not evaluated yet."""
    before = (run / "run.json").read_bytes()
    for suffix, lines in (("de", SOURCES), ("en", TARGETS[::-1])):
        write(Path(f"moved.{suffix}"), lines)
    assert tx("-m", "tiny", "--set", "data.test=moved") == 0
    said = capfd.readouterr().err
    assert "not kept: test, for the run's own text of that name is another (data.test)\n" in said
    assert "kept in" not in said
    assert (run / "run.json").read_bytes() == before


@pytest.mark.parametrize("is_gone", [False, True])
def test_scores_of_the_runs_own_text_are_kept_wherever_it_lies_now(
    is_gone: bool, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a run that was moved they never were: its text was "another"."""
    for suffix, lines in (("de", SOURCES[:4]), ("en", TARGETS[:4])):
        write(Path(f"moved.{suffix}"), lines)
        write(Path(f"own.{suffix}"), lines)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(record | {"scores": {}}), encoding="utf-8")
    (run / "config.yaml").write_text(dump_config(load_config(run / "config.yaml", ["data.test=own"])), "utf-8")
    if is_gone:
        for path in Path().glob("own.*"):
            path.unlink()
        assert tx("-m", "tiny") == 3
        assert "own.de does not exist\n  hint: where it lies now: --set data.test=PREFIX, or" in capfd.readouterr().err
    assert tx("-m", "tiny", "--set", "data.test=moved") == 0
    assert "kept in tiny/run.json: test by" in capfd.readouterr().err
    write(Path("moved.en"), TARGETS[4:8])
    assert tx("-m", "tiny", "--set", "data.test=moved") == 0
    assert "not kept: test, for the run's own text of that name is another" in capfd.readouterr().err


def test_of_several_texts_of_a_run_none_is_taken_for_another(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, first in (("a", 0), ("b", 4)):
        for suffix, lines in (("de", SOURCES), ("en", TARGETS)):
            write(Path(f"{name}.{suffix}"), lines[first : first + 4])
    own = load_config(run / "config.yaml", ["data.test={first: a, second: b}"])
    (run / "config.yaml").write_text(dump_config(own), "utf-8")
    assert tx("-m", "tiny", "--set", "data.test={first: b, second: a}") == 0
    assert "not kept: first, second, for the run's own text of that name is another" in capfd.readouterr().err


def test_scores_of_a_text_that_the_run_does_not_name_are_not_kept_and_that_is_said(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of an imported one: its own was "another", where it has none."""
    (run / "config.yaml").write_text(dump_config(load_config(run / "config.yaml", ["data.test=null"])), "utf-8")
    assert tx("-m", "tiny", "--set", f"data.test={json.dumps({'pairs': PAIRS})}") == 0
    assert "not kept: test, for the run has no text of that name (data.test)\n" in capfd.readouterr().err


def test_the_test_set_of_a_run_is_scored_and_kept_with_it(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert tx("-m", "tiny", "-b", "3") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "test (12 lines)"
    assert [line.split()[:4] for line in lines[3:7]] == [
        ["BLEU", "100.00", "±", "0.00"],
        ["chrF2", "100.00", "±", "0.00"],
        ["chrF2++", "100.00", "±", "0.00"],
        ["TER", "0.00", "±", "0.00"],
    ]
    for name in ("BLEU", "chrF2", "chrF2++", "TER"):
        assert any(re.match(rf"{re.escape(name)}: +nrefs:1\|bs:1000\|seed:12345\|case:", line) for line in lines)
    after = json.loads((run / "run.json").read_text(encoding="utf-8"))
    kept = after.pop("scores")["test"]
    assert after == before
    assert (kept["decoding"]["beam_size"], kept["checkpoint"][:5], kept["lines"]) == (3, "step-", 12)
    assert [round(score["value"], 6) for score in kept["scores"]] == [100, 100, 100, 0]
    assert [score["margin"] for score in kept["scores"]] == [0] * 4
    assert kept["scores"][0]["signature"].startswith("nrefs:1|bs:1000|seed:12345|case:mixed")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_signature_that_a_terminal_has_no_room_for_goes_on_below_itself(
    run: Path, columns: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert tx("-q", "-m", "tiny") == 0
    lines = capfd.readouterr().out.splitlines()
    kept = json.loads((run / "run.json").read_text(encoding="utf-8"))["scores"]["test"]["scores"]
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(f"{name}: ")) for name in ("BLEU", "TER"))
    assert max(map(len, lines[first : last + 2])) <= columns
    shown = "".join(line[9:] for line in lines[first : last + 2])
    assert shown.startswith("".join(score["signature"] for score in kept))
    assert (last - first == 3) is (columns == 200)


def test_how_the_test_set_was_translated_is_kept_with_its_scores(run: Path) -> None:
    """Scores of samples were once kept as those of a beam of five."""
    assert (
        tx("-q", "-m", "tiny", "--set", "decoding.search=sampling", "--set", "decoding.top_k=2", "--set", "seed=7") == 0
    )
    kept = json.loads((run / "run.json").read_text(encoding="utf-8"))["scores"]["test"]
    assert (kept["decoding"]["search"], kept["decoding"]["top_k"], kept["seed"]) == ("sampling", 2, 7)


def test_lines_that_are_refused_are_scored_as_empty_end_with_3_and_keep_no_score(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command once ended with 0 and the scores were kept as the run's."""
    record = (run / "run.json").read_bytes()
    short = ("--set", "decoding.long=refuse", "--set", "decoding.max_source_length=4")
    assert tx("-m", "tiny", *short) == 3
    captured = capfd.readouterr()
    assert "empty translation" in captured.out
    assert "of 12 lines have more pieces than the model translates at once (4)" in captured.err
    assert "the scores are not kept: lines were refused" in captured.err
    assert (run / "run.json").read_bytes() == record


def test_of_several_test_sets_all_that_is_refused_is_told(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It was the first one's alone: mended, the next one ended it."""
    named = {"a": {"pairs": PAIRS[:4]}, "b": {"pairs": PAIRS[4:]}}
    tests = ("--set", f"data.test={json.dumps(named)}", *FEW)
    assert tx("-m", "tiny", *tests, "--strict") == 3
    said = capfd.readouterr().err
    assert "  a, pairs that the training text has, too: 4 (" in said
    assert "  b, pairs that the training text has, too: 8 (" in said
    assert tx("-m", "tiny", *tests, "--set", "decoding.long=refuse", "--set", "decoding.max_source_length=2") == 3
    said = capfd.readouterr().err
    assert "error: a: 4 of 4 lines have more pieces than the model translates at once (2)" in said
    assert "\nb: 8 of 8 lines have more pieces" in said
    for path in (Path(f"{name}.{side}") for name in "cd" for side in ("de", "en")):
        path.touch()
    assert tx("-m", "tiny", "--set", "data.test={c: c, d: d}") == 3
    assert "there is nothing to translate: c, d have no lines" in capfd.readouterr().err


def test_a_page_is_written_though_lines_were_refused(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As `tx translate -o` writes its file. Scores were shown, and nothing said that there was no page."""
    write(Path("in.de"), ["der hund", SOURCES[0]])
    write(Path("in.en"), ["the dog", TARGETS[0]])
    short = ("--set", "decoding.long=refuse", "--set", "decoding.max_source_length=4", "-o", "page.html")
    assert tx("-m", "tiny", "--source", "in.de", "--reference", "in.en", *short) == 3
    told = capfd.readouterr().err
    assert "wrote page.html" in told
    assert "1 of 2 lines has more pieces" in told
    assert "the scores are not kept" not in told  # nor would they be
    assert SOURCES[0] in Path("page.html").read_text(encoding="utf-8")


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


def test_each_of_several_test_sets_is_scored_by_its_name_and_the_run_s_own_are_kept(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = {"2016": {"pairs": PAIRS[:5]}, "2017": {"pairs": [["ich mochte ein bier", "no"]]}}
    config = load_config(run / "config.yaml", [f"data.test={json.dumps(own)}"])
    (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    write(tmp_path / "other.de", SOURCES[:2])
    write(tmp_path / "other.en", TARGETS[:2])
    named = ("--set", f"data.test.other={tmp_path / 'other'}", "--set", f"data.test.2017={tmp_path / 'other'}")
    assert tx("-m", "tiny", "--json", *named) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["set"], one["lines"]) for one in found] == [("2016", 5), ("2017", 2), ("other", 2)]
    assert list(json.loads((run / "run.json").read_text())["scores"]) == ["2016"]
    assert tx("-m", "tiny") == 0
    assert "2016 (5 lines)" in capfd.readouterr().out.splitlines()
    kept = json.loads((run / "run.json").read_text())["scores"]
    assert {name: round(one["scores"][0]["value"]) for name, one in kept.items()} == {"2016": 100, "2017": 0}


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
    rows = [line.split()[:2] for line in capfd.readouterr().out.splitlines()]
    first = rows.index(["------", "------"]) + 1
    assert rows[first : first + 2] == [["chrF2", "100.00"], ["BLEU", "100.00"]]


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
        (["--hypotheses", "a", "--reference", "b", "-m", "c", "-c", "tiny"], "both name a run"),
        (["--hypotheses", "a", "--reference", "b", "-m", "tiny", "-m", "nonsense"], "words of one run"),
        (["--hypotheses", "a", "--reference", "b", "--check-batching"], "translations already"),
        (["--check-batching", "--markdown"], "scores nothing and takes no --markdown"),
        (["--check-batching", "--strict", "--worst", "3"], "takes no --strict or --worst"),
        (["--check-batching", "--source", "a", "--reference", "b"], "takes no --reference"),
        (["--json", "--markdown"], "two formats"),
        (["--hypotheses", "a", "--reference", "b", "-b", "3"], "translations already"),
        (["--valid", "--source", "a", "--reference", "b"], "--valid is a text of the run"),
        (["--valid", "--hypotheses", "a", "--reference", "b"], "--valid is a text of the run"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    run: Path, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx(*arguments) == 2
    assert words in capfd.readouterr().err


def test_a_run_without_a_test_set_says_how_to_name_one(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-m", "tiny", "--set", "data.test=null") == 3
    said = capfd.readouterr().err
    assert "data.test" in said
    assert "--valid scores the validation text" in " ".join(said.split())


@pytest.mark.parametrize("share", ["50%", None])
def test_what_a_run_was_validated_with_is_scored_and_not_kept(
    share: str | None, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a text of its own, or held out of the training text, where no file has it."""
    config = load_config(run / "config.yaml", [f"data.valid={share}"] if share else [])
    (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    validation = load_validation(config.data)
    assert validation is not None
    assert (0 < len(validation) < len(PAIRS)) == (share is not None)
    if share:
        assert tx("-m", "tiny", "--valid") == 3
        assert "data.valid is no longer the text that tiny began with" in capfd.readouterr().err
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        record["data"]["valid"] = validation.as_json()
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    before = (run / "run.json").read_bytes()
    assert tx("-m", "tiny", "--valid", "-b", "1", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["set"], found["lines"]) == ("valid", len(validation))
    assert found["sha256"] == validation.sha256
    [learned] = [one for one in found["findings"] if one["what"] == "pairs that the training text has, too"]
    texts = [source for source, _ in PAIRS] if share else list(validation.source)
    assert learned["lines"] == [texts.index(line) + 1 for line in validation.source[:5]]
    assert found["scores"][0]["value"] == pytest.approx(100)
    assert (run / "run.json").read_bytes() == before


def test_a_run_that_nobody_validated_says_so(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As one that was imported."""
    config = load_config(run / "config.yaml", ["data.train=null", "data.valid=null"])
    (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert tx("-m", "tiny", "--valid") == 3
    assert "tiny has no validation text: it was not trained here" in capfd.readouterr().err
    assert tx("-m", "tiny", "--set", "data.test=null") == 3
    assert "--valid" not in capfd.readouterr().err


def test_without_any_run_the_error_says_what_to_type(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx() == 4
    assert "tx train -c tiny.yaml" in capfd.readouterr().err


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """Files: what PAIRS say, and two translations of it, the second without its last words."""
    return {
        "source": write(tmp_path / "in.de", SOURCES),
        "reference": write(tmp_path / "ref.en", TARGETS),
        "good": write(tmp_path / "good.en", [*TARGETS[:-1], "happy the dog"]),
        "bad": write(tmp_path / "bad.en", [" ".join(line.split()[:-1]) for line in TARGETS]),
    }


FEW = ("--set", "evaluation.resamples=40", "--set", "evaluation.trials=40")


def test_systems_are_compared_with_the_first(texts: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("--hypotheses", texts["good"], "--hypotheses", texts["bad"], "--reference", texts["reference"])
    assert tx(*arguments, *FEW, "--json") == 0
    good, bad = map(json.loads, capfd.readouterr().out.splitlines())
    assert (good["set"], good["differences"]) == (texts["good"], [])
    bleu = bad["differences"][0]
    assert bleu["value"] == bad["scores"][0]["value"] - good["scores"][0]["value"]
    assert 0 < bleu["p_randomization"] < 0.05
    assert 0 < bleu["p_bootstrap"] < 1
    assert tx(*arguments, *FEW) == 0
    shown = capfd.readouterr().out
    assert "2 systems (12 lines)" in shown
    assert "40 resamples" in shown
    assert f"{bleu['value']:+.2f}" in shown


def unread(command: list[str]) -> tuple[int, bytes]:
    """How a command ends whose results nobody reads: exit code, stderr."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as results:
        done = subprocess.run(command, stdout=results, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stderr


def test_files_and_verdicts_do_not_depend_on_whether_results_are_read(
    warm: list[str], run: Path, texts: dict[str, str]
) -> None:
    """`tx evaluate -o page.html | head` used to end with 0 and without the page."""
    files = ["--hypotheses", texts["good"], "--reference", texts["reference"], *FEW]
    split = write(Path("split.en"), [f"{line} ." for line in TARGETS])  # looks tokenised
    strict = ["--hypotheses", split, "--reference", texts["reference"], *FEW, "--strict"]
    assert unread([*warm, "evaluate", *strict])[0] == 3
    code, said = unread([*warm, "evaluate", *files, "-o", "page.html"])
    assert (code, Path("page.html").is_file()) == (0, True), said
    code, said = unread([*warm, "evaluate", "-m", "tiny", *FEW])
    assert (code, b"kept in tiny/run.json: test" in said) == (0, True), said


def test_a_page_says_the_search_that_it_shows(run: Path) -> None:
    """Its settings were those of the run, whatever the command line had changed of them."""
    assert tx("-m", "tiny", *FEW, "-b", "2", "--length-penalty", "0.5", "-o", "page.html") == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert "beam 2, length penalty 0.5" in text
    assert re.findall(r"beam_size: ([25])|length_penalty: ([0-9.]+)", text) == [("2", ""), ("", "0.5")]


def test_a_tie_is_not_called_significant(texts: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("--hypotheses", texts["good"], "--hypotheses", texts["good"], "--reference", texts["reference"])
    assert tx(*arguments, *FEW) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines() if line.strip().startswith(texts["good"])]
    assert [row[-1] for row in rows[:4]] == ["0.00"] * 4
    assert tx(*arguments, *FEW, "--json") == 0
    shown = capfd.readouterr()
    assert f"{texts['good']} is given 2 times" in shown.err
    for one in json.loads(shown.out.splitlines()[1])["differences"]:
        assert (one["value"], one["p_bootstrap"], one["p_randomization"]) == (0, None, None)


def test_a_file_that_is_given_for_two_is_told(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """BLEU 100 of a text beside itself, and nrefs:2 of one reference, came without a word."""
    path = write(tmp_path / "same", [target for _, target in PAIRS])
    twice = ("--reference", path, "--reference", path)
    assert tx("--hypotheses", path, *twice, *FEW) == 0
    said = capfd.readouterr().err
    assert f"warning: {path} is the reference, too: its scores are those of a text against itself" in said
    assert f"warning: --reference {path} is given 2 times: signatures count each, and it is one" in said
    assert tx("-m", str(run), "--source", path, *twice, *FEW) == 0
    assert "is given 2 times: signatures count each" in capfd.readouterr().err


@pytest.mark.parametrize("with_source", [False, True])
def test_what_reading_any_file_had_to_change_is_told_and_counted(
    tmp_path: Path, with_source: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / name for name in ("source", "reference", "first", "second")}
    for path in paths.values():
        path.write_bytes(b"\xef\xbb\xbfder hund\r\nund die katze\n")
    paths["second"].write_bytes(b"der hund\nund die katze\n")
    arguments = [f"--{side}={paths[side]}" for side in ("source", "reference") if with_source or side != "source"]
    arguments += [f"--hypotheses={paths[system]}" for system in ("first", "second")]
    assert tx(*arguments, *FEW, "--json") == 0
    shown = capfd.readouterr()
    told = [line for line in shown.err.splitlines() if "byte order mark removed" in line]
    assert [any(str(path) in line for line in told) for path in paths.values()] == [with_source, True, True, False]
    first, second = (json.loads(line)["counts"] for line in shown.out.splitlines())
    of_sides = 1 + with_source
    assert first == {"byte order mark removed": of_sides + 1, "carriage return stripped": of_sides + 1}
    assert second == {"byte order mark removed": of_sides, "carriage return stripped": of_sides}
    assert tx(*arguments, *FEW, "--strict") == 3
    assert tx("--hypotheses", str(paths["first"]), "--reference", str(paths["first"]), *FEW, "--json") == 0
    once = json.loads(capfd.readouterr().out)["counts"]
    assert once == {"byte order mark removed": 1, "carriage return stripped": 1}


def test_every_reference_is_checked_and_what_the_source_alone_has_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second reference was taken on trust."""
    source = write(tmp_path / "in.de", ["a\x07", *SOURCES])
    first, second = write(tmp_path / "1.en", ["b", *TARGETS]), write(tmp_path / "2.en", ["b", "", *TARGETS[1:]])
    files = ("--source", source, "--hypotheses", first, "--reference", first, "--reference", second)
    assert tx(*files, "--set", "evaluation.metrics=[chrf]", "--json") == 0
    found = [(one["text"], one["what"], one["lines"]) for one in json.loads(capfd.readouterr().out)["findings"]]
    assert found == [
        ("in.de and 1.en", "control characters", [1]),  # which was said to be in the reference
        ("in.de and 1.en with reference 2", "empty target", [2]),
    ]


@pytest.mark.parametrize("what_for", ["--reference=nothing", "--check-batching"])
def test_files_without_lines_are_refused_before_a_model_is_looked_for(
    tmp_path: Path, what_for: str, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing = write(tmp_path / "nothing", [])
    assert tx("--source", nothing, what_for) == 3
    assert "there is nothing to translate: nothing has no lines" in capfd.readouterr().err


@pytest.mark.parametrize(("differing", "told"), [(0, False), (1, True), (9, True), (10, False)])
def test_a_comparison_over_a_handful_of_lines_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], differing: int, told: bool
) -> None:
    lines = [f"one two three four five {number}" for number in range(12)]
    other = [f"{line} more" if number < differing else line for number, line in enumerate(lines)]
    files = [write(tmp_path / "lines", lines), write(tmp_path / "other", other)]
    assert tx("--hypotheses", files[0], "--hypotheses", files[1], "--reference", files[0], *FEW) == 0
    expected = f"other: lines that differ from the baseline's: {differing} of 12"
    assert (expected in capfd.readouterr().err) == told


def test_a_pipe_is_refused_with_what_to_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert tx("--hypotheses", str(tmp_path / "pipe"), "--reference", write(tmp_path / "ref", TARGETS)) == 3
    error = capfd.readouterr().err
    assert "pipe is a pipe, not a file" in error
    assert "save what it gives to a file first" in error


def test_that_bleu_says_nothing_of_short_lines_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    short, longer = write(tmp_path / "short", ["i do", "so it is"]), write(tmp_path / "longer", ["i do", "so it is ok"])
    assert tx("--hypotheses", short, "--reference", short, *FEW) == 0
    assert "BLEU is 0, since no translation has four words" in capfd.readouterr().err
    assert tx("--hypotheses", longer, "--reference", short, *FEW) == 0
    assert "BLEU is 0" not in capfd.readouterr().err


def test_that_bleu_says_nothing_of_short_lines_is_told_of_tx_s_own_text_too(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = evaluate.own_texts
    monkeypatch.setattr(
        evaluate, "own_texts", lambda *of, **how: [replace(text, is_own=True) for text in found(*of, **how)]
    )
    assert tx("-m", "tiny", "--set", "decoding.max_length=3", "--worst", "0") == 0
    said = capfd.readouterr().err
    assert "test: BLEU is 0, since no translation has four words in a row" in said
    assert "lower-cased" not in said


def test_the_worst_sentences_are_shown_with_their_sides(
    texts: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--hypotheses", texts["good"], "--reference", texts["reference"], "--source", texts["source"])
    assert tx(*arguments, *FEW, "--worst", "2") == 0
    shown = capfd.readouterr().out
    assert [" ".join(line.split()) for line in shown.split("Worst sentences")[1].splitlines()[1:]] == [
        f"line 12: {CHRF().sentence_score('happy the dog', [TARGETS[-1]]).score:.1f}",
        f"source {SOURCES[-1]}",
        f"reference {TARGETS[-1]}",
        "translation happy the dog",
    ]
    assert tx(*arguments, *FEW, "--worst", "0") == 0
    assert "Worst" not in capfd.readouterr().out


def test_markdown_is_made_of_tables(texts: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("--hypotheses", texts["good"], "--reference", texts["reference"], "--source", texts["source"])
    assert tx(*arguments, *FEW, "--markdown") == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines[0].startswith("**")
    assert lines[0].endswith("good.en (12 lines)**")
    assert "| translation | happy the dog |" in lines[-1]
    assert all(line.startswith(("|", "**")) or "|version:" in line for line in lines)


def test_a_run_tells_finished_translations_which_words_it_has_seen(
    run: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    """And needs no torch for it."""
    new = write(tmp_path / "new.de", ["eine Giraffe", *SOURCES[1:]])
    code = (
        "import sys; from transformer_cli.cli.app import main;"
        f"code = main(['evaluate', '--json', '-m', 'tiny', '--hypotheses', {texts['good']!r}, '--source', {new!r},"
        f" '--reference', {texts['reference']!r}, *{FEW!r}]); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    slices = {part["name"]: part for part in json.loads(done.stdout)["slices"]}
    assert (slices["unseen word in source"]["lines"], slices["unseen word in source"]["examples"]) == (1, [1])
    assert "pairs that the training text has, too: 11" in done.stderr.decode()


def test_a_run_that_keeps_no_word_counts_says_so(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run / "words.tsv.gz").unlink()
    assert tx("-m", "tiny", "-b", "1", "--json") == 0
    shown = capfd.readouterr()
    assert "keeps no word counts" in shown.err
    assert "not looked for; `tx train` with the same configuration adds them\n" in shown.err
    assert not any("unseen" in part["name"] for part in json.loads(shown.out)["slices"])


@pytest.mark.parametrize("origin", ["average", "imported"])
def test_training_is_not_advised_where_it_would_be_refused(
    origin: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a mean, or another toolkit's model, it adds nothing."""
    for name in ("words.tsv.gz", "lines.npy"):
        (run / name).unlink()
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(record | {origin: {}}), encoding="utf-8")
    assert tx("-m", "tiny", "-b", "1", *FEW) == 0
    said = capfd.readouterr().err
    assert "tiny keeps no word counts: rare and unseen words are not looked for\n" in said
    assert "nobody looked whether training saw the test: tiny keeps no lines.npy\n" in said


def test_what_is_kept_for_remarks_alone_ends_nothing_where_it_is_damaged(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each ended it with exit code 4, before the work."""
    for name in ("words.tsv.gz", "lines.npy"):
        (run / name).write_bytes(b"x")
    assert tx("-m", "tiny", "-b", "1") == 0
    told = capfd.readouterr().err
    assert "warning: rare and unseen words are not looked for: tiny/words.tsv.gz is damaged" in told
    assert "warning: nobody looked whether training saw the test: tiny/lines.npy is damaged" in told
    assert told.count("delete it; where `tx train` made the run, the same command makes it again") == 2


def test_a_test_that_training_saw_is_told_and_with_strict_refused_before_the_work(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx("-m", "tiny", "-b", "1", "--json") == 0
    shown = capfd.readouterr()
    [finding] = json.loads(shown.out)["findings"]
    assert (finding["n"], finding["lines"]) == (12, [1, 2, 3, 4, 5])
    assert "test, pairs that the training text has, too: 12 (lines 1, 2, 3, 4, 5, ...)" in shown.err
    shutil.copytree("tiny", "other")
    Path("tiny/lines.npy").unlink()
    assert tx("-m", "tiny", "-m", "other", "-b", "1", "--json") == 0  # an ensemble's others may have seen it, too
    assert "test, pairs that the training text of other has, too: 12" in capfd.readouterr().err
    assert tx("-m", "other", "-b", "1", "--strict") == 3
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "lines translated" not in shown.err


def test_text_that_looks_tokenised_is_scored_with_a_warning_and_with_strict_ends_in_exit_code_3(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [f"The {noun} sleeps." for noun in ("dog", "cat", "bird", "fish", "cow", "horse")]
    reference = write(tmp_path / "ref", lines)
    hypotheses = write(tmp_path / "hyp", [line.replace(".", " .") for line in lines])
    assert tx("--hypotheses", hypotheses, "--reference", reference, *FEW) == 0
    shown = capfd.readouterr()
    assert "the translations look tokenised, the reference is not: detokenise the translations" in shown.err
    assert tx("--hypotheses", hypotheses, "--reference", reference, *FEW, "--strict") == 3
    assert capfd.readouterr().out == shown.out


def test_what_strict_refuses_after_the_work_is_shown_written_and_kept_all_the_same(
    run: Path, texts: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """It ended after the first test set, and left no page and no score, though all was translated."""
    (run / "lines.npy").unlink()  # nobody looks whether training saw them
    named = {"a": {"pairs": PAIRS[:4]}, "b": {"pairs": PAIRS[4:]}}
    override = f"data.test={json.dumps(named)}"
    (run / "config.yaml").write_text(dump_config(load_config(run / "config.yaml", [override])), "utf-8")
    arguments = ["-m", "tiny", "-b", "1", *FEW, "--json", "-o", "page.html"]
    found = []
    for strict in ([], ["--strict"]):
        before = (run / "run.json").read_bytes()
        assert tx(*arguments, *strict) == 3 * len(strict)
        kept = json.loads((run / "run.json").read_text(encoding="utf-8")).pop("scores")
        found.append((Path("page.html").read_bytes(), kept, capfd.readouterr()))
        (run / "run.json").write_bytes(before)
        Path("page.html").unlink()
    (*plain, without), (*strictly, shown) = found
    assert strictly == plain
    assert shown.out == without.out
    assert "the text is suspicious:\n  a: lines: 4; neither interval nor p" in shown.err
    assert "\n  b: lines: 8; neither interval" in shown.err
    files = ["--hypotheses", texts["bad"], "--reference", texts["bad"], *FEW, "-o", "page.html"]
    write(Path(texts["bad"]), ["a bit"])
    assert tx(*files, "--strict") == 3
    assert Path("page.html").is_file()


def test_a_page_of_files_of_the_same_name_is_titled_with_their_folders(tmp_path: Path) -> None:
    """Its title was `out.en, out.en`."""
    reference = write(tmp_path / "test.en", ["a b c d e"])
    arguments = []
    for name in ("x", "y"):
        Path(name).mkdir()
        arguments += ["--hypotheses", write(Path(name, "out.en"), ["a b c d e"])]
    assert tx(*arguments, "--reference", reference, *FEW, "-o", "page.html") == 0
    assert "x/out.en, y/out.en</title>" in Path("page.html").read_text(encoding="utf-8")


def test_whether_training_saw_a_test_is_known_without_its_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was read again, from its first line to its last, and had to be there still."""
    train, other = (
        [["ein hund", "a dog"], ["eine katze", "a cat"]],
        [["ein hund", "the dog"], ["eine katze", "a cat"]],
    )
    for name, pairs in (("train", train), ("test", other)):
        for side, language in enumerate(("de", "en")):
            write(tmp_path / f"{name}.{language}", [pair[side] for pair in pairs])
    config = {"data": {"train": "train", "valid": "train", "test": "test"}, "tokenizer": {"vocab_size": 40}}
    config |= {"model": {"d_model": 8, "n_heads": 1, "d_ff": 8, "n_layers": 1}, "training": {"max_steps": 1}}
    arguments = [f"--set={key}={json.dumps(value)}" for key, value in config.items()]
    assert main(["train", "-c", "tiny.yaml", "--run-dir", "run", *arguments]) == 0
    for path in tmp_path.glob("train.*"):
        path.unlink()
    capfd.readouterr()
    assert tx("-m", "run", "-b", "1", *FEW) == 0
    said = capfd.readouterr().err
    assert "test, pairs that the training text has, too: 1 (line 2)" in said
    assert "test, sources that the training text has, with another target: 1 (line 1)" in said


def test_a_run_that_keeps_no_lines_says_so(
    tmp_path: Path, texts: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    gone = RunConfig.model_validate({"data": {"train": "/gone", "valid": "/gone", "source": "de", "target": "en"}})
    (run / "config.yaml").write_text(dump_config(gone), encoding="utf-8")
    arguments = ("--hypotheses", texts["good"], "--reference", texts["reference"], "--source", texts["source"])
    assert tx(*arguments, *FEW, "-m", str(run)) == 0
    assert "nobody looked whether training saw the test" in capfd.readouterr().err


def test_an_ensemble_is_scored_and_kept_in_no_run(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = (run / "run.json").read_bytes()
    assert tx("-m", "tiny", "-m", "tiny", "-b", "2", "--json", *FEW) == 0
    assert json.loads(capfd.readouterr().out)["scores"][0]["value"] == pytest.approx(100)
    assert (run / "run.json").read_bytes() == record


def test_that_ter_of_long_lines_takes_long_is_said_before_the_wait(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = write(tmp_path / "text", ["so " * 501])
    assert tx("--hypotheses", text, "--reference", text, *FEW) == 0
    assert "TER takes long for lines as long as these, of up to 501 words" in capfd.readouterr().err
    assert tx("--hypotheses", text, "--reference", text, *FEW, "--set", "evaluation.metrics=[bleu,chrf]") == 0
    assert "TER" not in capfd.readouterr().err


def test_scores_of_somebody_else_s_run_are_shown_and_not_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever may only read a run had all of it, and then an error."""
    record = (run / "run.json").read_bytes()
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.abspath(path) != str(run))
    assert tx("-m", "tiny") == 0
    told = capfd.readouterr()
    assert "BLEU" in told.out
    assert "warning: the scores are not kept: cannot write tiny: Permission denied\n" in told.err
    assert (run / "run.json").read_bytes() == record


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
def test_scores_of_a_run_that_was_replaced_meanwhile_are_not_kept_as_those_of_the_other(
    run: Path, keeps_checkpoint: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The new run had the old one's scores, under the name of a checkpoint that it has, too."""
    evaluating = sys.modules["transformer_cli.cli.evaluate"]
    really = evaluating.translate  # type: ignore[attr-defined]

    def meanwhile(*arguments: Any) -> Any:
        found = really(*arguments)
        for checkpoint in (run / "checkpoints").iterdir():
            if not keeps_checkpoint:
                shutil.rmtree(checkpoint)
            elif checkpoint.is_dir():
                manifest = unsealed((checkpoint / "manifest.json").read_bytes())
                manifest["files"]["model.safetensors"]["sha256"] = "0" * 64
                (checkpoint / "manifest.json").write_bytes(sealed(manifest))
        (run / "config.yaml").write_text(dump_config(load_config(run / "config.yaml", ["seed=7"])), "utf-8")
        return found

    monkeypatch.setattr(evaluating, "translate", meanwhile)
    record = (run / "run.json").read_bytes()
    assert tx("-m", "tiny") == 0
    told = capfd.readouterr()
    assert "BLEU" in told.out
    assert "warning: the scores are not kept: tiny was replaced by another run meanwhile\n" in told.err
    assert (run / "run.json").read_bytes() == record


def test_scores_of_a_run_that_only_its_owner_may_replace_are_shown_and_not_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As below /tmp, with `chmod +t`; all of it was followed by exit code 5."""
    run.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert tx("-m", "tiny") == 0
    told = capfd.readouterr()
    assert "BLEU" in told.out
    assert "warning: the scores are not kept: cannot write tiny/run.json: it is somebody else's" in told.err
