"""The documentation is what the program says, and it is a site whose links all lead somewhere."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

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


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """The site of a folder; whatever is suspicious in it is an error."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_site_is_built_and_asks_nobody_else_for_anything(tmp_path):
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").glob("**/index.html"))
    assert len(pages) == len(list(DOCS.glob("**/*.md")))
    asked = re.compile(r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=[\"']?(https?://[^\"' >]+)")
    assert {page.name: asked.findall(page.read_text("utf-8")) for page in pages} == {page.name: [] for page in pages}


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    (tmp_path / "docs" / "index.md").write_text("# tx\n\n[nowhere](nowhere.md)\n", "utf-8")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "page does not exist" in done.stderr
