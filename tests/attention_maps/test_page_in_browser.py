"""The page in a real browser: what it shows and what is pointed at is what the maps hold."""

from __future__ import annotations

import re

import numpy as np
import pytest
from browser import Keys
from pages import LEFTWARD, MAPS, VIEWS

from transformer_cli.attention_maps.heads import describe
from transformer_cli.attention_maps.views import view


def matrix(kind, layer=0, head=0, *, words=False):
    """Independent of the page: the mean over layers and heads where no number is given."""
    views = [view(MAPS, block, words=words) for block in MAPS.of(kind) if layer in (0, block.layer)]
    heads = [each.weights_HQK.astype(float) for each in views]
    return np.mean([each.mean(0) if head == 0 else each[head - 1] for each in heads], axis=0), views[0].visible_QK


def numbers(texts):
    return [float(text) for text in texts]


def test_it_opens_on_the_two_sentences(opened):
    browser = opened()
    assert browser.texts(".sentence") == ["EinkleinerJungespringt./spadpad", "Alittleboyjumps./s"]


@pytest.mark.parametrize("view", ["sentences", "steps"])
def test_a_line_ends_where_a_word_does(opened, view):
    """A piece that did not fit used to begin the next line, and words looked torn."""
    torn = opened(f"view={view}&step=6").run(
        "const tokens = [...document.querySelectorAll('.token')];"
        "const top = text => tokens.findLast(e => e.textContent === text).offsetTop;"
        "const pairs = [['klein', 'er'], ['spring', 't'], ['jump', 's']], torn = [];"
        "for (let width = 120; width < 400; width += 2) {"
        "  for (const e of document.querySelectorAll('.sentence')) e.style.width = `${width}px`;"
        "  torn.push(...pairs.filter(([one, other]) => top(one) !== top(other))); }"
        "return torn"
    )
    assert torn == []


def test_links_are_drawn_in_front_of_the_text_that_they_cross(opened):
    """They used to run behind the words of a sentence of several lines, and showed as stray dashes."""
    browser = opened("row=3")
    assert browser.run(
        "const links = document.querySelector('.links');"
        "links.style.pointerEvents = 'all';"
        "const box = document.querySelector('.token').getBoundingClientRect();"
        "return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === links"
    )


PLAIN = """
const whole = document.createElement("p"), pieces = arguments[0], places = [];
whole.className = "sentence";
whole.dir = "auto";
whole.textContent = pieces.join("").replaceAll("\\u2581", " ").trim();
document.querySelector(".side:nth-of-type(2)").append(whole);
let end = 0;
for (const piece of pieces) {
  const range = new Range(), length = piece.replace(end ? "" : "\\u2581", "").length;
  const blank = end && piece.startsWith("\\u2581") ? 1 : 0;
  range.setStart(whole.firstChild, end + blank);
  range.setEnd(whole.firstChild, end += length);
  const { left, width } = range.getBoundingClientRect();
  places.push([left, width]);
}
whole.remove();
return places;
"""
"""Where a browser has each piece of a sentence that is written without any elements: left, width."""


@pytest.mark.parametrize("view", ["sentences", "steps"])
def test_a_sentence_from_right_to_left_stands_as_the_same_text_does_and_its_letters_join(opened, view):
    """The first word used to stand leftmost, and in words of several pieces the letters, none joined to the next."""
    browser = opened(f"view={view}&step=14", "leftward")
    expected = np.array(browser.run(PLAIN, LEFTWARD))
    shown = browser.run(
        "return [...document.querySelectorAll('.side:nth-of-type(2) bdi')].map(e => {"
        "  const { left, width } = e.getBoundingClientRect(); return [left, width]; })"
    )
    assert np.argsort([left for left, _ in shown]).tolist() == np.argsort(expected[:, 0]).tolist()
    assert [width for _, width in shown] == pytest.approx(expected[:, 1], abs=0.2)


