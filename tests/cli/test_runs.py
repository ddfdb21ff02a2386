"""`tx runs`, and the overview that it shows."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from transformer_cli.checkpoints.find import default_run
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.cli.runs import age
from transformer_cli.training.directory import claimed


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["runs", *arguments]))


@pytest.fixture
def runs(trained_run: Path) -> Path:
    """Two of them: `tiny` with all its checkpoints, a day old, and `young`, which was stopped after the first one."""
    tiny, young = (Path(shutil.copytree(trained_run, Path("runs", name))) for name in ("tiny", "young"))
    Path("runs/latest").write_text("young\n")
    for place in sorted((young / "checkpoints").iterdir()):
        state = json.loads((place / "state.json").read_text())
        (place / "state.json").write_text(json.dumps(state | {"finished": None}))
    for place in (tiny / "checkpoints").iterdir():
        os.utime(place, (time.time() - 86_400,) * 2)
    return Path("runs")


def test_each_run_has_a_line_and_the_one_saved_last_is_first(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx() == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "step", "score", "age", "size", "is", "scores"]
    young, tiny = (line.split() for line in lines[2:])
    assert young[:6] == ["runs/young", "*", "150", "of", "150", "BLEU"]
    assert young[-3:-1] == ["not", "finished"]
    assert tiny[:5] == ["runs/tiny", "150", "BLEU", "100.00", "24"]
    assert tiny[5:8:2] == ["h", "MB"]
    assert tiny[-2] == "finished"
    assert len(tiny[-1]) == 3  # validations


def test_a_run_that_is_trained_now_is_called_that(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (runs / "new").mkdir()
    shutil.copy(runs / "tiny" / "config.yaml", runs / "new")
    with claimed(runs / "young"), claimed(runs / "new"):
        assert tx() == 0
        young, tiny, new = capfd.readouterr().out.splitlines()[2:]
        assert tx("--json") == 0
        told = {one["run"]: one["training"] for one in map(json.loads, capfd.readouterr().out.splitlines())}
    assert " MB  training " in young
    assert " MB  finished " in tiny
    assert new.endswith(" MB  training, without a checkpoint")
    assert told == {"runs/young": True, "runs/tiny": False, "runs/new": True}
    assert tx() == 0
    assert "training" not in capfd.readouterr().out


def test_a_run_that_may_not_be_read_is_listed_and_hides_no_other(
    runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that several people share; it ended `tx runs`, and every command that takes the latest run."""
    is_there = Path.is_dir

    def is_dir(path: Path) -> bool:
        if "young" in path.parts[:-1]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return is_there(path)

    (runs / "latest").write_text("tiny\n", "utf-8")
    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert tx() == 0
    out, err = capfd.readouterr()
    tiny, young = sorted(out.splitlines()[2:])
    assert "finished" in tiny
    assert young.endswith("not readable")
    assert "runs/young/checkpoints cannot be read: Permission denied" in err
    assert default_run().path == Path("runs/tiny")


