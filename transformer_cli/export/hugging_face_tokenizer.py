"""The tokenizer in Hugging Face's terms: Marian's, which hands text to SentencePiece and looks pieces up; M2M100's for
texts that begin with one of its marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.export.languages import LANGUAGES, MODEL
from transformer_cli.files import create_file, write_json
from transformer_cli.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer, Vocabulary, tag_of


def write_tokenizer(run: OpenedRun, place: Path, *, longest: int) -> None:
    """Its models, vocabularies and settings. longest: the most pieces of a line."""
    tokenizer = run.tokenizer
    settings = _of_marked_text(tokenizer, place) if tokenizer.target.mark else _of_plain_text(run, place)
    settings |= {
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNK],
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "split_special_tokens": True,  # a `</s>` in a text is text
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }
    write_json(place / "tokenizer_config.json", settings)


def languages_of(tokenizer: Tokenizer) -> tuple[str, int] | None:
    """Which of M2M100's lists of languages the marks are of, and the first's id; None where they are of no list."""
    ids = _ids(tokenizer.source)
    for name, codes in LANGUAGES.items():
        marks = [f"__{code}__" for code in codes.split()]
        found = [ids.get(mark, 0) for mark in marks]
        if found == list(range(found[0], found[0] + len(marks))) and {tokenizer.source.mark, tokenizer.target.mark} <= {
            *marks
        }:
            return name, found[0]
    return None


def _of_plain_text(run: OpenedRun, place: Path) -> dict[str, Any]:
    tokenizer = run.tokenizer
    for name, vocabulary in {"source": tokenizer.source, "target": tokenizer.target}.items():
        with create_file(place / f"{name}.spm") as file:
            file.write(vocabulary.model)
    write_json(place / "vocab.json", {code_of(piece, tokenizer): id for piece, id in _ids(tokenizer.source).items()})
    if not tokenizer.shares_ids:
        write_json(place / "target_vocab.json", _ids(tokenizer.target))
    return {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not tokenizer.shares_ids,
        "source_lang": run.config.data.directions[0].source,
        "target_lang": run.config.data.directions[0].target,
    }


def code_of(piece: str, tokenizer: Tokenizer) -> str:
    """A tag as MarianTokenizer looks for it at the beginning of a text; another piece as it is."""
    language = next((language for language in tokenizer.tags if tag_of(language) == piece), None)
    return piece if language is None else f">>{language}<<"


def _of_marked_text(tokenizer: Tokenizer, place: Path) -> dict[str, Any]:
    """M2M100's marks of languages follow the pieces of its list."""
    listed = languages_of(tokenizer)
    assert listed, "HuggingFace.refusals has seen to it"
    name, first = listed
    with create_file(place / MODEL) as file:
        file.write(tokenizer.source.model)
    write_json(place / "vocab.json", {piece: id for piece, id in _ids(tokenizer.source).items() if id < first})
    sides = (tokenizer.source, tokenizer.target)
    marks = [str(side.mark) for side in sides]
    return {
        "tokenizer_class": "M2M100Tokenizer",
        "language_codes": name,
        "src_lang": marks[0].strip("_"),
        "tgt_lang": marks[1].strip("_"),
        "added_tokens_decoder": {  # no text, each with the id that it has anyway
            str(side.mark_id): {"content": side.mark, "special": True, "normalized": False} for side in sides
        },
    }


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: id for id, piece in enumerate(vocabulary.names)}
