"""What is translated for the sake of scores: a run's own test sets, or files; and that it is."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli import console
from transformer_cli.cli.live import progress_bar
from transformer_cli.cli.results import SPLIT, Tally
from transformer_cli.errors import DataError, ResourceError, TxError
from transformer_cli.files import check_file, shown, write_json
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.config.data import DataConfig, Directed, Direction
    from transformer_cli.data.corpus import Corpus
    from transformer_cli.decoding.texts import TextTranslator
    from transformer_cli.evaluation.report import System


@dataclass(frozen=True)
class TestSet:
    """What is translated, where that is known, and what it should say.

    counts: lines that reading had to change, by file and reason. is_own: tx wrote the text itself, without capitals.
    to: the language, where a model knows several. languages: of source and reference, "" where nobody knows. files:
    what its lines are of, where that is more than its name says.
    """

    name: str
    source: Sequence[str] | None
    references: list[list[str]]
    counts: Mapping[str, Mapping[str, int]]
    is_own: bool = False
    to: str | None = None
    languages: tuple[str, str] = ("", "")
    files: str = ""

    @property
    def pairs_of(self) -> str:
        """Whose lines are meant where pairs are looked at."""
        return self.files or self.name

    @property
    def sha256(self) -> str:
        """Of its text, as of any other."""
        from transformer_cli.data.corpus import Corpus

        return Corpus(self.source or [], [line for reference in self.references for line in reference]).sha256


def tell_repeated(references: Iterable[str]) -> None:
    """Of which scores seem to be of more references than there are."""
    for path, n in Counter(references).items():
        if n > 1:
            console.warn(f"--reference {path} is given {n} times: signatures count each, and it is one")


def read_text(source: str, references: Sequence[str], to: str | None) -> TestSet:
    """Files, refused before anything is translated unless they match line by line."""
    from transformer_cli.data.corpus import read_parallel

    read = read_parallel([source, *references])
    tell_repeated(references)
    return TestSet(
        name=Path(source).name,
        source=read[source].lines,
        references=[read[reference].lines for reference in references],
        counts={path: lines.counts for path, lines in read.items()},
        to=to,
    )


def own_texts(opened: KnownRun, data: DataConfig, to: str | None, *, valid: bool) -> list[TestSet]:
    """A run's own test sets, or what it is validated with: in every direction, or in those into one language."""
    from transformer_cli.tokenizer import wanted

    with console.pulse.doing(f"reading the {'validation' if valid else 'test'} text"):
        found = list(_validation(opened, data) if valid else _tests(opened, data))
    if to is not None:
        wanted(to, sorted({str(text.to) for text in found}))
    return [text for text in found if to in (None, text.to)]


def _tests(opened: KnownRun, data: DataConfig) -> Iterator[TestSet]:
    from transformer_cli.config.data import COMBINATIONS, PHRASEBOOK
    from transformer_cli.data.corpus import load_tests

    try:
        tests = load_tests(data)
    except DataError as failure:
        if any(map(_is_gone, data.tests.values())):
            failure.hint = "where it lies now: --set data.test=PREFIX, or --source and --reference"
        raise
    if not tests:
        others = "; --valid scores the validation text" if data.validated or data.held_out is not None else ""
        raise DataError(
            f"{opened.path} has no test set",
            hint=f"name one with --set data.test=PREFIX, or give --source and --reference{others}",
        )
    for name, one in data.tests.items():
        yield _of_run(name, tests[name], one.direction, is_own=one.text in (PHRASEBOOK, COMBINATIONS))


def _validation(opened: KnownRun, data: DataConfig) -> Iterator[TestSet]:
    """Also what is held out of the training text, which no file has. DataError where it is another text by now."""
    from transformer_cli.config.data import PHRASEBOOK
    from transformer_cli.data.corpus import load_validation
    from transformer_cli.data.mixture import by_direction
    from transformer_cli.training.directory import check_text

    if (corpus := load_validation(data)) is None:
        raise DataError(
            f"{opened.path} has no validation text: it was not trained here", hint="give --source and --reference"
        )
    check_text(opened.path, opened.record.get("data", {}), {"valid": corpus})
    books = [one.text == PHRASEBOOK for one in data.validated] or [data.is_phrasebook]
    ways = {said: text for said, text in by_direction(corpus).items() if len(text)}  # a share may have none of one
    for said, text in ways.items():
        direction = said or data.directions[0]
        name = f"valid/{direction}" if len(ways) > 1 else "valid"
        yield _of_run(name, text, direction, is_own=all(books))


