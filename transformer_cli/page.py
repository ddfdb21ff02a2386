"""A page that is one HTML file: it asks for nothing, from the network or from the disk, and looks like all of ours.

Its own parts lie in a folder, one file per concept; page/ has those that every page begins with. The browser may run
and wear exactly these, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

SHARED = Path(__file__).with_name("page")
_COMMENTS = re.compile(r"^[ \t]*(?://.*|/\*\*.*\*/)\n", re.MULTILINE)
POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"


class Page:
    """A template, page.html, with a place such as {{title}} for each text; page.css; and scripts, in the order in which
    each may use what came before."""

    def __init__(self, folder: Path, scripts: Sequence[str]) -> None:
        self.folder, self.scripts = folder, scripts

    @cached_property
    def script(self) -> str:
        """Without the comments that stand on lines of their own, which are for whoever reads the parts."""
        parts = (SHARED / "dom.js", *(self.folder / f"{s}.js" for s in self.scripts))
        return _COMMENTS.sub("", "\n".join(map(_read, parts)))

    @cached_property
    def style(self) -> str:
        return "\n".join(_read(path) for path in (SHARED / "look.css", self.folder / "page.css"))

    @cached_property
    def hashes(self) -> tuple[str, str]:
        """Of the script and the style: what a page that has this one in a frame must allow, too."""
        return _hash(self.script), _hash(self.style)

    def filled(self, **texts: str) -> str:
        """The whole file. texts: HTML, or JSON of `data`, for the places of the template."""
        script, style = self.hashes
        parts = {"policy": POLICY.format(script=script, style=style), "script": self.script, "style": self.style}
        parts |= texts
        # In one pass, so that no text is ever taken for a place to fill.
        return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read(self.folder / "page.html"))


def data(value: object) -> str:
    """JSON that ends no script element and no line: what HTML could read as markup is escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
