"""The piece that a source begins with where a model translates into several languages: which one is wanted.

Johnson et al. 2017, "Google's Multilingual Neural Machine Translation System", section 3. It is a control symbol of the
SentencePiece model: no text is ever cut into it, not even one that reads `<2en>`.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformer_cli.config.names import shorten
from transformer_cli.errors import UsageError


def tag_of(language: str) -> str:
    """The name of its piece."""
    return f"<2{language}>"


def wanted(language: str | None, targets: Sequence[str], usual: str | None = None) -> str:
    """The language to translate into, of those that a model knows: the one that is asked for, or the only one.

    usual: the one that is meant where none is asked for. Raises UsageError, naming them all, for another one, and for
    none where there are several.
    """
    language = usual if language is None else language
    named = " or ".join(filter(None, [", ".join(targets[:-1]), *targets[-1:]]))
    if language is None and len(targets) > 1:
        raise UsageError(f"this model translates into {named}: say which", hint=f"for example --to {targets[0]}")
    if language is not None and language not in targets:
        raise UsageError(
            f"this model does not translate into {shorten(str(language))!r}, but into {named}",
            hint=f"--to {targets[0]}",
        )
    return targets[0] if language is None else language
