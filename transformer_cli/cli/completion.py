"""What a shell is told of that could be typed next: the library's completion, and what its scripts lack."""

from __future__ import annotations

from typing import Any

from typer import _completion_shared as shared

ASKED = "_TX_COMPLETE"
"""Set by the script that `--install-completion` installs."""
_CALL = """
if [[ "${funcstack[1]}" == "_%(prog_name)s" ]]; then %(complete_func)s "$@"; fi
"""
_RETURN = "    return 0\n"
_QUOTE = """    local i
    if [[ ${COMP_WORDS[COMP_CWORD]} != [\\'\\"]* ]]; then
        for i in "${!COMPREPLY[@]}"; do printf -v "COMPREPLY[$i]" %%q "${COMPREPLY[i]}"; done
    fi
    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
"""


def mend() -> None:
    """Let the script for zsh call what it defines: zsh reads it at the first Tab, which did nothing. Let the one for
    bash quote a name with a space, and end a setting where its value begins."""
    scripts = getattr(shared, "_completion_scripts", {})
    if "zsh" in scripts and not scripts["zsh"].endswith(_CALL):
        scripts["zsh"] += _CALL
    if "bash" in scripts and _QUOTE not in scripts["bash"]:
        scripts["bash"] = scripts["bash"].replace(_RETURN, _QUOTE + _RETURN)


def answer(program: Any, asked: str) -> int:
    """What the shell asked for; the exit code."""
    from typer.completion import shell_complete

    return shell_complete(program, {}, "tx", ASKED, asked)
