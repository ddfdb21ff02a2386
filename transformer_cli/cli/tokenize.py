"""`tx tokenize`: text as pieces and ids, and the training of a tokenizer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import console, options
from transformer_cli.cli.lines import given_lines
from transformer_cli.cli.options import Config, Input, Json, Model, Overrides, Quiet, RunDir, To, Traceback
from transformer_cli.cli.results import refuse_own_input
from transformer_cli.config.names import typed
from transformer_cli.errors import DataError, ModelError, UsageError
from transformer_cli.files import json_line, shown
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.config.run import RunConfig
    from transformer_cli.data.corpus import Corpus
    from transformer_cli.data.lines import Lines
    from transformer_cli.tokenizer import Tokenizer, TokenizerReport, Vocabulary
    from transformer_cli.tokenizer.losses import Unknown

EXAMPLE = 'for example: tx tokenize "thankfulness", or tx tokenize -c tiny.yaml to train a tokenizer'
FEW_LINES, MOST_TYPED = 200, 20
"""Lines of a training text and characters of a word among which an example is looked for."""


def tokenize(
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Lines, one per argument.")] = None,
    input_file: Input = None,
    model: Model = None,
    config: Config = None,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the ids.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="The other way round: from ids to text.")] = False,
    target: Annotated[
        bool, typer.Option("--target", help="Use the target's vocabulary, if each side has its own.")
    ] = False,
    to: To = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Show text as pieces and ids; with a configuration (-c) and no text, train the SentencePiece model of its run.

    Text, a file (-i) or a pipe is split by the tokenizer of the latest run, of the run that -m names, or of a
    configuration's run. Each line becomes a line of pieces, a tab, and ids. `▁` is a space. With --json each line is an
    object with text, pieces and ids. --to shows a source as a model of several languages reads it, with the tag in
    front.

    Examples:
      tx tokenize "thankfulness"
      echo "ich mochte ein bier" | tx tokenize --ids
      tx tokenize -c tiny.yaml --run-dir runs/pieces --set tokenizer.vocab_size=500
    """
    if ids and decode:
        raise UsageError("--ids and --decode are both given", hint="give one of them")
    refuse_own_input(None, None if text else input_file or "-")
    is_asked = text or input_file is not None or ids or decode or target or to is not None
    trains = config is not None and model is None and not is_asked
    lines = given_lines(text, input_file, without="trains a tokenizer" if trains else "")
    if lines is not None and (lines.lines or config is None or is_asked):
        show = _Decoding() if decode else _Cutting(ids_only=ids)
        vocabulary = _vocabulary(model, config, overrides, run_dir, target=target, to=to)
        _show_lines(lines, vocabulary, show, as_json=json_output)
    elif config is not None and trains:
        _train(config, overrides or [], run_dir, as_json=json_output)
    else:
        raise UsageError("there is no text to tokenize", hint=EXAMPLE)


@dataclass(frozen=True)
class _Cutting:
    """Text to pieces and ids."""

    ids_only: bool

    def as_json(self, line: str, vocabulary: Vocabulary, number: int) -> dict[str, object]:
        [pieces], [ids] = vocabulary.pieces([line]), vocabulary.encode([line])
        return {"text": line, "ids": ids} if self.ids_only else {"text": line, "pieces": pieces, "ids": ids}

    def as_text(self, line: str, vocabulary: Vocabulary, number: int) -> str:
        ids = " ".join(map(str, vocabulary.encode([line])[0]))
        return ids if self.ids_only else f"{' '.join(vocabulary.pieces([line])[0])}\t{ids}"


@dataclass(frozen=True)
class _Decoding:
    """Ids to text."""

    def as_json(self, line: str, vocabulary: Vocabulary, number: int) -> dict[str, object]:
        ids = _ids(line, vocabulary.size, number)
        return {"ids": ids, "pieces": [vocabulary.piece(id) for id in ids], "text": vocabulary.decode([ids])[0]}

    def as_text(self, line: str, vocabulary: Vocabulary, number: int) -> str:
        text = str(vocabulary.decode([_ids(line, vocabulary.size, number)])[0])
        if "\n" in text:
            console.warn(f"line {number:,}: the ids of line breaks are shown as spaces")
        return text.replace("\n", " ")


def _show_lines(lines: Lines, vocabulary: Vocabulary, show: _Cutting | _Decoding, *, as_json: bool) -> None:
    for number, line in enumerate(lines.lines, start=1):
        if as_json:
            console.result(json_line(show.as_json(line, vocabulary, number)))
        else:
            console.result(show.as_text(line, vocabulary, number))
    if as_json and lines.counts:
        console.result(json_line({"counts": lines.counts}))
    for reason, n in lines.counts.items():
        console.warn(f"{n:,} x {reason}")


