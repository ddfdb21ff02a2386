"""The map in CONTRIBUTING.md is the house as it stands."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def mapped():
    """The modules that the map names, by path; indentation says in which folder."""
    tree = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8").split("```\nconfigs/")[1].split("```")[0]
    folders, modules = [], set()
    for line in tree.split("\n"):
        depth = (len(line) - len(line.lstrip())) // 2
        if match := re.match(r" *(\w+)/", line):
            folders[depth:] = [match[1]]
        else:
            names = re.findall(r"\w+\.py\b", line)
            modules |= {"/".join([*folders[:depth], name]) for name in names}
    return modules


def test_every_module_is_on_the_map_and_nothing_else():
    modules = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "transformer_cli").rglob("*.py")
        if path.name != "__init__.py" or path.parent.name == "transformer_cli"
    }
    assert mapped() == modules
