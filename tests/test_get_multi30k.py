"""scripts/get_multi30k, against a server of our own with tiny stand-ins."""

from __future__ import annotations

import gzip
import hashlib
import importlib.machinery
import importlib.util
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "get_multi30k"
TEXTS = {"train.de": b"ein hund\n", "train.en": b"a dog\n", "val.de": b"eine katze\n", "val.en": b"a cat\n"}
SHA256 = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}


ASKED: list[str] = []


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self):
        ASKED.append(self.path)
        super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def script():
    loader = importlib.machinery.SourceFileLoader("get_multi30k", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_multi30k", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The folder that is served, and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TX_MULTI30K", raising=False)
    ASKED.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def get(script, into, *arguments):
    return script.main(["--into", str(into), *arguments], SHA256)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_the_files_are_fetched_unpacked_and_checked(script, server, tmp_path):
    assert get(script, tmp_path / "data/multi30k", "--url", server[1]) == 0
    assert content(tmp_path / "data/multi30k") == TEXTS


def test_what_is_there_and_right_is_not_fetched_again(script, server, tmp_path, capsys):
    get(script, tmp_path / "x", "--url", server[1])
    ASKED.clear()
    capsys.readouterr()
    assert get(script, tmp_path / "x", "--url", server[1]) == 0
    assert ASKED == []
    assert "all 4 files are there already, and right" in capsys.readouterr().out
    (tmp_path / "x" / "val.de").write_bytes(b"damaged")
    assert get(script, tmp_path / "x", "--url", server[1]) == 0
    assert ASKED == ["/val.de.gz"]
    assert content(tmp_path / "x") == TEXTS


@pytest.mark.parametrize(
    "answer",
    [gzip.compress(b"another text\n"), b"<html>not found</html>", b"", gzip.compress(TEXTS["train.de"])[:-9]],
    ids=["another text", "a page", "nothing", "half of it"],
)
def test_a_wrong_file_is_an_error_and_nothing_gets_its_name(script, server, tmp_path, capsys, answer):
    folder, url = server
    (folder / "train.de.gz").write_bytes(answer)
    assert get(script, tmp_path / "x", "--url", url) == 3
    assert content(tmp_path / "x") == {}
    error = capsys.readouterr().err
    assert f"{url}/train.de.gz is not the file that was recorded" in error
    assert "hint: " in error


def test_a_missing_file_and_a_silent_server_say_what_else_can_be_done(script, server, tmp_path, capsys):
    folder, url = server
    (folder / "train.de.gz").unlink()
    for address in (url, "http://127.0.0.1:1"):
        assert get(script, tmp_path / "x", "--url", address) == 5
        error = capsys.readouterr().err
        assert f"{address}/train.de.gz cannot be fetched" in error
        assert "TX_MULTI30K" in error
    assert content(tmp_path / "x") == {}


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_that_has_them_serves_without_a_network(script, tmp_path, monkeypatch, packed):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(text) if packed else text)
    monkeypatch.setenv("TX_MULTI30K", str(folder))
    assert get(script, tmp_path / "x", "--url", "http://127.0.0.1:1") == 0
    assert content(tmp_path / "x") == TEXTS


def test_a_folder_that_lacks_one_is_named(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TX_MULTI30K", str(tmp_path / "nowhere"))
    assert get(script, tmp_path / "x") == 3
    assert f"{tmp_path / 'nowhere' / 'train.de'} cannot be read" in capsys.readouterr().err


def test_the_recorded_hashes_are_those_of_the_files_that_the_preset_reads(script):
    """Where the real files are at hand, they are what is recorded; the names are always the preset's."""
    preset = (SCRIPT.parents[1] / "configs" / "multi30k-de-en.yaml").read_text(encoding="utf-8")
    for name in script.SHA256:
        assert f"data/multi30k/{name.rpartition('.')[0]}\n" in preset
    folder = Path(os.environ.get("TX_MULTI30K", SCRIPT.parents[2] / "shared" / "data" / "multi30k"))
    there = {name: folder / name for name in script.SHA256 if (folder / name).is_file()}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == {
        name: script.SHA256[name] for name in there
    }
