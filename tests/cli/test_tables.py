"""Tables as people and programs see them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from transformer_cli.cli.tables import Column, Table, as_drawing, as_markdown, as_text, bar

TABLE = Table(
    title="a model",
    columns=(Column("Component"), Column("Product"), Column("Parameters", "right"), Column("Share", "right")),
    rows=(
        ("decoder_self", "", "57,982,058,496", "33.2 %"),
        ("  query", "128 x 12,288 x 96 heads x 96 layers", "14,495,514,624", "8.3 %"),
        ("  a|b", "", "1", "0.0 %"),
    ),
    totals=(("total", "", "174,604,259,328", "100.0 %"),),
    shares=(0.332, 0.083, 0.0),
    notes=("what there is to say about all of this " * 4,),
)
CELLS = [cell for row in (*TABLE.rows, *TABLE.totals) for cell in row]


def test_text_is_aligned_and_leaves_no_blanks_at_the_end():
    lines = as_text(TABLE).split("\n")
    ends = {
        line.index(number) + len(number)
        for line, row in zip(lines[3:6], TABLE.rows, strict=True)
        for number in [row[2]]
    }
    assert len(ends) == 1
    assert all(line == line.rstrip() and len(line) <= 80 for line in lines)


ANY_SCRIPT = Table(
    "",
    (Column("run"), Column("step", "right"), Column("is")),
    (
        ("runs/中文模型", "10", "新"),
        ("runs/हिन्दी", "2,000", "finished"),
        ("runs/می\u200cخورد", "3", ""),
        ("runs/a", "4", "x"),
    ),
)


@pytest.mark.parametrize("draw", [as_text, partial(as_drawing, width=80, colour=False)])
def test_columns_stand_below_each_other_where_a_character_takes_two_columns_or_none(draw):
    """In a pipe each was taken for one."""
    lines = draw(ANY_SCRIPT).split("\n")[2:]
    numbers = (row[1] for row in ANY_SCRIPT.rows)
    ends = {
        cell_len(line[: line.index(f" {number}") + 1 + len(number)])
        for line, number in zip(lines, numbers, strict=True)
    }
    assert len(ends) == 1


@pytest.mark.parametrize("width", [60, 80, 81, 100, 200])
def test_a_drawing_keeps_to_the_width_of_the_terminal(width):
    assert max(map(len, as_drawing(TABLE, width=width, colour=False).split("\n"))) <= width


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 120])
def test_however_narrow_the_terminal_every_number_is_whole(width):
    drawn = as_drawing(TABLE, width=width, colour=False)
    for cell in CELLS:
        assert all(word in drawn for word in cell.split())
    assert all(row[2] in drawn for row in TABLE.rows)


def test_a_narrow_terminal_has_whole_names_without_the_optional_columns_and_notes_as_narrow():
    """Names used to break within words, and notes were as wide as the table."""
    columns = tuple(replace(column, optional=column.name in ("Product", "Share")) for column in TABLE.columns)
    table = replace(TABLE, columns=columns)
    narrow, middle = (as_drawing(table, width=width, colour=False) for width in (36, 56))
    assert max(map(len, narrow.split("\n"))) <= 36
    assert "decoder_self" in narrow
    assert "Product" not in narrow
    assert "Product" in middle
    broken = as_drawing(TABLE, width=36, colour=False).split("\n")
    assert max(map(len, broken[:1] + broken[-4:])) <= 36


def test_colours_are_codes_and_nothing_else():
    plain, coloured = (as_drawing(TABLE, width=100, colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in without.split("\n")] == plain.split("\n")


def test_what_could_drive_a_terminal_is_shown_as_an_escape():
    wild = Table("\x1b[2J", (Column("name"),), (("\x1b]0;x\x07",),), notes=("\x9b",))
    assert not re.search("[\x1b\x07\x9b]", as_drawing(wild, width=80, colour=False))


def test_markdown_rows_have_as_many_cells_as_the_heading():
    lines = [line for line in as_markdown(TABLE).split("\n") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}
    assert lines[1] == "| --- | --- | ---: | ---: |"


@given(st.lists(st.text("ab_*|\\`<>&;[]!#~. ", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=3))
def test_what_stands_in_markdown_is_what_stood_in_the_table(cells):
    """By another program that reads it: no sentence becomes a tag, or emphasis."""
    cells = [cell + end for cell, end in zip(cells, ["", "&amp;", " _x_ <b> **y** `z` [u](v)"], strict=False)]
    columns = tuple(Column(str(number)) for number in range(len(cells)))
    html = MarkdownIt("commonmark").enable("table").render(as_markdown(Table(None, columns, (tuple(cells),))))
    shown = re.findall("<td[^>]*>(.*?)</td>", html, re.DOTALL)
    assert [unescape(cell) for cell in shown] == cells


def test_a_title_in_markdown_is_one_bold_line_whatever_a_name_has():
    """`<b>` in the name of a run was a tag, a line break ended the title."""
    title = "o_th|er <b>, *x*\n\n# `y`"
    html = MarkdownIt("commonmark").enable("table").render(as_markdown(Table(title, (Column("a"),), (("1",),))))
    assert unescape(html.split("\n")[0]) == "<p><strong>o_th|er <b>, *x* # `y`</strong></p>"
    assert "&lt;b&gt;" in html


def test_bars_grow_with_the_share_and_show_whatever_is_there():
    assert [bar(share, 2) for share in (0, 1e-9, 0.5, 0.75, 1)] == ["", "▏", "█", "█▌", "██"]
    lengths = [len(bar(n / 100, 10)) for n in range(101)]
    assert lengths == sorted(lengths)


def test_bars_are_left_out_where_there_is_no_room():
    assert TABLE.bars(70) == []
    assert len(TABLE.bars(90)) == 3


WIDE = Table(
    "",
    (Column("Part"), Column("Product", optional=True), Column("Numbers", "right")),
    (("norm", " + ".join(["4,096 x 12 layers"] * 5), "245,760"), ("  final", "4,096", "4,096")),
)


def test_in_a_pipe_a_long_product_moves_to_the_next_line():
    """That of mBART's norms used to make the table 93 columns wide."""
    lines = as_text(WIDE, width=60).split("\n")
    assert max(map(len, lines)) <= 60
    assert re.search(r"^norm +4,096 x 12 layers .* \+ +245,760$", lines[2])
    assert " ".join(line[9:51].strip() for line in lines[2:-1]) == WIDE.rows[0][1]
    assert lines[-1].split() == ["final", "4,096", "4,096"]


@pytest.mark.parametrize("width", range(20, 60))
def test_no_width_of_a_terminal_cuts_a_word(width):
    """A T4 used to have 16 G: Rich took from a column that had its least width already, and cut the last."""
    table = Table("", (Column("a"), Column("b", "right"), Column("c")), (("x" * 16, "1" * 26, "fits into 16 GB"),))
    assert as_drawing(table, width=width, colour=False).split()[-1] == "GB"
