"""An evaluation as a page to look through and to mail: one file, whose parts lie in page/.

Scores and tables are there without JavaScript, which some mail programs do not run; only the sentences need it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation.metrics import Score
from transformer_cli.evaluation.report import Report, Sentence, System, Text, sentences
from transformer_cli.evaluation.significance import Difference
from transformer_cli.evaluation.slices import slices
from transformer_cli.page import Page, data
from transformer_cli.wording import counted
from transformer_cli.writing import words

PAGE = Page(Path(__file__).with_name("page"), ("theme", "differences", "sentences", "main"))
BINS = 20
"""Of the histogram of sentences by their chrF."""
_LANGUAGE = re.compile(r"[a-zA-Z]{2,3}(-[a-zA-Z0-9]{2,8})*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Judged:
    """What a system made of a text, and what is to be said about it. languages: of source and translation, "" where
    nobody knows."""

    report: Report
    system: System
    text: Text
    languages: tuple[str, str]


@dataclass(frozen=True)
class About:
    """Whose translations these are.

    title: in a few words. facts: what there is to know, each with its name. settings: the configuration, as YAML.
    """

    title: str
    facts: Mapping[str, str]
    settings: str


def page(judged: Sequence[Judged], about: About, options: EvaluationConfig) -> str:
    """The whole file; the same evaluation gives the same text."""
    several = len(judged) > 1
    links = [f'<a href="#test-{n}">{_text(one.report.name)}</a>' for n, one in enumerate(judged, start=1)]
    found = [sentences(one.system, one.text, options) for one in judged]
    return PAGE.filled(
        title=_text(about.title),
        about=_text(about.title),
        contents=f'<nav class="contents" aria-label="Contents">{" ".join(links)}</nav>' if several else "",
        tests="\n".join(
            _test(n, one, lines) for n, (one, lines) in enumerate(zip(judged, found, strict=True), start=1)
        ),
        facts="\n".join(
            f"<div><dt>{_text(name)}</dt><dd>{_text(fact)}</dd></div>" for name, fact in about.facts.items()
        ),
        settings=_text(about.settings.strip().removeprefix("---\n").removesuffix("\n...")),
        data=data([_data(one, lines) for one, lines in zip(judged, found, strict=True)]),
    )


def _test(number: int, one: Judged, lines: Sequence[Sentence]) -> str:
    report = one.report
    differences: list[Difference | None] = [*report.differences] or [None] * len(report.scores)
    tiles = (_tile(*pair) for pair in zip(report.scores, differences, strict=True))
    signatures = (f"<div><dt>{_text(s.name)}</dt><dd>{_text(s.signature)}</dd></div>" for s in report.scores)
    parts = [
        f'<section id="test-{number}" aria-labelledby="name-{number}">',
        f'<h2 id="name-{number}" dir="auto">{_text(report.name)} <small>{counted(report.lines, "lines")}</small></h2>',
        *(f'<p class="warning">{_text(warning)}</p>' for warning in report.warnings),
        f'<dl class="scores">{"".join(tiles)}</dl>',
        f'<dl class="signatures">{"".join(signatures)}</dl>',
        _histogram(lines),
        _parts(report),
        '<h3>Sentences</h3><div class="sentences"></div>',
        _without_script(report),
        "</section>",
    ]
    return "\n".join(parts)


def _tile(score: Score, difference: Difference | None) -> str:
    margin = f" <small>&#177; {score.margin:.2f}</small>" if score.margin is not None else ""
    compared = "" if difference is None else f'<dd class="difference">{_text(_compared(difference))}</dd>'
    return f"<div><dt>{_text(score.name)}</dt><dd>{score.value:.2f}{margin}</dd>{compared}</div>"


def _compared(difference: Difference) -> str:
    if difference.p_bootstrap is None or difference.p_randomization is None:
        return "as the baseline"
    p = f"p {difference.p_bootstrap:.3f} by bootstrap, {difference.p_randomization:.3f} by randomization"
    return f"{difference.value:+.2f} ± {difference.margin:.2f} from the baseline, {p}"


def _histogram(lines: Sequence[Sentence]) -> str:
    """How many sentences have which chrF."""
    counts = [0] * BINS
    for one in lines:
        counts[min(BINS - 1, int(one.score * BINS / 100))] += 1
    highest = max(counts)
    bars = "".join(
        f'<rect x="{n * 10 + 0.75}" y="{48 - 46 * count / highest:.2f}" width="8.5" rx="1.5"'
        f' height="{46 * count / highest:.2f}"><title>chrF {n * 100 // BINS} to {(n + 1) * 100 // BINS}:'
        f" {count:,} of {counted(len(lines), 'sentences')}</title></rect>"
        for n, count in enumerate(counts)
        if count
    )
    return (
        f'<figure class="histogram"><svg viewBox="0 0 {BINS * 10} 48" preserveAspectRatio="none" role="img"'
        f' aria-label="How many sentences have which chrF">{bars}</svg>'
        "<figcaption><span>0</span><span>sentences by their chrF</span><span>100</span></figcaption></figure>"
    )


def _parts(report: Report) -> str:
    if not report.slices:
        return ""
    heads = "".join(f'<th scope="col">{_text(score.name)}</th>' for score in report.scores)
    rows = []
    for part in report.slices:
        cells = "".join(f"<td>{score.value:.1f}{_margin(score)}</td>" for score in part.scores)
        rows.append(f'<tr><th scope="row">{_text(part.name)}</th><td>{part.lines:,}</td>{cells}</tr>')
    return (
        '<h3>Parts</h3><div class="wide"><table class="parts"><thead><tr><th scope="col">sentences</th>'
        f'<th scope="col">lines</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _margin(score: Score) -> str:
    return f" <small>{'' if score.margin is None else f'&#177; {score.margin:.1f}'}</small>"


def _without_script(report: Report) -> str:
    rows = (
        f"<dt>line {one.line:,}, chrF {one.score:.1f}</dt>"
        + "".join(f'<dd dir="auto"><small>{side}</small> {_text(text)}</dd>' for side, text in one.sides())
        for one in report.worst
    )
    return f"<noscript><p>All sentences need JavaScript; the worst are</p><dl>{''.join(rows)}</dl></noscript>"


def _data(one: Judged, lines: Sequence[Sentence]) -> dict[str, Any]:
    parts = slices(
        one.system.lines, one.text.references, source=one.text.source, flags=one.system.flags, counts=one.text.counts
    )
    return {
        "source": one.text.source,
        "references": one.text.references,
        "translation": one.system.lines,
        "words": [len(words(line)) for line in one.text.references[0]],
        "scores": [round(line.score, 2) for line in lines],
        "flags": one.system.flags,
        "parts": {part.name: part.lines for part in parts},
        "languages": [name if _LANGUAGE.fullmatch(name) else "" for name in one.languages],
    }


def _text(text: str) -> str:
    """As HTML has it, with controls as U+0000: programs take a file that has them for none of text."""
    return html.escape(_CONTROLS.sub(lambda found: f"U+{ord(found[0]):04X}", text))
