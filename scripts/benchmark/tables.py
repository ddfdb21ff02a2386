"""Results of contests as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rounds import Results, Turn, spread

BEGIN, END = "<!-- scripts/benchmark/all -->", "<!-- end of scripts/benchmark/all -->"


def table(kind: str, results: Results, extra: dict[str, dict[str, Any]]) -> list[str]:
    """One contest. kind: train, decode or cold. extra: of contestants, more that was found out: flops_per_token, bleu,
    same."""
    heads = {
        "train": ["tokens/s", "least to most", "model GFLOP/s"],
        "decode": ["sentences/s", "least to most", "BLEU", "texts as tx's in fp32"],
        "cold": ["seconds", "least to most"],
    }[kind]
    heads = ["", *heads, "peak MiB", "products fp32", "bf16"]
    rows = [heads, ["---"] * len(heads)]
    missing = []
    for name, turns in results.turns.items():
        if name in results.failed or not turns:
            missing.append(f"- {name}: {results.failed.get(name, 'no round without others')}")
            continue
        middle, least, most = spread([value(kind, turn) for turn in turns])
        cells = [name, number(middle), f"{number(least)} to {number(most)}"]
        found = extra.get(name, {})
        if kind == "train":
            cells.append(number(middle * found["flops_per_token"] / 1e9))
        elif kind == "decode":
            cells += [f"{found['bleu']:.2f}", f"{found['same']:,}" if "same" in found else ""]
        cells.append(number(max(turn.peak_mib for turn in turns)))
        for name in ("fp32", "bf16"):
            rates = [turn.products[name] for turn in turns if name in turn.products]
            cells.append(number(median(rates)) if rates else "")
        rows.append(cells)
    lines = ["| " + " | ".join(row) + " |" for row in rows] if len(rows) > 2 else []
    return [*lines, *([""] * bool(lines and missing)), *missing]


def value(kind: str, turn: Turn) -> float:
    """What counts: tokens or sentences per second, or the seconds of a whole command."""
    if kind == "train":
        return float(turn.facts["tokens"] / turn.facts["seconds"])
    if kind == "decode":
        return float(turn.facts["lines"] / turn.facts["seconds"])
    return turn.wall_s


def rounds_in_words(results: Results) -> str:
    """How many there were, what others had meanwhile, and what was thrown away."""
    turns = [turn.foreign for turns in results.turns.values() for turn in turns]
    shares = [share for share in turns if share is not None]
    loads = [share for pair in results.load for share in pair if share is not None]
    n = len(results.load)
    said = f"{n} round{'s' * (n != 1)}"
    if shares and loads:
        said += (
            f"; other processes had at most {100 * max(shares):.0f} % of the processors during a figure, and "
            f"{100 * max(loads):.0f} % between rounds"
        )
    else:
        said += "; what others had of the processors is not known here" * (not shares and bool(turns))
    if results.thrown:
        n = len(results.thrown)
        said += f"; {n} round{'s' * (n != 1)} thrown away, where " + ", ".join(results.thrown)
    return said + "."


def number(value: float) -> str:
    """Three digits that say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def put(document: Path, lines: Sequence[str]) -> None:
    """Between the two marks of a document."""
    text = document.read_text(encoding="utf-8")
    inside = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)
    if len(inside.findall(text)) != 1:
        raise SystemExit(f"{document} needs the lines {BEGIN} and {END}, once each")
    document.write_text(inside.sub(lambda found: "\n" + "\n".join(lines) + "\n\n", text), encoding="utf-8")
