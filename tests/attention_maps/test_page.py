"""The page as text: what it holds, what it lets a browser do, how large it is."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re

import numpy as np
import pytest
from synthetic import synthetic_maps

from transformer_cli.attention_maps.page import PAGE, page, quantised
from transformer_cli.attention_maps.selection import selected
from transformer_cli.cli.visualize_attention import _views

HOSTILE = [
    "▁</script>",
    "<!--<script >",
    "▁<img src=x onerror=alert(1)>",
    "▁{{script}}",
    "▁&lt;",
    "\u2028",
    "\u202e",
    "\ud800",
]


class Elements(html.parser.HTMLParser):
    """Start tags with their attributes, and the text in each kind of element."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open = tag if tag != "script" else dict(attributes)["type"]

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        self.texts[self.open] = self.texts.get(self.open, "") + data


@pytest.fixture(scope="module")
def hostile():
    return page(synthetic_maps(HOSTILE, HOSTILE[::-1]))


def payload(text):
    return json.loads(Elements(text).texts["application/json"])


def test_the_policy_forbids_everything_but_this_script_and_this_style():
    elements = Elements(page(synthetic_maps()))
    [policy] = [each["content"] for _, each in elements.tags if each.get("http-equiv") == "Content-Security-Policy"]
    hashes = {
        kind: base64.b64encode(hashlib.sha256(elements.texts[place].encode()).digest()).decode()
        for kind, place in (("script", "module"), ("style", "style"))
    }
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_nothing_in_the_file_refers_to_anything_outside_it():
    text = page(synthetic_maps())
    assert re.findall(r"https?:[^\"']*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(?:src|href|srcset|action|data)\s*=|@import|url\(|fetch\(|XMLHttpRequest|import\(", text)


def test_hostile_text_opens_and_closes_no_element(hostile):
    harmless = page(synthetic_maps([f"▁w{i}" for i in range(len(HOSTILE))], [f"▁v{i}" for i in range(len(HOSTILE))]))
    assert [tag for tag, _ in Elements(hostile).tags] == [tag for tag, _ in Elements(harmless).tags]
    assert Elements(hostile).texts["module"] == Elements(harmless).texts["module"]


def test_the_data_hold_no_character_of_markup(hostile):
    """`<!--<script >` would make the browser overlook the end of the element."""
    data = hostile.split('id="maps">')[1].split("</script>")[0]
    assert len(data) > 1000
    assert not set(data) & set("<>&\u2028\u2029")


def test_hostile_text_arrives_as_it_is(hostile):
    assert payload(hostile)["source"]["pieces"] == [*HOSTILE, "</s>"]


def test_the_page_can_be_written_as_utf_8_whatever_the_text(hostile):
    assert hostile.encode("utf-8")


def test_a_hostile_model_name_stays_text():
    from dataclasses import replace

    text = page(replace(synthetic_maps(), model="</title><script>alert(1)</script>"))
    assert "<script>alert" not in text


def test_weights_arrive_with_an_error_of_half_a_unit():
    maps = synthetic_maps(9, 7, n_padding=2)
    for block, sent in zip(maps.blocks, payload(page(maps))["blocks"], strict=True):
        weights = np.frombuffer(base64.b64decode(sent["weights"]), "<u2").reshape(block.weights_HQK.shape) / 65535
        assert np.abs(weights - block.weights_HQK).max() <= 0.5 / 65535 + 1e-7


def test_the_weights_0_and_1_are_kept_exactly():
    assert np.frombuffer(quantised(np.array([0, 1, 1 + 1e-6], dtype=np.float32)), "<u2").tolist() == [0, 65535, 65535]


def test_two_runs_give_the_same_bytes():
    assert page(synthetic_maps(n_padding=2)) == page(synthetic_maps(n_padding=2))


def test_sixty_pieces_a_side_make_a_page_under_1_6_megabytes():
    assert len(page(synthetic_maps(59, 59, layers=(6, 6), heads=8)).encode()) < 1_600_000


def test_the_script_is_under_60_kilobytes():
    assert len(PAGE.script.encode()) < 60_000


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3, 6])
def test_the_page_opens_at_the_layer_that_a_picture_shows(n_layers: int) -> None:
    """It showed the mean of all layers, where the picture beside it had one."""
    maps = synthetic_maps(layers=(4, n_layers))
    first = _views(maps, layers=None, heads=None, words=False)
    shown = [one.layer for one in first if one.kind == "cross"]
    assert payload(page(maps))["layer"] == (shown[0] if n_layers else 0)
    assert len(shown) == min(n_layers, 1)


def test_what_a_head_is_among_all_it_is_on_a_page_of_some() -> None:
    """The best of those that were chosen was said to be the best of all."""
    maps = synthetic_maps(layers=(2, 4), heads=4)
    whole = {(one["kind"], one["layer"], one["head"]): one for one in payload(page(maps))["heads"]}
    for layers, heads in (("cross:1", None), ("2", "3"), (None, "1")):
        some = payload(page(selected(maps, layers=layers, heads=heads), among=maps))["heads"]
        assert 0 < len(some) < len(whole)
        assert all(one == whole[one["kind"], one["layer"], one["head"]] for one in some)


def test_every_part_is_used():
    assert {path.name for path in PAGE.folder.iterdir()} == {f"{name}.js" for name in PAGE.scripts} | {
        *("page.html", "page.css")
    }


def test_without_javascript_each_step_names_where_it_looks():
    maps = synthetic_maps(["▁a", "▁b"], ["▁x"], n_padding=1)
    mean = maps.of("cross")[-1].weights_HQK.mean(axis=0)
    noscript = page(maps).split("<noscript>")[1].split("</noscript>")[0]
    for row, weights in zip(["&lt;s&gt; → x", "x → &lt;/s&gt;"], mean, strict=True):
        best = int(weights.argmax())
        assert re.search(f"{row}</th><td>{['a', 'b', '&lt;/s&gt;'][best]} {weights[best]:.2f},", noscript)
