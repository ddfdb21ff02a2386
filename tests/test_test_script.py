"""scripts/test brings a browser and shells where it may, and only there; on a machine of our making, whose tools do
nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def run(tmp_path):
    """run(user id, CI, programs there): what apt-get was asked for, and how the script ended."""
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(shutil.which(name))

    def program(path, text="exit 0"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    program(tmp_path / "scripts" / "setup")
    for name in ("ruff", "mypy", "python"):
        program(tmp_path / ".venv" / "bin" / name)

    def run_script(user, *, ci, there=(), apt="exit 0", **variables):
        program(programs / "id", f"echo {user}")
        program(programs / "apt-get", f'echo "$*" >>"{tmp_path}/asked"; {apt}')
        for name in there:
            program(programs / name)
        environment = {"PATH": str(programs), **({"CI": "true"} if ci else {}), **variables}
        done = subprocess.run(["bash", "scripts/test"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        asked = tmp_path / "asked"
        return asked.read_text() if asked.exists() else "", done

    return run_script


NEEDED = ("chromedriver", "g++", "zsh", "fish")


@pytest.mark.parametrize(
    ("there", "packages"),
    [
        ((), "chromium chromium-driver g++ zsh fish"),
        (("g++", "zsh", "fish"), "chromium chromium-driver"),
        (("chromedriver", "fish"), "g++ zsh"),
    ],
)
def test_in_ci_root_gets_what_is_missing(run, there, packages):
    asked, done = run(0, ci=True, there=there)
    assert asked == f"update\ninstall -y --no-install-recommends {packages}\n"
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("user", "ci", "there"), [(0, False, ()), (1000, True, ()), (0, True, NEEDED)])
def test_elsewhere_nothing_is_installed(run, user, ci, there):
    asked, done = run(user, ci=ci, there=there)
    assert asked == ""
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_installed_fails_the_run_after_the_tests(run):
    _, done = run(0, ci=True, there=("g++", "zsh", "fish"), apt="exit 100")
    assert done.returncode == 1
    assert "failed: chromium chromium-driver" in done.stderr
    assert "pytest: " in done.stderr


def test_what_a_process_compiles_is_kept_for_the_others(run, tmp_path):
    (tmp_path / ".venv/bin/python").write_text('#!/bin/bash\necho "${PYTHONDONTWRITEBYTECODE-kept}"\n')
    _, done = run(1000, ci=False, PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout == "kept\n"
