"""What `tx train` says when it is done, or was stopped."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.cli import console, failures
from transformer_cli.cli.app import main
from transformer_cli.errors import Interrupted
from transformer_cli.training.durations import hours_of
from transformer_cli.training.validation import Validation

SMALL = ("--set", "model={d_model: 16, n_heads: 1, d_ff: 16, n_layers: 1}", "--set", "tokenizer.vocab_size=100")


def train(valid: list[list[str]], *arguments: str) -> int:
    text = {"data": {"source": "fr", "target": "xx", "train": {"pairs": PAIRS[:4]}, "valid": {"pairs": valid}}}
    Path("mine.yaml").write_text(json.dumps(text, ensure_ascii=False), encoding="utf-8")
    return tx("train", "-c", "mine.yaml", *SMALL, "--set", "training.max_steps=1", *arguments)


def tx(*arguments: str) -> int:
    console._quiet = False
    return failures.exit_code(lambda: main(list(arguments)))


def suggested(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The words of the command for translating that was said, as a shell takes them."""
    [line] = [line for line in capfd.readouterr().err.split("\n") if "tx translate" in line]
    return shlex.split(line)


@pytest.mark.parametrize("line", ["où est le bar ?", "l'eau est là", 'le "bar" est $là', "c'est `pwd` \\ ici !"])
def test_the_next_command_translates_a_line_of_the_user_s_validation_text(
    line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It used to be about beer in whatever was called German."""
    assert train([["-i am no option", "a"], ["bell \a rings out", "b"], [line, "where"]]) == 0
    assert suggested(capfd) == ["tx", "translate", line]


def test_a_run_that_was_renamed_goes_on_where_it_is_named_and_else_that_is_said(
    capfd: pytest.CaptureFixture[str], trained_run: Path
) -> None:
    """Another one was begun, as if there were none."""
    shutil.copytree(trained_run, "renamed")
    command = ["train", "-c", "renamed/config.yaml", "--dry-run"]
    told = "warning: renamed/config.yaml is the configuration of a run, and runs/tiny is what is trained: "
    for more, said in (((), told + "--run-dir renamed goes on with that run\n"), (("--run-dir", "renamed"), "")):
        assert tx(*command, *more) == 0
        found = capfd.readouterr()
        assert [line for line in found.err.splitlines(keepends=True) if "configuration" in line] == [said] * bool(said)
        assert ("would be trained anew" in found.out) == bool(said)
    Path("runs").mkdir(exist_ok=True)
    Path("renamed").rename("runs/tiny")
    assert tx("train", "-c", "runs/tiny/config.yaml", "--dry-run") == 0
    assert tx("train", "-c", "runs/tiny/config.yaml", "--set", "name=new", "--dry-run") == 0
    assert "is the configuration" not in capfd.readouterr().err


@pytest.mark.parametrize(("tests", "typed"), [([], "tx evaluate --valid"), (["data.test=data"], "tx evaluate")])
def test_the_next_command_scores_what_there_is(tests: list[str], typed: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It was refused where there is no test set."""
    for suffix, line in (("fr", "un bar"), ("xx", "a bar")):
        Path(f"data.{suffix}").write_text(f"{line}\n", encoding="utf-8")
    assert train([["un", "a"]], *(f"--set={setting}" for setting in tests)) == 0
    assert f"next: {typed}\n" in capfd.readouterr().err
    assert tx(*typed.split()[1:]) == 0


def test_a_line_that_nobody_types_is_not_offered(capfd: pytest.CaptureFixture[str]) -> None:
    assert train([["mot " * 200, "word"], ["a\u202eb c d", "hidden"]]) == 0
    assert suggested(capfd) == ["tx", "translate", "-i", "FILE"]


@pytest.mark.parametrize(
    ("limit", "name", "more"),
    [
        ("max_steps: 1", "max_steps", "2"),
        ("max_epochs: 1, max_steps: 99", "max_epochs", "2"),
        ("stop_loss: 99, max_steps: 99", "stop_loss", "1e-9, max_epochs: 2"),
        ("patience: 1, max_steps: 99, validate_every: 1, learning_rate: 1e-9", "patience", "2"),
        ("max_steps: null, budget: {tokens: 10}", "budget", "{tokens: 60}"),
    ],
)
def test_what_lets_a_finished_run_go_on_does(
    limit: str, name: str, more: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Three of the four were told to raise max_steps, which changed nothing."""
    valid = [["le chat dort", "the cat sleeps"]]
    chosen = f"training={{{limit}, validation_bleu: false, best_by: loss, warmup_steps: 1}}"
    assert train(valid, "--set", chosen) == 0
    assert train(valid, "--set", chosen) == 0
    said = capfd.readouterr().err
    pattern = r"already finished after step .*; (raise|lower) training\.(\w+)(.*) to go on"
    [(verb, setting, above)] = re.findall(pattern, said)
    assert above == (" above 1" if name == "max_steps" else "")
    assert (verb, setting) == ("lower" if name == "stop_loss" else "raise", name)
    larger = re.sub(rf"{name}: ({{[^}}]*}}|[^,}}]*)", f"{name}: {more}", chosen)
    assert train(valid, "--set", larger) == 0
    assert "already finished" not in capfd.readouterr().err


def test_a_run_that_is_not_the_default_is_named_and_a_model_says_its_direction(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transformer_cli.checkpoints.store.mark_latest", lambda run_dir: None)
    assert train([["le chat dort", "the cat sleeps"]], "--run-dir", "my place/mine") == 0
    assert suggested(capfd) == ["tx", "translate", "-m", "my place/mine", "le chat dort"]
    assert tx("translate", "-m", "my place/mine", PAIRS[0][0]) == 0
    assert re.search(r"^model: my place/mine/\S+, fr to xx", capfd.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("is_undone", [False, True])
def test_who_stops_training_is_told_in_a_sentence_what_goes_on_with_it(
    is_undone: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was a red error, and "the same command" with --overwrite would have deleted what was saved. is_undone: the run
    had not begun, and what it was to replace is there again; without --overwrite that would go on."""

    def stopped(*_: object, **__: object) -> None:
        end = Interrupted("stopped after step 3 of 9; everything is saved in runs/mine", signal_number=signal.SIGINT)
        end.is_undone = is_undone
        raise end

    monkeypatch.setattr("transformer_cli.training.run.train", stopped)
    assert train([["a", "b"]], "--overwrite", "--run-dir", "a b", "-q") == 130
    said = capfd.readouterr().err
    assert said.startswith("stopped after step 3 of 9; everything is saved in runs/mine\nto go on: tx train -c mine")
    words = shlex.split(said.split("to go on: ")[1])
    again = ["--overwrite"] if is_undone else []
    same = ["tx", "train", "-c", "mine.yaml", *SMALL, "--set", "training.max_steps=1", "--run-dir", "a b"]
    assert words == same + again


def test_training_ends_with_its_scores_as_a_curve(capfd: pytest.CaptureFixture[str]) -> None:
    by_loss = "training={max_steps: 3, validate_every: 1, best_by: loss, validation_bleu: false}"
    assert train([["a", "b"]], "--set", by_loss) == 0
    found = re.search(r"^loss (\S+) (\S+) to (\S+), best (\S+)$", capfd.readouterr().err, re.MULTILINE)
    events = Path("runs/mine/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in events if "validation" in line]
    assert found is not None
    assert len(found[1]) == len(losses) == 3
    assert found.groups()[1:] == (f"{losses[0]:.2f}", f"{losses[-1]:.2f}", f"{min(losses):.2f}")


@pytest.mark.parametrize("kind", ["bleu", "loss", "nan"])
def test_the_score_in_json_is_the_one_that_tx_runs_tells(
    kind: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A loss was negative and had no name; one that was no number had three hundred digits, and ended well."""
    if kind == "nan":
        monkeypatch.setattr(Validation, "loss", lambda *_: math.nan)
    chosen = f"training={{max_steps: 3, validate_every: 1, best_by: {'bleu' if kind == 'bleu' else 'loss'}}}"
    assert train([["le chat dort", "the cat sleeps"]], "--set", chosen, "--json") == (6 if kind == "nan" else 0)
    said = capfd.readouterr()
    assert tx("runs", "--json") == 0
    listed = json.loads(capfd.readouterr().out)
    if kind == "nan":
        assert listed["score"] is None
        assert "validation at step 3: the loss is not a finite number" in said.err
        return
    told = json.loads(said.out)
    assert (told["score_name"], told["score"]) == (listed["score_name"], listed["score"])
    assert told["score_name"] == ("BLEU" if kind == "bleu" else "loss")
    assert told["score"] >= 0


@pytest.mark.parametrize(
    ("runs_as", "on_path", "typed"),
    [
        (".venv/bin/tx", False, ".venv/bin/tx"),
        (".venv/bin/tx", True, "tx"),
        ("/a b/tx", False, "'/a b/tx'"),
        ("pytest", False, "tx"),
    ],
)
def test_a_command_to_type_names_a_program_that_is_found(runs_as, on_path, typed, monkeypatch):
    """`to go on: tx train` in `scripts/demo` was no command."""
    from transformer_cli.cli import train

    monkeypatch.setattr("sys.argv", [runs_as])
    monkeypatch.setattr("shutil.which", lambda name: "/bin/tx" if on_path else None)
    assert train.program() == typed


@pytest.mark.parametrize("given", ["0.0001", "0:00:01", "0-0:00:1", "1e-4"])
def test_what_has_no_more_time_is_saved_and_says_how_to_go_on(given: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--max-time", given, "--set", "training.max_steps=1000000")
    assert train([["le chat dort", "the cat sleeps"]], *options) == 128 + signal.SIGUSR1
    told = capfd.readouterr().err
    spelled = "0 s" if given[1] in ".e" else "1 s"
    assert f"training.max_hours, {spelled}, is nearly over: stopped after step" in told
    assert re.search(rf"tx train -c mine.yaml .* --max-time {given}$", told, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "hours"), [("11.5", 11.5), ("11:30:00", 11.5), ("1-11:30:00", 35.5), ("2", 2.0), ("0:45:36", 0.76)]
)
def test_time_is_given_in_hours_or_as_slurm_has_it(text: str, hours: float) -> None:
    assert hours_of(text) == pytest.approx(hours, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "0:00:00",
        "nan",
        "inf",
        "1:30",
        "1:60:00",
        "90m",
        "1-2",
        "1:2:3:4",
        "1_0",
        " 5",
        "5\n",
        "٥",
        "9" * 400,
        "9" * 400 + ":0:0",
    ],
)
def test_what_is_no_time_is_refused(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("train", "-c", "tiny.yaml", "--max-time", text) == 2
    told, shown = capfd.readouterr().err, text if len(text) < 40 else f"{text[:20]}...{text[-10:]}"
    hint = "for example 11.5, which are hours, or 11:30:00; 0:05:00 are five minutes"
    assert told == f"error: {shown!r} is no time\n  hint: {hint}\n"