@pytest.mark.parametrize("row", [1, 3, 6])
def test_in_a_sentence_from_right_to_left_pieces_are_pointed_at_and_lines_lead_to_them(opened, row):
    browser = opened("", "leftward")
    token = browser.all(".side:nth-of-type(2) .token")[row]
    browser.point_at(token)
    assert browser.text(".ranking h2").endswith(f"→{LEFTWARD[row].strip('▁')} looks at")
    box, ground = (
        browser.run("return arguments[0].getBoundingClientRect()", e) for e in (token, browser.one(".links"))
    )
    starts = browser.run("return [...document.querySelectorAll('.links path')].map(e => e.getAttribute('d'))")
    middle = box["left"] + box["width"] / 2 - ground["left"]
    assert len(starts) > 3
    assert [float(re.search(r"M([\d.]+)", d)[1]) for d in starts] == pytest.approx([middle] * len(starts), abs=1)


def test_the_left_arrow_key_goes_on_in_a_sentence_from_right_to_left(opened):
    browser = opened("row=1", "leftward")
    browser.run("document.querySelectorAll('.side:nth-of-type(2) .token')[1].focus()")
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.address() == "#row=3"
    browser.press(Keys.ARROW_RIGHT)
    assert browser.address() == "#row=2"
    for place, key in ((5, Keys.ENTER), (7, Keys.SPACE)):
        browser.run(f"document.querySelectorAll('.side:nth-of-type(2) .token')[{place}].focus()")
        browser.press(key)
        assert browser.address() == f"#row={place}"


def test_a_mark_without_its_letter_stands_on_a_circle(opened):
    """It used to be a blank label, or lie on the sign for a space."""
    browser = opened("view=matrix&block=encoder&row=0&column=5", "leftward")
    assert browser.texts(".top-labels bdi")[-2:] == ["\u2423x\u0301", "\u25cc\u0301"]
    assert "looks at \u25cc\u0301: " in browser.text(".readout")
    browser.go("view=sentences")
    assert browser.texts(".side .token")[5] == "\u25cc\u0301"


def test_a_joiner_stays_where_it_shapes_letters_and_is_named_elsewhere(opened):
    browser = opened("view=matrix&block=encoder", "joined")
    names = ["ශ්\u200dරී", "میU+200C", "خورد", "x", "U+200Dx", "می", "U+200C", "aU+200Cb"]
    assert [text.strip("\u2423") for text in browser.texts(".top-labels bdi")[: len(names)]] == names
    browser.go("view=sentences")
    names[1] = "می\u200c"  # where the next piece follows
    assert browser.texts(".side:nth-of-type(1) .token")[: len(names)] == names


@pytest.mark.parametrize("row", [0, 3, 6])
def test_pointing_at_a_word_shows_where_it_looks(opened, row):
    browser = opened("layer=2&head=3")
    browser.point_at(browser.all(".side:nth-of-type(2) .token")[row])
    weights = np.sort(matrix("cross", 2, 3)[0][row])[::-1][:5]
    assert numbers(browser.texts(".ranking .number")) == pytest.approx(weights, abs=6e-4)


def test_the_more_weight_the_darker_on_light_paper(opened):
    browser = opened("layer=2&head=3&row=1&theme=light")
    shades = browser.run(
        "return [...document.querySelectorAll('.side .token')].map(e => e.style.getPropertyValue('--shade'))"
    )
    weights = matrix("cross", 2, 3)[0][1][:8]
    light = [sum(map(int, re.findall(r"\d+", shade))) for shade in shades[:8]]
    order = np.argsort(weights)
    assert np.all(np.diff(np.array(light)[order]) <= 0)
    assert shades[8:10] == ["transparent"] * 2


def test_pointing_at_a_source_word_shows_who_looks_at_it(opened):
    browser = opened("layer=1&head=2")
    browser.point_at(browser.all(".side .token")[3])
    weights = np.sort(matrix("cross", 1, 2)[0][:, 3])[::-1][:5]
    assert numbers(browser.texts(".ranking .number")) == pytest.approx(weights, abs=6e-4)


