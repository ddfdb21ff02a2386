"""M2M100's and NLLB's tokenizers: one SentencePiece model for all languages, and a mark for each of them.

A source begins with the mark of its language. A translation begins with that of the end, then with its language's. A
run has one pair of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.errors import ModelError
from transformer_cli.tokenizer.renumbering import Model

MODEL = "sentencepiece.bpe.model"
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
"""Of M2M100's tokenizers, in the order of their marks, which follow the pieces of the list."""
NLLB_MARK = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
NLLB_FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""The first ids of NLLB's, before the pieces in the order of the model."""
SAID = {"source": "src_lang", "target": "tgt_lang"}


@dataclass(frozen=True)
class Multilingual:
    """A tokenizer of many languages.

    ids: of the pieces, there. marks: of each language. said: the settings of the tokenizer.
    """

    model: Model
    ids: dict[str, int]
    marks: dict[str, str]
    said: Mapping[str, Any]

    def language(self, side: str, asked: Mapping[str, str]) -> str | None:
        """Of a side: the one that is asked for, or that the tokenizer was saved with."""
        return asked.get(side) or self.said.get(SAID[side])

    def refusals(self, asked: Mapping[str, str]) -> Iterator[str]:
        """Every reason why this pair cannot be."""
        if self.said.get("legacy_behaviour"):
            yield "legacy_behaviour: sources there end in the mark of their language; tx begins with it"
        if not self.marks:
            yield "its languages are not known: copy tokenizer.json or special_tokens_map.json, too"
        for side in SAID if self.marks else ():
            found = self.language(side, asked)
            if found not in self.marks:
                close = difflib.get_close_matches(found or "", self.marks, n=3) or list(self.marks)[:3]
                yield (
                    f"--set data.{side}={found or '...'} has to be one of its {len(self.marks):,} languages, such as "
                    f"{', '.join(close)}"
                )


def multilingual(place: Path) -> Multilingual | None:
    """The tokenizer of a directory; None where it is another one. ModelError where it is damaged."""
    path = place / MODEL
    if not path.is_file():
        return None
    model = Model(files.read_bytes(path, error=ModelError), name=files.shown(path))
    said = settings_in(place / "tokenizer_config.json")
    if (place / "vocab.json").is_file():
        ids = settings_in(place / "vocab.json")
        n, codes = len(ids), LANGUAGES.get(str(said.get("language_codes", "m2m100")), "").split()
        marks = {code: f"__{code}__" for code in codes}
        return Multilingual(model, ids | {mark: n + i for i, mark in enumerate(marks.values())}, marks, said)
    ids = {piece: id for id, piece in enumerate([*NLLB_FIRST, *model.pieces])}
    found = _added(place, len(ids), said)
    return Multilingual(model, ids | found, {mark: mark for mark in found}, said)


def _added(place: Path, first: int, said: dict[str, Any]) -> dict[str, int]:
    """The marks of NLLB's languages and their ids, which follow those of the pieces."""
    tokens = settings_in(place / "tokenizer.json").get("added_tokens")
    listed = settings_in(place / "special_tokens_map.json") | said
    names = listed.get("additional_special_tokens") or listed.get("extra_special_tokens") or []
    try:
        if isinstance(tokens, list):
            named = {token["content"]: token["id"] for token in tokens}
        else:
            named = {name: first + n for n, name in enumerate(names)}
        return {name: id for name, id in named.items() if NLLB_MARK.fullmatch(name)}
    except (KeyError, TypeError):
        raise ModelError(
            f"{files.shown(place)}: the added tokens of its tokenizer are damaged; each has a name and a number",
            hint="copy tokenizer.json and tokenizer_config.json again",
        ) from None


def settings_in(path: Path) -> dict[str, Any]:
    """Of a JSON file; none where there is no such file. ModelError where it holds something else."""
    found = files.read_json(path, error=ModelError) if path.exists() else {}
    if not isinstance(found, dict):
        raise ModelError(f"{files.shown(path)} is damaged: it holds no names", hint="copy it again")
    return found
