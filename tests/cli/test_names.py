"""Names of files and runs that nothing can have: refused by every command, in few words, before anything is done."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from transformer_cli.cli import app, help, options
from transformer_cli.config import names
from transformer_cli.errors import ModelError, UsageError

NAMED = [
    (command, next((option for option in parameter.opts if option.startswith("--")), parameter.metavar))
    for command, entry in app.COMMANDS.items()
    for parameter in help.command(command, entry.load()).params
    if parameter.metavar in options.NAMES
]


def test_every_option_that_names_a_file_is_known_by_its_metavar():
    parameters = [one for name, entry in app.COMMANDS.items() for one in help.command(name, entry.load()).params]
    assert {one.metavar for one in parameters} > options.NAMES
    pattern = re.compile(r"(.*_)?(file|files|dir|model|models|config|hypotheses|reference|gold)")
    assert [one.name for one in parameters if pattern.fullmatch(one.name) and one.metavar not in options.NAMES] == []


@pytest.mark.parametrize(("command", "option"), NAMED)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the name is empty"),
        (" ", "the name ' ' is empty"),
        ("x" * 5000, "is too long, with 5,000 characters"),
        ("ä" * 200, "is too long, with 200 characters"),
        ("y/" * 3000, "is too long, with 6,000 characters"),
        ("a\udcff", "has bytes that are not UTF-8"),
        ("circle", "leads round in a circle"),
        ("circle/x", "leads round in a circle"),
    ],
)
def test_a_name_that_nothing_can_have_is_a_usage_error(tmp_path, monkeypatch, command, option, name, reason):
    """`-i ''` was `.`, 5,000 characters were a failure of the machine, and a run named in Latin-1 was a bug of ours."""
    monkeypatch.chdir(tmp_path)
    os.symlink("circle", "circle")
    with pytest.raises(UsageError, match=rf"^{re.escape(option)}: (the name .*)?{reason}") as failure:
        app.main([command, option, name] if option.startswith("--") else [command, name])
    assert len(failure.value.message) < 200
    assert os.listdir() == ["circle"]


@pytest.mark.parametrize("name", ["x" * 255, "~", " x ", "-", "a\nb", "\x1b[31m", "ä" * 127, "y/" * 2047])
def test_a_name_that_is_odd_is_no_worse_than_missing(tmp_path, monkeypatch, name):
    from transformer_cli.config.names import why_impossible

    monkeypatch.chdir(tmp_path)
    assert why_impossible(name) is None
    assert not Path(name).exists()


def test_completion_offers_what_a_shell_and_tx_understand(tmp_path, monkeypatch):
    """One name in Latin-1 among the runs, and Tab did nothing but complain; of one of two lines it offered both."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/good", "runs/a b", "runs/a\nb", "runs/caf\udce9"):
        os.makedirs(name)
    for name in ("my.yaml", "caf\udce9.yaml"):
        Path(name).touch()
    assert options.runs("runs/") == ["runs/a b", "runs/good"]
    assert options.models("my") == ["my.yaml"]
    assert options.models("caf") == []


@pytest.mark.parametrize("path", ["runs/my run", "-y", "a'b", "$HOME", "x\ny", "~", "runs/tiny"])
def test_a_path_in_a_command_to_paste_is_one_word_and_no_option(path):
    [word] = shlex.split(names.typed(path))
    assert not word.startswith("-")
    assert os.path.normpath(word) == path
    assert names.typed("runs/tiny") == "runs/tiny"


def test_a_hint_can_be_pasted_whatever_a_run_is_called(trained_run, monkeypatch):
    monkeypatch.chdir(Path(shutil.copytree(trained_run.parent, "my runs/runs")).parent)
    os.rename("runs/tiny", "runs/tiny, again")
    with pytest.raises(ModelError) as failure:
        app.main(["translate", "ein bier"])
    assert failure.value.hint.endswith("for example -m 'runs/tiny, again'")


def test_text_in_a_folder_that_is_not_utf8_is_told_by_its_path(tmp_path, monkeypatch):
    """The name that was called so was `corpus/train`, as it is written."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match=re.escape(r"bytes that are not UTF-8: /")) as failure:
        app.main(["train", "-c", "tiny.yaml", "--set", "data.train=corpus/train", "--set", "data.valid=1%"])
    assert r"caf\udce9/corpus/train.de" in failure.value.message
