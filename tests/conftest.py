"""What the tests of several parts share."""

from __future__ import annotations

import fcntl
import functools
import gc
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import drawn
import faults
import pytest
from checkout import contents, left_behind
from hypothesis import HealthCheck, settings

from transformer_cli.data.phrasebook import Phrasebook, pairs

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


settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
"""Beside others an example may take a second; where time is the claim, a test says so."""

gc.set_threshold(10_000, 10, 100)
"""To look for garbage as often as usual took a tenth of all."""


def pytest_configure(config: pytest.Config) -> None:
    """Whoever starts the tests counts the faults that they try, and keeps the phrasebook that they draw."""
    if not hasattr(config, "workerinput"):
        descriptor, os.environ[faults.COUNTED] = tempfile.mkstemp(prefix="faults-")
        os.close(descriptor)
        os.environ[drawn.FOLDER] = tempfile.mkdtemp(prefix="drawn-")
    pairs.phrasebook = drawn.drawn


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: nobody looks for garbage in it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if said := faults.noted(Path(os.environ[faults.COUNTED])):
        terminalreporter.write_line(said)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        Path(os.environ.pop(faults.COUNTED)).unlink()
        shutil.rmtree(os.environ.pop(drawn.FOLDER))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are not shown: gzip's hold the second in which they were made, and the processes that share the tests would
    not agree on their names."""
    return f"{argname}-of-{len(val)}" if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def nobody_watches() -> Iterator[None]:
    """A thread that looks whether others need the processors would go on in all later tests, and call what they set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_cli.spinning._watch", lambda threads: None)
        yield


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


@pytest.fixture(scope="session", autouse=True)
def _products_are_measured_once() -> Iterator[None]:
    """Each training begins with that; of the many small ones here it took a tenth."""
    import torch

    from transformer_cli.training import utilisation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilisation, "product_rate", once := functools.cache(utilisation.product_rate))
        once(torch.float32)  # now, that it is known in what is forked, too
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_disk_is_waited_for() -> Iterator[None]:
    """That a disk is asked to have what was written is held where it is asked; what lies there after a power cut no
    test looks at, and the answers took more than a tenth of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        patch.setattr("transformer_cli.descriptor.FULLY", None)
        yield


_NUMBERS = itertools.count()


@pytest.fixture
def countable(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch does not count products for which oneDNN is asked by name."""
    monkeypatch.setattr("transformer_cli.model.matmul.by_onednn", lambda dtype: False)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder; pytest's own also moves a link to the newest one, which takes longer than most tests."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_NUMBERS)}"
    path.mkdir(0o700)
    return path


@pytest.fixture(autouse=True)
def _a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every test is, and every process that it starts; what they leave there is nobody's."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _nobody_was_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-q` of a test before would leave out what this one looks for."""
    from transformer_cli.cli import console

    monkeypatch.setattr(console, "_quiet", False)


@pytest.fixture
def own_threads() -> Iterator[None]:
    """What trains in the process of the tests sets how many threads PyTorch has."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """shared(name, make): a folder that `make` fills, once for all processes that run tests; nobody changes it."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    base = tmp_path_factory.getbasetemp() if alone else tmp_path_factory.getbasetemp().parent

    def folder(name: str, make: Callable[[Path], None]) -> Path:
        path = base / name
        with open(base / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                aside = base / f"{name}.aside"
                aside.mkdir()
                make(aside)
                aside.rename(path)
        return path

    return folder


@pytest.fixture(scope="session")
def trained_run(shared: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """A run that `tx train` made, and that knows PAIRS by heart: `runs/tiny`, in a folder of its own, the latest there.

    Everybody reads the same one: who wants to change something takes a copy.
    """
    return shared("trained", _train) / "runs" / "tiny"


@pytest.fixture(scope="session")
def best(trained_run: Path) -> str:
    """The name of its best checkpoint."""
    return (trained_run / "best").read_text().strip()


@pytest.fixture(scope="session")
def two_ways(shared: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The same of a run that learned PAIRS in both directions, and with two test sets, `own` and `few`."""
    tests = {"own": {"pairs": PAIRS}, "few": {"pairs": PAIRS[2:5]}}
    changes = {"data.train": [{"text": {"pairs": PAIRS}, "both": True}], "data.test": tests}
    return shared("two-ways", lambda folder: _train(folder, changes)) / "runs" / "tiny"


def in_bf16(run: Path, patch: pytest.MonkeyPatch) -> None:
    """From now on the run was trained in bf16, as its files say."""
    patch.setattr("transformer_cli.machine.imitates", lambda precision, device: False)  # whatever processor this is
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("precision: fp32", "precision: auto"))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"machine": record["machine"] | {"precision": "bf16"}}))


def _train(folder: Path, changes: Mapping[str, object] | None = None) -> None:
    from transformer_cli.cli.app import main

    overrides = {
        **{f"data.{split}": {"pairs": PAIRS} for split in ("train", "valid", "test")},
        **(changes or {}),
        "tokenizer.vocab_size": 100,
        "model": {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 1, "dropout": 0.0},
        "training": {
            **{"learning_rate": 0.01, "warmup_steps": 20, "max_steps": 150, "validate_every": 50},
            "keep_last": 3,  # all validations are right; which one is the best is another thing on another processor
        },
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
    }
    arguments = [f"--set={key}={json.dumps(value)}" for key, value in overrides.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-c", "tiny.yaml", *arguments]) == 0


@pytest.fixture(scope="module")
def book() -> Phrasebook:
    """The phrasebook of a configuration that says nothing of it."""
    return drawn.drawn()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """How a command line begins that starts `tx` as a process of its own, but for two seconds of importing torch."""
    script, server = Path(__file__).with_name("warm.py"), tmp_path_factory.mktemp("warm") / "socket"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(script), str(server)], env=environment, **pipes) as process:
        assert process.stdout.readline() == b"ready\n"
        yield [sys.executable, "-IS", str(script), str(server)]


@pytest.fixture(scope="session")
def loaded_run(trained_run: Path):
    """The trained run, opened; nobody changes it."""
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.store import open_run

    return open_run(find_checkpoint(str(trained_run)))


@pytest.fixture
def here(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose latest run is the trained one is the current one."""
    monkeypatch.chdir(trained_run.parent.parent)
    return trained_run.parent.parent


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder with the Multi30k files, which no repository may hold; tests on them are skipped without it."""
    folder = Path(os.environ.get("TX_MULTI30K", Path(__file__).parents[2] / "shared" / "data" / "multi30k"))
    if not (folder / "train.de").exists():
        pytest.skip("no Multi30k here: set TX_MULTI30K to the folder with train.de and train.en")
    return folder


@pytest.fixture(scope="session")
def serving(loaded_run):
    """serving(KEY=VALUE, ...): a Service of the trained run under these settings, with __ for the dots."""
    from transformer_cli.cli.unseen import Unseen
    from transformer_cli.loading import settings_of
    from transformer_cli.serving.service import Service

    def serving(**settings):
        told = settings_of(loaded_run, [f"{name.replace('__', '.')}={value}" for name, value in settings.items()])
        known = Unseen.by([loaded_run]).known
        return Service([loaded_run], told, mark=lambda *both: Unseen(known).mark(*both), tell=print)

    return serving


@pytest.fixture(scope="session")
def served(serving):
    """The service that most tests ask; there is nothing that it had to say to its log."""
    from served import Served

    with Served(serving()) as served:
        yield served
    assert served.told == []


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
