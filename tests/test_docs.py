"""The documentation is what the program says, and it is a site whose links all lead somewhere."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"


def test_the_pages_that_are_generated_are_what_the_program_says(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for path, text in runpy.run_path(str(REPOSITORY / "scripts" / "pages"))["pages"]().items():
        assert path.read_text("utf-8") == text, f"scripts/pages writes {path.name}"


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"[\w/-]+\.md", str(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md"))


def defined(path: Path) -> set[str]:
    """What a file defines: functions, classes, and methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {node.name, *(f"{node.name}.{one.name}" for one in inner if isinstance(one, ast.FunctionDef))}
    return found


def test_the_lines_of_the_papers_equations_are_where_the_page_says():
    page = (DOCS / "how-it-works.md").read_text("utf-8")
    table = page.split("## From the paper to the lines\n\n")[1].split("\n\n")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[2:4]] for row in table.split("\n")[2:]]
    assert len(rows) > 10
    for names, [file] in rows:
        assert {*names} <= defined(REPOSITORY / "transformer_cli" / file), file


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """The site of a folder; whatever is suspicious in it is an error."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it, as `zensical build` makes it."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_the_site_is_built_and_asks_nobody_else_for_anything(site):
    pages = list(site.glob("**/index.html"))
    assert len(pages) == len(list(DOCS.glob("**/*.md")))
    asked = re.compile(r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=[\"']?(https?://[^\"' >]+)")
    assert {page.name: asked.findall(page.read_text("utf-8")) for page in pages} == {page.name: [] for page in pages}


def test_what_is_copied_of_commands_is_neither_their_prompt_nor_what_they_print(site, browser):
    """With its `$` none works when it is pasted. The button of a block takes its text while it has that attribute."""
    browser.open(site / "index.html")
    assert browser.run(
        "const code = document.querySelector('pre code'); code.setAttribute('data-md-copying', '');"
        "return code.innerText.trimEnd()"
    ).split("\n") == ["scripts/demo", "source .venv/bin/activate", 'tx translate -c tiny.yaml "ich mochte ein bier"']


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    (tmp_path / "docs" / "index.md").write_text("# tx\n\n[nowhere](nowhere.md)\n", "utf-8")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "page does not exist" in done.stderr
