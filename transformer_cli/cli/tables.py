"""Tables on stdout: drawn on a terminal, plain aligned text in a pipe, Markdown on request."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, zip_longest
from typing import Literal

from transformer_cli import writing
from transformer_cli.cli import console

PIPE_WIDTH = 80
WIDEST_BAR = 20
FIRST = 24
"""Of what a narrow terminal leaves of a name."""
GAP = "  "
TOTAL = "bold green"
INDENT = "\N{NO-BREAK SPACE}" * 4
EIGHTHS = " ▏▎▍▌▋▊▉█"
Row = tuple[str, ...]
CELL = r"[\\|]"
"""What would end a cell of Markdown."""
MARKUP = CELL + r"|[*`<\[]|&(?=#?\w+;)|(?<!\w)_|_(?!\w)"
"""And what would be more than text there: a sentence may have anything."""


@dataclass(frozen=True)
class Column:
    """A column's heading, the side that its cells lean to, and whether a narrow terminal can do without it."""

    name: str
    align: Literal["left", "right"] = "left"
    optional: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    rows: one whose first cell is indented is a part of the row above it; () is a rule, what stands between two rules a
    subtotal. totals: rows under a rule, the first the one that counts. shares: one number per row, drawn as bars where
    there is room. notes: sentences below. lines: below them, as they are.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    totals: tuple[Row, ...] = ()
    shares: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def widths(self) -> list[int]:
        """The widest cell of each column."""
        heading = tuple(column.name for column in self.columns)
        return [
            max(map(writing.width, cells))
            for cells in zip(heading, *filter(None, self.rows), *self.totals, strict=True)
        ]

    def least(self) -> list[int]:
        """The widths below which numbers and names would break."""
        most = [FIRST, *[12] * len(self.columns)]
        return [
            size if column.align == "right" else min(size, limit)
            for column, size, limit in zip(self.columns, self.widths(), most, strict=False)
        ]

    def without(self, index: int) -> Table:
        """The same with a column less."""
        rows, totals = (
            tuple(cells[:index] + cells[index + 1 :] for cells in lines) for lines in (self.rows, self.totals)
        )
        return replace(self, columns=self.columns[:index] + self.columns[index + 1 :], rows=rows, totals=totals)

    def bars(self, width: int) -> list[str]:
        """A bar per row, the largest share as wide as `width` columns leave room for; none where they leave little."""
        largest = max(self.shares, default=0)
        room = min(WIDEST_BAR, width - sum(self.widths()) - len(GAP) * len(self.columns))
        return [bar(share / largest, room) for share in self.shares] if largest > 0 and room > 2 else []


def show(tables: Sequence[Table], *, markdown: bool = False) -> None:
    """Print tables as suits stdout."""
    if markdown:
        text = "\n\n".join(map(as_markdown, tables))
    elif console.is_terminal(sys.stdout):
        width = shutil.get_terminal_size().columns
        text = "\n\n".join(as_drawing(table, width=width, colour=console.has_colour(sys.stdout)) for table in tables)
    else:
        text = "\n\n".join(map(as_text, tables))
    sys.stdout.write(text + "\n")


def as_markdown(table: Table, *, of_markup: bool = False) -> str:
    """A pipe table, its title in bold above it, its notes below. of_markup: whether cells are Markdown, not text."""
    escaped = partial(re.compile(CELL if of_markup else MARKUP).sub, r"\\\g<0>")

    def line(cells: Sequence[str]) -> str:
        # Blanks at the start of a cell would get lost, and with them what belongs to what.
        return f"| {' | '.join(INDENT * cell.startswith(' ') + cell.strip() for cell in cells)} |"

    rule = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = [list(map(escaped, cells)) for cells in table.rows]
    totals = [[f"**{escaped(cell)}**" if cell else "" for cell in cells] for cells in table.totals]
    lines = [line([escaped(column.name) for column in table.columns]), f"| {' | '.join(rule)} |"]
    lines += [line(cells) for cells in (*rows, *totals) if cells]
    title = [f"**{escaped(' '.join(table.title.split()))}**"] if table.title else []
    return "\n\n".join([*title, "\n".join(lines), *table.notes, *table.lines])


