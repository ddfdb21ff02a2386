"""`tx score`: what a model gives to translations that are there already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli import console
from transformer_cli.cli.live import progress_bar
from transformer_cli.cli.options import TEXT, Config, Json, Models, Output, Quiet, To, Traceback, TrainedOverrides
from transformer_cli.cli.results import refuse_own_input, writer
from transformer_cli.files import json_line
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.attention_maps.alignment import Gold
    from transformer_cli.data.corpus import Corpus
    from transformer_cli.decoding.scoring import Likelihood
    from transformer_cli.decoding.translator import Translator


def score(
    source: Annotated[
        str, typer.Option("--source", metavar="FILE", rich_help_panel=TEXT, help="The text that was translated.")
    ],
    target: Annotated[
        str, typer.Option("--target", metavar="FILE", rich_help_panel=TEXT, help="Its translation, line by line.")
    ],
    gold: Annotated[
        str | None,
        typer.Option(
            "--gold",
            metavar="FILE",
            rich_help_panel=TEXT,
            help="True alignments, to report the model's error rate.",
        ),
    ] = None,
    output_file: Output = None,
    to: To = None,
    models: Models = None,
    config: Config = None,
    overrides: TrainedOverrides = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Score given translations: the log-probability of each line of --target, given its line of --source.

    Each line of the result has the log-probability (natural, of the whole sentence), the number of pieces with the end
    mark, and the perplexity per piece, separated by tabs. The numbers are those of a search that writes the same pieces
    with --set precision=fp32, which is what scoring uses unless it is set; bf16 has three digits at best. (Now and then
    a search writes a text in other pieces than the tokenizer's; the tokenizer's are scored.)

    For an empty target the end mark is scored. A source without text is never shown to a model: its translation is
    empty, so an empty target is certain (0, of no pieces), and any other has no score and does not count in the sums on
    stderr.

    With --json each line is an object with source, target, log_probability, perplexity, tokens, log_probabilities (one
    per piece, the end mark last) and unknown (pieces that the vocabulary does not have); the last one has the sums.

    --gold has a line of links per pair, source-target, words counted from 0: `0-0` is sure, `1p2` possible.

    Examples:
      tx score --source test.de --target test.en
      tx score --source test.de --target test.en --json -o scores.jsonl
      tx score --source test.de --target test.en --gold test.links
    """
    from transformer_cli.data.corpus import parallel

    refuse_own_input(output_file, source, target, gold, config=config)
    corpus = parallel(source, target)  # before torch is imported
    links, counts = (None, Counter(corpus.counts)) if gold is None else _gold(gold, corpus)

    from transformer_cli.cli.trained import open_several

    opened, settings = open_several(models, config, overrides, precise=True)

    from transformer_cli.decoding.scoring import score_texts
    from transformer_cli.loading import translator_of

    translator = translator_of(opened, settings).towards(to)
    with writer(output_file) as write:
        with progress_bar("scoring", len(corpus)) as progress:
            found = score_texts(translator, corpus.source, corpus.target, progress=progress)
        for pair, one in zip(zip(corpus.source, corpus.target, strict=True), found, strict=True):
            write(_as_json(*pair, one) if json_output else _as_text(one))
        sums = Sums.of(found)
        rate = None if links is None else {"alignment_error_rate": _error_rate(translator, corpus, links)}
        if json_output:
            write(json_line({"sums": sums.as_json() | (rate or {}), "counts": counts}))
    for reason, n in counts.items():
        console.warn(f"{n:,} x {reason}")
    sums.tell()
    if rate is not None:
        console.say(f"alignment error rate {100 * rate['alignment_error_rate']:.1f} %")


def _gold(path: str, corpus: Corpus) -> tuple[list[Gold], Counter[str]]:
    """The links, and what was touched in all three texts."""
    from transformer_cli.attention_maps.alignment import read_gold

    links, counts = read_gold(path, corpus)
    return links, Counter(corpus.counts) + Counter(counts)


def _error_rate(translator: Translator, corpus: Corpus, gold: Sequence[Gold]) -> float:
    from transformer_cli.attention_maps.aligner import align_texts
    from transformer_cli.attention_maps.alignment import error_rate

    return error_rate(align_texts(translator, corpus.source, corpus.target), gold)


@dataclass(frozen=True)
class Sums:
    """All scored lines together; `unscored` had a target but no source."""

    lines: int
    unscored: int
    pieces: int
    unknown: int
    log_probability: float

    @staticmethod
    def of(found: Sequence[Likelihood | None]) -> Sums:
        scored = [one for one in found if one is not None]
        return Sums(
            lines=len(found),
            unscored=len(found) - len(scored),
            pieces=sum(len(one.log_probabilities) for one in scored),
            unknown=sum(one.n_unknown for one in scored),
            log_probability=sum(one.log_probability for one in scored),
        )

    def as_json(self) -> dict[str, Any]:
        from transformer_cli.decoding.scoring import perplexity

        return {**vars(self), "perplexity": perplexity(self.log_probability, self.pieces)}

    def tell(self) -> None:
        """On stderr."""
        from transformer_cli.decoding.scoring import perplexity

        console.say(
            f"{counted(self.lines, 'lines')}, {counted(self.pieces, 'pieces')}: "
            f"log-probability {self.log_probability:.4f}, perplexity "
            f"{perplexity(self.log_probability, self.pieces):.4f} per piece"
        )
        if self.unscored:
            console.warn(
                f"{self.unscored:,} of {counted(self.lines, 'lines')} {'has' if self.unscored == 1 else 'have'} "
                "a target but no source, so no score"
            )
        if self.unknown:
            console.warn(
                f"{self.unknown:,} of {counted(self.pieces, 'pieces')} {'is' if self.unknown == 1 else 'are'} "
                "unknown to the vocabulary"
            )


def _as_text(one: Likelihood | None) -> str:
    if one is None:
        return ""
    return f"{one.log_probability:.6f}\t{len(one.log_probabilities)}\t{one.perplexity:.6g}"


def _as_json(source: str, target: str, one: Likelihood | None) -> str:
    scored = {"log_probability": None} if one is None else one.as_json()
    return json_line({"source": source, "target": target, **scored})
