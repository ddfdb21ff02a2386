"""Attention as text: heat maps that can be read in colours or without, and what the heads do."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from transformer_cli.attention_maps.heads import TAGS, Head
from transformer_cli.attention_maps.maps import ARROW, Kind
from transformer_cli.attention_maps.views import View, is_leftward, label

ColourSystem = Literal["truecolor", "256"]
CELL = 4
"""Narrowest column: a weight in per cent, and a blank."""
NOTHING, HIDDEN = "·", "×"
BAR = 10
WIDE = 64
"""Columns from which on the table of heads has all of its own."""
MOST_ELSEWHERE = 10
IDLE = {"diffuse", "sink"}
"""Tags of heads that do nothing to look at: most of a deep model's."""
VIRIDIS = (
    (68, 1, 84),
    (72, 36, 117),
    (65, 68, 135),
    (53, 95, 141),
    (42, 120, 142),
    (33, 145, 140),
    (34, 168, 132),
    (68, 191, 112),
    (122, 209, 81),
    (189, 223, 38),
    (253, 231, 37),
)
"""From 0 to 1 in tenths (van der Walt and Smith 2015): lightness grows evenly, for every eye and in grey."""


def draw(views: Sequence[View], heads: Sequence[Head], *, width: int, colours: ColourSystem | None) -> str:
    """The matrices, none of whose lines is wider than `width` (but 40 at least), then the heads.

    colours: what the terminal has; None for none, and for files and pipes.
    """
    width = max(width, 40)
    parts = [part for view in views for single in view.single() for part in _matrix(single, width, colours)]
    shown = {(view.kind, view.layer, head) for view in views for head in view.heads}
    parts += _summary(heads, shown, width)
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        color_system=colours,
        force_terminal=colours is not None,
        highlight=False,
        no_color=False,
    )
    for part in parts:
        console.print(part, soft_wrap=True)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").split("\n"))


def _matrix(view: View, width: int, colours: ColourSystem | None) -> Iterator[Text]:
    """Labels above the columns where all fit side by side; else numbers, and below what they mean."""
    labels = _row_labels(view, width)
    margin = max(map(cell_len, labels)) + 1
    widest = max(CELL, *(cell_len(column) + 1 for column in view.columns))
    fits = margin + widest * len(view.columns) <= width
    cell = widest if fits else max(CELL, len(str(len(view.columns))) + 1)
    names = [_in_place(column) for column in view.columns]
    headings = names if fits else [str(number) for number in range(1, len(names) + 1)]
    yield from _wrapped("", view.title.split(" "), width, separator=" ", style="bold")
    n_across = (width - margin) // cell
    for first in range(0, len(view.columns), n_across):
        columns = range(first, min(first + n_across, len(view.columns)))
        yield Text(" " * margin + "".join(_right(headings[k], cell) for k in columns), style="bold")
        for q, row in enumerate(labels):
            line = Text(_right(row, margin - 1) + " ")
            for k in columns:
                line.append_text(_cell(float(view.weights_HQK[0, q, k]), bool(view.visible_QK[q, k]), cell, colours))
            yield line
    if not fits:
        yield from _key(names, width)
    note = f"rows look at columns; per cent, {NOTHING} below 0.5" + (f", {HIDDEN} hidden" * (not view.visible_QK.all()))
    yield from _wrapped("", note.split(" "), width, separator=" ", style="dim")
    yield Text()


def _cell(weight: float, visible: bool, width: int, colours: ColourSystem | None) -> Text:
    if not visible:
        return Text(_right(HIDDEN, width), style="dim")
    shown = f"{100 * weight:.0f}" if weight >= 0.005 else NOTHING
    background = _viridis(weight)
    # The background's luminance (WCAG 2) decides which of black and white is readable on it.
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    shade = 0 if luminance > 0.179 else 255
    ink, paper = Color.from_rgb(shade, shade, shade), Color.from_rgb(*background)
    if colours == "256":  # rich would do so itself, but keeps what it made for the first terminal that it sees
        ink, paper = ink.downgrade(ColorSystem.EIGHT_BIT), paper.downgrade(ColorSystem.EIGHT_BIT)
    return Text(_right(shown, width), style=Style(color=ink, bgcolor=paper))


