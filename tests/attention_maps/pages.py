"""The maps that the tests open in a browser; where there is none, who imports them is skipped."""

from __future__ import annotations

from dataclasses import replace

import browser  # noqa: F401
from synthetic import synthetic_maps

VIEWS = ["sentences", "matrix", "grid", "lines", "steps", "heads", "table"]
SOURCE = ["▁Ein", "▁klein", "er", "▁Junge", "▁spring", "t", "."]
TARGET = ["▁A", "▁little", "▁boy", "▁jump", "s", "."]
MAPS = synthetic_maps(SOURCE, TARGET, layers=(2, 3), heads=3, n_padding=2)
HOSTILE = [
    *(
        "▁</script>",
        "<!--<script >",
        "▁<script>window.hit=1</script>",
        "▁<img src=x onerror=window.hit=1>",
        "▁ab\u202ecd",
    ),
    *(
        "▁zero\u200bwidth",
        "▁" + "x" * 200,
        "▁👩‍👩‍👧",
        "▁猫が",
        "▁مرحبا",
        "▁{{script}}",
        "\x00",
        "▁&amp;",
        "\u00a0",
        "▁",
    ),
]
LEFTWARD = [
    *("▁\u064a\u0642\u0631", "\u0623", "▁\u0627\u0644\u0645", "\u0639\u0644\u0651", "\u0645"),
    *("▁Hel", "lo", "▁World", "▁\u0643\u062a", "\u0627\u0628", "▁12", "▁34", "5", "."),
]
"""Arabic, its words cut where letters join, with English and numbers among them."""
JOINED = ["▁ශ්\u200dරී", "▁می\u200c", "خورد", "▁x", "\u200dx", "▁می", "\u200c", "▁a\u200cb"]
"""Joiners inside a piece, at its end, at its beginning, alone, and where they do nothing."""
PAGES = {
    "ordinary": MAPS,
    "hostile": synthetic_maps(HOSTILE, HOSTILE[::-1], n_padding=1),
    "long": synthetic_maps(127, 127, layers=(2, 2), heads=2),
    "cross": replace(MAPS, blocks=MAPS.of("cross")[1:2]),
    "words": MAPS,
    "leftward": synthetic_maps(["▁a", "▁\u0643\u062a", "\u0627\u0628", "▁or", "▁x\u0301", "\u0301"], LEFTWARD),
    "joined": synthetic_maps(JOINED, JOINED),
    "deep": synthetic_maps(SOURCE, TARGET, layers=(6, 3), heads=2),
}
