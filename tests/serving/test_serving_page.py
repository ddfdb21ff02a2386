"""The page in a real browser: what is typed is translated, and every alternative can be looked into."""

from __future__ import annotations

import time

import pytest
from browser import Keys
from served import Served

LINE, UNKNOWN = "ich mochte ein bier", "der xyz trinkt"
BEST = "#found > li li:first-child bdi"


def wait(browser, script, *arguments):
    """Until this is true in the page."""
    until = time.monotonic() + 10
    while not browser.run(f"return {script}", *arguments):
        assert time.monotonic() < until, browser.text("body")
        time.sleep(0.01)


def ask(browser, text):
    """Type it, press the button, and wait for the answer or for why there is none."""
    browser.run("document.querySelector('#source').value = arguments[0]", text)
    browser.one("#ask").click()
    wait(browser, "!document.querySelector('#ask').disabled")


def tokens(browser):
    """What the frame shows, once it does: the source and the translation."""
    wait(browser, "!document.querySelector('#attention').hidden && !document.querySelector('#ask').disabled")
    browser.driver.switch_to.frame(browser.one("#frame"))
    try:
        until = time.monotonic() + 10
        while len(found := browser.texts(".sentence")) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        return found
    finally:
        browser.driver.switch_to.default_content()


@pytest.fixture
def page(browser, served):
    """The page, open; whatever happens, nothing is complained about and nobody else is asked for anything."""
    browser.driver.get("about:blank")
    browser.console()
    browser.requests()
    browser.driver.get(served.address)
    wait(browser, "document.querySelector('#about').textContent !== ''")
    yield browser
    assert browser.console() == []
    assert all(address.startswith((served.address, "about:", "data:")) for address in browser.requests())
    browser.size(1200, 900)
    browser.media()


def test_a_sentence_shows_its_alternatives_and_where_it_looks(page, served):
    assert page.text("#about") == "de to en · tiny, " + served.get("/health").json["model"].partition(", ")[2]
    ask(page, LINE)
    assert tokens(page) == ["ichmochteeinbier/s", "iwantabeer/s"]
    expected = served.translate(LINE, n_best=5)[0]["n_best"]
    assert page.texts("#found bdi") == [one["translation"] or "(nothing)" for one in expected]
    assert page.texts("#found .score") == [f"{one['score']:.2f}" for one in expected]


def test_another_alternative_is_looked_into_when_it_is_pressed(page, served):
    ask(page, LINE)
    before, other = tokens(page), page.all(".alternatives button")[3]
    other.click()
    wait(page, "arguments[0].ariaPressed === 'true'", other)
    assert len(page.all(".alternatives [aria-pressed=true]")) == 1
    source, target = tokens(page)
    assert (source, target == before[1]) == (before[0], False)
    assert target.removesuffix("/s") == page.texts("#found bdi")[3].replace(" ", "")


def test_several_lines_are_several_sentences_with_what_is_odd_about_them(page):
    ask(page, f"{LINE}\n\n  \n{UNKNOWN}\r\n")
    assert page.texts("#found .source") == [LINE, UNKNOWN]
    assert page.texts(".flags li") == ["the model is less sure than usual", "has words that training never saw"]
    assert not page.one("#attention").is_displayed()
    page.all("#found > li:nth-child(2) button")[0].click()
    assert tokens(page)[0].startswith("der")
    assert page.run("return document.querySelector('#attention').closest('#found > li:nth-child(2)') !== null")
    ask(page, UNKNOWN)  # the frame, which was in what is replaced, is still there
    assert tokens(page)[0].startswith("der")


@pytest.mark.parametrize(("text", "direction"), [("\u0627\u0628 12.", "rtl"), ("a dog.", "ltr")])
def test_what_is_typed_stands_as_it_is_read(page, text, direction):
    """The full stop of Arabic stood before it."""
    box = page.one("#source")
    box.clear()
    box.send_keys(text)
    assert page.run("return getComputedStyle(arguments[0]).direction", box) == direction


def test_control_and_enter_translate(page):
    page.one("#source").send_keys(LINE, Keys.CONTROL, Keys.ENTER)
    tokens(page)
    assert page.texts(BEST) == ["i want a beer"]


@pytest.mark.parametrize("text", ["<img src=x onerror=window.hit=1>", "</textarea><script>window.hit=1</script>"])
def test_what_looks_like_markup_stays_text(page, text):
    ask(page, text)
    tokens(page)
    assert page.texts("#found .source") == [text]
    assert page.run("return window.hit === undefined && document.images.length === 0")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_is_wider_than_the_window(page, theme, width):
    page.size(width, 700)
    page.media(prefers_color_scheme=theme)
    ask(page, f"{'x' * 300}\n{LINE}")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    paper, ink = (
        page.run(f"return getComputedStyle(document.documentElement).{name}") for name in ("background", "color")
    )
    lightness = [sum(map(int, colour.partition("(")[2].partition(")")[0].split(", ")[:3])) for colour in (paper, ink)]
    assert (lightness[0] > 700 and lightness[1] < 200) == (theme == "light")


def test_a_refusal_is_shown_in_the_services_words(page):
    ask(page, "bier " * 2_001)
    assert page.text("#said") == "texts of 10,005 characters; a request has at most 10,000"
    assert "413" in page.console()[0]
    ask(page, LINE)
    tokens(page)
    assert page.text("#said") == ""


def test_of_draws_it_shows_the_utility_that_orders_them(browser, serving):
    with Served(serving(decoding__mbr="{samples: 3}", decoding__temperature=2)) as served:
        browser.driver.get(served.address)
        wait(browser, "document.querySelector('#about').textContent !== ''")
        ask(browser, LINE)
        assert browser.text("#said") == ""
        expected = served.translate(LINE, n_best=3)[0]["n_best"]
        assert len(expected) > 1
        assert browser.texts("#found bdi") == [one["translation"] or "(nothing)" for one in expected]
        assert browser.texts("#found .score") == [f"{one['utility']:.2f}" for one in expected]
        assert "expected utility" in browser.one("#found .score").get_attribute("title")
        tokens(browser)
    assert browser.console() == []


def test_a_service_that_is_gone_is_told(browser, serving):
    with Served(serving()) as served:
        browser.driver.get(served.address)
        wait(browser, "document.querySelector('#about').textContent !== ''")
    ask(browser, LINE)
    assert browser.text("#said") == "the service cannot be reached"
    browser.console()
