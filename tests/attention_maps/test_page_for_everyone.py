"""The page for every hand, eye, screen and text: keys, speech, contrast, phones, hostile tokens, no JavaScript."""

from __future__ import annotations

import base64
import re

import pytest
from browser import Keys
from pages import VIEWS


def outline(browser):
    """The width of the ring around what has the focus, or around the label of a radio button."""
    return browser.run(
        "const a = document.activeElement, style = getComputedStyle(a.type === 'radio' ? a.nextElementSibling : a);"
        "return style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth)"
    )


def test_every_view_is_reached_and_used_by_keyboard_alone(opened):
    browser = opened()
    uses = {
        "sentences": ([Keys.HOME, Keys.ARROW_RIGHT], r"A → little looks at "),
        "matrix": ([Keys.ARROW_DOWN, Keys.ARROW_RIGHT], r"<s> → A looks at klein: \d\.\d{3}, rank \d of 8"),
        "grid": ([Keys.ARROW_RIGHT, Keys.ARROW_DOWN], r"head 1.*, layer 3"),
        "lines": ([Keys.ARROW_DOWN], r"A → little looks at "),
        "steps": ([Keys.ARROW_RIGHT], r"Step 2: A → little\. Likeliest next: little 0\.50, b 0\.20"),
        "heads": ([], r"Head table: cross-attention\.$"),
        "table": ([], r"Numbers: cross-attention, layer 2, mean of all heads, pieces\.$"),
    }
    for number, (name, (keys, said)) in enumerate(uses.items(), start=1):
        browser.press(Keys.ESCAPE, str(number))
        assert browser.run("return document.getElementById('view').dataset.view") == name
        assert browser.run("return document.getElementById('view').contains(document.activeElement)"), name
        browser.press(*keys)
        assert re.search(said, browser.text("#spoken")), (name, browser.text("#spoken"))


def test_keys_choose_block_layer_head_unit_and_colours(opened):
    browser = opened("view=matrix")
    browser.press("b", "b", "]", "]", "]", ".", "w", "n", "c")
    assert browser.address() == ("#view=matrix&block=decoder&layer=1&head=1&unit=words&numbers=off&scale=largest")
    browser.press("0", "[", ",")
    assert browser.address().startswith("#view=matrix&block=decoder&layer=3&head=3&")


def test_tab_reaches_every_control_and_shows_where_it_is(opened):
    browser, seen = opened("view=lines"), []
    for _ in range(14):
        browser.press(Keys.TAB)
        if browser.run("return document.activeElement === document.body"):
            break
        assert outline(browser) >= 2
        seen.append(browser.run("const a = document.activeElement; return a.name || a.id || a.className"))
    assert seen == ["theme", "help", "view", "block", "layer", "head", "unit", "mass", "line-end", "line-end"]


def test_a_key_without_an_effect_in_a_view_does_and_says_nothing(opened):
    """`n` used to announce a change in the view of numbers, `]` to turn layers that no view showed."""
    browser = opened()
    for view, keys in {"grid": "[],.n", "steps": "bwnc", "heads": "[],.wnc", "table": "nc", "lines": "nc"}.items():
        browser.go(f"view={view}")
        before = browser.text("#spoken")
        for key in keys:
            browser.press(key)
        assert (browser.address(), browser.text("#spoken")) == (f"#view={view}", before), view


def test_steps_choose_and_name_the_layers_that_they_show(opened):
    """An encoder deeper than the decoder used to leave no layer chosen, and to be what was spoken of."""
    browser = opened("view=steps&block=encoder&layer=5&head=2&step=1", "deep")
    assert browser.texts("input[name=layer]:checked + span") == ["2"]
    for layer in ("3", "mean", "1", "2"):
        browser.press("]")
        assert browser.texts("input[name=layer]:checked + span") == [layer]
    browser.press("]")
    assert browser.text("#spoken") == "Steps: decoder self-attention and cross-attention, layer 3, head 2."


