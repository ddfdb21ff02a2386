"""`tx train --dry-run` and `--strict`: what would happen, and what is suspicious."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIRS
from ranks import codes, start

from transformer_cli import environment
from transformer_cli.cli import failures, processes
from transformer_cli.cli.app import main
from transformer_cli.data import stream, text
from transformer_cli.evaluation import metrics
from transformer_cli.training import rehearsal
from transformer_cli.training.run import Outcome

SMALL = ("--set", "model={d_model: 32, n_heads: 2, d_ff: 64, n_layers: 1}", "--set", "tokenizer.vocab_size=100")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with clean texts: twelve pairs to learn from, and others to validate with. Few updates are
    timed."""
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    write("train", PAIRS)
    write("dev", [["wo ist er", "where is he"], ["wer ist das", "who is that"]])
    Path("mine.yaml").write_text("data: {train: train, valid: dev, source: de, target: en}\n", encoding="utf-8")
    return tmp_path


def write(name: str, pairs: list[list[str]]) -> None:
    for side, language in enumerate(("de", "en")):
        Path(f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["train", "-c", "mine.yaml", *SMALL, *arguments]))


def dry(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capfd.readouterr()
    assert tx("--dry-run", "--json", *arguments) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_a_dry_run_says_that_the_rate_would_not_do_what_is_meant(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Training said so once it had begun. With epochs only who times updates knew how many there are."""
    rises = ("--set", "training.warmup_steps=30", "--set", "training.max_steps=20")
    assert tx("--dry-run", *rises) == 0
    assert "warning: the learning rate still rises when training ends, after 20 updates" in capfd.readouterr().err
    assert "still rises" in dry(capfd, *rises)["warning"]
    falls = ("--set", "training.warmup_steps=0", "--set", "training.schedule=cosine", "--set", "training.max_epochs=2")
    assert "training.budget={epochs: 2}" in dry(capfd, *falls)["warning"]


def test_a_dry_run_says_which_references_no_translation_can_equal(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert dry(capfd)["rewriting"] == ""
    write("dev", [["wo ist er", "where\uff0c is he"], ["wer ist das", "who is that"]])
    assert "1 of 2 targets cannot be written as they are" in dry(capfd)["rewriting"]
    assert tx("--dry-run", "--strict") == 0
    assert "warning: validation text: 1 of 2 targets cannot be" in capfd.readouterr().err
    assert dry(capfd, "--set", "tokenizer.normalization=identity")["rewriting"] == ""


def test_a_dry_run_says_what_would_happen_and_writes_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert tx("--dry-run") == 0
    shown = capfd.readouterr().out
    words = [str(sum(len(pair[side].split()) for pair in PAIRS)) for side in (0, 1)]
    assert ["train", "12", *words] in [line.split() for line in shown.splitlines()]
    assert "runs/mine: would be trained anew" in shown
    assert "bpe, to be trained, at most 100 pieces" in shown
    assert "rate        0.001 at its peak, at step 4,000" in shown
    assert "suspicious  nothing" in shown
    assert re.search(r"^disk        about text \d\.\d kB, 3 checkpoints of \d+\.\d kB at most, .* free$", shown, re.M)
    assert re.search(r"^preparing   about \d+ s: reading ", shown, re.M)
    assert sorted(folder.rglob("*")) == before


def test_each_of_several_texts_has_its_pairs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write("more", [["das ist gut", "that is good"]])
    several = "data.train=[{text: train, name: old}, {text: more, weight: 3, name: news}]"
    assert tx("--dry-run", "--set", several) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:5]] == [["train", "13"], ["old", "12"], ["news", "1"]]
    assert dry(capfd, "--set", several)["texts"]["train"]["parts"] == {"old": 12, "news": 1}


def test_texts_of_one_name_are_counted_together(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write("more", [["das ist gut", "that is good"]])
    several = "data.train=[{text: train, name: news}, {text: more, name: news}, {text: train, name: old}]"
    assert dry(capfd, "--set", several)["texts"]["train"]["parts"] == {"news": 13, "old": 12}


def test_each_of_several_test_sets_is_counted_and_looked_at(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write("new", [PAIRS[2], ["das ist gut", "that is good"]])
    found = dry(capfd, "--set", "data.test={2016: dev, 2017: new}")
    assert {name: text["pairs"] for name, text in found["texts"].items()}.items() >= {"2016": 2, "2017": 2}.items()
    assert ("2017", "pairs that train has, too", [1]) in [(x["text"], x["what"], x["lines"]) for x in found["findings"]]


def test_what_is_held_out_is_counted_and_no_overlap(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = dry(capfd, "--set", "data.valid=50%")
    sizes = {name: text["pairs"] for name, text in found["texts"].items()}
    assert list(sizes) == ["train", "valid"]
    assert 0 < sizes["valid"] == len(PAIRS) - sizes["train"]
    words = [sum(text[f"{side}_words"] for text in found["texts"].values()) for side in ("source", "target")]
    assert words == [sum(len(pair[side].split()) for pair in PAIRS) for side in (0, 1)]
    assert found["findings"] == []


def test_a_test_text_that_is_missing_is_said_before_anything_is_spent(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only `tx evaluate` noticed, when all was trained."""
    before = sorted(folder.rglob("*"))
    for arguments in (["--dry-run"], ["--strict"], []):
        for named in ("data.test=tset", "data.test={2016: dev, 2017: tset}"):
            assert tx("--set", named, *arguments) == 3
            assert "tset.de does not exist" in capfd.readouterr().err
    assert [path for path in sorted(folder.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]


def test_the_parameters_of_a_dry_run_are_those_of_the_model_that_training_builds(
    folder: Path, trained_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a run that is there is known: its step, its tokenizer, that nothing is left to do."""
    shutil.copytree(trained_run, folder / "runs" / "tiny")
    shutil.copy(trained_run / "config.yaml", folder / "mine.yaml")
    record = json.loads((trained_run / "run.json").read_text(encoding="utf-8"))
    arguments = ("--run-dir", "runs/tiny")
    found = dry(capfd, *arguments)
    assert found["parameters"] == record["parameters"]
    assert (found["peak_step"], found["peak_rate"]) == (20, 0.01)
    assert (found["step"], found["finished"], found["tokenizer"]) == (150, "max_steps 150 reached", "of the run")
    longer = dry(capfd, *arguments, "--set", "training.max_steps=200")
    assert (longer["step"], longer["finished"], longer["replaces"]) == (150, None, False)
    anew = dry(capfd, *arguments, "--overwrite")
    assert (anew["step"], anew["finished"], anew["replaces"]) == (0, None, True)


def test_the_time_of_a_budget_of_minutes_is_the_budget(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    budget = ("--set", "training.budget.minutes=90", "--set", "training.warmup_steps=10%")
    found = dry(capfd, *budget)
    assert (found["peak_step"], found["peak_rate"]) == (None, 0.001)
    assert found["length"]["left"]["seconds"] == pytest.approx(5400, abs=2)
    assert tx("--dry-run", *budget) == 0
    shown = capfd.readouterr().out
    assert "0.001 at its peak, at the end of the warm-up" in shown
    assert re.search(r"^time        about 90 min, estimated from \d+ updates, of 12 pairs; training ends", shown, re.M)
    assert "ends when its budget is spent (minutes: 90)" in shown


def test_what_is_suspicious_is_told_with_its_lines(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write("train", [*PAIRS, ["", "nobody"], PAIRS[3], ["ein\u200bHund", "a dog"]])
    write("dev", [PAIRS[7], ["ich", "i"]])
    found = dry(capfd)
    assert found["texts"]["train"]["pairs"] == len(PAIRS) + 2
    assert found["texts"]["train"]["target_words"] == sum(len(pair[1].split()) for pair in [*PAIRS, PAIRS[3]]) + len(
        ["a", "dog"]
    )
    assert [(one["text"], one["what"], one["n"], one["lines"]) for one in found["findings"]] == [
        ("train", "empty source", 1, [13]),
        ("train", "zero-width characters", 1, [15]),
        ("train", "repeated pairs", 1, [14]),
        ("valid", "pairs that train has, too", 1, [1]),
    ]
    assert tx("--dry-run") == 0
    assert "  train, repeated pairs: 1 (line 14)" in capfd.readouterr().out.splitlines()


def test_strict_refuses_suspicious_text_with_exit_code_3_and_trains_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write("dev", [PAIRS[7]])
    for arguments in (["--strict"], ["--strict", "--dry-run"]):
        assert tx(*arguments) == 3
        error = capfd.readouterr().err
        assert "the text is suspicious:\n  valid, pairs that train has, too: 1 (line 1)\n" in error
        assert "go without --strict" in error
    assert not (folder / "runs").exists()


def test_strict_trains_on_text_without_suspicion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Outcome(Path("runs/mine"), 1, "", Path("x"), "BLEU", (), was_finished=False)
    monkeypatch.setattr("transformer_cli.training.run.train", lambda *_, **__: outcome)
    assert tx("--strict") == 0
    assert tx("--strict", "--dry-run") == 0


def test_each_file_is_read_and_checked_once_in_both_directions_by_strict_and_by_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("test", [["er ist da", "he is there"]])
    read: Counter[str] = Counter()

    def counted(source: stream.Source, name: str) -> bytes:
        data = real(source, name)
        read[name] += len(data)
        return data

    real = stream.read_some
    for module in (stream, text):
        monkeypatch.setattr(module, "read_some", counted)
    settings = ["data.train=[{text: train, both: true}]", "data.test=test", "training.max_steps=1", "device=cpu"]
    assert tx("--strict", *(f"--set={one}" for one in settings)) == 0
    assert read == {str(path): path.stat().st_size for path in folder.glob("*.??")}


def test_a_disk_without_room_is_told_and_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    needed = dry(capfd)["disk"]["needed"]
    for free, code in ((needed, 0), (needed - 1, 5)):
        usage = type(shutil.disk_usage("."))(10**12, 10**12 - free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        assert tx("--dry-run") == code
    shown = capfd.readouterr()
    assert "suspicious  nothing" in shown.out
    assert re.search(r"runs/mine would have no room: (\S+ \wB) are still to be written there, \1 are free", shown.err)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "data.train=gone"], 3, "gone.de does not exist"),
        (["--set", "tokenizer.model=gone.model"], 4, "gone.model"),
        (["--set", "device=mps"], 5, "mps"),
        (["--set", "model.d_model=33"], 2, "33"),
        (["--set", "evaluation.tokenize=ja-mecab"], 5, "needs mecab-python3 and ipadic, which are not installed"),
    ],
)
def test_a_dry_run_fails_as_training_would(
    folder: Path,
    arguments: list[str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    for how in (["--dry-run"], []):
        assert tx(*how, *arguments) == code
        assert words in capfd.readouterr().err


def test_a_dry_run_refuses_a_folder_that_is_somebody_else_s(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "config.yaml").write_text("mine: true\n", encoding="utf-8")
    assert tx("--dry-run", "--run-dir", "other") == 2
    assert "is not a run" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["notes.txt"], "other holds notes.txt, which is no part of a run: it stays as it is"),
        (
            [*"abcdefg", ".git/x", "tokenizer/x"],
            "other holds a, b, c, d, e and 2 more, which are no part of a run: they stay as they are",
        ),
        ([".git/x", "tokenizer/x"], ""),
    ],
)
def test_what_lies_where_a_run_begins_is_remarked(
    folder: Path, names: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`--run-dir runs` or `.` put a run among all that was there, and nobody said so."""
    for name in names:
        Path("other", name).parent.mkdir(parents=True, exist_ok=True)
        Path("other", name).write_text("mine", encoding="utf-8")
    assert dry(capfd, "--run-dir", "other")["beside"] == said
    here = ["-c", "mine.yaml", "--run-dir", "other", *SMALL]
    for command in (["train", "--dry-run"], ["tokenize"]):
        assert failures.exit_code(lambda: main([*command, *here])) == 0  # noqa: B023
        assert (f"warning: {said}" in capfd.readouterr().err.replace("\n  ", " ")) == bool(said)
    assert dry(capfd, "--run-dir", "other")["beside"] == ""


@pytest.mark.parametrize(("run_dir", "code"), [("mine.yaml", 5), ("mine.yaml/x", 5), ("-", 2)])
def test_a_dry_run_refuses_a_place_where_no_run_could_be(
    folder: Path, run_dir: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--dry-run"], []):
        assert tx("--run-dir", run_dir, *arguments) == code
        assert "directory" in capfd.readouterr().err


def test_a_dry_run_refuses_what_an_existing_run_would_refuse(
    folder: Path, trained_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run, folder / "runs" / "tiny")
    shutil.copy(trained_run / "config.yaml", folder / "mine.yaml")
    assert tx("--dry-run", "--run-dir", "runs/tiny", "--set", "seed=7") == 2
    assert "seed: 1 in the run, 7 now" in capfd.readouterr().err
    other = json.dumps({"pairs": PAIRS[:-1]})
    assert tx("--dry-run", "--run-dir", "runs/tiny", "--set", f"data.train={other}") == 3
    assert "data.train is no longer the text" in capfd.readouterr().err


@pytest.mark.parametrize("how", [[], ["--time"]], ids=["plain", "thorough"])
def test_a_few_updates_are_timed_and_nothing_is_written(
    how: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The scale is the machine's; the ratio of two lengths is that of their updates."""
    before = sorted(folder.rglob("*"))
    arguments = [*how, "--set", "device=cpu", "--set", "precision=fp32", "--set", "threads=1"]
    short, long = (dry(capfd, *arguments, "--set", f"training.max_steps={n}")["length"] for n in (1000, 1_000_000))
    assert 100 < long["left"]["seconds"] / short["left"]["seconds"] < 10_000
    assert long["ends"] == "at step 1,000,000 (max_steps)"
    assert long["n_epochs"] == 1000 * short["n_epochs"] == 1_000_000  # all of it is one batch
    assert tx("--dry-run", *arguments, "--set", "training.max_steps=3") == 0
    told = capfd.readouterr().out
    assert "epochs      about 3: so many times" in told
    assert re.search(
        r"^memory      at most [\d.]+ [MG]iB in an update; validating and saving take some more$", told, re.M
    )
    assert "time        too short to be timed; training ends at step 3 (max_steps)" in told
    assert sorted(folder.rglob("*")) == before


def test_the_epoch_that_may_be_the_last_is_the_one_that_training_would_name(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the timed updates lost is part of the first epoch's mean."""
    text = f"data.train={json.dumps({'pairs': PAIRS * 100})}"
    settings = (
        text,
        "threads=1",
        "data.max_length=32",
        "training={budget_tokens: 64, label_smoothing: 0, stop_loss: 0.01}",
    )
    length = dry(capfd, "--time", *(f"--set={setting}" for setting in settings))["length"]
    assert length["left"]["at_least"] == "end of epoch 2"
    assert length["ends"].endswith("or after an epoch with a mean loss below 0.01 (stop_loss)")


def test_time_without_a_dry_run_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("--time") == 2
    assert "--time goes with --dry-run" in capfd.readouterr().err
    assert not (folder / "runs").exists()


@contextmanager
def saying(out: str, err: str) -> Iterator[None]:
    """What is said goes to these files."""
    with open(out, "w") as first, open(err, "w") as second, redirect_stdout(first), redirect_stderr(second):
        yield


def test_a_dry_run_of_several_processes_is_of_all_of_them_and_told_once(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was of one of them, and each told it again under torchrun."""
    write("train", PAIRS * 20)
    settings = [f"--set={one}" for one in ("device=cpu", "threads=1", "data.max_length=32")]
    settings += ["--set=training={budget_tokens: 64, max_epochs: 5, warmup_steps: 9}"]
    alone = dry(capfd, *settings)

    def ask(rank: int) -> None:
        with saying(f"out-{rank}", f"err-{rank}"):
            assert tx("--dry-run", "--json", *settings) == 0

    (errors := folder / "errors").mkdir()
    assert codes(start(2, ask, errors), limit_s=60) == [0, 0]
    together = json.loads(Path("out-0").read_text())
    assert [Path(f"{name}-1").read_text() for name in ("out", "err")] == ["", ""]
    assert together["length"]["n_updates"] == pytest.approx(alone["length"]["n_updates"] / 2, abs=5)
    lengths = {name: found.pop("length") for name, found in (("alone", alone), ("together", together))}
    assert lengths["together"]["of_pairs"] == lengths["alone"]["of_pairs"]
    assert [len(lengths[name]["memory"]) for name in ("alone", "together")] == [1, 2]
    assert min(lengths["together"]["memory"]) > 100 << 20  # PyTorch alone
    for found in (alone, together):
        del found["preparing"], found["disk"]["free"], found["warning"]
    assert together == alone


@pytest.mark.parametrize("place", ["runs/mine", ".", "there"])
def test_several_machines_try_a_run_in_a_folder_that_all_of_them_see(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None sees what is in the temporary folder of another: the dry run said that its tokenizer does not exist."""
    Path("there").mkdir()
    before = sorted(folder.rglob("*"))

    def ask(rank: int) -> None:
        os.environ["LOCAL_RANK"] = "0"
        monkeypatch.setattr(tempfile, "tempdir", f"of-{rank}")  # is not there
        with saying(os.devnull, os.devnull):
            assert tx("--dry-run", f"--run-dir={place}") == 0

    (errors := folder / "errors").mkdir()
    assert codes(start(2, ask, errors), limit_s=60) == [0, 0]
    shutil.rmtree(errors)
    assert sorted(folder.rglob("*")) == before


def test_what_is_refused_in_a_dry_run_of_several_processes_is_told_once(folder: Path) -> None:
    def ask(rank: int) -> None:
        with saying(f"out-{rank}", f"err-{rank}"):
            code = tx("--dry-run", "--set=data.valid=gone")
        Path(f"ended-{rank}").touch()
        while not Path("ended-1").exists():  # the first one takes the store along: the other would say it, too
            time.sleep(0.01)
        os._exit(code)

    (errors := folder / "errors").mkdir()
    assert codes(start(2, ask, errors), limit_s=60) == [3, 3]
    said = [Path(f"err-{rank}").read_text() for rank in range(2)]
    assert "gone.de does not exist" in said[0]
    assert "error" not in said[1]


def test_a_dry_run_of_several_processes_starts_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[int, str]] = []
    monkeypatch.setattr(processes, "run_all", lambda n, command: started.append((n, command[1])) or 3)
    monkeypatch.setattr(environment, "processors", lambda: 2)
    assert tx("--dry-run", "--processes", "2") == 3
    assert started == [(2, "-P")]
    assert tx("--dry-run", "--processes", "9") == 2
    assert "--processes 9, but there are 2 processors here" in capfd.readouterr().err
    reads, writes = os.pipe()
    os.write(writes, Path("mine.yaml").read_bytes())
    os.close(writes)
    command = ["train", "-c", f"/dev/fd/{reads}", "--processes", "2"]
    assert failures.exit_code(lambda: main(command)) == 2  # each process found another file, or an empty one
    os.close(reads)
    assert f"each process reads /dev/fd/{reads}, which can be read once" in capfd.readouterr().err
    assert started == [(2, "-P")]
