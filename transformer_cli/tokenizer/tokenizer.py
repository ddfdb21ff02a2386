"""What both sides of a run speak: one vocabulary, or two; saved with the run, known by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from transformer_cli import files
from transformer_cli.errors import ModelError
from transformer_cli.tokenizer.renumbering import with_marks
from transformer_cli.tokenizer.tags import tag_of, unsaid, wanted
from transformer_cli.tokenizer.vocabulary import SPECIALS, Vocabulary, read_vocabulary

JOINT_FILE, SOURCE_FILE, TARGET_FILE = "spm.model", "source.model", "target.model"
DESCRIPTION_FILE = "tokenizer.json"


class Tokenizer:
    """What both sides of a run speak: one vocabulary for both (joint), or one per side."""

    def __init__(self, source: Vocabulary, target: Vocabulary | None = None, *, tags: Iterable[str] = ()) -> None:
        """target: None where the source's vocabulary serves both sides. tags: of these languages; a source begins with
        one of them. ModelError where the source's vocabulary does not have them all."""
        self.source = source
        self.target = source if target is None else target
        self.joint = target is None
        self.tags = {language: source.id_of_mark(tag_of(language)) for language in tags}
        """The id of each."""

    def towards(self, language: str) -> Tokenizer:
        """The same for sources that are to be translated into this one of its languages; where it has tags, each source
        begins with that one."""
        if not self.tags:
            return self
        source = Vocabulary(self.source.model, mark=tag_of(wanted(language, [*self.tags])))
        return Tokenizer(source, self.target, tags=self.tags)

    @property
    def source_size(self) -> int:
        return self.source.size

    @property
    def target_size(self) -> int:
        return self.target.size

    @cached_property
    def shares_ids(self) -> bool:
        """Whether an id is the same piece on both sides, be it that each side cuts text by a model of its own."""
        return self.joint or self.source.names == self.target.names

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model, or of both in order: equal for tokenizers that are the same, byte for byte."""
        digest = hashlib.sha256()
        for vocabulary in self.models().values():
            digest.update(len(vocabulary.model).to_bytes(8, "big"))
            digest.update(vocabulary.model)
            digest.update((vocabulary.mark or "").encode())
        for tag in self.tags:
            digest.update(f"\n{tag}".encode())
        return digest.hexdigest()

    @property
    def banned_target_ids(self) -> tuple[int, ...]:
        """Ids that a translation must never contain; see Vocabulary.banned_ids."""
        return self.target.banned_ids

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """UsageError where nobody said into which of several languages; see `towards`."""
        if self.tags and self.source.mark is None:
            raise unsaid([*self.tags])
        return self.source.encode(lines)

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        return self.target.encode(lines)

    def decode_source(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.source.decode(ids)

    def decode_target(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.target.decode(ids)

    def sample_source(
        self,
        lines: Sequence[str],
        *,
        rate: float,
        seed: int,
        epoch: int,
        places: Sequence[int] | None = None,
        copies: Sequence[int] = (),
    ) -> list[list[int]]:
        """Ids of each line in this epoch's draw of subwords. places: of the lines in the text; else from 0 on. copies:
        how many times the epoch had each before; else never. See Vocabulary.sample."""
        names = _names(places, copies)
        return self.source.sample(lines, rate=rate, key=f"source {seed} {epoch}", names=names)

    def sample_target(
        self,
        lines: Sequence[str],
        *,
        rate: float,
        seed: int,
        epoch: int,
        places: Sequence[int] | None = None,
        copies: Sequence[int] = (),
    ) -> list[list[int]]:
        """See sample_source."""
        names = _names(places, copies)
        return self.target.sample(lines, rate=rate, key=f"target {seed} {epoch}", names=names)

    def check_sampling(self, rate: float) -> None:
        """ModelError where text is to be cut at random, and cannot be."""
        for vocabulary in self.models().values():
            vocabulary.sample([], rate=rate, key="")

    def save(self, directory: str | Path) -> None:
        """Write the model or models, then the description that makes them count.

        Raises ResourceError where the disk refuses.
        """
        directory = Path(directory)
        for name, vocabulary in self.models().items():
            with files.atomic_file(directory / name) as file:
                file.write(vocabulary.model)
        marks = [vocabulary.mark for vocabulary in self.models().values()]
        description = {
            "format": 1,
            "joint": self.joint,
            "specials": dict(zip(SPECIALS, range(4), strict=True)),
            "pieces": {"source": self.source_size, "target": self.target_size},
            "sha256": {name: vocabulary.sha256 for name, vocabulary in self.models().items()},
            "fingerprint": self.fingerprint,
            **({"marks": marks} if any(marks) else {}),
            **({"tags": list(self.tags)} if self.tags else {}),
        }
        files.write_json(directory / DESCRIPTION_FILE, description)

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer that `save` wrote; ModelError where it is missing, damaged or not what it was."""
        directory = Path(directory)
        path = directory / DESCRIPTION_FILE
        hint = "`tx tokenize -c CONFIG` trains the tokenizer of a run"
        description = files.read_json(path, error=ModelError, hint=hint)
        try:
            names = [JOINT_FILE] if description["joint"] else [SOURCE_FILE, TARGET_FILE]
            hashes = [description["sha256"][name] for name in names]
            marks = [mark and str(mark) for mark in description.get("marks", [None] * len(names))]
            known = [*zip(names, hashes, marks, strict=True)]
            tags = [str(language) for language in description.get("tags", [])]
        except (KeyError, TypeError, ValueError):
            raise ModelError(f"{files.shown(path)} does not describe a tokenizer", hint=hint) from None
        sides = (read_vocabulary(directory / name, sha256=sha256, mark=mark) for name, sha256, mark in known)
        return cls(*sides, tags=tags)

    def models(self) -> dict[str, Vocabulary]:
        """The SentencePiece model or models, by the names of their files."""
        if self.joint:
            return {JOINT_FILE: self.source}
        return {SOURCE_FILE: self.source, TARGET_FILE: self.target}


def _names(places: Sequence[int] | None, copies: Sequence[int]) -> Sequence[object] | None:
    """Of lines in a draw of subwords."""
    if places is None or not any(copies):
        return places
    return [f"copy {copy} {place}" if copy else place for copy, place in zip(copies, places, strict=True)]


def read_tokenizer(source: str | Path, target: str | Path | None = None, *, tags: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer out of existing SentencePiece models, the tags of these languages added to its sources' where they
    are not there yet; ModelError where one cannot be used, saying why."""
    first, *others = (read_vocabulary(Path(path)) for path in (source, target) if path is not None)
    return with_tags(Tokenizer(first, *others), tags)


def with_tags(tokenizer: Tokenizer, languages: Sequence[str]) -> Tokenizer:
    """The same with tags, the last ids of its sources' vocabulary. ModelError where text can be cut into one."""
    source = tokenizer.source
    new = [tag for tag in map(tag_of, languages) if tag not in source.names]
    if new:
        source = Vocabulary(with_marks(source.model, new), name=source.name, mark=source.mark)
    return Tokenizer(source, None if tokenizer.joint else tokenizer.target, tags=languages)