def test_sorting_the_head_table_keeps_the_focus_on_its_column(opened):
    browser = opened("view=heads")
    browser.all("th button")[2].send_keys(Keys.ENTER)
    assert browser.run("return document.activeElement.textContent") == "Entropy \u2191"


def test_radio_buttons_keep_the_focus_when_arrows_move_them(opened):
    browser = opened("view=matrix")
    browser.one("input[name=layer]:checked").send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.address() == "#view=matrix&layer=0"
    assert browser.run("return document.activeElement.name + document.activeElement.value") == "layer0"


def test_the_keys_are_explained_on_a_question_mark(opened):
    browser = opened()
    browser.press("?")
    assert browser.one("#keys").is_displayed()
    browser.press(Keys.ESCAPE)
    assert not browser.one("#keys").is_displayed()


@pytest.mark.parametrize("view", VIEWS)
def test_the_address_restores_what_was_seen(opened, view):
    chosen = f"view={view}&block=encoder&layer=1&head=2&unit=words&row=1&column=2&mass=70&step=2&theme=dark"
    browser = opened(chosen)
    seen = browser.run("return document.body.innerText"), browser.address()
    opened(seen[1][1:])
    assert (browser.run("return document.body.innerText"), browser.address()) == seen
    known = chosen.replace("view=sentences&", "")
    assert seen[1] == "#" + (known.replace("block=encoder&", "") if view == "steps" else known)


PRESS = (
    "const press = key => document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));"
    "let written = 0;"
    "const write = history.replaceState;"
    "history.replaceState = (...given) => { written++; write.apply(history, given); };"
)


def test_a_reload_right_after_a_key_shows_what_the_key_chose(opened):
    """The second of two quick changes used to be lost: it was written after a pause, or when the page was left, which
    is too late for a reload."""
    browser = opened("view=matrix")
    browser.run(PRESS + "press('b'); press('b');")
    browser.driver.refresh()
    assert browser.run("return location.hash") == "#view=matrix&block=decoder"


def test_a_key_that_is_held_down_does_not_write_the_address_each_time(opened):
    """Safari takes 100 in half a minute."""
    browser = opened("view=matrix")
    assert browser.run(PRESS + "for (let n = 0; n < 300; n++) press('n'); return written") < 40


def test_an_address_from_elsewhere_is_made_one_that_can_be_drawn(opened):
    browser = opened(
        "view=nonsense&layer=99&head=-1&row=5000&mass=1&__proto__=x&constructor=x&step=1e9&theme=<b>&sort=7"
    )
    assert browser.run("return document.getElementById('view').dataset.view") == "sentences"
    for number in range(1, 8):
        browser.press(str(number))
    assert browser.address() == "#view=table&mass=50"


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_tokens_are_shown_and_do_nothing(opened, view):
    browser = opened(f"view={view}&row=1&column=1", "hostile")
    assert browser.run("return window.hit === undefined")
    assert browser.all("main img, main script") == []
    if view not in ("grid", "heads"):
        text = browser.text("#view")
        for shown in (
            "</script>",
            "<img src=x onerror=window.hit=1>",
            "U+202E",
            "U+200B",
            "U+0000",
            "猫が",
            "👩‍👩‍👧",
            "{{script}}",
        ):
            assert shown in text or view == "steps", shown
        assert not re.search("[\u202e\u200b\x00]", text)


@pytest.mark.parametrize("which", ["ordinary", "hostile", "long"])
def test_a_phone_needs_no_sideways_scrolling_of_the_page(opened, browser, which):
    browser.size(360, 740)
    opened("", which)
    for name in VIEWS:
        browser.go(f"view={name}&block=decoder")
        assert browser.run("return document.documentElement.scrollWidth") <= 360, name
        assert browser.run(
            "const controls = [...document.querySelectorAll('header *, #controls *')];"
            "return controls.every(e => e.getBoundingClientRect().right <= 360)"
        ), name


