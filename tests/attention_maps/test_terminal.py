"""Heat maps as text: they read in colours and without, and keep to the width."""

from __future__ import annotations

import re

import numpy as np
import pytest
from rich.cells import cell_len
from synthetic import synthetic_maps

from transformer_cli.attention_maps.heads import Head, describe
from transformer_cli.attention_maps.terminal import VIRIDIS, draw
from transformer_cli.attention_maps.views import view

MAPS = synthetic_maps(
    ["▁ich", "▁trinke", "▁日本茶", "▁😀", "▁a\u202eb"], ["▁i", "▁drink", "▁tea"], heads=4, n_padding=1
)
LONG = synthetic_maps(70, 50, layers=(1, 1), heads=1)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(maps=MAPS, *, kind="cross", width=80, colours=None, words=False, mean=True):
    views = [view(maps, block, words=words) for block in maps.of(kind)[:1]]
    views = [one.mean() for one in views] if mean else views
    return draw(views, describe(maps), width=width, colours=colours)


def cells(line):
    return re.findall(r"\d+|·|×", line.split("→")[-1].partition(" ")[2])


@pytest.mark.parametrize("width", [40, 63, 64, 80, 200])
@pytest.mark.parametrize("maps", [MAPS, LONG], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_no_line_is_wider_than_the_terminal(maps, kind, width):
    assert max(map(cell_len, drawn(maps, kind=kind, width=width).split("\n"))) <= width


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_numbers_are_the_weights_in_per_cent_whatever_the_width(width):
    text = drawn(width=width)
    found = {name: [] for name in ("<s> →", "i →", "drink →", "tea →")}
    for line in text.split("\n"):
        for name in found:
            if line.strip().startswith(name):
                found[name] += [{"·": 0, "×": -1}.get(cell) if cell in "·×" else int(cell) for cell in line.split()[3:]]
    shown = view(MAPS, MAPS.of("cross")[0]).mean_QK
    for row, weights in zip(found.values(), shown, strict=True):
        assert row == [round(100 * weight) if weight >= 0.005 else 0 for weight in weights[:-1]] + [-1]


def test_columns_are_aligned_also_under_wide_characters():
    maps = synthetic_maps(["▁ich", "▁日本のお茶を", "▁trinke"], ["▁i", "▁drink", "▁お茶"])
    lines = [line for line in drawn(maps, width=120).split("\n") if "→" in line or "日本" in line]
    assert "日本のお茶を" in lines[0]
    assert len(set(map(cell_len, lines))) == 1


def test_columns_that_do_not_fit_are_numbered_and_named_below():
    text = drawn(width=40)
    assert re.search(r"^ +1 +2 +3 +4 +5", text, re.MULTILINE)
    assert "3 日本茶" in text


def test_without_colours_there_is_no_escape_and_with_them_the_text_is_the_same():
    plain = drawn()
    assert "\x1b" not in plain
    for colours in ("truecolor", "256"):
        lines = [line.rstrip() for line in ESCAPE.sub("", drawn(colours=colours)).split("\n")]
        assert "\n".join(lines) == plain


def test_true_colours_are_those_of_the_scale_and_ink_stands_out():
    maps = synthetic_maps(11, 3, layers=(1, 1), heads=1)
    weights = maps.of("cross")[0].weights_HQK
    weights[0] = 0
    weights[0, :, 10] = 1
    text = drawn(maps, colours="truecolor", width=120)
    codes = set(re.findall(r"38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m", text))
    found = {tuple(map(int, code)) for code in codes}
    assert {code[3:] for code in found} == {VIRIDIS[0], VIRIDIS[-1]}
    for code in found:
        assert contrast(code[:3], code[3:]) >= 4.5


def contrast(one, other):
    def luminance(colour):
        scaled = np.array(colour) / 255
        return np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_each_head_has_its_line_and_tags_elsewhere_are_named():
    text = drawn(mean=False)
    assert len(re.findall(r"^cross 1\.\d ", text, re.MULTILINE)) == 4
    assert text.count("cross-attention, layer 1, head") == 4


def head(kind, layer, number, *tags, confidence=0.5):
    numbers = dict.fromkeys(("distance", "previous", "itself", "next", "one_to_one"))
    return Head(kind, layer, number, entropy=0.5, confidence=confidence, marks=0.1, tags=tags, **numbers)


def test_of_a_deep_model_the_heads_that_do_something_are_in_the_table_and_the_others_counted():
    """Six and six layers used to fill thirty lines with the names of diffuse heads."""
    idle = [head("encoder", layer, number, "diffuse") for layer in range(1, 7) for number in range(1, 9)]
    busy = [head("decoder", 1, number, "previous", confidence=number / 20) for number in range(1, 13)]
    both = [head("cross", 2, 1, "sink", "diffuse"), head("cross", 2, 2, "next", "sink", confidence=0.99)]
    text = draw([], [*idle, *busy, *both], width=80, colours=None)
    table = text.split("elsewhere, worth a look\n")[1].split("\n")
    assert table[0] == "cross 2.2     █████      0.50       0.99   0.10  next sink"
    assert [line.split()[1] for line in table[1:10]] == [f"1.{number}" for number in range(12, 3, -1)]
    assert table[10] == "of 62 heads elsewhere: 3 more that do something, 49 diffuse, 1 sink"
    assert max(map(cell_len, text.split("\n"))) <= 80
    assert len(text.split("\n")) < 20


def test_nothing_that_steers_a_terminal_comes_through():
    assert "\u202e" not in drawn()
    assert "aU+202Eb" in drawn(width=120)


@pytest.mark.parametrize("width", [40, 120])
def test_arabic_turns_no_row_around(width):
    """Terminals that write it from right to left did the same to the numbers and the names after it."""
    maps = synthetic_maps(["▁مرحبا", "▁שלום", "▁tea"], ["▁بالعالم", "▁tea"], layers=(1, 1), heads=1)
    text = drawn(maps, width=width)
    found = re.findall(r"(.)([\u0590-\u06ff]+)(.)", text)
    assert {name for _, name, _ in found} == {"مرحبا", "שלום", "بالعالم"}
    assert {around for before, _, after in found for around in (before, after)} == {"\u200e"}
    assert max(map(cell_len, text.split("\n"))) <= width
