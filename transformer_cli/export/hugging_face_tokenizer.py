"""The tokenizer in Hugging Face's terms: Marian's, which hands text to SentencePiece and looks pieces up."""

from __future__ import annotations

from pathlib import Path

from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.files import create_file, write_json
from transformer_cli.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary


def write_tokenizer(run: OpenedRun, place: Path, *, longest: int) -> None:
    """Its models, vocabularies and settings. longest: the most pieces of a line."""
    tokenizer, data = run.tokenizer, run.config.data
    sides = {"source": tokenizer.source, "target": tokenizer.target}
    for name, vocabulary in sides.items():
        with create_file(place / f"{name}.spm") as file:
            file.write(vocabulary.model)
    write_json(place / "vocab.json", _ids(tokenizer.source))
    if not tokenizer.shares_ids:
        write_json(place / "target_vocab.json", _ids(tokenizer.target))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not tokenizer.shares_ids,
        "source_lang": data.source,
        "target_lang": data.target,
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNK],
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "split_special_tokens": True,  # a `</s>` in a text is text
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }
    write_json(place / "tokenizer_config.json", settings)


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {vocabulary.piece(id): id for id in range(vocabulary.size)}
