"""Learn a tokenizer from text, and report how it went."""

from __future__ import annotations

import io
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sentencepiece

from transformer_cli.config.tokenizer import SideVocabSizes, TokenizerConfig
from transformer_cli.errors import ConfigError, DataError
from transformer_cli.tokenizer.losses import LINES_WITH_UNKNOWN, Unknown, lacking
from transformer_cli.tokenizer.renumbering import on_grid
from transformer_cli.tokenizer.tokenizer import Tokenizer, read_tokenizer, with_tags
from transformer_cli.tokenizer.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from transformer_cli.writing import separated, unspaced_script

MAX_LINE_BYTES = 10_000
"""Longer lines are not learned from."""
MAX_PIECE_BYTES = 7_900
"""SentencePiece makes longer ones of words, and refuses its own model then (7,997 with 0.2.3)."""
MOST_BY_NFKC = 33
"""Bytes that it makes of one character (U+FDFA)."""
MAX_LINES = 500_000
"""Lines per side that are learned from at most; of a larger corpus as many are drawn. SentencePiece holds them all."""
FEW_LINES = 2_000
"""That tell in which script a text is written."""
CHUNK = 8192
"""Lines whose ids lie in memory at a time."""
BLANKS = ("a", "b")
"""A text whose most frequent character is the mark of a blank, which stands before each line."""
RESERVED = "\u2585"
"""SentencePiece skips lines with this character, which it writes for an unknown one."""


@dataclass(frozen=True)
class TokenizerReport:
    """How the training of a tokenizer went."""

    kind: str
    """The configured one; `given` for an existing model."""
    asked: dict[str, int]
    """Pieces asked for, by vocabulary: joint, or source and target."""
    pieces: dict[str, int]
    """Pieces there are, specials included; fewer than asked for where the text has no more."""
    lines_used: int
    """Lines of both sides that were learned from."""
    lines_skipped: dict[str, int]
    """Lines of both sides that were not, by reason."""

    @property
    def fitted(self) -> bool:
        """Whether the vocabulary came out smaller than asked for; of characters there are as many as there are."""
        return self.kind != "char" and any(self.pieces[name] < self.asked[name] for name in self.asked)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"fitted": self.fitted}


def train_tokenizer(
    config: TokenizerConfig, source: Sequence[str], target: Sequence[str], *, seed: int, tags: Sequence[str] = ()
) -> tuple[Tokenizer, TokenizerReport]:
    """The tokenizer that `config` asks for: learned from these lines, or an existing model.

    tags: languages; each has a tag among the pieces of the sources. seed: decides which lines are taken of a corpus
    that is too large to be learned from as a whole.
    The same lines give the same tokenizer, bit for bit, whatever the number of threads or cores.
    Raises ConfigError (a vocabulary that cannot hold the characters), DataError (nothing to learn from), ModelError.
    """
    sides = {"source": source, "target": target}
    skipped: Counter[str] = Counter()
    if config.given:
        tokenizer = read_tokenizer(*config.given, tags=tags)
        tokenizer.check_sampling(config.sampling)
        asked, used = {}, 0
    else:
        asked = _asked(config, n_tags=len(tags))
        usable = {side: usable_lines(lines, skipped, seed=seed, side=side) for side, lines in sides.items()}
        if config.kind == "word":
            usable = {side: _with_short_words(lines, skipped) for side, lines in usable.items()}
        texts = [usable["source"] + usable["target"]] if config.joint else list(usable.values())
        n_tags = (len(tags), 0)  # a side of its own is no source
        sizes = zip(texts, asked.values(), n_tags, strict=False)
        tokenizer = with_tags(Tokenizer(*(Vocabulary(_train(text, config, *size)) for text, *size in sizes)), tags)
        blank = _n_blank(tokenizer.source, usable["source"]) + _n_blank(tokenizer.target, usable["target"])
        skipped["blank"] = blank
        used = sum(len(lines) for lines in usable.values()) - blank
    return tokenizer, TokenizerReport(
        kind="given" if config.given else config.kind,
        asked=asked,
        pieces=_pieces(tokenizer),
        lines_used=used,
        lines_skipped={reason: n for reason, n in skipped.items() if n},
    )


def measured(tokenizer: Tokenizer, source: Sequence[str], target: Sequence[str]) -> dict[str, tuple[float, Unknown]]:
    """By side: pieces per word, words being what white space separates and, where none is written, single letters, zero
    where there is none; and which of the pieces are `<unk>`."""
    return {"source": _measured(tokenizer.source, source), "target": _measured(tokenizer.target, target)}


def _asked(config: TokenizerConfig, *, n_tags: int) -> dict[str, int]:
    if config.joint and isinstance(config.vocab_size, SideVocabSizes):
        raise ConfigError(
            "tokenizer.vocab_size has a number per side, but tokenizer.joint asks for one vocabulary",
            hint="write one number, or `joint: false`",
        )
    source, target = config.asked(n_tags)
    return {"joint": source} if config.joint else {"source": source, "target": target}


def _pieces(tokenizer: Tokenizer) -> dict[str, int]:
    if tokenizer.joint:
        return {"joint": tokenizer.source_size}
    return {"source": tokenizer.source_size, "target": tokenizer.target_size}


