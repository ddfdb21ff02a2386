"""scripts/get_corpus, against a server of our own with tiny stand-ins."""

from __future__ import annotations

import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import re
import socket
import struct
import subprocess
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from transformer_cli.cli.app import main
from transformer_cli.errors import DataError

SCRIPT = Path(__file__).parents[1] / "scripts" / "get_corpus"
TEXTS = {"train.de": b"ein hund\n", "train.en": b"a dog\n", "val.de": b"eine katze\n", "val.en": b"a cat\n"}
SHA256 = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}


ASKED: list[str] = []
TALKS = "TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"
"""Of the test, in this order."""


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self):
        ASKED.append(self.path)
        super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def script():
    loader = importlib.machinery.SourceFileLoader("get_corpus", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_corpus", loader))
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
    fetched = [script.Fetched(f"{name}.gz", "sha256", digest, 1000) for name, digest in SHA256.items()]
    corpora = {"multi30k": script.Corpus("http://127.0.0.1:1", fetched, "multi30k-de-en.yaml")}
    return script.main(["multi30k", "--into", str(into), *arguments], corpora)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_the_files_are_fetched_unpacked_and_checked(script, server, tmp_path):
    assert get(script, tmp_path / "data/multi30k", "--url", server[1]) == 0
    assert content(tmp_path / "data/multi30k") == TEXTS


def test_files_that_are_not_packed_are_fetched_as_they_are(script, server, tmp_path, monkeypatch):
    """One that is, is none of them; and a folder that has them may have them packed."""
    folder, url = server
    for name, text in TEXTS.items():
        (folder / f"{name}.lc").write_bytes(text)
    fetched = [script.Fetched(f"{name}.lc", "sha256", digest, 1000) for name, digest in SHA256.items()]
    corpora = {"a-b": script.Corpus("http://127.0.0.1:1", fetched, "x.yaml")}
    expected = {f"{name}.lc": text for name, text in TEXTS.items()}
    assert script.main(["a-b", "--into", str(tmp_path / "x"), "--url", url], corpora) == 0
    assert content(tmp_path / "x") == expected
    (folder / "val.en.lc").write_bytes(gzip.compress(TEXTS["val.en"]))
    assert script.main(["a-b", "--into", str(tmp_path / "y"), "--url", url], corpora) == 3
    for name, text in TEXTS.items():
        (folder / f"{name}.lc").unlink()
        (folder / f"{name}.lc.gz").write_bytes(gzip.compress(text))
    monkeypatch.setenv("TX_A_B", str(folder))
    assert script.main(["a-b", "--into", str(tmp_path / "z")], corpora) == 0
    assert content(tmp_path / "z") == expected


def test_what_is_there_and_right_is_not_fetched_again(script, server, tmp_path, capsys):
    get(script, tmp_path / "x", "--url", server[1])
    ASKED.clear()
    capsys.readouterr()
    assert get(script, tmp_path / "x", "--url", server[1]) == 0
    assert ASKED == []
    assert "all is there already, and right" in capsys.readouterr().out
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
    presets = SCRIPT.parents[1] / "configs"
    for corpus, preset, names in (
        ("multi30k", "multi30k-de-en", script.MULTI30K),
        ("multi30k-tok", "multi30k-tok-both", script.MULTI30K_TOK),
    ):
        said = (presets / f"{preset}.yaml").read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"data/{corpus}/{re.escape(name.rpartition('.')[0])}\b(?!\.)", said)
    folder = Path(os.environ.get("TX_MULTI30K", SCRIPT.parents[2] / "shared" / "data" / "multi30k"))
    there = {name: folder / name for name in script.MULTI30K if (folder / name).is_file()}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == {
        name: script.MULTI30K[name] for name in there
    }


