"""The piece that a source begins with where a model translates into several languages: which one is wanted.

Johnson et al. 2017, "Google's Multilingual Neural Machine Translation System", section 3. It is a control symbol of the
SentencePiece model: no text is ever cut into it, not even one that reads `<2en>`.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformer_cli.config.names import shorten
from transformer_cli.errors import UsageError
from transformer_cli.wording import listed


def tag_of(language: str) -> str:
    """The name of its piece."""
    return f"<2{language}>"


def wanted(language: str | None, targets: Sequence[str], usual: str | None = None) -> str:
    """The language to translate into, of those that a model knows: the one that is asked for, or the only one.

    usual: the one that is meant where none is asked for. Raises UsageError, naming them all, for another one, and for
    none where there are several.
    """
    language = usual if language is None else language
    if language is None:
        if len(targets) > 1:
            raise unsaid(targets)
        return targets[0]
    if language not in targets:
        raise UsageError(
            f"this model does not translate into {shorten(str(language))!r}, but into {listed(targets, 'or')}",
            hint=f"--to {targets[0]}",
        )
    return language


def unsaid(targets: Sequence[str]) -> UsageError:
    """What to raise where nobody said into which of these languages."""
    return UsageError(
        f"this model translates into {listed(targets, 'or')}: say which", hint=f"for example --to {targets[0]}"
    )