def _viridis(weight: float) -> tuple[int, int, int]:
    place = min(max(weight, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True))
    return red, green, blue


def _row_labels(view: View, width: int) -> list[str]:
    """Short enough to leave half of the width to the cells."""
    parts = len(view.rows[0])
    room = (width // 2 - 1 - len(ARROW) * (parts - 1)) // parts
    return [ARROW.join(_in_place(label(part, width=room)) for part in row) for row in view.rows]


def _in_place(name: str) -> str:
    """Between marks without width where it is Arabic, say, and terminals would turn the numbers beside it around."""
    return f"\u200e{name}\u200e" if is_leftward(name) else name


def _key(columns: Sequence[str], width: int) -> Iterator[Text]:
    """1 ich  2 mochte  ..., in lines of the width."""
    line = ""
    for number, column in enumerate(columns, start=1):
        entry = f"{number} {column}"
        if line and cell_len(line) + 2 + cell_len(entry) > width:
            yield Text(line)
            line = ""
        line += ("  " if line else "") + entry
    yield Text(line)


def _summary(heads: Sequence[Head], shown: set[tuple[Kind, int, int]], width: int) -> Iterator[Text]:
    """The heads that are shown, one per line, and those of the others that do something; the rest is counted."""
    here = [head for head in heads if (head.kind, head.layer, head.head) in shown]
    elsewhere = [head for head in heads if (head.kind, head.layer, head.head) not in shown]
    busy = sorted((head for head in elsewhere if set(head.tags) - IDLE), key=lambda head: -head.confidence)
    yield Text(_row("head", "entropy", "confidence", "marks", "tags", width), style="bold")
    for head in here:
        yield Text(_described(head, width))
    if busy:
        yield Text("elsewhere, worth a look", style="bold")
    for head in busy[:MOST_ELSEWHERE]:
        yield Text(_described(head, width))
    counts = Counter(tag for head in elsewhere for tag in head.tags if tag in IDLE and head not in busy)
    rest = [f"{n} {tag}" for tag, n in counts.most_common()]
    if len(busy) > MOST_ELSEWHERE:
        rest.insert(0, f"{len(busy) - MOST_ELSEWHERE} more that do something")
    if rest:
        yield from _wrapped(f"of {len(elsewhere)} heads elsewhere: ", rest, width)
    tags = {tag for head in (*here, *busy[:MOST_ELSEWHERE]) for tag in head.tags} | counts.keys()
    for tag in TAGS:
        if tag in tags:
            yield from _wrapped(f"{tag}: ", TAGS[tag].split(" "), width, separator=" ", style="dim")


def _described(head: Head, width: int) -> str:
    bar = f"{'█' * round(BAR * head.entropy):<{BAR}} " * (width >= WIDE)
    name, tags = f"{head.kind} {head.layer}.{head.head}", " ".join(head.tags)
    return _row(name, f"{bar}{head.entropy:.2f}", f"{head.confidence:.2f}", f"{head.marks:.2f}", tags, width)


def _row(name: str, entropy: str, confidence: str, marks: str, tags: str, width: int) -> str:
    """A narrow terminal has no room for confidence and marks."""
    if width < WIDE:
        return f"{name:<14}{entropy:<9}{tags}".rstrip()
    return f"{name:<14}{entropy:<{BAR + 6}}{confidence:>10}{marks:>7}  {tags}".rstrip()


def _wrapped(start: str, words: Sequence[str], width: int, *, separator: str = ", ", style: str = "") -> Iterator[Text]:
    line = start
    for number, word in enumerate(words):
        if number and len(line) + len(word) + len(separator) > width:
            yield Text(line.rstrip(), style=style)
            line = " " * len(start)
        line += word + (separator if number < len(words) - 1 else "")
    yield Text(line, style=style)


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
