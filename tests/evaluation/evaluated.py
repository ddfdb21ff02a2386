"""An evaluation to make pages of."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config
from transformer_cli.evaluation.page import About, Judged, page
from transformer_cli.evaluation.report import System, Text, reports

OPTIONS = EvaluationConfig(resamples=40, trials=40)
SOURCE = [f"der {animal} trinkt {n} bier" for n in range(4) for animal in ("Hund", "kleine Hund", "Bär")]
REFERENCE = [f"the {animal} drinks {n} beer" for n in range(4) for animal in ("dog", "small dog", "bear")]
TRANSLATION = [
    *REFERENCE[:2],
    "the bear the bear the bear the bear",
    "the cat drinks 1 beer",
    "",
    *REFERENCE[5:11],
    "a bear drank 3 beers",
]
FLAGS = [("looped", "unsure") if n == 2 else ("unsure",) if n == 5 else () for n in range(12)]
HOSTILE = [
    *(
        "</script>",
        "<!--<script >",
        "<img src=x onerror=window.hit=1>",
        "{{script}}",
        "&lt;&amp;",
        "\u2028",
        "a\u202eb",
    ),
    *("x" * 300, "مرحبا بالعالم", "猫が座った。", "\x00", "👩‍👩‍👧"),
]
ABOUT = About("tiny \u00b7 step 150", {"model": "tiny <b>"}, dump_config(RunConfig()))


def judged(
    source: Sequence[str] = SOURCE,
    translation: Sequence[str] = TRANSLATION,
    reference: Sequence[str] = REFERENCE,
    *,
    name: str = "2016",
) -> Judged:
    system, text = (
        System(name, translation, [FLAGS[n % 12] for n in range(len(translation))]),
        Text([reference], source),
    )
    [report] = reports([system], text, OPTIONS, n_worst=3)
    return Judged(report, system, text, ("de", "en"))


def written(*judged: Judged) -> str:
    return page(judged, ABOUT, OPTIONS)
