"""The wheel works without the repository: installed elsewhere, run from elsewhere, with its presets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from transformer_cli import __version__, needs

REPOSITORY = Path(__file__).parents[1]


def run(*command, cwd):
    """stdout of a command that knows nothing of the repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, REPOSITORY, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin directory of a virtual environment with the wheel; the dependencies are borrowed from this one."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=venv)
    (site_packages,) = (venv / "lib").glob("python*/site-packages")
    # Lines of a .pth file extend the path, but .pth files found there, such as our editable install's, are not read.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin"


def test_what_is_cited_is_this_version():
    assert f"\nversion: {__version__}\n" in (REPOSITORY / "CITATION.cff").read_text("utf-8")


def test_the_oldest_versions_of_extras_are_those_that_tx_asks_for():
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for package, (extra, oldest) in needs.EXTRAS.items():
        assert f"{package}>={oldest}" in extras[extra]
        assert f"{package}>={oldest}" in extras["dev"]


@pytest.mark.parametrize("path", ["Dockerfile", "scripts/versions"])
def test_whoever_installs_all_extras_leaves_none_out(path):
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert f"[{','.join(sorted(extras.keys() - {'dev'}))}]" in (REPOSITORY / path).read_text("utf-8")


def test_the_wheel_holds_every_module_and_preset_and_the_licence(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "transformer_cli").rglob("*.py")}
    presets = {f"transformer_cli/configs/{path.name}" for path in (REPOSITORY / "configs").glob("*.*")}
    parts = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "transformer_cli").rglob("page/*.*")}
    code = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "transformer_cli").rglob("cpp/*.*")}
    assert parts
    assert code
    tables = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "transformer_cli").rglob("*.yaml")}
    assert names >= modules | presets | parts | code | tables
    assert all(name.startswith(("transformer_cli/", f"transformer_cli-{__version__}.dist-info/")) for name in names)
    assert f"transformer_cli-{__version__}.dist-info/licenses/LICENSE" in names


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="this is not a clone")
def test_the_source_distribution_is_the_repository(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=REPOSITORY)
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY).split("\n"))
    assert names - {"PKG-INFO"} == tracked - {"", ".ci/run"}


def test_installed_elsewhere_tx_trains_translates_and_knows_its_version(installed, tmp_path):
    assert run(installed / "tx", "--version", cwd=tmp_path).startswith(f"tx {__version__}, Python ")
    where = run(installed / "python", "-c", "import transformer_cli; print(transformer_cli.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent))
    small = ["data.phrasebook.n_pairs=1000", "training.best_by=loss", "training.validation_bleu=false"]
    overrides = [f"--set={setting}" for setting in [*small, "training.max_steps=2", "threads=1"]]
    result = run(installed / "tx", "train", "-c", "tiny.yaml", "--json", "--quiet", *overrides, cwd=tmp_path)
    assert json.loads(result)["steps"] == 2
    translation = run(installed / "tx", "translate", "ich mochte ein bier", cwd=tmp_path)
    assert translation.count("\n") == 1


def test_every_dependency_is_pinned_for_the_set_up():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    constraints = (REPOSITORY / "scripts" / "constraints.txt").read_text("utf-8")
    pinned = {line.partition("==")[0].lower() for line in constraints.split("\n") if "==" in line}
    assert {name.partition(">=")[0].lower() for name in asked} <= pinned