def test_scores_that_a_damaged_line_may_hide_are_said_to_be_fewer(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (runs / "tiny/metrics.jsonl").open("a") as file:
        file.write("x\n")
    n = len((runs / "tiny/metrics.jsonl").read_text().splitlines())
    assert tx() == 0
    assert f"runs/tiny/metrics.jsonl, line {n} is no event: it is damaged" in capfd.readouterr().err


def test_json_has_what_evaluation_found_and_bytes_that_are_there(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = json.loads((runs / "tiny/run.json").read_text())
    scores = {"test": {"scores": [{"name": "BLEU", "value": 12.5}, {"name": "TER", "value": 80.0}]}}
    (runs / "tiny/run.json").write_text(json.dumps(record | {"scores": scores}))
    assert tx("runs/tiny", "--json") == 0
    one = json.loads(capfd.readouterr().out)
    assert (one["run"], one["step"], one["finished"], one["default"]) == ("runs/tiny", 150, True, False)
    assert one["tests"]["test"]["scores"] == {"BLEU": 12.5, "TER": 80.0}
    assert one["score"] == max(one["scores"])
    assert len(one["scores"]) == 3
    assert one["bytes"] == sum(path.stat().st_size for path in (runs / "tiny").rglob("*") if path.is_file())
    assert 86_400 <= one["age_s"] < 86_500


def test_a_damaged_run_is_named_and_hides_no_other(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (runs / "young/run.json").write_text("{")
    (runs / "fresh").mkdir()
    (runs / "fresh/config.yaml").write_bytes((runs / "tiny/config.yaml").read_bytes())
    assert tx() == 0
    shown, said = capfd.readouterr()
    assert "warning: runs/young/run.json is not JSON" in said
    standing = dict(line.split(maxsplit=1) for line in shown.splitlines()[2:])
    assert standing["runs/young"].endswith("damaged")
    assert standing["runs/fresh"].endswith("without a checkpoint")
    assert "finished" in standing["runs/tiny"]


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ("tokenizer", ["tokenizer"]),
        ("checkpoints/{best}", ["best checkpoint"]),
        ("checkpoints/{best}/model.safetensors", ["weights"]),
        ("checkpoints/{best}/optimizer.safetensors", []),
    ],
)
def test_what_a_run_cannot_be_used_without_is_said_to_be_missing(
    runs: Path, gone: str, missing: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Such a run was finished, as any other."""
    shutil.copytree(runs / "tiny/checkpoints/step-00000150", runs / "tiny/checkpoints/step-00000160")
    best = (runs / "tiny/best").read_text().strip()
    place = runs / "tiny" / gone.format(best=best)
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    assert tx("runs/tiny") == 0
    row = capfd.readouterr().out.splitlines()[2]
    assert "  finished" + "".join(f", without {what}" for what in missing) + "  " in row
    assert tx("runs", "--json") == 0
    told = {one["run"]: one["missing"] for one in map(json.loads, capfd.readouterr().out.splitlines())}
    assert told == {"runs/tiny": missing, "runs/young": []}
    assert (failures.exit_code(lambda: main(["translate", "-m", "runs/tiny", "x"])) == 4) == bool(missing)


def test_where_there_is_no_run_the_exit_code_is_that_of_no_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("nowhere") == 4
    assert "there is no run in nowhere" in capfd.readouterr().err


def test_a_folder_of_something_else_is_no_run(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where it has a folder of that name, as this project has for the modules about checkpoints."""
    (Path("tests") / "checkpoints" / "step-by-step").mkdir(parents=True)
    assert tx(".") == 4
    said = capfd.readouterr().err
    assert "there is no run in ." in said
    assert "tx runs runs" in said
    assert failures.exit_code(lambda: main(["translate", "-m", "tests", "x"])) == 4
    assert "tests is neither a run nor" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s"), (99, "99 s"), (100, "2 min"), (7200, "2 h"), (47 * 3600, "47 h"), (864_000, "10 days")],
)
def test_an_age_is_told_in_one_unit(seconds: float, said: str) -> None:
    assert age(seconds) == said


def test_what_is_being_written_is_no_run(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "tiny", runs / ".tmp-tiny-12345678")
    assert tx() == 0
    assert ".tmp" not in capfd.readouterr().out
    assert failures.exit_code(lambda: main(["translate", "-m", "runs/nowhere", "x"])) == 4
    assert ".tmp" not in capfd.readouterr().err


def test_a_run_whose_name_is_not_utf8_or_two_lines_spoils_no_list(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of them, and `tx runs` was a bug of ours; the other broke its row."""
    (runs / "young").rename(runs / "caf\udce9")
    (runs / "tiny").rename(runs / "a\nb")
    assert tx() == 0
    assert sorted(line.split("  ")[0] for line in capfd.readouterr().out.splitlines()[2:]) == [
        repr("runs/a\nb"),
        repr("runs/caf\udce9"),
    ]
    assert tx("--json") == 0
    assert {json.loads(line)["run"] for line in capfd.readouterr().out.splitlines()} == {"runs/a\nb", "runs/caf\udce9"}


def test_a_run_whose_files_nobody_else_may_read_is_not_called_damaged(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As those of `umask 077` in a folder that may be entered."""
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.parent.name == "young":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert tx() == 0
    told = capfd.readouterr()
    assert next(line for line in told.out.splitlines() if "young" in line).endswith("not readable")
    assert "warning: runs/young/config.yaml cannot be read: Permission denied\n" in told.err