def _ids(line: str, size: int, number: int) -> list[int]:
    ids = []
    for word in line.split():
        if not (word.isascii() and word.isdigit() and len(word) < 19 and int(word) < size):
            raise DataError(
                f"line {number:,}: `{word}` is not an id of this tokenizer, which has 0 to {size - 1}",
                hint='`tx tokenize --ids "some text"` shows what ids look like',
            )
        ids.append(int(word))
    return ids


def _vocabulary(
    model: str | None,
    config: str | None,
    overrides: list[str] | None,
    run_dir: str | None,
    *,
    target: bool,
    to: str | None,
) -> Vocabulary:
    """One side of the tokenizer of the run that is meant."""
    from transformer_cli.checkpoints.find import find_run
    from transformer_cli.config.source import load_config
    from transformer_cli.tokenizer import Tokenizer

    options.refuse_two_runs(model, config)
    if model is not None and run_dir is not None:
        raise UsageError("-m and --run-dir both name a run", hint="give one of them")
    if overrides and config is None:
        raise UsageError(
            "--set changes a configuration, and there is none: an existing tokenizer stays as it is",
            hint="-c NAME trains another one: tx tokenize -c tiny.yaml --set tokenizer.vocab_size=500",
        )
    named = None if config is None else load_config(config, overrides or [])
    if idle := [text for text in overrides or [] if re.match(r"(tokenizer|data)[.=]", text)]:
        raise UsageError(
            f"--set {idle[0]} would make another tokenizer, and text is shown by the one that is there",
            hint="without a text, the same command trains that other one",
        )
    if run_dir:
        place = Path(run_dir)
    elif model is None and named is None:
        place = _only_tokenizer() or _usual_run()
    else:
        place = find_run(model, config=named, config_path=config)
    tokenizer = Tokenizer.load(place / "tokenizer")
    if to is not None:
        if target or not tokenizer.tags:
            why = "a target has none" if target else f"the sources of {place} have none"
            raise UsageError(f"--to shows the tag that a source begins with, and {why}", hint="leave it out")
        tokenizer = tokenizer.towards(to)
    return tokenizer.target if target else tokenizer.source


def _usual_run() -> Path:
    """The run that is taken where none is named, named itself where there are several."""
    from transformer_cli.checkpoints.find import find_run
    from transformer_cli.cli.trained import tell_default

    origin = tell_default()
    run = find_run(None)
    if origin:
        console.say(f"tokenizer: {run / 'tokenizer'}{origin}")
    return run


def _only_tokenizer() -> Path | None:
    """The one run that has a tokenizer, where no model was trained yet, so that none is the latest."""
    from transformer_cli.checkpoints.find import RUNS
    from transformer_cli.tokenizer.tokenizer import DESCRIPTION_FILE

    if (RUNS / "latest").exists():
        return None
    found = [path.parents[1] for path in RUNS.glob(f"*/tokenizer/{DESCRIPTION_FILE}")]
    return found[0] if len(found) == 1 else None


def _train(config_path: str, overrides: list[str], run_dir: str | None, *, as_json: bool) -> None:
    """The tokenizer of a run, trained into its directory."""
    from transformer_cli.checkpoints.find import RUNS
    from transformer_cli.cli.live import stages
    from transformer_cli.config.source import load_config
    from transformer_cli.data.corpus import load_training
    from transformer_cli.tokenizer import measured, train_tokenizer
    from transformer_cli.training.directory import check_ours
    from transformer_cli.training.replacing import beside

    config = load_config(config_path, overrides)
    if parent := config.training.init_from:
        raise UsageError(
            f"this run is to begin with {parent} (training.init_from), and with its tokenizer",
            hint="`tx train` takes it over, with what tokenizer.extend adds; "
            f"`tx tokenize -m {typed(parent)} TEXT` shows it",
        )
    place = Path(run_dir or RUNS / (config.name or ""))
    check_ours(place)
    if words := beside(place):
        console.warn(words)
    with stages() as stage:
        with stage("reading the text"):
            text = load_training(config.data)
        with stage(f"training the tokenizer on {2 * len(text):,} lines"):
            tokenizer, report = train_tokenizer(
                config.tokenizer, text.source, text.target, seed=config.seed, tags=config.data.tagged
            )
    _save(tokenizer, place, config, text)
    sides = measured(tokenizer, text.source, text.target)
    if as_json:
        summary = {"tokenizer": str(place / "tokenizer"), "fingerprint": tokenizer.fingerprint, **report.as_json()}
        summary |= {"tokens_per_word": {side: ratio for side, (ratio, _) in sides.items()}}
        summary |= {"unknown_tokens": {side: unknown.n for side, (_, unknown) in sides.items()}, "text": text.counts}
        console.result(json_line(summary))
    _tell(report, sides, text, config, place)