def as_text(table: Table, *, width: int = PIPE_WIDTH) -> str:
    """Aligned columns; where they are too wide, words of optional ones move to the next line."""
    widths = table.widths()
    for index, column in enumerate(table.columns):
        spare = width - sum(widths) - len(GAP) * (len(widths) - 1)
        if column.optional and column.align == "left" and spare < 0:
            widths[index] = max(min(FIRST, widths[index]), widths[index] + spare)

    def row(cells: Sequence[str], bar: str = "") -> list[str]:
        folded = [
            [cell] if writing.width(cell) <= size else _wrapped(cell, size)
            for cell, size in zip(cells, widths, strict=True)
        ]
        return [line(parts, bar * (not index)) for index, parts in enumerate(zip_longest(*folded, fillvalue=""))]

    def line(cells: Sequence[str], bar: str) -> str:
        padded = [
            _padded(cell, column.align, size) for cell, column, size in zip(cells, table.columns, widths, strict=True)
        ]
        return GAP.join([*padded, bar]).rstrip()

    rule = GAP.join("-" * size for size in widths)
    lines = _wrapped(table.title, width)
    lines += [*row([column.name for column in table.columns]), rule]
    for cells, bar in zip_longest(table.rows, table.bars(width), fillvalue=""):
        lines += row(cells, bar) if cells else [rule]
    lines += [rule] if table.totals else []
    for cells in table.totals:
        lines += row(cells)
    lines += [""] if table.notes or table.lines else []
    for note in table.notes:
        lines += _wrapped(note, width)
    return "\n".join([*lines, *table.lines])


def _padded(cell: str, align: Literal["left", "right"], size: int) -> str:
    room = " " * (size - writing.width(cell))
    return room + cell if align == "right" else cell + room


def as_drawing(table: Table, *, width: int, colour: bool) -> str:
    """For a terminal of so many columns: where it is narrow, words move to the next line; numbers stay whole."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    table = _narrowed(table, width)
    least = table.least()
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    for column, size, full in zip(table.columns, least, table.widths(), strict=True):
        # What has its full width anyway must not be asked to give, or Rich cuts another column.
        grid.add_column(column.name, justify=column.align, overflow="fold", no_wrap=size == full, min_width=size)
    bars = table.bars(width)
    if bars:
        grid.add_column("", width=max(map(len, bars)), style="cyan")
    for index, (cells, bar) in enumerate(zip_longest(table.rows, bars, fillvalue="")):
        if not cells:
            grid.add_section()
            continue
        is_subtotal = () in table.rows[max(0, index - 1) : index] and () in table.rows[index + 1 : index + 2]
        style = TOTAL if is_subtotal else "" if any(cells[1:]) else "bold"
        grid.add_row(*[Text(console.visible(cell)) for cell in cells], *[bar] * bool(bars), style=style)
    if table.totals:
        grid.add_section()
    for index, cells in enumerate(table.totals):
        grid.add_row(*[Text(console.visible(cell)) for cell in cells], style="" if index else TOTAL)

    file = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    drawn = max(width, _least_width(table))
    output = Console(file=file, width=drawn, force_terminal=True, color_system=system, highlight=False)
    if table.title:
        output.print(Text(console.visible(table.title), style="bold"), width=width)
    output.print(grid)
    if table.notes or table.lines:
        output.print()
    for note in table.notes:
        output.print(Text(console.visible(note)), width=width)
    drawing = [line.rstrip() for line in file.getvalue().rstrip("\n").split("\n")]
    return "\n".join([*drawing, *[""] * (not table.notes and bool(table.lines)), *map(console.visible, table.lines)])


def _narrowed(table: Table, width: int) -> Table:
    """The table without its optional columns, from the right, as many as are too wide."""
    spare = [index for index, column in enumerate(table.columns) if column.optional]
    while spare and _least_width(table) > width:
        table = table.without(spare.pop())
    return table


def _least_width(table: Table) -> int:
    return sum(table.least()) + len(GAP) * len(table.columns)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def bar(share: float, width: int) -> str:
    """A bar of so many columns at most, drawn to an eighth of one; something is drawn for whatever is above 0."""
    eighths = min(8 * width, max(round(8 * width * share), share > 0))
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def tree(lines: Iterable[tuple[str, Row, float]]) -> Iterator[tuple[Row, float]]:
    """Rows, with their shares, in which names such as `cross.query` are together, indented under a row `cross`.

    What is itself called `cross` comes after them, or they would seem to be parts of it.
    """
    lines = list(lines)
    families = [_family(name) for name, *_ in lines]
    lines.sort(key=lambda line: (families.index(_family(line[0])), _family(line[0]) == line[0]))
    for family, members in groupby(lines, key=lambda line: _family(line[0])):
        for index, (name, cells, share) in enumerate(members):
            inner = name.removeprefix(f"{family}.")
            if inner != name and index == 0:
                yield (family, *[""] * len(cells)), 0
            yield (name if inner == name else f"  {inner}", *cells), share


def _family(name: str) -> str:
    """cross.query -> cross."""
    return name.partition(".")[0]
