"""scripts/setup, with a Python that only writes down what it is asked to install."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
CUDA = ["filelock", 'cuda-toolkit==13.0.3; platform_system == "Linux"', "nvidia-nccl-cu13==2.29"]
TOOLS = ["bash", "cat", "cksum", "cp", "dirname", "mkdir", "rm", "tee", "uname"]

PYTHON = """#!/bin/bash
# A Python 3.11 whose pip installs nothing.
case "$*" in
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*--report*) cat report.json ;;
*"-m pip install"*) echo "${*#* install }" >>installed.log; [ ! -e offline ] ;;
-c*) exec REAL "$@" ;;
esac
"""


class Clone:
    """A copy of what scripts/setup needs, on a machine of our making."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        shutil.copytree(REPOSITORY / "scripts", folder / "scripts")
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        self.program("python3", PYTHON.replace("REAL", sys.executable))
        self.program("nvidia-smi", "#!/bin/bash\nexit 9\n")
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name))
        self.index_offers(CUDA)

    def program(self, name, text):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def index_offers(self, requirements):
        metadata = {"name": "torch", "version": "2.13.0", "requires_dist": requirements}
        (self.folder / "report.json").write_text(json.dumps({"install": [{"metadata": metadata}]}))

    def setup(self, *arguments, **environment):
        """The lines of what was installed, and what was said. The machine's own Pythons stay out of sight."""
        log = self.folder / "installed.log"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", str(self.folder / "scripts" / "setup"), *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.folder), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, log.read_text().split("\n")[:-1] if log.exists() else [], done.stderr


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_without_a_gpu_pytorch_comes_from_its_cpu_index_and_the_rest_does_not(clone):
    code, installed, said = clone.setup()
    assert code == 0, said
    assert [CPU_INDEX in line for line in installed] == [True, False, False]
    assert all("-c scripts/constraints.txt" in line for line in installed)
    assert installed[0].endswith("--no-deps --index-url https://download.pytorch.org/whl/cpu torch==2.13.0")
    assert installed[-1].endswith("--no-build-isolation --editable .")


def test_where_the_configured_index_offers_a_cpu_build_that_one_is_taken(clone):
    clone.index_offers(["filelock", "sympy"])
    _, installed, _ = clone.setup()
    assert installed[0].endswith("constraints.txt torch==2.13.0")


@pytest.mark.parametrize("machine", ["nvidia-smi", "uname"])
def test_with_a_gpu_or_on_a_mac_the_ordinary_wheel_is_taken(clone, machine):
    clone.program(machine, "#!/bin/bash\necho Darwin\n")
    code, installed, said = clone.setup()
    assert code == 0, said
    assert installed[0].endswith("constraints.txt torch==2.13.0")


@pytest.mark.parametrize(("forbidden", "asked"), [("", "--no-compile"), ("1", "--compile")])
def test_pip_compiles_only_where_python_may_not_keep_what_it_compiles(clone, forbidden, asked):
    _, installed, _ = clone.setup(PYTHONDONTWRITEBYTECODE=forbidden)
    assert [asked in line.split() for line in installed] == [True] * 3


def test_what_is_done_is_not_done_again_until_a_pin_changes(clone):
    assert clone.setup("dev")[1][-1].endswith("--editable .[dev]")
    assert clone.setup("dev") == (0, [], "")
    assert clone.setup() == (0, [], "")
    with open(clone.folder / "scripts" / "constraints.txt", "a") as file:
        file.write("new==1\n")
    assert len(clone.setup()[1]) == 3
    assert len(clone.setup("dev")[1]) == 3


def test_an_installation_that_failed_is_shown_and_tried_again(clone):
    (clone.folder / "offline").touch()
    code, installed, said = clone.setup()
    assert (code, len(installed)) == (1, 1)
    assert "PyTorch 2.13.0 for the CPU ... failed after" in said
    assert "--log .venv/pip.log" in installed[0]
    assert said.endswith("  hint: all that pip tried is in .venv/pip.log; the same command goes on from here.\n")
    (clone.folder / "offline").unlink()
    assert clone.setup()[0] == 0


def test_a_python_that_is_too_old_is_passed_over_for_one_that_is_not(clone):
    clone.program("python3.12", (clone.bin / "python3").read_text())
    clone.program("python3", "#!/bin/bash\nexit 1\n")
    assert clone.setup()[0] == 0


def test_without_a_python_that_is_new_enough_it_says_what_to_install(clone):
    clone.program("python3", "#!/bin/bash\nexit 1\n")
    code, installed, said = clone.setup()
    assert (code, installed) == (1, [])
    assert "no Python 3.11 or newer found (tried: python3 python3.14" in said
    assert "hint: Install one" in said
    assert "tried: /my/python" in clone.setup(PYTHON="/my/python")[2]


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/setup", "scripts/test", "scripts/get_corpus", ".ci/run"])
def test_every_script_can_be_run(script):
    assert os.access(REPOSITORY / script, os.X_OK)


def test_on_a_terminal_a_step_that_takes_a_while_shows_that_it_goes_on():
    """PyTorch takes a quarter of a minute to install; a pipe gets one line, as it was."""
    steps = f"source {REPOSITORY}/scripts/lib/steps; step waiting sleep 2.5; step failing false"
    piped = subprocess.run(["bash", "-c", steps], capture_output=True, encoding="utf-8", check=False)
    assert (piped.returncode, piped.stderr.split("\n")[0].rstrip("0123456789 s")) == (1, "waiting ...")
    terminal, other = pty.openpty()
    shown = subprocess.run(["bash", "-c", steps], stderr=other, check=False)
    os.close(other)
    said = ""
    with suppress(OSError):  # how a terminal ends that nobody writes to any more
        while part := os.read(terminal, 4096):
            said += part.decode()
    os.close(terminal)
    assert shown.returncode == 1
    assert re.fullmatch(r"waiting \.\.\. (\. )+\d s\r\nfailing \.\.\. failed after \d s\r\n\r\n", said), said
