"""One SentencePiece model (Kudo & Richardson 2018): text to piece ids and back, and how a text is cut at random.

Ids here never hold marks: `<s>` and `</s>` are added by whoever makes a batch or searches. What a user types is plain
text, `</s>` included. Two characters are not: "▁" (U+2581) is how SentencePiece writes a space, so in raw text it is
one, and with `nfkc` runs of white space become one space.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import sentencepiece

from transformer_cli import files
from transformer_cli.errors import ModelError
from transformer_cli.tokenizer.sampling import Sampler

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""The names of the first four ids, for every tokenizer of this program."""

LINE_ENDS = ("<0x0A>", "<0x0D>")
"""Byte pieces that would break a line."""
MAX_MODEL_BYTES = 1 << 29
FEW_LINES = 16
"""SentencePiece starts threads for a list of lines: as many are done before those have begun."""

sentencepiece.set_min_log_level(2)  # what it has to say reaches the user as an error or in a report of ours


class Vocabulary:
    """One SentencePiece model: text to piece ids and back."""

    n_threads: ClassVar[int] = -1
    """That read a list of lines: as many as there are processors, or fewer."""

    def __init__(self, model: bytes, *, name: str = "the SentencePiece model", mark: str | None = None) -> None:
        """model: the serialised protobuf. name: what an error calls it. mark: the control symbol that every text begins
        with, as the language's in models of many languages.

        Raises ModelError where it isn't a model, where pad, unk, bos, eos aren't 0, 1, 2, 3, or it has no such mark.
        """
        self.model, self.name = model, name
        self._processor = processor_of(model, name)
        _check_specials(self._processor, name)
        self.mark = mark
        self.mark_id = None if mark is None else self.id_of_mark(mark)

    @property
    def size(self) -> int:
        """Pieces, specials included."""
        return int(self._processor.get_piece_size())

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    @property
    def given(self) -> tuple[int, ...]:
        """What every text begins with and no model chooses: the id of its mark, if it has one."""
        return () if self.mark_id is None else (self.mark_id,)

    @cached_property
    def names(self) -> list[str]:
        """Of all pieces, by id."""
        return list(self._processor.id_to_piece(list(range(self.size))))

    @cached_property
    def banned_ids(self) -> tuple[int, ...]:
        """What a translation must never contain: unk, control symbols but eos and its own mark, and whatever would
        break a line."""
        ids, processor = list(range(self.size)), self._processor
        kinds = zip(processor.is_unknown(ids), processor.is_control(ids), processor.is_byte(ids), strict=True)
        return tuple(
            id
            for id, name, (is_unknown, is_control, is_byte) in zip(ids, self.names, kinds, strict=True)
            if is_unknown or is_control or (name in LINE_ENDS if is_byte else "\n" in name or "\r" in name)
            if id not in (EOS, self.mark_id)
        )

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, after its mark if there is one; an unknown character is UNK, a line of white space may have
        none."""
        encoded = self.unmarked(lines)
        return encoded if self.mark_id is None else [ids and [self.mark_id, *ids] for ids in encoded]

    def unmarked(self, lines: Sequence[str] | Sequence[bytes]) -> list[list[int]]:
        """The same without its mark. Bytes are UTF-8."""
        encode = self._processor.encode
        if len(lines) <= FEW_LINES:
            return [encode(line, out_type=int) for line in lines]
        encoded: list[list[int]] = encode(list(lines), out_type=int, num_threads=self.n_threads)
        return encoded

    def pieces(self, lines: Sequence[str]) -> list[list[str]]:
        """The same, readable: `▁` is a space; what has no piece of its own appears as it was typed."""
        cut: list[list[str]] = self._processor.encode(list(lines), out_type=str, num_threads=self.n_threads)
        return cut if self.mark is None else [pieces and [self.mark, *pieces] for pieces in cut]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence; control symbols vanish, UNK becomes " ⁇ ". IndexError for an id that isn't there."""
        texts = [str(self._processor.decode([int(id) for id in sequence])) if len(sequence) else "" for sequence in ids]
        # Of blanks that are bytes, as models of whole words have them, SentencePiece takes none for the one in front.
        texts = [
            (text[1:] if text.startswith("▁") and self._begins_in_bytes(sequence) else text).replace("▁", " ")
            for text, sequence in zip(texts, ids, strict=True)
        ]
        return [text.removesuffix(" ") for text in texts] if self._is_suffix else texts

    def _begins_in_bytes(self, ids: Sequence[int]) -> bool:
        """Whether the first that is no mark is a byte, of a text that has a blank put in front."""
        first = next((int(id) for id in ids if not self._processor.is_control(int(id))), UNK)
        return bool(self._processor.is_byte(first)) and self._is_prefix

    def piece(self, id: int) -> str:
        return str(self._processor.id_to_piece(id))

    def sample(
        self, lines: Sequence[str], *, rate: float, key: str, names: Sequence[object] | None = None
    ) -> list[list[int]]:
        """Ids of each line, cut differently for every key: BPE-dropout (Provilkov et al. 2020) or unigram sampling.

        rate: the chance to skip a merge, or the unigram model's alpha; 0 is `encode`. key: names the draw. names: of
        the lines, or their indices. A line's ids depend on (rate, key, its name, its text) and nothing else.
        In any process: the generator is Python's, whose draws do not change between versions.
        Raises ModelError for models of whole words.
        """
        if rate == 0:
            return self.encode(lines)
        seeds = [f"{key} {name}" for name in (range(len(lines)) if names is None else names)]
        sampled = self._sampler.sample(lines, rate=rate, seeds=seeds)
        return sampled if self.mark_id is None else [ids and [self.mark_id, *ids] for ids in sampled]

    @cached_property
    def _is_prefix(self) -> bool:
        """Whether `▁` comes before the first word, too."""
        return str(self._processor.normalize("a")).startswith("▁")

    @cached_property
    def _is_suffix(self) -> bool:
        """Whether `▁` comes behind a word; SentencePiece then leaves a space behind the last one."""
        return bool(self._processor.encode("a", out_type=str)[-1].endswith("▁"))

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.model)

    def id_of_mark(self, mark: str) -> int:
        """Of a control symbol; ModelError where there is none of this name."""
        id = int(self._processor.piece_to_id(mark))
        if id >= len(SPECIALS) and self._processor.is_control(id):
            return id
        if id >= len(SPECIALS):
            raise ModelError(
                f"{self.name} has {mark} as a piece of text, and a mark is none",
                hint=f"make it one where the model is trained: `spm_train --control_symbols={shlex.quote(mark)} ...`",
            )
        raise ModelError(f"{self.name} has no mark {mark}")


