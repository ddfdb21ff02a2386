"""Which run and which checkpoint is meant, and what to type when there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.checkpoints.find import (
    Default,
    default_run,
    find_checkpoint,
    find_run,
    list_checkpoints,
    run_of,
    step_name,
    step_of,
)
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ModelError


@pytest.fixture
def runs(tmp_path):
    """Two runs, the second the latest; the first has a best that is not its last."""
    for name, steps in {"first": [5, 10], "second": [7]}.items():
        for step in steps:
            folder = Path("runs", name, "checkpoints", step_name(step))
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
        Path("runs", name, "last").write_text(step_name(steps[-1]) + "\n")
    Path("runs/first/best").write_text(step_name(5) + "\n")
    Path("runs/latest").write_text("second\n")
    return Path("runs")


def message_of(*arguments, **options):
    with pytest.raises(ModelError) as caught:
        find_checkpoint(*arguments, **options)
    assert caught.value.exit_code == 4
    return f"{caught.value.message} | {caught.value.hint}"


def test_links_lead_to_the_run_however_they_are_spelled(runs, tmp_path, monkeypatch):
    """The same link was one to a run or to none, by the number of folders in its name."""
    whole = (tmp_path / "runs/first").resolve()
    Path("cp").symlink_to(whole / "checkpoints" / step_name(5))
    Path("a/b").mkdir(parents=True)
    for name in ("cp", "a/b/../../cp", str(tmp_path / "cp"), f"{whole}/checkpoints/{step_name(5)}"):
        assert run_of(Path(name)).resolve() == whole
    (runs / "second/checkpoints").rename("elsewhere")
    (runs / "second/checkpoints").symlink_to(tmp_path / "elsewhere")
    for place, name in ((".", "runs/second"), ("runs/second", "."), ("runs", "second"), ("a/b", "../../runs/second")):
        monkeypatch.chdir(tmp_path / place)
        assert run_of(find_checkpoint(name)).resolve() == (tmp_path / "runs/second").resolve()


def test_nothing_means_the_latest_run(runs):
    Path("runs/second/best").write_text(step_name(7) + "\n")
    assert default_run() == Default(runs / "second", passed_over=None, n_runs=2)
    assert find_checkpoint(None) == runs / "second/checkpoints" / step_name(7)


def test_a_run_that_was_never_validated_is_not_taken_while_another_was(runs):
    """An aborted run became the latest, and said "the the the" to everything."""
    assert default_run() == Default(runs / "first", passed_over=runs / "second", n_runs=2)
    assert find_checkpoint(None) == runs / "first/checkpoints" / step_name(5)


def test_of_several_that_were_validated_the_last_one_saved_is_taken(runs):
    shutil.copytree(runs / "first", runs / "a")
    shutil.copytree(runs / "first", runs / "z")
    for seconds, name in enumerate(("z", "first", "a")):
        os.utime(runs / name / "best", (seconds, seconds))
    assert default_run() == Default(runs / "a", passed_over=runs / "second", n_runs=4)


def test_where_none_was_validated_the_latest_is_taken_with_its_last(runs):
    Path("runs/first/best").unlink()
    assert default_run() == Default(runs / "second", passed_over=None, n_runs=2)
    assert find_checkpoint(None) == runs / "second/checkpoints" / step_name(7)


def test_a_latest_run_that_lies_elsewhere_is_counted_too(runs, tmp_path):
    shutil.copytree(runs / "first", tmp_path / "elsewhere" / "x")
    (runs / "latest").write_text("../elsewhere/x\n")
    assert default_run() == Default(runs / "../elsewhere/x", passed_over=None, n_runs=3)


def test_a_run_means_its_best_checkpoint(runs):
    assert find_checkpoint("runs/first") == runs / "first/checkpoints" / step_name(5)


def test_without_pointers_the_newest_complete_checkpoint_counts(runs):
    (runs / "first/best").unlink()
    (runs / "first/last").unlink()
    assert find_checkpoint("runs/first").name == step_name(10)


def test_a_checkpoint_directory_means_itself_from_wherever_it_is_named(runs, monkeypatch):
    path = runs / "first/checkpoints" / step_name(10)
    run = (runs / "first").resolve()
    assert find_checkpoint(str(path)) == path
    assert find_run(str(path)) == runs / "first"
    for folder, name in [
        (path, "."),
        (path.parent, path.name),
        (path.parent.parent, f"../first/checkpoints/{path.name}"),
    ]:
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            assert find_checkpoint(name).resolve().name == path.name
            assert find_run(name).resolve() == run


def test_a_configuration_means_the_run_that_it_names(runs):
    assert find_checkpoint(None, config=RunConfig(name="first")).name == step_name(5)
    assert find_checkpoint("runs/second", config=RunConfig(name="first")).name == step_name(7)


def test_a_configuration_that_was_never_trained_says_how_to_train_it(runs):
    message = message_of(None, config=RunConfig(name="third"), config_path="conf/third.yaml")
    assert "conf/third.yaml has not been trained" in message
    assert "tx train -c conf/third.yaml" in message
    assert "tx train -c third.yaml" in message_of(None, config=RunConfig(name="third"))


def test_where_nothing_was_ever_trained_the_error_is_the_command_to_type(tmp_path):
    nothing = (
        "there is no trained model in runs/ | "
        "train one: tx train -c tiny.yaml; or name one that lies elsewhere: -m FOLDER/runs/NAME"
    )
    assert message_of(None) == nothing
    Path("runs/empty").mkdir(parents=True)
    assert message_of(None) == nothing


@pytest.mark.parametrize("name", ["runs/thrid", "nowhere", "runs", "runs/latest"])
def test_a_wrong_name_is_answered_with_the_runs_that_there_are(runs, name):
    message = message_of(name)
    assert message.startswith(f"{name} ")
    assert "runs/first, runs/second" in message
    assert message.endswith("name one, for example runs/second")  # `tx compare` has no -m


def test_a_latest_run_that_is_gone_is_not_replaced_by_another(runs):
    shutil.rmtree(runs / "second")
    assert "runs/latest names the run 'second', which is not there" in message_of(None)
    (runs / "latest").unlink()
    assert "runs/latest does not exist | there is runs/first" in message_of(None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda latest: latest.symlink_to("second"), "runs/latest is not a file"),
        (lambda latest: latest.symlink_to("nowhere"), "is a symbolic link to 'nowhere', which does not exist"),
        (lambda latest: latest.mkdir(), "runs/latest is not a file"),
        (lambda latest: latest.write_bytes(b"\xff"), "runs/latest is not UTF-8: byte 0"),
        (lambda latest: latest.write_text(""), "runs/latest is empty: it should name a run"),
        (lambda latest: latest.write_bytes(b" \r\n"), "runs/latest is empty: it should name a run"),
        (lambda latest: latest.write_bytes(b"gone \r\n"), "runs/latest names the run 'gone', which is not there"),
        (lambda latest: latest.write_text(".\n"), "runs/latest names the run '.', which is no run"),
    ],
)
def test_whatever_is_wrong_with_the_latest_run_is_said_with_the_runs_that_there_are(runs, make, words):
    """`-m` was not offered, and a folder that was no run was to be taken by it."""
    (runs / "latest").unlink()
    make(runs / "latest")
    message = message_of(None)
    assert f"{words} | there is runs/first, runs/second: name one, for example -m runs/second" in message


def test_the_file_that_names_the_latest_run_is_told_from_it(runs):
    """As the shell has it for `tx plot runs/*`, it was only neither a run nor a checkpoint."""
    told = "runs/latest is no run, but a file that names one: 'second' | there is runs/first, runs/second: name one"
    assert message_of("runs/latest").startswith(told)


def test_a_link_that_leads_nowhere_is_there(runs):
    """It "does not exist", in a listing that shows it."""
    Path("link").symlink_to("gone")
    assert message_of("link").startswith("link is a symbolic link to 'gone', which does not exist | there is runs/")
    (runs / "first/best").unlink()
    (runs / "first/best").symlink_to("gone")
    assert "best is a symbolic link to 'gone', which does not exist | there is step-" in message_of("runs/first")


@pytest.mark.parametrize("name", ["sp ", " sp", "a\nb"])
def test_the_latest_run_is_known_by_its_whole_name(runs, name):
    """`runs/sp ` was looked for as `runs/sp`."""
    (runs / "first/best").unlink()
    (runs / "second").rename(runs / name)
    (runs / "latest").write_text(f"{name}\n")
    assert find_run(None) == Path("runs") / name


@pytest.mark.parametrize("written", ["%s\r\n", "%s \n", "%s\n\n", "%s", "\ufeff%s\t\r\n", " %s\n"])
def test_names_are_read_as_editors_leave_them(runs, written):
    """With CRLF, a run 'first\\r' was not there."""
    (runs / "latest").write_bytes((written % "first").encode())
    (runs / "first/best").write_bytes((written % "step-00000005").encode())
    assert find_checkpoint(None) == Path("runs/first/checkpoints/step-00000005")


def test_a_run_without_a_checkpoint_says_so(runs):
    (runs / "third/tokenizer").mkdir(parents=True)
    (runs / "third/config.yaml").write_text("")
    began = "the `tx train` that began it goes on"
    assert message_of("runs/third") == f"runs/third has no checkpoint yet | {began}"


def test_a_best_checkpoint_deleted_by_hand_is_not_replaced_by_another_in_silence(runs):
    """T21."""
    shutil.rmtree(runs / "first/checkpoints" / step_name(5))
    message = message_of("runs/first")
    assert "runs/first/best names step-00000005, which is not there" in message
    assert f"name one, for example runs/first/checkpoints/{step_name(10)}" in message


def test_a_checkpoint_that_is_being_replaced_is_there(runs):
    """A run that was killed between had none, by all but `tx train`, and was to be trained again."""
    folder = runs / "second/checkpoints"
    (folder / step_name(7)).rename(folder / f"before-{step_name(7)}")
    assert find_checkpoint("runs/second") == folder / f"before-{step_name(7)}"
    assert list_checkpoints(runs / "second") == [folder / f"before-{step_name(7)}"]
    (folder / step_name(7)).mkdir()
    (folder / step_name(7) / "manifest.json").write_text("{}")
    assert find_checkpoint("runs/second") == folder / step_name(7)
    assert list_checkpoints(runs / "second") == [folder / step_name(7)]


@pytest.mark.parametrize("text", ["", "../../etc", "step-5", "step-00000005 step-00000010", "\x1b[31m"])
def test_a_pointer_that_names_no_checkpoint_is_refused(runs, text):
    (runs / "first/best").write_text(text)
    message = message_of("runs/first")
    assert "runs/first/best should name a checkpoint" in message
    assert message.isprintable()


def test_without_its_manifest_a_checkpoint_does_not_exist(runs):
    (runs / "first/checkpoints" / step_name(10) / "manifest.json").unlink()
    assert [path.name for path in list_checkpoints(runs / "first")] == [step_name(5)]


@pytest.mark.parametrize("step", [0, 9, 10, 99_999_999, 100_000_000, 10**12])
def test_a_step_survives_its_name(step):
    assert step_of(step_name(step)) == step


@pytest.mark.parametrize(
    "name", ["step-1", "step-000000001", "step--0000001", "step-0000000a", ".tmp-step-00000001-ab"]
)
def test_names_that_are_not_ours_have_no_step(name):
    assert step_of(name) is None


def test_finding_does_not_import_torch():
    program = "import sys, transformer_cli.checkpoints.find; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
