"""What a shell is told of that could be typed next: the library's completion, and what its script for zsh lacks."""

from __future__ import annotations

from typing import Any

from typer import _completion_shared as shared

ASKED = "_TX_COMPLETE"
"""Set by the script that `--install-completion` installs."""
_CALL = """
if [[ "${funcstack[1]}" == "_%(prog_name)s" ]]; then %(complete_func)s "$@"; fi
"""


def mend_zsh() -> None:
    """Let the script for zsh call what it defines: zsh reads it at the first Tab, which did nothing."""
    scripts = getattr(shared, "_completion_scripts", {})
    if "zsh" in scripts and not scripts["zsh"].endswith(_CALL):
        scripts["zsh"] += _CALL


def answer(program: Any, asked: str) -> int:
    """What the shell asked for; the exit code."""
    from typer.completion import shell_complete

    return shell_complete(program, {}, "tx", ASKED, asked)