def usable_lines(lines: Sequence[str], skipped: Counter[str], *, seed: int, side: str) -> list[str]:
    """The lines that SentencePiece would not skip, in order, drawn where they are many; the rest counted by reason."""
    if len(lines) > MAX_LINES:
        skipped[f"beyond {MAX_LINES:,} lines a side"] += len(lines) - MAX_LINES
        drawn = random.Random(f"tokenizer {side} {seed}").sample(range(len(lines)), MAX_LINES)
        lines = [lines[place] for place in sorted(drawn)]
    usable = []
    for line in lines:
        if not line:
            skipped["empty"] += 1
        elif len(line.encode("utf-8")) > MAX_LINE_BYTES:
            skipped[f"longer than {MAX_LINE_BYTES:,} bytes"] += 1
        elif RESERVED in line:
            skipped["reserved character U+2585"] += 1
        else:
            usable.append(line)
    return usable


def can_be_piece(part: str) -> bool:
    """Whether SentencePiece takes it for one."""
    return "\0" not in part and len(part.encode("utf-8")) <= MAX_PIECE_BYTES


def _with_short_words(lines: Sequence[str], skipped: Counter[str]) -> list[str]:
    """Those of which each word can be a piece."""
    usable = [line for line in lines if all(map(_can_be_word, line.split()))]
    skipped[f"with a word of more than {MAX_PIECE_BYTES:,} bytes"] += len(lines) - len(usable)
    return usable


def _can_be_word(word: str) -> bool:
    return len(word) * MOST_BY_NFKC <= MAX_PIECE_BYTES or can_be_piece(unicodedata.normalize("NFKC", word))


def _train(lines: Sequence[str], config: TokenizerConfig, size: int, n_tags: int) -> bytes:
    """The serialised model. n_tags: how many of the size are left for these."""
    identity, has_bytes = config.normalization == "identity", config.kind == "byte"
    if has_bytes:  # all but one piece are there, whatever the text: whose characters must not take its place
        lines = BLANKS
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="char" if has_bytes else config.kind,
            vocab_size=size - n_tags,
            hard_vocab_limit=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=SPECIALS[PAD],
            unk_piece=SPECIALS[UNK],
            bos_piece=SPECIALS[BOS],
            eos_piece=SPECIALS[EOS],
            required_chars=_required_characters(lines),
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback or has_bytes,
            normalization_rule_name="identity" if identity else "nmt_nfkc",
            remove_extra_whitespaces=not identity,
            max_sentence_length=MAX_LINE_BYTES,
            # The unigram model sums over threads in floating point: with another number, other pieces.
            num_threads=1 if config.kind == "unigram" else 2,
            minloglevel=2,
        )
    except RuntimeError as failure:
        raise _explained(failure, size, n_tags) from None
    return on_grid(model.getvalue()) if config.kind == "unigram" else model.getvalue()


def _required_characters(lines: Sequence[str]) -> str:
    """The letters of `<s>` and its like where text contains them.

    The trainer takes them for boundaries and doesn't see their characters; without this they'd be unknown.
    """
    normalized = [unicodedata.normalize("NFKC", line) for line in lines if any(c in line for c in "<﹤＜")]
    return "".join(sorted({c for special in SPECIALS if any(special in line for line in normalized) for c in special}))


def _explained(failure: RuntimeError, size: int, n_tags: int) -> ConfigError | DataError:
    message = str(failure)
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return ConfigError(
            f"tokenizer.vocab_size: {size} pieces cannot hold the characters of the text and the specials, "
            f"which are {int(too_small[1]) + n_tags:,}",
            hint="raise tokenizer.vocab_size, or lower tokenizer.character_coverage",
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError("the tokenizer has no text to learn from: every line is empty or was skipped")
    return DataError(f"SentencePiece cannot learn from this text: {message}")


def _n_blank(vocabulary: Vocabulary, lines: Sequence[str]) -> int:
    """Lines without a piece, of nothing but white space or what NFKC removes: SentencePiece skips them, too."""
    # No letter and no digit is removed: nearly every line is known to have pieces by its first character.
    doubtful = [line for line in lines if not any(map(str.isalnum, line))]
    return sum(not ids for ids in vocabulary.encode(doubtful))


def is_unspaced(lines: Sequence[str]) -> bool:
    """Whether a text is written without spaces, by its first lines."""
    return unspaced_script("".join(lines[:FEW_LINES])) is not None


def _measured(vocabulary: Vocabulary, lines: Sequence[str]) -> tuple[float, Unknown]:
    words = separated if is_unspaced(lines) else str.split
    n_words = sum(len(words(line)) for line in lines)
    n_tokens = n_unknown = 0
    without: list[str] = []
    for start in range(0, len(lines), CHUNK):
        chunk = lines[start : start + CHUNK]
        encoded = vocabulary.encode(chunk)
        n_tokens += sum(map(len, encoded))
        found = [ids.count(UNK) for ids in encoded]
        n_unknown += sum(found)
        without += [line for line, n in zip(chunk, found, strict=True) if n][: LINES_WITH_UNKNOWN - len(without)]
    unknown = Unknown(n_unknown, n_tokens, lacking(vocabulary, without))
    return n_tokens / n_words if n_words else 0.0, unknown