def read_vocabulary(path: Path, *, sha256: str | None = None, mark: str | None = None) -> Vocabulary:
    """A model file, of the content that `sha256` names if given. mark: see Vocabulary."""
    if path.is_file() and path.stat().st_size > MAX_MODEL_BYTES:
        raise ModelError(f"{files.shown(path)} is larger than any SentencePiece model")
    again = "copy the whole directory again; a run cannot be used with another tokenizer than its own"
    model = files.read_bytes(path, error=ModelError, hint=None if sha256 is None else again)
    if sha256 is not None and hashlib.sha256(model).hexdigest() != sha256:
        raise ModelError(f"{files.shown(path)} is damaged: its content is not what was saved there", hint=again)
    return Vocabulary(model, name=files.shown(path), mark=mark)


def processor_of(model: bytes, name: str) -> Any:
    """SentencePiece with a model, whatever its ids; ModelError where it is none."""
    if not model:
        raise ModelError(f"{name} is empty")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        processor.id_to_piece(list(range(processor.get_piece_size())))
        return processor
    except UnicodeDecodeError:
        reason = "a piece is not UTF-8"
    except RuntimeError as failure:
        reason = _reason(failure)
    raise ModelError(f"{name} is not a SentencePiece model, or a damaged one: {reason}")


def _check_specials(processor: Any, name: str) -> None:
    found = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    if found != [PAD, UNK, BOS, EOS]:
        listed = ", ".join(
            f"{special} {'missing' if id < 0 else id}"
            for special, id in zip(("pad", "unk", "bos", "eos"), found, strict=True)
        )
        raise ModelError(
            f"{name} has other special ids than this program: expected pad 0, unk 1, bos 2, eos 3; found {listed}",
            hint="train it with `spm_train --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3 ...`",
        )


def _reason(failure: RuntimeError) -> str:
    """SentencePiece's message without the place in its source."""
    text = str(failure).strip()
    return text.split("] ", 1)[1] if "] " in text else text or type(failure).__name__