def test_when_the_pointer_leaves_the_chosen_word_is_shown_again(opened):
    browser = opened("row=2")
    before = browser.text(".ranking")
    browser.point_at(browser.all(".side:nth-of-type(2) .token")[4])
    assert browser.text(".ranking") != before
    browser.point_at(browser.one("h1"))
    assert browser.text(".ranking") == before


@pytest.mark.parametrize("unit", ["pieces", "words"])
def test_any_cell_is_the_weight_of_the_maps(opened, unit):
    browser, random = opened(), np.random.default_rng(3)
    for _ in range(25):
        kind = str(random.choice(["encoder", "decoder", "cross"]))
        layer = int(random.integers(len(MAPS.of(kind)) + 1))
        head = int(random.integers(4))
        weights, visible = matrix(kind, layer, head, words=unit == "words")
        row, column = (int(random.integers(size)) for size in weights.shape)
        browser.go(f"view=matrix&block={kind}&layer={layer}&head={head}&unit={unit}&row={row}&column={column}")
        said = browser.text(".readout")
        if visible[row, column]:
            rank = 1 + (weights[row] > weights[row, column] + 1e-6).sum()
            assert float(re.search(r": (\d\.\d+), rank", said)[1]) == pytest.approx(weights[row, column], abs=6e-4)
            assert f"rank {rank} of {visible[row].sum()}" in said
        else:
            assert ("comes later" if kind == "decoder" else "padding") in said


def test_pointing_at_a_cell_names_its_row_and_column(opened):
    browser = opened("view=matrix&layer=2&head=1")
    canvas = browser.one(".field canvas")
    cell = canvas.size["width"] / 10
    browser.point_at(canvas, 3.5 * cell, 2.5 * cell)
    assert browser.text(".readout").startswith("little \u2192 boy looks at Junge: ")
    assert browser.texts(".left-labels .marked, .top-labels .marked") == ["\u2423Junge", "\u2423little\u2192\u2423boy"]


@pytest.mark.parametrize(("width", "name"), [(360, "ordinary"), (1200, "ordinary"), (360, "long"), (1200, "long")])
def test_a_column_is_named_where_it_stands(opened, browser, width, name):
    """The names of small cells used to begin over the next column."""
    browser.size(width, 900)
    opened("view=matrix", name)
    places = browser.run(
        "const canvas = document.querySelector('.field canvas').getBoundingClientRect();"
        "const labels = [...document.querySelectorAll('.top-labels > span > *')], cell = canvas.width / labels.length;"
        "return labels.map((label, column) => {"
        "  const texts = document.createTreeWalker(label, NodeFilter.SHOW_TEXT), range = new Range();"
        "  let first = texts.nextNode();"
        "  while (!first.data) first = texts.nextNode();"
        "  range.setStart(first, 0);"
        "  range.setEnd(first, 1);"
        "  const box = range.getBoundingClientRect();"
        "  return ((box.left + box.right) / 2 - canvas.left) / cell - column; })"
    )
    assert min(places) > 0.3
    assert max(places) < 1


def test_hidden_cells_are_hatched_and_zeros_are_not(opened):
    browser = opened("view=matrix&block=decoder&numbers=off")
    alphas = browser.run(
        "const c = document.querySelector('.field canvas'), n = c.width / 7;"
        "const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "const alpha = (x, y) => data[4 * (Math.floor(y) * c.width + Math.floor(x)) + 3];"
        "const line = i => [...Array(12).keys()].map(k => alpha((i % 7) * n + 4 + k, (Math.floor(i / 7) + 0.5) * n));"
        "return Array.from({length: 49}, (_, i) => Math.min(...line(i)))"
    )
    assert (np.array(alphas).reshape(7, 7) == 255).tolist() == np.tri(7, dtype=bool).tolist()


def test_the_layer_that_a_picture_shows_is_the_one_that_is_chosen(opened):
    browser = opened()
    assert browser.texts("input[name=layer]:checked + span") == ["2"]  # of three, the last but one


def test_the_grid_has_every_head_and_opens_the_one_that_is_chosen(opened):
    browser = opened("view=grid")
    assert len(browser.all(".thumbnail")) == 3 * (3 + 1)
    browser.all(".thumbnail[data-layer='3'][data-head='3']")[0].click()
    assert browser.address() == "#view=matrix&layer=3&head=3"