def _of_run(name: str, corpus: Corpus, direction: Direction, *, is_own: bool) -> TestSet:
    return TestSet(
        name,
        corpus.source,
        [list(corpus.target)],
        {name: corpus.counts},
        is_own=is_own,
        to=direction.target,
        languages=(direction.source, direction.target),
    )


def is_own(opened: KnownRun, result: Mapping[str, Any], asked: Directed) -> bool:
    """Whether a result is of the run's own text of that name: which lies where it did, or has the same content as far
    as anybody knows that. asked: the text that was read."""
    own = opened.config.data.tests.get(result["set"])
    if own is None or own.direction != asked.direction:
        return False
    if own == asked:
        return True
    if _is_gone(own):
        return opened.record.get("scores", {}).get(result["set"], result).get("sha256") == result["sha256"]
    with suppress(DataError):
        texts = {text.name: text.sha256 for text in _tests(opened, opened.config.data)}
        return texts[result["set"]] == result["sha256"]
    return False


def _is_gone(way: Directed) -> bool:
    """Whether it was in files, and none of them is where it was."""
    from transformer_cli.data.corpus import side_files

    try:
        return not any(map(os.path.exists, side_files(way) or [os.curdir]))
    except DataError:
        return False


def refuse_nothing(texts: Iterable[TestSet]) -> None:
    if names := [text.name for text in texts if not text.source]:
        have = "has" if len(names) == 1 else "have"
        raise DataError(f"there is nothing to translate: {', '.join(names)} {have} no lines")


def translate(text: TestSet, translator: TextTranslator, search: dict[str, Any]) -> tuple[System, Tally]:
    """The translated text, and what happened to its lines."""
    from transformer_cli.evaluation.report import System

    lines, translator = text.source or [], translator.towards(text.to)
    start = time.perf_counter()
    with progress_bar(f"translating {text.name}", len(lines)) as progress:
        found = translator.translate_all(lines, **search, progress=progress)
    seconds = time.perf_counter() - start
    console.say(f"{text.name}: {counted(len(found), 'lines')} translated in {seconds:.1f} s")
    tally = Tally()
    tally.add(found)
    tally.tell({})
    return System(text.name, [one.text for one in found], [one.flags for one in found]), tally


def refuse_lines(translated: Iterable[tuple[str, Tally, TextTranslator]]) -> None:
    """When all are scored, DataError where lines of any were refused, each by the name that is given here."""
    found = [(f"{name}: {said}", by) for name, tally, by in translated if (said := tally.refusal(by.max_source_length))]
    if found:
        splits = all(by.config.long == "split" for _, by in found)
        raise DataError("\n".join(said for said, _ in found), hint=None if splits else SPLIT)


def _is_still(opened: KnownRun) -> bool:
    """Whether the run is the one that was opened, by its weights, or, where training has deleted them, its settings."""
    from transformer_cli.checkpoints.manifest import MODEL, read_manifest
    from transformer_cli.checkpoints.record import read_config

    try:
        if opened.checkpoint.exists():
            return read_manifest(opened.checkpoint).files[MODEL] == opened.manifest.files[MODEL]
        return read_config(opened.path) == opened.config
    except TxError:
        return False


def keep(opened: KnownRun, results: Sequence[dict[str, Any]], how: dict[str, Any]) -> None:
    """Write the scores of the run's own test sets into its run.json, and how they were translated; of somebody else's
    run, which may not be written to, it is said that they are not kept."""
    from transformer_cli.checkpoints.record import read_record

    if not results:
        return
    path = opened.path / "run.json"
    try:
        check_file(path)
    except ResourceError as failure:
        console.warn(f"the scores are not kept: {failure.message}")
        return
    if not _is_still(opened):
        console.warn(f"the scores are not kept: {shown(opened.path)} was replaced by another run meanwhile")
        return
    record = read_record(opened.path)
    kept, now = record.setdefault("scores", {}), opened.checkpoint_name
    others = sorted({kept.get(result["set"], {}).get("checkpoint", now) for result in results} - {now})
    for result in results:
        brief = {key: result[key] for key in ("set", "lines", "sha256", "scores", "truncated", "counts")}
        kept[result["set"]] = {"checkpoint": now, **how, **brief}
    write_json(path, record)
    replaced = f", in place of those of {' and '.join(others)}" if others else ""
    console.say(f"kept in {shown(path)}: {', '.join(result['set'] for result in results)} by {now}{replaced}")
