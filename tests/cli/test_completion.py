"""Completion as a person meets it: installed and used in a shell that believes to be on a terminal."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from transformer_cli.cli import app, completion, console, failures

pty = pytest.importorskip("pty", reason="no terminals of this kind here")
PATIENCE_S = 60
PROMPT = r"[#$%>] ?$"
_DRIVING = re.compile(rb"\x1b(\[[0-9;?=>]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[=>]|[()][B0])")


class Shell:
    """A shell on a terminal of its own, what was typed to it, and what it showed."""

    def __init__(self, name: str, folder: Path) -> None:
        home, path = str(folder / "home"), f"{folder / 'bin'}:{os.environ['PATH']}"
        environment = {"HOME": home, "PATH": path, "TERM": "xterm", "LANG": "C.UTF-8", "ZDOTDIR": home}
        self.shown = b""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe(name, [name, "-i"], environment)
        self.wait_for(PROMPT)

    def type(self, text: str) -> None:
        self.shown = b""
        os.write(self.terminal, text.encode())

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, text := _DRIVING.sub(b"", self.shown).decode("utf-8", "replace").rstrip("\r\n")):
            assert time.monotonic() < deadline, f"no {pattern!r} in {text!r}"
            if select.select([self.terminal], [], [], 1)[0]:
                new = os.read(self.terminal, 65536)
                if b"\x1b[c" in new or b"\x1b[0c" in new:  # fish asks what the terminal is, and waits
                    os.write(self.terminal, b"\x1b[?62c")
                self.shown += new

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.process, 0)


@pytest.fixture
def started(tmp_path):
    """Starts a shell whose home is empty at first, and where `tx` is this one."""
    program = tmp_path / "bin" / "tx"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from transformer_cli.cli.app import run\nrun()\n",
        "utf-8",
    )
    program.chmod(0o755)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".zshrc").touch()  # without one, zsh asks a newcomer about it
    shells: list[Shell] = []

    def start(name: str) -> Shell:
        shells.append(Shell(name, tmp_path))
        return shells[-1]

    yield start
    for shell in shells:
        shell.close()


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options_once_that_is_installed(started, name):
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    first = started(name)
    first.type("tx --install-completion\r")
    first.wait_for(rf"{name} completion installed")
    shell = started(name)
    shell.type("tx toke\t--deco\t--hel\t\r")
    shell.wait_for(r"Show text as pieces and ids;")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("tx evaluate -m runs/m\t|", r"-m runs/my\\ run \|"),
        ("tx evaluate -m runs/my\\ r\t|", r"-m runs/my\\ run \|"),
        ("tx evaluate -m 'runs/m\t|", r"-m 'runs/my run' \|"),
        ("tx evaluate -m runs/o\t|", r"-m runs/o_th\\\|er \|"),
        ("tx evaluate --set evaluation.metr\t|", r"evaluation\.metrics=\|"),
    ],
)
def test_bash_completes_to_one_word_and_a_setting_to_where_its_value_begins(started, tmp_path, typed, shown):
    """`runs/my run` were two words, `runs/o_th|er` a pipe, and a blank stood between a setting and its value."""
    for name in ("my run", "o_th|er"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    shell = started("bash")
    shell.type('eval "$(tx --show-completion bash)"; echo re""ady\r')
    shell.wait_for("ready")
    shell.type(typed)
    shell.wait_for(shown)


@pytest.mark.parametrize(("asked", "beats"), [(None, 1), ("complete_bash", 0)])
def test_nothing_is_drawn_into_the_line_that_is_completed(monkeypatch, asked, beats):
    """Where that took long, `working 0:00` stood in the middle of what was typed."""
    started = []
    if asked:
        monkeypatch.setenv(completion.ASKED, asked)
    for place, name, value in (
        (console, "has_cursor", lambda: True),
        (console.pulse, "start", lambda: started.append(1)),
        (console, "open_streams", lambda: None),
        (failures, "exit_code", lambda work: 0),
        (app, "leave", lambda code: None),
    ):
        monkeypatch.setattr(place, name, value)
    app.run()
    assert len(started) == beats