def packed(path, files):
    """An archive with these files, by their names in it."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


def test_a_preset_without_its_text_names_the_command_that_fetches_it(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, corpus in script.CORPORA.items():
        with pytest.raises(DataError, match="does not exist") as caught:
            main(["train", "-c", corpus.preset, "--dry-run"])
        assert caught.value.hint == f"scripts/get_corpus {name}, in a clone of tx, fetches it"


def stand_in(script, name, folder, archives):
    """That corpus with archives of our own, served, and their hashes."""
    fetched = []
    for real in script.CORPORA[name].fetched:
        packed(folder / real.name, archives[real.name])
        digest = hashlib.new(real.algorithm, (folder / real.name).read_bytes()).hexdigest()
        fetched.append(script.Fetched(real.address, real.algorithm, digest, 100_000))
    real = script.CORPORA[name]
    return {name: script.Corpus(real.home, fetched, real.preset, real.make)}


def talks(side):
    """As WIT3 has them: what is said of a talk, then the talk; a line of it is empty on one side."""
    said = "".join(f" {side} line {number} \n" for number in range(50))
    about = "<url>http://x</url>\n<keywords>a, b</keywords>\n<speaker>A</speaker>\n<talkid>1</talkid>\n"
    text = f"{about}<title>{side} title</title>\n<description>{side}: of it</description>\n{said}"
    tests = {
        f"de-en/IWSLT14.{part}.de-en.{side}.xml": f'<doc>\n<seg id="1"> {side} {part} </seg>\n</doc>\n'.encode()
        for part in TALKS
    }
    blank = text.replace(" de line 7 ", "")
    return {f"de-en/train.tags.de-en.{side}": blank.encode(), **tests}


def test_talks_are_divided_as_others_divide_them(script, server, tmp_path):
    folder, url = server
    corpora = stand_in(script, "iwslt14", folder, {"de-en.tgz": talks("de") | talks("en")})
    assert script.main(["iwslt14", "--into", str(tmp_path / "x"), "--url", url], corpora) == 0
    made = {name: text.decode().splitlines() for name, text in content(tmp_path / "x").items()}
    everything = ["en title", "en: of it", *(f"en line {number}" for number in range(50))]
    assert made["valid.en"] == [everything[22], everything[45]]  # lines 23 and 46 of 52
    assert made["train.en"] == [line for line in everything if line not in made["valid.en"]]
    assert made["train.de"] == ["" if line == "en line 7" else line.replace("en", "de", 1) for line in made["train.en"]]
    assert made["test.de"] == [f"de {part}" for part in TALKS]
    assert sorted(made) == sorted(
        [script.SUMS, *(f"{p}.{s}" for p in ("train", "valid", "test") for s in ("de", "en"))]
    )
    check = subprocess.run(["sha256sum", "--check", "--quiet", script.SUMS], cwd=tmp_path / "x", check=False)
    assert check.returncode == 0


def news():
    both = ("de", "en")
    training = {
        "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en.{}",
        "training-parallel-commoncrawl.tgz": "commoncrawl.de-en.{}",
        "training-parallel-nc-v9.tgz": "training/news-commentary-v9.de-en.{}",
        "dev.tgz": "dev/newstest2013.{}",
    }
    made = {archive: {name.format(side): f"{side} {archive}\n".encode() for side in both}
            for archive, name in training.items()}  # fmt: skip
    made["training-parallel-commoncrawl.tgz"]["commoncrawl.fr-en.en"] = b"not asked for\n"
    sgm = '<refset>\n<doc><p>\n<seg id="1">{0} A &amp; B</seg>\n<seg id="2"> {0} two </seg>\n</p></doc>\n'
    made["test-full.tgz"] = {
        f"test-full/newstest2014-deen-{half}.{side}.sgm": sgm.format(side).encode()
        for side, half in (("de", "ref"), ("en", "src"))
    }
    return made


def test_news_lie_as_their_preset_reads_them_and_archives_are_not_kept(script, server, tmp_path, capsys):
    folder, url = server
    corpora = stand_in(script, "wmt14", folder, news())
    assert script.main(["wmt14", "--into", str(tmp_path / "x"), "--url", url], {**corpora}) == 0
    made = content(tmp_path / "x")
    assert made["newstest2014.en"] == b"en A &amp; B\nen two\n"  # as `sacrebleu --echo` prints it
    assert made["europarl-v7.de-en.de"] == b"de training-parallel-europarl-v7.tgz\n"
    assert len(made) == 11
    preset = (SCRIPT.parents[1] / "configs" / "wmt14-en-de.yaml").read_text(encoding="utf-8")
    for name in made.keys() - {script.SUMS}:
        assert re.search(rf"data/wmt14/{re.escape(name.rpartition('.')[0])}\b", preset)
    ASKED.clear()
    capsys.readouterr()
    assert script.main(["wmt14", "--into", str(tmp_path / "x"), "--url", url], corpora) == 0
    assert ASKED == []
    assert "all is there already" in capsys.readouterr().out


def test_an_archive_that_is_another_one_is_not_opened(script, server, tmp_path, capsys):
    folder, url = server
    corpora = stand_in(script, "wmt14", folder, news())
    (folder / "dev.tgz").write_bytes((folder / "dev.tgz").read_bytes()[:-1] + b"!")
    assert script.main(["wmt14", "--into", str(tmp_path / "x"), "--url", url], corpora) == 3
    assert "dev.tgz is not the file that was recorded" in capsys.readouterr().err
    kept = [path.name for path in (tmp_path / "x" / "archives").iterdir()]
    assert sorted(kept) == [f"training-parallel-{kind}.tgz" for kind in ("commoncrawl", "europarl-v7", "nc-v9")]
    packed(folder / "dev.tgz", news()["dev.tgz"])
    corpora["wmt14"].fetched[3].digest = hashlib.sha256((folder / "dev.tgz").read_bytes()).hexdigest()
    ASKED.clear()
    assert script.main(["wmt14", "--into", str(tmp_path / "x"), "--url", url], corpora) == 0
    assert ASKED == ["/dev.tgz", "/test-full.tgz"]  # the others were there


@pytest.mark.parametrize("name", ["multi30k", "iwslt14"])
@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nhalf of it",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nhalf of it",
        b"no HTTP at all\r\n\r\n",
        b"",
    ],
    ids=["a broken chunk", "half of it", "no HTTP", "nothing"],
)
def test_what_breaks_on_the_way_is_the_networks(script, tmp_path, monkeypatch, capsys, name, said):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TX_MULTI30K", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as asked:
                asked.recv(10_000)
                asked.sendall(said)
                reset = struct.pack("ii", 1, 0)
                asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)  # ends as a connection that broke

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        code = script.main([name, "--into", str(tmp_path / "x"), "--url", url], script.CORPORA)
        thread.join()
    error = capsys.readouterr().err
    assert code in (3, 5), error  # half of a file is another one
    assert "cannot be fetched: " in error or "is not the file that was recorded" in error
    assert "make room" not in error
    assert not [*tmp_path.glob("x/**/*.*")]


def test_archives_that_an_interruption_left_are_taken_away_later(script, server, tmp_path):
    folder, url = server
    corpora = stand_in(script, "iwslt14", folder, {"de-en.tgz": talks("de") | talks("en")})
    assert script.main(["iwslt14", "--into", str(tmp_path / "x"), "--url", url], corpora) == 0
    (tmp_path / "x" / "archives").mkdir()
    (tmp_path / "x" / "archives" / "de-en.tgz").write_bytes(b"left")
    assert script.main(["iwslt14", "--into", str(tmp_path / "x"), "--url", url], corpora) == 0
    assert not (tmp_path / "x" / "archives").exists()