@pytest.mark.parametrize("mass", [50, 90, 100])
def test_lines_are_the_fewest_that_carry_the_share(opened, mass):
    browser = opened(f"view=lines&layer=1&head=1&mass={mass}")
    weights, visible = matrix("cross", 1, 1)
    cumulative = np.cumsum(-np.sort(-weights, axis=1), axis=1)
    fewest = visible.sum() if mass == 100 else ((cumulative < mass / 100).sum(axis=1) + 1).sum()
    assert browser.text("output") == f"{mass} %: {fewest} of {visible.sum()} lines"
    assert len(browser.all(".lines path")) == fewest
    browser.all(".line-ends:first-child .line-end")[2].click()
    of_row = visible[2].sum() if mass == 100 else (cumulative[2] < mass / 100).sum() + 1
    assert browser.text("output") == f"{mass} %: {of_row} of {visible[2].sum()} lines of this row"
    assert len(browser.all(".lines path.on")) == of_row


def test_a_step_shows_the_next_pieces_with_their_probabilities(opened):
    browser = opened("view=steps&step=3")
    assert "Step 4 of 7: reads boy, writes jump" in browser.text(".readout")
    assert browser.texts(".ranking .name") == ["jump", "b", "c", "d", "e"]
    assert numbers(browser.texts(".ranking .number")) == [0.5, 0.2, 0.1, 0.05, 0.02]
    assert browser.run("return [...document.querySelectorAll('.token')].filter(e => !e.hidden).length") == 10 + 4


def test_the_head_table_sorts_by_any_column(opened):
    browser = opened("view=heads&block=encoder")
    heads = [head for head in describe(MAPS) if head.kind == "encoder"]
    browser.all("th button")[2].click()
    assert numbers(browser.texts("td.entropy")) == pytest.approx(sorted(h.entropy for h in heads), abs=6e-3)
    assert browser.one("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    browser.all("th button")[2].click()
    assert numbers(browser.texts("td.entropy")) == pytest.approx(
        sorted((h.entropy for h in heads), reverse=True), abs=6e-3
    )


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_the_table_is_the_array(opened, kind):
    browser = opened(f"view=table&block={kind}&layer=2&head=2")
    weights, visible = matrix(kind, 2, 2)
    rows = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    columns = [label.strip("<>").replace("\u2581", "\u2423") for label in MAPS.columns(kind)]
    assert browser.texts("thead th") == columns
    for row, cells in enumerate(rows):
        shown = [float(cell) if seen else cell for cell, seen in zip(cells[1:], visible[row], strict=True)]
        hidden = "later" if kind == "decoder" else "padding"
        assert shown == [
            pytest.approx(w, abs=6e-4) if s else hidden for w, s in zip(weights[row], visible[row], strict=True)
        ]


def test_long_sentences_stay_usable(opened):
    browser = opened("view=matrix&block=encoder&layer=1&head=1&row=100&column=127", "long")
    assert "rank" in browser.text(".readout")
    for number in "13467":
        browser.press(number)
        assert browser.run("return document.getElementById('view').dataset.view") == VIEWS[int(number) - 1]


def test_inside_a_notebook_it_is_the_same_page_in_a_frame(browser, tmp_path):
    """The frame has no address to remember the view in: trying to do so used to end every change of it."""
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><h1>Cell</h1>{MAPS._repr_html_()}", encoding="utf-8")
    browser.open(notebook)
    browser.console()
    browser.driver.switch_to.frame(0)
    assert browser.texts(".sentence") == ["EinkleinerJungespringt./spadpad", "Alittleboyjumps./s"]
    for name in ("matrix", "steps"):
        browser.run("document.querySelector(`input[name=view][value=${arguments[0]}]`).click()", name)
        assert browser.run("return document.getElementById('view').dataset.view") == name
    browser.run("dispatchEvent(new Event('pagehide'))")
    assert browser.console() == []
    browser.driver.switch_to.default_content()