def _save(tokenizer: Tokenizer, run_dir: Path, config: RunConfig, text: Corpus) -> None:
    """Put the tokenizer and the configuration into a run directory, unless a model was trained with another one.

    The configuration and the text's hash are part of it: `tx train` compares them, so that it never takes a tokenizer
    of other text.
    """
    from transformer_cli import files
    from transformer_cli.config.source import dump_config
    from transformer_cli.tokenizer import Tokenizer
    from transformer_cli.training.directory import trained_in
    from transformer_cli.training.replacing import discard

    record_file = run_dir / "run.json"
    with trained_in(run_dir, console.say):
        record = files.read_json(record_file, error=ModelError) if record_file.exists() else {}
        if not isinstance(record, dict) or record.keys() - {"data"} or (run_dir / "checkpoints").exists():
            if Tokenizer.load(run_dir / "tokenizer").fingerprint == tokenizer.fingerprint:
                return
            trained = "was trained" if (run_dir / "checkpoints").exists() else "began"
            raise UsageError(
                f"{files.shown(run_dir)} is a run that {trained} with another tokenizer",
                hint="give the new run another name (--set name=... or --run-dir), or delete the old one",
            )
        if (run_dir / "tokenizer").exists():
            console.say(f"replacing the tokenizer that was in {files.shown(run_dir)}")
        discard(run_dir)
        files.write_json(record_file, {"data": {"train": text.as_json()}})
        files.write_text(run_dir / "config.yaml", dump_config(config))
        tokenizer.save(run_dir / "tokenizer")


def _tell(
    report: TokenizerReport,
    sides: dict[str, tuple[float, Unknown]],
    text: Corpus,
    config: RunConfig,
    run_dir: Path,
) -> None:
    """How it went, on stderr."""
    from transformer_cli.tokenizer.learning import is_unspaced
    from transformer_cli.tokenizer.losses import remedy

    unknown = {f"{side}s": found for side, (_, found) in sides.items() if found.n}
    coverage = config.tokenizer.character_coverage
    within = f"within tokenizer.character_coverage {coverage:g} " if unknown and coverage < 1 else ""
    for name, n_pieces in report.pieces.items():
        asked = report.asked.get(name, n_pieces)
        fitted = "" if n_pieces == asked else f", fitted: {within}the text has no more, {asked:,} were asked for"
        console.say(f"{report.kind}, {name}: {counted(n_pieces, 'pieces')}{fitted}")
    languages = {"source": config.data.source, "target": config.data.target}
    if len(config.data.directions) > 1:  # sides have several
        languages = {side: f"{side}s" for side in languages}
    ratios = ", ".join(f"{language} {sides[side][0]:.2f}" for side, language in languages.items())
    unspaced = [language for side, language in languages.items() if is_unspaced(getattr(text, side))]
    letters = f" (a letter of {' and '.join(unspaced)} is a word)" if unspaced else ""
    console.say(f"tokens per word: {ratios}{letters}")
    n_skipped = sum(report.lines_skipped.values())
    console.say(f"lines used: {report.lines_used:,}, skipped: {n_skipped:,}")
    for reason, n in report.lines_skipped.items():
        console.warn(f"skipped: {n:,} x {reason}")
    for reason, n in text.counts.items():
        console.warn(f"text: {n:,} x {reason}")
    is_cut = report.kind in ("char", "word") and report.pieces == report.asked
    for side, found in unknown.items():
        console.warn(found.in_words("text", side, remedy(config.tokenizer, is_inherited=False, is_cut=is_cut)))
    console.say(f"saved in {shown(run_dir / 'tokenizer')}")
    word = _long_word(text.source[:FEW_LINES])
    example = f'"{word}"' if word else "-i FILE"
    console.say(f"next: tx tokenize -m {typed(run_dir)} {example}", to_paste=True)


def _long_word(lines: Sequence[str]) -> str | None:
    """The longest run of letters that is still easily typed: a tokenizer has something to cut there."""
    spaced = ("".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in line) for line in lines)
    words = (word for line in spaced for word in line.split() if len(word) <= MOST_TYPED)
    return max(words, key=len, default=None)
