"""`tx evaluate --check-batching`: does a translation depend on who else is in its batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transformer_cli.cli import console
from transformer_cli.cli.live import progress_bar
from transformer_cli.errors import TxError, UsageError
from transformer_cli.files import json_line
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.cli.test_sets import TestSet
    from transformer_cli.config.run import RunConfig
    from transformer_cli.decoding.invariance import Deviation


def check(
    opened: Sequence[OpenedRun],
    settings: RunConfig,
    texts: Sequence[TestSet],
    search: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Translate each text in several ways, and show which lines came out differently. TxError where the promise is
    broken, which is about fp32: an error of ours. UsageError where minimum Bayes risk or another model hides what was
    found, or another engine was asked for by its name.
    """
    if settings.decoding.rerank is not None:
        raise UsageError(
            "--check-batching looks at what a beam finds, from which decoding.rerank chooses",
            hint="--set decoding.rerank=null checks the beam",
        )
    if settings.decoding.mbr is not None:
        raise UsageError(
            "--check-batching looks at each draw, of which decoding.mbr shows one",
            hint="--set decoding.mbr=null --set decoding.search=sampling checks the draws",
        )
    if settings.decoding.engine == "ctranslate2":
        raise UsageError(
            "--check-batching looks at what tx promises of its own engine",
            hint="--set decoding.engine=native checks that",
        )
    from transformer_cli.cli.trained import tell_compiler
    from transformer_cli.decoding.invariance import check_batching
    from transformer_cli.loading import translator_of

    tell_compiler(opened, settings)
    translator = translator_of(opened, settings)
    n = 0
    for text in texts:
        name, lines = text.name, text.source or []
        with progress_bar(f"translating {name} in several ways", None) as progress:
            report = check_batching(translator.towards(text.to), lines, **search, progress=progress)
        n += len(report.differences)
        if as_json:
            console.result(json_line({"set": name, **asdict(report)}))
            continue
        what = "samples" if settings.decoding.search == "sampling" else "lines"
        console.result(f"{name}: {counted(report.n_lines, what)}, one by one and in {', '.join(report.batchings)}")
        console.result(f"  {counted(len(report.differences), 'differences')}, {counted(len(report.ties), 'ties')}")
        for one in (*report.differences, *report.ties):
            _show(one)
    depend = f"{counted(n, 'translations')} depend{'s' * (n == 1)} on what else is in the batch"
    if n and settings.precision != "fp32":
        console.warn(f"{depend}, as may be in {settings.precision}")
    elif n:
        raise TxError(
            f"{depend}, which in fp32 must not be",
            hint="this is a bug in tx or a fault of the machine; please report it with the lines above",
        )


def _show(one: Deviation) -> None:
    edge = ", where what may be drawn ends" if one.at_edge else ""
    console.result(f"  {'tie' if one.is_tie else 'difference'} in line {one.line:,}, {one.batching}{edge}")
    for score, text in zip(one.scores, one.texts, strict=True):
        console.result(f"    {score:.6f}  {text}")
