"""What the tests of several parts share."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import contents, left_behind

PAIRS = [
    ["ich mochte ein bier", "i want a beer"],
    ["ich möchte ein bier", "i want a beer"],
    ["ich mochte einen kaffee", "i want a coffee"],
    ["ich trinke ein bier", "i drink a beer"],
    ["ich trinke einen kaffee", "i drink a coffee"],
    ["der hund schläft", "the dog sleeps"],
    ["der hund schläft nicht", "the dog does not sleep"],
    ["die katze schläft", "the cat sleeps"],
    ["die katze trinkt", "the cat drinks"],
    ["der hund trinkt", "the dog drinks"],
    ["die unglückliche katze", "the unhappy cat"],
    ["der glückliche hund", "the happy dog"],
]


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """The checkout is, after the last test, as it was before the first one."""
    before = contents()
    yield
    left = left_behind(before, contents())
    assert left == [], "the tests wrote this into the checkout, where `tx` would find it"


@pytest.fixture(scope="session", autouse=True)
def _no_signal_is_ignored() -> None:
    """Under nohup, or in the background of a script, signals are ignored, also by what is started here."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every test is, and every process that it starts; what they leave there is nobody's."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that `tx train` made, and that knows PAIRS by heart: `runs/tiny`, in a folder of its own, the latest there.

    Everybody reads the same one: who wants to change something takes a copy.
    """
    from transformer_cli.cli.app import main

    folder = tmp_path_factory.mktemp("trained")
    overrides = {
        **{f"data.{split}": {"pairs": PAIRS} for split in ("train", "valid", "test")},
        "tokenizer.vocab_size": 100,
        "model": {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 1, "dropout": 0.0},
        "training": {"learning_rate": 0.01, "warmup_steps": 20, "max_steps": 150, "validate_every": 50},
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
    }
    arguments = [f"--set={key}={json.dumps(value)}" for key, value in overrides.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-c", "tiny.yaml", *arguments]) == 0
    return folder / "runs" / "tiny"


@pytest.fixture
def here(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose latest run is the trained one is the current one."""
    from transformer_cli.cli import console

    monkeypatch.chdir(trained_run.parent.parent)
    monkeypatch.setattr(console, "_quiet", False)
    return trained_run.parent.parent


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder with the Multi30k files, which no repository may hold; tests on them are skipped without it."""
    folder = Path(os.environ.get("TX_MULTI30K", Path(__file__).parents[2] / "shared" / "data" / "multi30k"))
    if not (folder / "train.de").exists():
        pytest.skip("no Multi30k here: set TX_MULTI30K to the folder with train.de and train.en")
    return folder


@pytest.fixture(scope="session")
def browser():
    from browser import Browser

    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    from pages import PAGES

    from transformer_cli.attention_maps.page import page

    folder = tmp_path_factory.mktemp("pages")
    for name, maps in PAGES.items():
        (folder / f"{name}.html").write_text(page(maps, words=name == "words"), encoding="utf-8")
    return folder


@pytest.fixture
def opened(browser, pages):
    """open(fragment, name): a page in the browser; the console has to stay empty, the network untouched."""
    browser.console()
    browser.requests()

    def open_page(fragment="", name="ordinary"):
        browser.open(pages / f"{name}.html", fragment)
        return browser

    yield open_page
    assert browser.console() == []
    assert {address.split("#")[0] for address in browser.requests()} <= {path.as_uri() for path in pages.iterdir()}
    browser.size(1200, 900)
    browser.media()
