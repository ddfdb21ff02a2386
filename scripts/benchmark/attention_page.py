"""What the page of `tx visualize-attention` costs: time to write it, its size, and time until it can be used.

    python scripts/benchmark/attention_page.py                   needs Chromium and its driver, and the dev extra

Made-up weights, 6 layers of 8 heads each in encoder and decoder. Written: the least of some rounds. Usable: the median
of some rounds from asking for the file to the first picture, in a headless Chromium; then for each view from the choice
to the picture.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "attention_maps"))
from synthetic import synthetic_maps

from transformer_cli.attention_maps.page import page

SIZES = [(13, 12), (60, 60), (128, 128)]
VIEWS = ["sentences", "matrix", "grid", "lines", "steps", "heads", "table"]
READY_MS = "return performance.getEntriesByName('ready')[0].startTime"
VIEW_MS = """
const done = arguments[1], began = performance.now();
addEventListener("hashchange", () => requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))),
  {once: true});
location.hash = arguments[0];
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    browser = chromium()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for n_source, n_target in SIZES:
                path = Path(folder) / f"{n_source}x{n_target}.html"
                written_ms = write(path, n_source, n_target, rounds)
                ready_ms = statistics.median(opened(browser, path) for _ in range(rounds))
                print(
                    f"{n_source:>3} + {n_target:<3} pieces: written in {written_ms:5.0f} ms, "
                    f"{path.stat().st_size / 1e6:5.2f} MB, usable after {ready_ms:5.0f} ms"
                )
            for view in VIEWS:
                view_ms = [shown(browser, path, view) for _ in range(rounds)]
                print(f"{n_source:>3} + {n_target:<3} {view:<10} {statistics.median(view_ms):5.0f} ms")
    finally:
        browser.quit()


def chromium() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def write(path: Path, n_source: int, n_target: int, rounds: int) -> float:
    """Milliseconds from maps to the file; marks are among the pieces."""
    maps = synthetic_maps(n_source - 1, n_target - 1, layers=(6, 6), heads=8)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        path.write_text(page(maps), encoding="utf-8")
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


def opened(browser: webdriver.Chrome, path: Path) -> float:
    browser.get("about:blank")
    browser.get(path.as_uri())
    return float(browser.execute_script(READY_MS))


def shown(browser: webdriver.Chrome, path: Path, view: str) -> float:
    """Milliseconds for a view that nothing was prepared for."""
    browser.get("about:blank")
    browser.get(f"{path.as_uri()}#view={'lines' if view == 'sentences' else 'sentences'}&layer=1")
    return float(browser.execute_async_script(VIEW_MS, f"view={view}"))


if __name__ == "__main__":
    main()
