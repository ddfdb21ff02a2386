"""The page of an evaluation in a real browser: every sentence, searched and sorted, with its differences."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from browser import CHROMIUM
from evaluated import HOSTILE, REFERENCE, SOURCE, TRANSLATION, judged, written

from transformer_cli.writing import words

assert CHROMIUM, "who imports it where there is none is skipped"


UNSPACED = ["今天他吃三条鱼。", "ฉันกินข้าว", "a cat, 猫"] * 4


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluations")
    tests = {
        "ordinary": [judged()],
        "hostile": [judged(HOSTILE, HOSTILE[::-1], HOSTILE, name=HOSTILE[0])],
        "long": [judged(SOURCE * 10, TRANSLATION * 10, REFERENCE * 10)],
        "unspaced": [judged(SOURCE, UNSPACED, UNSPACED)],
        "two": [judged(name="2016"), judged(TRANSLATION, REFERENCE, TRANSLATION, name="2017")],
    }
    for name, some in tests.items():
        (folder / f"{name}.html").write_text(written(*some), encoding="utf-8")
    return folder


@pytest.fixture
def shown(browser, evaluations):
    """The console stays empty, the network untouched."""
    browser.console()
    browser.requests()

    def open_page(name="ordinary"):
        browser.open(evaluations / f"{name}.html")
        return browser

    yield open_page
    assert browser.console() == []
    assert {address.split("#")[0] for address in browser.requests()} <= {p.as_uri() for p in evaluations.iterdir()}
    browser.size(1200, 900)
    browser.media()


def lines(browser):
    return [int(text) for text in browser.texts(".lines tbody td:first-child")]


def test_it_opens_on_the_sentences_with_the_lowest_chrf_first(shown):
    scores = [float(text) for text in shown().texts(".score")]
    assert len(scores) == 12
    assert scores == sorted(scores)
    assert scores[0] == 0


def test_it_is_sorted_by_what_is_clicked_and_the_other_way_by_a_second_click(shown):
    page = shown()
    page.one(".lines thead th:first-child button").click()
    assert lines(page) == list(range(1, 13))
    page.one(".lines thead th:first-child button").click()
    assert lines(page) == list(range(12, 0, -1))
    assert page.run("return document.querySelector('.lines thead th').ariaSort") == "descending"


def test_a_search_finds_what_any_side_says_whatever_its_case(shown):
    page = shown()
    page.one("input[type=search]").send_keys("BÄR")
    assert sorted(lines(page)) == [n for n, line in enumerate(SOURCE, start=1) if "Bär" in line]
    assert page.text(".readout") == "4 of 12 sentences"
    page.one("input[type=search]").send_keys("xyz")
    assert lines(page) == []


def test_the_words_of_a_line_are_those_that_its_part_of_the_table_has(shown):
    """A sentence of Chinese was one word in the list, and many in the table of parts."""
    page = shown("unspaced")
    page.one(".lines thead th:first-child button").click()
    assert page.texts(".words") == [str(len(words(line))) for line in UNSPACED] == ["7", "7", "3"] * 4


def test_a_part_of_the_table_shows_its_sentences(shown):
    page = shown()
    [button] = [one for one in page.all(".parts button") if one.text == "unsure"]
    button.click()
    assert sorted(lines(page)) == [3, 6]
    assert page.texts(".flag") == ["looped", "unsure", "unsure"]


def test_what_is_marked_is_what_the_other_text_has_not(shown):
    """Python's difflib says as much is shared of texts as short as these."""
    page = shown()
    page.one(".lines thead th:first-child button").click()
    for n in range(12):
        row = f".lines tbody tr:nth-child({n + 1})"
        sides = [REFERENCE[n].split(), TRANSLATION[n].split()]
        blocks = difflib.SequenceMatcher(None, *sides, autojunk=False).get_matching_blocks()
        kept = [
            {place for block in blocks for place in range(block[side], block[side] + block.size)} for side in (0, 1)
        ]
        for side, tag in enumerate(("del", "ins")):
            marked = " ".join(page.texts(f"{row} {tag}")).split()
            assert marked == [word for place, word in enumerate(sides[side]) if place not in kept[side]]
        if TRANSLATION[n]:
            assert page.texts(f"{row} dd") == [SOURCE[n], REFERENCE[n], TRANSLATION[n]]
    assert page.texts(".empty") == ["no text"]


def test_hostile_text_stays_text(shown):
    page = shown("hostile")
    page.one(".lines thead th:first-child button").click()
    assert page.run("return window.hit") is None
    assert page.texts(".source dd") == [text if text.strip() else "no text" for text in HOSTILE]
    assert page.run("return getComputedStyle(document.querySelectorAll('.source dd')[8]).direction") == "rtl"


def test_of_many_sentences_some_are_shown_at_a_time(shown):
    page, seen = shown("long"), []
    while page.all(".more:not([hidden])"):
        seen.append((len(lines(page)), page.text(".more")))
        page.one(".more").click()
    assert seen == [(50, "Show 50 more of 70"), (100, "Show 20 more of 20")]
    assert sorted(lines(page)) == list(range(1, 121))


@pytest.mark.parametrize("width", [320, 400, 1200])
def test_no_width_needs_scrolling_sideways(shown, width):
    page = shown("hostile")
    page.size(width, 900)
    assert page.run("return document.documentElement.scrollWidth") == width


def test_each_test_has_its_own_sentences_and_a_link(shown):
    page = shown("two")
    assert page.texts(".contents a") == ["2016", "2017"]
    page.one("#test-2 input[type=search]").send_keys("cat")
    counts = [len(page.all(f"#test-{n} .lines tbody tr")) for n in (1, 2)]
    assert counts == [12, 1]


def test_light_and_dark_follow_the_system_until_somebody_chooses(shown):
    page = shown()
    colour = "return getComputedStyle(document.documentElement).backgroundColor"
    page.media(prefers_color_scheme="dark")
    dark = page.run(colour)
    page.media(prefers_color_scheme="light")
    assert page.run(colour) != dark
    page.one("#theme").click()
    page.one("#theme").click()
    assert (page.text("#theme"), page.run(colour)) == ("Theme: dark", dark)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_that_wcag_asks_for(shown, scheme):
    """4.5 : 1, of what is marked on its own ground, too."""
    page = shown()
    page.media(prefers_color_scheme=scheme)
    least = page.run(
        "const brush = document.createElement('canvas').getContext('2d', {willReadFrequently: true});"
        "const rgb = (colour) => { brush.clearRect(0, 0, 1, 1); brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1);"
        "  return [...brush.getImageData(0, 0, 1, 1).data]; };"
        "const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 :"
        "  ((v + .055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);"
        "const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);"
        "  if (c[3] === 255) return c; } };"
        "return Math.min(...[...document.querySelectorAll('small, dt, dd, ins, del, td, th, button, a, figcaption')]"
        "  .filter(e => e.offsetParent && e.textContent.trim()).map(e => {"
        "    const [one, other] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((a, b) => b - a);"
        "    return (one + .05) / (other + .05); }));"
    )
    assert least >= 4.5