def test_a_phone_shows_the_whole_title_of_a_table(opened, browser):
    """It used to be as wide as the table, and to end at the edge of the screen."""
    browser.size(360, 740)
    opened("view=table")
    assert browser.run("return document.querySelector('caption').getBoundingClientRect().right") <= 360


def test_bars_and_what_is_marked_are_seen_in_forced_colours(opened, browser):
    """They were backgrounds and shadows, which such a system removes."""
    browser.media(forced_colors="active")
    opened("row=2")
    style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    assert browser.run(style, ".bar i", "forcedColorAdjust") == "none"
    assert browser.run(style, ".token.marked", "outlineStyle") == "solid"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_in_both_themes(opened, theme):
    """Contrast of 4.5 : 1 of each text with what lies behind it, decoration aside."""
    browser = opened(f"theme={theme}")
    for name in VIEWS:
        browser.go(f"view={name}&theme={theme}&row=1&column=1&numbers=off")
        poor = browser.run(CONTRAST)
        assert poor == [], name


CONTRAST = """
const rgba = text => text.match(/[\\d.]+/g).map(Number);
const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a)); };
const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { const layers = [];
  for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
const seen = e => e ? Number(getComputedStyle(e).opacity) * seen(e.parentElement) : 1;
const poor = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const e = node.parentElement;
  if (!node.data.trim() || !e.checkVisibility()) continue;
  if (e.closest('script, [aria-hidden], :disabled, .only-spoken')) continue;
  const back = behind(e), opacity = seen(e), ink = rgba(getComputedStyle(e).color);
  const [a, b] = [light(over([...ink.slice(0, 3), opacity], back)), light(back)].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([node.data, (a + 0.05) / (b + 0.05)]);
}
return poor;
"""


def test_it_follows_the_system_until_a_theme_is_chosen(opened, browser):
    browser.media(prefers_color_scheme="dark")
    opened()
    ground = "return getComputedStyle(document.documentElement).backgroundColor"
    dark = browser.run(ground)
    browser.media(prefers_color_scheme="light")
    assert browser.run(ground) != dark
    browser.press("d", "d")
    assert browser.run(ground) == dark


def test_nothing_moves_where_less_motion_is_wanted(opened, browser):
    browser.media(prefers_reduced_motion="reduce")
    opened()
    assert browser.run("return getComputedStyle(document.querySelector('.token')).transitionDuration") in (
        "0s",
        "1e-05s",
    )


def test_a_page_may_open_in_words(opened):
    browser = opened("", "words")
    assert browser.texts("input[name=unit]:checked + span") == ["words"]
    browser.press("w")
    assert browser.address() == "#unit=pieces"


def test_a_page_of_one_block_offers_only_that(opened):
    browser = opened("", "cross")
    for name in VIEWS:
        browser.go(f"view={name}")
        assert browser.all("input[name=block], input[name=layer]") == []
    assert browser.text("caption").startswith("cross-attention, layer 2, mean of all heads, pieces.")


def test_without_javascript_there_is_a_table(opened, browser):
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened()
        assert len(browser.all("noscript tbody tr")) == 7
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize(("view", "name"), [("sentences", "ordinary"), ("matrix", "long")])
def test_it_prints_on_one_page(opened, view, name):
    browser = opened(f"view={view}", name)
    printed = base64.b64decode(browser.command("Page.printToPDF")["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_the_browser_itself_refuses_what_the_policy_forbids(browser, pages):
    browser.open(pages / "ordinary.html")
    violated = browser.driver.execute_async_script(
        "const done = arguments[0], seen = []; addEventListener('securitypolicyviolation', e => {"
        "  seen.push(e.effectiveDirective); if (seen.length === 2) done(seen.sort()); });"
        "const script = document.createElement('script'); script.textContent = 'window.hit = 1';"
        "document.body.append(script);"
        "const image = new Image(); image.src = 'https://example.org/x.png'; document.body.append(image);"
    )
    assert violated == ["img-src", "script-src-elem"]
    assert browser.run("return window.hit === undefined")
    browser.console()
